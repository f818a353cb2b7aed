"""SaslHandshake (key 17), versions 0-1."""

from kce.wire.primitives import INT16, STRING
from kce.wire.schema import Message, field, request, response

__all__ = ["SaslHandshakeRequest", "SaslHandshakeResponse"]


@request(api_key=17, versions="0-1", flexible="none")
class SaslHandshakeRequest(Message):
    mechanism: str = field(STRING, "0+")


@response(api_key=17, versions="0-1", flexible="none")
class SaslHandshakeResponse(Message):
    error_code: int = field(INT16, "0+")
    mechanisms: tuple[str, ...] = field([STRING], "0+")
