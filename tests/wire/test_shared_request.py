"""A request encoded once for many brokers equals the request encoded for each of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kce import wire
from kce.wire.shared_request import SharedRequest
from tests.wire.strategies import messages

CONTROL = [
    (cls, version)
    for cls in (wire.LeaderAndIsrRequest, wire.StopReplicaRequest, wire.UpdateMetadataRequest)
    for version in range(cls.__versions__.first, cls.__versions__.last + 1)
]


@pytest.mark.parametrize(("cls", "version"), CONTROL, ids=lambda x: x if isinstance(x, int) else x.__name__)
@given(data=st.data(), correlation_id=st.integers(0, 2**31 - 1), broker_epoch=st.integers(-1, 2**63 - 1))
@settings(max_examples=5, deadline=None)
def test_shared_request_equals_individual_requests(
    cls: Any, version: int, data: st.DataObject, correlation_id: int, broker_epoch: int
) -> None:
    message = data.draw(messages(cls, version))
    shared = SharedRequest(message, api_version=version, client_id="1")
    got = shared.start(correlation_id=correlation_id, broker_epoch=broker_epoch) + shared.rest
    alone = dataclasses.replace(message, broker_epoch=broker_epoch)
    assert got == wire.encode_request(alone, api_version=version, correlation_id=correlation_id, client_id="1")
    assert len(shared) == len(got)


def test_rest_is_shared() -> None:
    shared = SharedRequest(wire.UpdateMetadataRequest(), api_version=8, client_id="1")
    assert shared.rest is shared.rest
    assert len(shared.start(correlation_id=1, broker_epoch=2)) < 40


def test_values_out_of_range_are_rejected() -> None:
    shared = SharedRequest(wire.UpdateMetadataRequest(), api_version=8, client_id="1")
    with pytest.raises(wire.EncodeError, match="UpdateMetadataRequest 8"):
        shared.start(correlation_id=1, broker_epoch=2**63)
    with pytest.raises(wire.UnsupportedVersion):
        SharedRequest(wire.UpdateMetadataRequest(), api_version=9, client_id="1")
