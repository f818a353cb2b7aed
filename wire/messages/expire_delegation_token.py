"""ExpireDelegationToken (key 40), versions 0-2."""

from kce.wire.primitives import BYTES, INT16, INT32, INT64
from kce.wire.schema import Message, field, request, response

__all__ = ["ExpireDelegationTokenRequest", "ExpireDelegationTokenResponse"]


@request(api_key=40, versions="0-2", flexible="2+")
class ExpireDelegationTokenRequest(Message):
    hmac: bytes = field(BYTES, "0+")
    expiry_time_period_ms: int = field(INT64, "0+")


@response(api_key=40, versions="0-2", flexible="2+")
class ExpireDelegationTokenResponse(Message):
    error_code: int = field(INT16, "0+")
    expiry_timestamp_ms: int = field(INT64, "0+")
    throttle_time_ms: int = field(INT32, "0+")
