"""Requests as builders make them and errors as brokers answer them, through their bytes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kce import wire
from kce.broker_stub.handlers.kafka_apis import HANDLERS
from kce.broker_stub.reactor import ConnectionContext, RequestContext
from kce.wire import ErrorCode

T_ID, U_ID = uuid.UUID(int=0xA), uuid.UUID(int=0xB)


def through_bytes(message: wire.Message, version: int) -> Any:
    """The request as its receiver reads it."""
    frame = wire.encode_request(message, api_version=version, correlation_id=1, client_id="c")
    return wire.decode_request(frame)[1]


def size(message: wire.Message, version: int) -> int:
    return len(wire.encode_request(message, api_version=version, correlation_id=1, client_id="c"))


def error_response(request: wire.Message, version: int, error: ErrorCode) -> Any:
    """What a broker answers to the request when it fails as a whole (rule 9.4), as the controller reads it."""
    header = wire.Header(api_key=request.__api_key__, api_version=version, correlation_id=1, client_id="c")
    handler = next(h for h in HANDLERS if h.api_key == request.__api_key__)
    context = RequestContext(header, ConnectionContext("connection", "CONTROL", "127.0.0.1"))
    answer = handler.error_response(through_bytes(request, version), context, error)
    assert answer is not None
    frame = wire.encode_response(answer, api_version=version, correlation_id=1)
    return wire.decode_response(frame, api_key=request.__api_key__, api_version=version)[1]


def assert_unsupported(message: wire.Message) -> None:
    """The version after the last is neither written nor read."""
    beyond = message.__versions__.last + 1
    with pytest.raises(wire.UnsupportedVersion):
        wire.encode_request(message, api_version=beyond, correlation_id=1, client_id="c")
    frame = bytearray(wire.encode_request(message, api_version=beyond - 1, correlation_id=1, client_id="c"))
    frame[2:4] = beyond.to_bytes(2, "big")
    with pytest.raises(wire.UnsupportedVersion):
        wire.decode_request(bytes(frame))
