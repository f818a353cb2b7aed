"""Envelope (key 58), versions 0."""

from kce.wire.primitives import BYTES, INT16
from kce.wire.schema import Message, field, request, response

__all__ = ["EnvelopeRequest", "EnvelopeResponse"]


@request(api_key=58, versions="0", flexible="0+")
class EnvelopeRequest(Message):
    request_data: bytes = field(BYTES, "0+")
    request_principal: bytes | None = field(BYTES, "0+", nullable="0+")
    client_host_address: bytes = field(BYTES, "0+")


@response(api_key=58, versions="0", flexible="0+")
class EnvelopeResponse(Message):
    response_data: bytes | None = field(BYTES, "0+", default=None, nullable="0+")
    error_code: int = field(INT16, "0+")
