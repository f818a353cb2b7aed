"""A test of a dissector: bytes of every version of the control requests, and what must be found in them.

    pytest examples/test_dissector.py

The dissector here knows request headers only; replace `dissect` with yours, and compare more fields: `message` has all
of them. `kce schema LeaderAndIsr 7` shows its fields, types and offsets.
"""

import struct
from uuid import UUID

import pytest

from kce import wire

ID = UUID("12345678-1234-4678-9234-567812345678")


def dissect(frame: bytes) -> dict[str, object]:
    """The fields of a request's header. A client id is a nullable string, in flexible versions too."""
    api_key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
    client_id = None if length < 0 else frame[10 : 10 + length].decode()
    return {"api_key": api_key, "version": version, "correlation_id": correlation_id, "client_id": client_id}


def leader_and_isr(version: int) -> wire.LeaderAndIsrRequest:
    state = wire.LeaderAndIsrPartitionState(
        topic_name="orders" if version < 2 else "", partition_index=3, controller_epoch=7, leader=2, leader_epoch=5,
        isr=(2, 1), partition_epoch=9, replicas=(1, 2, 3),
    )  # fmt: skip
    grouped = (wire.LeaderAndIsrTopicState(topic_name="orders", topic_id=ID, partition_states=(state,)),)
    return wire.LeaderAndIsrRequest(
        controller_id=1, controller_epoch=7, broker_epoch=77 if version >= 2 else -1,
        ungrouped_partition_states=(state,) if version < 2 else (), topic_states=grouped if version >= 2 else (),
    )  # fmt: skip


@pytest.mark.parametrize("client_id", ["1", "ünï", "", None])
@pytest.mark.parametrize("version", wire.api(4).versions)
def test_the_header_of_every_version(version, client_id):
    message = leader_and_isr(version)
    frame = wire.encode_request(message, api_version=version, correlation_id=42, client_id=client_id)
    expected = {"api_key": 4, "version": version, "correlation_id": 42, "client_id": client_id}
    assert dissect(frame) == expected
    _, decoded = wire.decode_request(frame)
    assert decoded.controller_epoch == message.controller_epoch
