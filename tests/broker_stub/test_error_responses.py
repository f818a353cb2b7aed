"""What each API answers when its request fails as a whole (rules 9.4, B1.41)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kce import wire
from kce.broker_stub.handlers.base import Handler
from kce.broker_stub.handlers.kafka_apis import HANDLERS
from kce.broker_stub.reactor.request import ConnectionContext, RequestContext
from kce.wire import ErrorCode
from tests.wire.strategies import messages

CODE = ErrorCode.KAFKA_STORAGE_ERROR


def error_codes(value: Any, version: int) -> Iterator[int]:
    """Those that this version has."""
    if isinstance(value, tuple):
        for one in value:
            yield from error_codes(one, version)
    for field in getattr(value, "__fields__", ()):
        if version in field.versions:
            found = getattr(value, field.name)
            yield from [found] if field.name == "error_code" else error_codes(found, version)


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda handler: handler.request.__name__)
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_every_code_of_an_error_response_is_the_error(handler: Handler[Any], data: st.DataObject) -> None:
    version = data.draw(st.integers(*handler.request.__versions__))
    message = data.draw(messages(handler.request, version))
    header = wire.Header(handler.api_key, version, 5, "test")
    context = RequestContext(header, ConnectionContext("connection", "DATA", "127.0.0.1"))
    response = handler.error_response(message, context, CODE)
    if response is None:  # rule B1.41: the connection is closed, or nothing was expected
        return
    sent = wire.encode_response(response, api_version=version, correlation_id=5)
    _, received = wire.decode_response(sent, api_key=handler.api_key, api_version=version)
    assert set(error_codes(received, version)) <= {CODE}
