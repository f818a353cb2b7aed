"""Encode and decode any message, request or response."""

from __future__ import annotations

from kce import wire
from kce.wire.registry import api

CLIENT_ID = "me"


def encode(message: wire.Message, version: int, correlation_id: int = 7) -> bytes:
    if message.__direction__ == "request":
        return wire.encode_request(message, api_version=version, correlation_id=correlation_id, client_id=CLIENT_ID)
    return wire.encode_response(message, api_version=version, correlation_id=correlation_id)


def decode(frame: bytes, cls: type[wire.Message], version: int) -> wire.Message:
    if cls.__direction__ == "request":
        return wire.decode_request(frame)[1]
    return wire.decode_response(frame, api_key=cls.__api_key__, api_version=version)[1]


def header_bytes(cls: type[wire.Message], version: int) -> int:
    """How long the header is that ``encode`` writes."""
    known = api(cls.__api_key__)
    if cls.__direction__ == "response":
        return 4 + known.response_header_version(version)
    header = known.request_header_version(version)
    return {0: 8, 1: 10 + len(CLIENT_ID), 2: 11 + len(CLIENT_ID)}[header]
