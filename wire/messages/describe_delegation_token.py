"""DescribeDelegationToken (key 41), versions 0-3."""

from kce.wire.primitives import BYTES, INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "DescribeDelegationTokenOwner",
    "DescribeDelegationTokenRequest",
    "DescribeDelegationTokenResponse",
    "DescribedDelegationToken",
    "DescribedDelegationTokenRenewer",
]


@struct
class DescribeDelegationTokenOwner(Struct):
    principal_type: str = field(STRING, "0+")
    principal_name: str = field(STRING, "0+")


@request(api_key=41, versions="0-3", flexible="2+")
class DescribeDelegationTokenRequest(Message):
    owners: tuple[DescribeDelegationTokenOwner, ...] | None = field([DescribeDelegationTokenOwner], "0+", nullable="0+")


@struct
class DescribedDelegationTokenRenewer(Struct):
    principal_type: str = field(STRING, "0+")
    principal_name: str = field(STRING, "0+")


@struct
class DescribedDelegationToken(Struct):
    principal_type: str = field(STRING, "0+")
    principal_name: str = field(STRING, "0+")
    token_requester_principal_type: str = field(STRING, "3+")
    token_requester_principal_name: str = field(STRING, "3+")
    issue_timestamp: int = field(INT64, "0+")
    expiry_timestamp: int = field(INT64, "0+")
    max_timestamp: int = field(INT64, "0+")
    token_id: str = field(STRING, "0+")
    hmac: bytes = field(BYTES, "0+")
    renewers: tuple[DescribedDelegationTokenRenewer, ...] = field([DescribedDelegationTokenRenewer], "0+")


@response(api_key=41, versions="0-3", flexible="2+")
class DescribeDelegationTokenResponse(Message):
    error_code: int = field(INT16, "0+")
    tokens: tuple[DescribedDelegationToken, ...] = field([DescribedDelegationToken], "0+")
    throttle_time_ms: int = field(INT32, "0+")
