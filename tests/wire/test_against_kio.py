"""Every message of every version: our bytes are kio's bytes, and decode back to the same message."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wire
from tests.wire.kio_oracle import kio_body
from tests.wire.strategies import MESSAGE_IDS, MESSAGES, messages
from wire.registry import api


def _header_bytes(frame: bytes, cls: type[wire.Message], version: int) -> int:
    known = api(cls.__api_key__)
    if cls.__direction__ == "response":
        return 4 + known.response_header_version(version)
    header = known.request_header_version(version)
    return {0: 8, 1: 8 + 2 + 2, 2: 8 + 2 + 2 + 1}[header]


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=MESSAGE_IDS)
@given(data=st.data(), correlation_id=st.integers(-(2**31), 2**31 - 1))
@settings(max_examples=8, deadline=None)
def test_bytes_equal_kio_and_decode_back(
    cls: type[wire.Message], version: int, data: st.DataObject, correlation_id: int
) -> None:
    message = data.draw(messages(cls, version))
    if cls.__direction__ == "request":
        frame = wire.encode_request(message, api_version=version, correlation_id=correlation_id, client_id="me")
        header, decoded = wire.decode_request(frame)
        has_client_id = (cls.__api_key__, version) != (7, 0)  # rule 13.4
        assert header.client_id == ("me" if has_client_id else None)
    else:
        frame = wire.encode_response(message, api_version=version, correlation_id=correlation_id)
        header, decoded = wire.decode_response(frame, api_key=cls.__api_key__, api_version=version)
    assert decoded == message
    assert (header.api_key, header.api_version, header.correlation_id) == (cls.__api_key__, version, correlation_id)
    assert frame[_header_bytes(frame, cls, version) :] == kio_body(message, version)
