"""The content of Kafka's nodes (section 1 of docs/controller-semantics.md).

Covers: zookeeper/cluster_nodes.py.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest

from kce.wire.metadata_version import MetadataVersion
from kce.wire.vocabulary import TopicPartition
from kce.zookeeper import cluster_nodes, node_json, znodes
from kce.zookeeper.model import (
    RECOVERING,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderAndIsr,
    Leadership,
    ProducerIdsBlock,
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
    six = replace(broker(3), endpoints=(Endpoint("DATA", "PLAINTEXT", "::1", 9092),))
    node = json.loads(znodes.encode_broker(six, MetadataVersion.parse("3.9"), 77))
    assert (node["host"], node["endpoints"]) == ("::1", ["DATA://[::1]:9092"])  # as Kafka writes it
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


def test_the_controller_of_a_migration() -> None:  # rule 1.11
    assert znodes.kraft_controller_epoch(b'{"kraftControllerEpoch":7}') == 7
    assert json.loads(znodes.encode_controller(6, 1)) == {
        "version": 2, "brokerid": 6, "timestamp": "1", "kraftControllerEpoch": -1,
    }  # fmt: skip
    for none in (znodes.encode_controller(6, 1), b'{"brokerid":1}', b"1", b"rubbish", b'{"kraftControllerEpoch":"7"}'):
        assert znodes.kraft_controller_epoch(none) == -1


def test_controller_epochs() -> None:  # rule 1.13
    for epoch in (0, 1, 2**31 - 1, -1, -(2**31)):
        assert znodes.decode_controller_epoch(znodes.encode_controller_epoch(epoch)) == epoch
    for bad in (b"", b"x", b"1.0", b"2147483648", b"-2147483649", b"\xff", b"1" * 21, "\u0661".encode()):
        with pytest.raises(znodes.BadZNode, match="/controller_epoch"):
            znodes.decode_controller_epoch(bad)


def registration(**fields: object) -> bytes:
    """A registration with other fields, without those that are ``...``."""
    node = {
        "version": 5, "host": "h", "port": 1, "rack": "r", "features": {"f": {"min_version": 0, "max_version": 32767}},
        "endpoints": ["data://h:65535"], "listener_security_protocol_map": {"Data": "ssl"},
    }  # fmt: skip
    return json.dumps({name: field for name, field in {**node, **fields}.items() if field is not ...}).encode()


def test_a_registration_at_its_bounds() -> None:  # rules 1.15-1.19
    found = znodes.decode_broker(3, registration())
    assert found.endpoints == (Endpoint("DATA", "SSL", "h", 65535),)
    assert (found.id, found.rack, found.features, found.controller_only) == (3, "r", {"f": (0, 32767)}, False)
    plain = znodes.decode_broker(
        3, registration(rack=None, features=None, listener_security_protocol_map=..., endpoints=["plaintext://h:0"])
    )
    assert (plain.rack, plain.features) == (None, {})
    assert plain.endpoints == (Endpoint("PLAINTEXT", "PLAINTEXT", "h", 0),)
    assert znodes.decode_broker(3, registration(rack="r" * 32767)).rack == "r" * 32767
    assert znodes.decode_broker(3, registration(endpoints=[])).endpoints == ()
    first = znodes.decode_broker(3, registration(version=1, endpoints=..., rack=...))
    assert first.endpoints == (Endpoint("PLAINTEXT", "PLAINTEXT", "h", 1),)
    assert znodes.decode_broker(3, registration(version=1, port=0)).endpoints[0].port == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"version": ...}, {"version": "5"}, {"version": True}, {"version": 0}, {"version": 2**31},
        {"rack": 5}, {"rack": "r" * 32768}, {"rack": "\u00e9" * 16384},
        {"endpoints": ...}, {"endpoints": "data://h:1"}, {"endpoints": {}}, {"endpoints": [5]},
        {"endpoints": ["data:h:1"]}, {"endpoints": ["data://h"]}, {"endpoints": ["data://h:"]},
        {"endpoints": ["data://h:65536"]}, {"endpoints": ["data://h:-1"]}, {"endpoints": ["data://h:1x"]},
        {"endpoints": ["other://h:1"]}, {"listener_security_protocol_map": {"DATA": "nope"}},
        {"listener_security_protocol_map": {"DATA": 5}}, {"listener_security_protocol_map": []},
        {"listener_security_protocol_map": ...},
        {"features": []}, {"features": {"f": 5}}, {"features": {"f": {"min_version": 0}}},
        {"features": {"f": {"max_version": 1}}}, {"features": {"f": {"min_version": -1, "max_version": 1}}},
        {"features": {"f": {"min_version": 1, "max_version": 32768}}}, {"features": {"f" * 32768: None}},
        {"features": {"f": {"min_version": 32768, "max_version": 1}}},
        {"features": {"f": {"min_version": 0, "max_version": -1}}},
        {"version": 1, "port": 65536}, {"version": 1, "port": -1}, {"version": 1, "host": None},
        {"version": 1, "host": ...},
    ],
)  # fmt: skip
def test_a_registration_beyond_its_bounds(fields: dict[str, object]) -> None:  # rules 1.15-1.19
    with pytest.raises(znodes.BadZNode, match="/brokers/ids/3 is malformed"):
        znodes.decode_broker(3, registration(**fields))


def test_a_registration_of_each_version() -> None:  # rules 1.15, 1.16
    one = replace(broker(3, rack="r"), features={"f": (1, 2)})
    ssl = replace(one, endpoints=(Endpoint("A", "SSL", "a", 1), Endpoint("B", "PLAINTEXT", "b", 2)))
    for ibp, version in (("0.9.0", 2), ("0.10.0", 4), ("2.6", 4), ("2.7", 5)):
        node = json.loads(znodes.encode_broker(one, MetadataVersion.parse(ibp), 77, 99))
        assert (node["version"], node["jmx_port"]) == (version, 99)
        assert ("rack" in node, "listener_security_protocol_map" in node) == (version >= 3, version >= 4)
        assert node.get("features") == ({"f": {"min_version": 1, "max_version": 2}} if version == 5 else None)
        assert "rack" not in json.loads(znodes.encode_broker(broker(3), MetadataVersion.parse(ibp), 77))
        node = json.loads(znodes.encode_broker(ssl, MetadataVersion.parse(ibp), 77))
        assert (node["host"], node["port"]) == ("b", 2)
        node = json.loads(
            znodes.encode_broker(replace(ssl, endpoints=ssl.endpoints[:1]), MetadataVersion.parse(ibp), 7)
        )
        assert (node["host"], node["port"]) == (None, -1)


def test_partitions_of_a_topic_beyond_their_bounds() -> None:  # rules 1.25, 1.26
    def decoded(**fields: object) -> dict[int, ReplicaAssignment]:
        return dict(znodes.decode_topic("t", json.dumps({"partitions": {"0": [1, 2]}, **fields}).encode()).partitions)

    both = ReplicaAssignment(ids(1, 2), ids(2), ids(1))
    assert decoded(adding_replicas={"0": [2]}, removing_replicas={"0": [1]}) == {0: both}
    assert decoded(adding_replicas=None, removing_replicas=None, topic_id="") == {0: ReplicaAssignment(ids(1, 2))}
    assert decoded(partitions={"2147483647": [2147483647]}) == {2**31 - 1: ReplicaAssignment(ids(2**31 - 1))}
    assert decoded(partitions={"0": []}) == {0: ReplicaAssignment(())}
    for bad in (
        {"partitions": []}, {"partitions": {"x": [1]}}, {"partitions": {"-1": [1]}},
        {"partitions": {"2147483648": [1]}}, {"partitions": {"0": None}},
        {"partitions": {"0": 1}}, {"partitions": {"0": ["1"]}}, {"partitions": {"0": [2**31]}},
        {"partitions": {"0": [[]]}},
        {"partitions": {"0": [True]}}, {"adding_replicas": []}, {"removing_replicas": {"0": 5}}, {"topic_id": 5},
        {"adding_replicas": {"0": ["2"]}},
    ):  # fmt: skip
        with pytest.raises(znodes.BadZNode, match="/brokers/topics/t is malformed"):
            decoded(**bad)  # type: ignore[arg-type]


def test_partition_states_beyond_their_bounds() -> None:  # rules 1.28, 6.14
    good = {
        "version": 1,
        "leader": -1,
        "leader_epoch": 5,
        "controller_epoch": 2,
        "isr": [1, 2],
        "leader_recovery_state": 0,
    }
    found = znodes.decode_partition_state(json.dumps(good).encode(), 4)
    assert found == Leadership(LeaderAndIsr(BrokerId(-1), ids(1, 2), 5, 0, 4), ControllerEpoch(2))
    assert "leader_recovery_state" not in json.loads(znodes.encode_partition_state(found))
    for bad in (
        {"leader": 2**31}, {"leader": None}, {"isr": None}, {"isr": ["1"]}, {"leader_epoch": 2**31},
        {"leader_epoch": 1.0},
        {"controller_epoch": "2"}, {"leader_recovery_state": 2}, {"leader_recovery_state": -1},
    ):  # fmt: skip
        assert znodes.decode_partition_state(json.dumps({**good, **bad}).encode(), 4) is None
    for missing in ("leader", "isr", "leader_epoch", "controller_epoch"):
        partial = {name: value for name, value in good.items() if name != missing}
        assert znodes.decode_partition_state(json.dumps(partial).encode(), 4) is None


def test_names_that_are_numbers() -> None:
    names = ["3", "0", "2147483647", "2147483648", "-1", "01", "x", "", "1 ", "\u0661", "9" * 21, "-0"]
    assert znodes.numbered(names) == [3, 0, 2**31 - 1]


def test_configuration_nodes() -> None:  # rules 1.34, 1.35
    assert json.loads(cluster_nodes.encode_config({"a": "1"})) == {"version": 1, "config": {"a": "1"}}
    assert cluster_nodes.decode_config("/p", b'{"version":1,"config":{"a":1,"b":"2"}}') == {"a": "1", "b": "2"}
    for empty in (b"", b"rubbish", b"[]", b"{}", b'{"config":null}'):
        assert cluster_nodes.decode_config("/p", empty) == {}
    with pytest.raises(znodes.BadZNode, match="/p is malformed"):
        cluster_nodes.decode_config("/p", b'{"config":[]}')


def test_changes_of_configuration() -> None:  # rule 1.35
    def changed(**fields: object) -> tuple[str, str]:
        return cluster_nodes.decode_config_change("/p", json.dumps(fields).encode())

    assert json.loads(cluster_nodes.encode_config_change("topics", "t")) == {"version": 2, "entity_path": "topics/t"}
    assert changed(version=2, entity_path="topics/t") == ("topics", "t")
    assert changed(version=2, entity_path="users/u/clients/c") == ("users", "u/clients/c")
    assert changed(version=1, entity_type="topics", entity_name="t") == ("topics", "t")
    assert changed(version=1, entity_type="clients", entity_name=5) == ("clients", "5")
    for bad in (
        {}, {"version": 3, "entity_path": "topics/t"}, {"version": 2}, {"version": 2, "entity_path": "topics"},
        {"version": 2, "entity_path": "topics/"}, {"version": 2, "entity_path": 5},
        {"version": 1, "entity_type": "users", "entity_name": "u"}, {"version": 1, "entity_type": "topics"},
        {"version": 1, "entity_path": "topics/t"}, {"version": 2, "entity_type": "topics", "entity_name": "t"},
    ):  # fmt: skip
        with pytest.raises(znodes.BadZNode, match="/p has no configuration change"):
            changed(**bad)


def test_the_cluster_id() -> None:
    assert json.loads(cluster_nodes.encode_cluster_id("x")) == {"version": "1", "id": "x"}
    assert cluster_nodes.decode_cluster_id(cluster_nodes.encode_cluster_id("x")) == "x"
    for bad in (b"", b"[]", b"{}", b'{"id":5}'):
        with pytest.raises(znodes.BadZNode, match="/cluster/id has no id"):
            cluster_nodes.decode_cluster_id(bad)


def test_finalized_features() -> None:  # rule 1.41
    for version in (1, 2):
        for enabled in (True, False):
            data = cluster_nodes.encode_feature(version, enabled=enabled, features={"f": 32767})
            levels = {"max_version_level": 32767} | ({"min_version_level": 1} if version == 1 else {})
            assert json.loads(data) == {"version": version, "status": int(enabled), "features": {"f": levels}}
            assert cluster_nodes.decode_feature(data) == (enabled, {"f": 32767})

    def decoded(version: object = 2, status: object = 1, **levels: object) -> tuple[bool, dict[str, int]]:
        node = {"version": version, "status": status, "features": {"f": levels}}
        return cluster_nodes.decode_feature(json.dumps(node).encode())

    assert decoded(1, 0, min_version_level=32767, max_version_level=32767) == (False, {"f": 32767})
    assert decoded(max_version_level=1) == (True, {"f": 1})
    for bad in (
        {"version": 0, "max_version_level": 1}, {"version": 3, "max_version_level": 1},
        {"status": 2, "max_version_level": 1},
        {"status": -1, "max_version_level": 1}, {}, {"max_version_level": 0}, {"max_version_level": 32768},
        {"max_version_level": "1"}, {"version": 1, "max_version_level": 1},
        {"version": 1, "min_version_level": 0, "max_version_level": 1},
        {"version": 1, "min_version_level": 3, "max_version_level": 2},
        {"version": 1, "min_version_level": 32768, "max_version_level": 32768},
    ):  # fmt: skip
        with pytest.raises(znodes.BadZNode, match="/feature is malformed"):
            decoded(**bad)  # type: ignore[arg-type]
    for rubbish in (b"", b"[]", b"{}", b'{"version":2,"status":1}', b'{"version":2,"status":1,"features":5}'):
        with pytest.raises(znodes.BadZNode, match="/feature is malformed"):
            cluster_nodes.decode_feature(rubbish)


def test_lists_of_partitions() -> None:  # rules 1.32, 1.39
    some = [TopicPartition("t", 2**31 - 1), TopicPartition("u", 0)]
    assert cluster_nodes.decode_partition_list("/p", cluster_nodes.encode_partition_list(some)) == some
    assert json.loads(cluster_nodes.encode_partition_list(some[:1])) == {
        "version": 1, "partitions": [{"topic": "t", "partition": 2**31 - 1}],
    }  # fmt: skip
    for none in (b"", b"rubbish", b"{}", b'{"partitions":null}'):
        assert cluster_nodes.decode_partition_list("/p", none) == []
    for bad in (
        b"[]", b"5", b'{"partitions":{}}', b'{"partitions":[5]}', b'{"partitions":[{"topic":"t"}]}',
        b'{"partitions":[{"partition":0}]}', b'{"partitions":[{"topic":5,"partition":0}]}',
        b'{"partitions":[{"topic":"t","partition":"0"}]}', b'{"partitions":[{"topic":"t","partition":2147483648}]}',
    ):  # fmt: skip
        with pytest.raises(znodes.BadZNode, match="/p is malformed"):
            cluster_nodes.decode_partition_list("/p", bad)


def test_a_failed_log_directory() -> None:  # rule 1.33
    assert json.loads(cluster_nodes.encode_log_dir_event(5)) == {"version": 1, "broker": 5, "event": 1}
    assert cluster_nodes.decode_log_dir_event(cluster_nodes.encode_log_dir_event(5)) == 5
    for bad in (b"", b"[]", b"{}", b'{"broker":"5"}'):
        assert cluster_nodes.decode_log_dir_event(bad) is None


def test_requested_reassignments() -> None:  # rule 1.38
    node = json.loads(cluster_nodes.encode_partition_reassignment({TopicPartition("t", 3): ids(1, 2)}))
    assert node == {"version": 1, "partitions": [{"topic": "t", "partition": 3, "replicas": [1, 2]}]}


def test_equal_json() -> None:
    assert node_json.is_same_json(b'{"a":1,"b":2}', b'{ "b":2, "a":1 }')
    for one, other in ((b'{"a":1}', b'{"a":2}'), (b"x", b"x"), (b"[1]", b"[1]"), (b"{}", b"x"), (b"{}", b"[]")):
        assert not node_json.is_same_json(one, other)


def test_paths() -> None:
    tp = TopicPartition("t", 3)
    assert [
        znodes.broker_path(1), znodes.topic_path("t"), znodes.topic_config_path("t"), znodes.broker_config_path("1"),
        znodes.partitions_path("t"), znodes.partition_path(tp), znodes.partition_state_path(tp),
        znodes.delete_topic_path("t"), znodes.absolute("/a"),
    ] == [
        "/brokers/ids/1", "/brokers/topics/t", "/config/topics/t", "/config/brokers/1", "/brokers/topics/t/partitions",
        "/brokers/topics/t/partitions/3", "/brokers/topics/t/partitions/3/state", "/admin/delete_topics/t", "/a",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="begins with /"):
        znodes.absolute("a")


def test_blocks_of_producer_ids() -> None:  # rule 1.43
    block = ProducerIdsBlock(BrokerId(5), 0, 2**63 - 1)
    data = cluster_nodes.encode_producer_id_block(block)
    assert json.loads(data) == {"version": 1, "broker": 5, "block_start": "0", "block_end": str(2**63 - 1)}
    assert cluster_nodes.decode_producer_id_block(data) == block
    good = json.loads(data)
    for bad in (
        {"broker": None}, {"broker": "5"}, {"block_start": 0}, {"block_start": "-1"}, {"block_end": str(2**63)},
        {"block_end": "x"}, {"block_end": None},
    ):  # fmt: skip
        with pytest.raises(znodes.BadZNode, match="/latest_producer_id_block is malformed"):
            cluster_nodes.decode_producer_id_block(json.dumps({**good, **bad}).encode())
    for rubbish in (b"", b"[]", b"{}"):
        with pytest.raises(znodes.BadZNode, match="/latest_producer_id_block is malformed"):
            cluster_nodes.decode_producer_id_block(rubbish)


def test_a_replica_that_is_removed() -> None:  # rule 5.7
    moving = ReplicaAssignment(ids(4, 1, 2), ids(4), ids(1))
    assert moving.remove_replica(BrokerId(4)) == ReplicaAssignment(ids(1, 2), (), ids(1))
    assert moving.remove_replica(BrokerId(1)) == ReplicaAssignment(ids(4, 2), ids(4), ())
    assert moving.remove_replica(BrokerId(2)) == ReplicaAssignment(ids(4, 1), ids(4), ids(1))
    assert moving.remove_replica(BrokerId(9)) == moving
