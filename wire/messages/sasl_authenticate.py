"""SaslAuthenticate (key 36), versions 0-2."""

from kce.wire.primitives import BYTES, INT16, INT64, STRING
from kce.wire.schema import Message, field, request, response

__all__ = ["SaslAuthenticateRequest", "SaslAuthenticateResponse"]


@request(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest(Message):
    auth_bytes: bytes = field(BYTES, "0+")


@response(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse(Message):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")
    auth_bytes: bytes = field(BYTES, "0+")
    session_lifetime_ms: int = field(INT64, "1+", ignorable=True)
