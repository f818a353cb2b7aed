"""CreateDelegationToken (key 38), versions 0-3."""

from kce.wire.primitives import BYTES, INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = ["CreatableRenewers", "CreateDelegationTokenRequest", "CreateDelegationTokenResponse"]


@struct
class CreatableRenewers(Struct):
    principal_type: str = field(STRING, "0+")
    principal_name: str = field(STRING, "0+")


@request(api_key=38, versions="0-3", flexible="2+")
class CreateDelegationTokenRequest(Message):
    owner_principal_type: str | None = field(STRING, "3+", nullable="3+")
    owner_principal_name: str | None = field(STRING, "3+", nullable="3+")
    renewers: tuple[CreatableRenewers, ...] = field([CreatableRenewers], "0+")
    max_lifetime_ms: int = field(INT64, "0+")


@response(api_key=38, versions="0-3", flexible="2+")
class CreateDelegationTokenResponse(Message):
    error_code: int = field(INT16, "0+")
    principal_type: str = field(STRING, "0+")
    principal_name: str = field(STRING, "0+")
    token_requester_principal_type: str = field(STRING, "3+")
    token_requester_principal_name: str = field(STRING, "3+")
    issue_timestamp_ms: int = field(INT64, "0+")
    expiry_timestamp_ms: int = field(INT64, "0+")
    max_timestamp_ms: int = field(INT64, "0+")
    token_id: str = field(STRING, "0+")
    hmac: bytes = field(BYTES, "0+")
    throttle_time_ms: int = field(INT32, "0+")
