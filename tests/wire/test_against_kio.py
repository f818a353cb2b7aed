"""Every message of every version encodes to the same bytes as kio's, and decodes to an equal message."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kce import wire
from tests.wire import seeded
from tests.wire.frames import CLIENT_ID, header_bytes
from tests.wire.kio_oracle import kio_body
from tests.wire.strategies import MESSAGE_IDS, MESSAGES


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=MESSAGE_IDS)
@given(seed=st.integers(0, 2**64 - 1), correlation_id=st.integers(-(2**31), 2**31 - 1))
@settings(max_examples=8, deadline=None)
def test_bytes_equal_kio_and_decode_back(cls: type[wire.Message], version: int, seed: int, correlation_id: int) -> None:
    message = seeded.message(random.Random(seed), cls, version, kio=True)
    if cls.__direction__ == "request":
        frame = wire.encode_request(message, api_version=version, correlation_id=correlation_id, client_id=CLIENT_ID)
        header, decoded = wire.decode_request(frame)
        has_client_id = (cls.__api_key__, version) != (7, 0)  # rule 13.4
        assert header.client_id == (CLIENT_ID if has_client_id else None)
    else:
        frame = wire.encode_response(message, api_version=version, correlation_id=correlation_id)
        header, decoded = wire.decode_response(frame, api_key=cls.__api_key__, api_version=version)
    assert decoded == message
    assert (header.api_key, header.api_version, header.correlation_id) == (cls.__api_key__, version, correlation_id)
    assert frame[header_bytes(cls, version) :] == kio_body(message, version)
