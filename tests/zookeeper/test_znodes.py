"""The content of Kafka's nodes (section 1 of docs/controller-semantics.md)."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest

from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper import znodes
from kce.zookeeper.model import (
    RECOVERING,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderAndIsr,
    Leadership,
    ReplicaAssignment,
)
from tests.controller.conformance.bench import ids
from tests.controller.support import broker


def test_broker_nodes_that_are_written_in_other_ways() -> None:  # rules 1.15-1.19
    address = znodes.decode_broker(1, b'{"version":5,"endpoints":["PLAINTEXT://[::1]:9092"]}')
    assert address.endpoints == (Endpoint("PLAINTEXT", "PLAINTEXT", "::1", 9092),)
    for bad in (b"", b"[]", b'{"version":0}', b'{"version":4}', b'{"version":4,"endpoints":["nonsense"]}'):
        with pytest.raises(znodes.BadZNode, match="/brokers/ids/1"):
            znodes.decode_broker(1, bad)


def test_broker_nodes_as_we_write_them() -> None:
    node = json.loads(znodes.encode_broker(broker(3, rack="r"), MetadataVersion.parse("3.9"), 77))
    assert node == {
        "version": 5, "host": "127.0.0.1", "port": 1003, "jmx_port": -1, "timestamp": "77", "rack": "r", "features": {},
        "endpoints": ["CONTROL://127.0.0.1:1003", "DATA://127.0.0.1:2003"],
        "listener_security_protocol_map": {"CONTROL": "PLAINTEXT", "DATA": "PLAINTEXT"},
    }  # fmt: skip
    old = json.loads(znodes.encode_broker(broker(3, rack="r"), MetadataVersion.parse("0.9.0"), 77))
    assert old["version"] == 2
    assert not {"rack", "listener_security_protocol_map", "features"} & old.keys()


def test_topic_nodes() -> None:  # rules 1.25, 1.26
    topic_id = uuid.UUID(int=2**127 + 5)
    moving = ReplicaAssignment(ids(4, 1), ids(4), ids(1))
    data = znodes.encode_topic(topic_id, {0: ReplicaAssignment(ids(1, 2)), 1: moving})
    assert json.loads(data) == {
        "version": 3,
        "partitions": {"0": [1, 2], "1": [4, 1]},
        "adding_replicas": {"1": [4]},
        "removing_replicas": {"1": [1]},
        "topic_id": znodes.encode_topic_id(topic_id),
    }
    assert len(znodes.encode_topic_id(topic_id)) == 22
    back = znodes.decode_topic("t", data)
    assert (back.topic_id, back.partitions) == (topic_id, {0: ReplicaAssignment(ids(1, 2)), 1: moving})
    old = znodes.decode_topic("t", b'{"version":1,"partitions":{"10":[1],"2":[3]}}')
    assert (old.topic_id, list(old.partitions)) == (None, [2, 10])
    assert znodes.decode_topic("t", b"rubbish").partitions == {}


@pytest.mark.parametrize(("adding", "removing"), [(ids(4), ()), ((), ids(1)), (ids(4), ids(1))])
def test_partitions_that_are_being_reassigned(adding: tuple[BrokerId, ...], removing: tuple[BrokerId, ...]) -> None:
    moving = ReplicaAssignment(ids(4, 1), adding, removing)
    partitions = {0: ReplicaAssignment(ids(4, 1)), 1: moving, 2: ReplicaAssignment(ids(4, 1))}
    assert znodes.decode_topic("t", znodes.encode_topic(None, partitions)).partitions == partitions


def test_a_broker_that_is_only_a_controller() -> None:
    for only in (False, True):
        node = znodes.encode_broker(replace(broker(3), controller_only=only), MetadataVersion.parse("3.9"), 77)
        assert znodes.decode_broker(3, node).controller_only is only


def test_partition_states() -> None:  # rule 1.28
    recovering = Leadership(LeaderAndIsr(BrokerId(2), ids(2), 4, RECOVERING, 9), ControllerEpoch(3))
    data = znodes.encode_partition_state(recovering)
    assert json.loads(data)["leader_recovery_state"] == 1
    assert znodes.decode_partition_state(data, 9) == recovering
    for bad in (b"", b"{}", b'{"leader":"x"}', b"[1]"):
        assert znodes.decode_partition_state(bad, 0) is None


def test_controller_nodes_of_every_age() -> None:  # rules 1.9, 1.10
    for data, expected in (
        (b'{"version":1,"brokerid":5,"timestamp":"1"}', 5),
        (znodes.encode_controller(6, 1), 6),
        (b"7", 7),
        (b"not json", None),
    ):
        assert znodes.decode_controller(data) == expected
    with pytest.raises(znodes.BadZNode):
        znodes.decode_controller(b'{"version":2}')
