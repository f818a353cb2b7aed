"""ZKCT: Kafka's nodes in ZooKeeper (section 14 of docs/controller-semantics.md; rules of section 1).

Covers: kce.zookeeper.kafka_zk_client, kce.zookeeper.registration, kce.zookeeper.model.
"""

from __future__ import annotations

import json

import pytest

from kce.wire.metadata_version import LATEST
from kce.zookeeper import admin, admin_nodes, znodes
from kce.zookeeper.client import UNFENCED, ChangeHandler
from kce.zookeeper.errors import ControllerMoved
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import (
    RECOVERING,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderAndIsr,
    Leadership,
    RegisteredBroker,
    ReplicaAssignment,
)
from kce.zookeeper.registration import BrokerIdInUse
from kce.zookeeper.store import BadVersion, Create, Delete, NodeData, NodeExists, NoNode, SetData, Stat, StoreError
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper
from tests.controller.conformance.bench import ids
from tests.controller.support import broker
from tests.zookeeper.conformance.nodes import T0, T1, U0, WRONG, Fixture, topic

# trees


@pytest.mark.kafka("ZKCT-6")
async def test_delete_recursive(f: Fixture) -> None:
    await f.put("/a/b/c/d")
    await f.put("/a/x")
    await f.zk._delete_recursive("/a", UNFENCED)
    assert await f.zk.exists(["/a"]) == [None]
    await f.zk._delete_recursive("/a", UNFENCED)  # nothing there is fine


@pytest.mark.kafka("ZKCT-7")
async def test_delete_recursive_with_the_epoch(f: Fixture) -> None:  # rule 1.55
    await f.put("/a/b/c")
    with pytest.raises(ControllerMoved):
        await f.zk._delete_recursive("/a", WRONG)
    assert await f.zk.exists(["/a/b/c"]) != [None]
    await f.zk._delete_recursive("/a", f.fence)
    assert await f.zk.exists(["/a"]) == [None]


@pytest.mark.kafka("ZKCT-8")
async def test_create_recursive(f: Fixture) -> None:
    await f.zk.ensure_paths(["/a/b/c"])
    assert None not in await f.zk.exists(["/a", "/a/b", "/a/b/c"])


@pytest.mark.kafka("ZKCT-12")
async def test_data_and_version(f: Fixture) -> None:
    assert await f.zk.get_one("/x") is None
    await f.put("/x", b"1")
    await f.zk.store.write([SetData("/x", b"2")])
    found = await f.zk.get_one("/x")
    assert found is not None
    assert (found.data, found.stat.version) == (b"2", 1)


@pytest.mark.kafka("ZKCT-14")
async def test_sequential_nodes(f: Fixture) -> None:
    await f.zk.ensure_paths(["/q"])
    made = [(await f.zk.store.write([Create("/q/n_", b"d", sequential=True)]))[0] for _ in range(2)]
    assert made == ["/q/n_0000000000", "/q/n_0000000001"]
    assert await f.data("/q/n_0000000001") == b"d"


@pytest.mark.kafka("ZKCT-18")
async def test_log_directories_that_fail_are_reported(f: Fixture) -> None:  # rules 1.33, 9.68
    for broker_id in (3, 4):
        await f.zk.propagate_log_dir_event(broker_id)
    found = await f.zk.get_notifications("/log_dir_event_notification")
    prefix = "/log_dir_event_notification/log_dir_event_000000000"
    assert found == {
        f"{prefix}0": b'{"version":1,"broker":3,"event":1}',
        f"{prefix}1": b'{"version":1,"broker":4,"event":1}',
    }
    assert [znodes.decode_log_dir_event(data) for data in found.values()] == [3, 4]


@pytest.mark.kafka("ZKCT-22")
async def test_data_and_stat(f: Fixture) -> None:
    await f.put("/x", b"1")
    found = await f.zk.get_one("/x")
    assert found is not None
    assert [found.stat] == await f.zk.exists(["/x"])
    assert (found.stat.version, found.stat.ephemeral_owner) == (0, 0)
    assert found.stat.czxid == found.stat.mzxid > 0


@pytest.mark.kafka("ZKCT-23")
async def test_children(f: Fixture) -> None:
    assert await f.zk.get_children("/p") == []
    await f.put("/p")
    assert await f.zk.get_children("/p") == []
    for name in "ba":
        await f.put(f"/p/{name}")
    assert await f.zk.get_children("/p") == ["a", "b"]


@pytest.mark.kafka("ZKCT-25")
async def test_delete_path(f: Fixture) -> None:
    await f.put("/x")
    assert await f.zk.store.write([Delete("/x")]) == [None]
    assert await f.zk.exists(["/x"]) == [None]
    (answer,) = await f.zk.store.write([Delete("/x")])
    assert isinstance(answer, NoNode)


@pytest.mark.kafka("ZKCT-50")
async def test_top_level_paths() -> None:  # rule 1.3
    zk = Fixture().zk
    await zk.create_top_level_paths()
    expected = [
        "/consumers", "/brokers/ids", "/brokers/topics", "/config/changes", "/admin/delete_topics", "/brokers/seqid",
        "/isr_change_notification", "/latest_producer_id_block", "/log_dir_event_notification", "/config/topics",
        "/config/clients", "/config/users", "/config/brokers", "/config/ips",
    ]  # fmt: skip
    assert await zk.exists(["/config/client-metrics"]) == [None]  # Kafka creates it with its first configuration
    for path, stat in zip(expected, await zk.exists(expected), strict=True):
        assert stat is not None, path
        assert stat.ephemeral_owner == 0
    before = await zk.exists(expected)
    await zk.create_top_level_paths()  # those that exist are left alone
    assert await zk.exists(expected) == before


PLAIN = ReplicaAssignment(ids(0, 1))


MOVING = ReplicaAssignment(ids(2, 0, 1), adding=ids(2), removing=ids(0))


@pytest.mark.kafka("ZKCT-9")
async def test_topic_assignments(f: Fixture) -> None:  # rules 1.25, 1.26, 1.48
    assert await f.zk.get_topic_assignments(["t"]) == {}
    topic_id = await topic(f, "t", p0=PLAIN, p1=MOVING)
    found = (await f.zk.get_topic_assignments(["t"]))["t"]
    assert (found.topic_id, found.partitions) == (topic_id, {0: PLAIN, 1: MOVING})
    finished = {0: PLAIN, 1: ReplicaAssignment(ids(2, 1)), 2: ReplicaAssignment(ids(1, 2))}
    await f.moved(lambda fence: f.zk.set_topic_assignments({"t": (topic_id, finished)}, fence))
    found = (await f.zk.get_topic_assignments(["t"]))["t"]
    assert (found.topic_id, found.partitions) == (topic_id, finished)


async def topic_events(f: Fixture, *, watch: bool) -> int:
    """Count watch events of a new topic after the topics were listed."""
    calls: list[None] = []
    f.zk.register_child_handler(znodes.TOPICS, lambda: calls.append(None))
    await topic(f, "t", p0=PLAIN)
    assert await f.zk.get_topics(watch=watch) == {"t"}
    assert calls == []
    await topic(f, "u", p0=PLAIN)
    return len(calls)


@pytest.mark.kafka("ZKCT-10")
async def test_listing_topics_sets_a_watch(f: Fixture) -> None:  # rule 1.56
    assert await topic_events(f, watch=True) == 1


@pytest.mark.kafka("ZKCT-11")
async def test_listing_topics_without_a_watch(f: Fixture) -> None:  # rule 1.56
    assert await topic_events(f, watch=False) == 0


@pytest.mark.kafka("ZKCT-26")
async def test_topics_are_deleted_with_all_below(f: Fixture) -> None:  # rules 1.48, 10.48
    await topic(f, "t", p0=PLAIN)
    await f.put(znodes.partition_state_path(T0))
    await f.moved(lambda fence: f.zk.delete_topic_nodes("t", fence))
    assert await f.zk.exists([znodes.topic_path("t")]) == [None]
    assert await f.zk.get_topics() == set()


@pytest.mark.kafka("ZKCT-27")
async def test_markers_of_deletion(f: Fixture) -> None:  # rules 1.37, 1.48
    assert await f.zk.get_topic_deletions() == set()
    for name in ("t", "u"):
        await topic(f, name, p0=PLAIN)
        assert await admin.delete_topic(f.zk, name)
    assert await f.zk.get_topic_deletions() == {"t", "u"}
    await f.moved(lambda fence: f.zk.delete_topic_deletions(["t"], fence))
    assert await f.zk.get_topic_deletions() == {"u"}
    await f.zk.delete_topic_deletions(["t", "u"], f.fence)
    assert await f.zk.get_topic_deletions() == set()


@pytest.mark.kafka("ZKCT-36")
async def test_assignments_of_many_topics(f: Fixture) -> None:
    await topic(f, "t", p0=PLAIN, p1=MOVING)
    await topic(f, "u", p0=ReplicaAssignment(ids(3)))
    found = await f.zk.get_topic_assignments(["t", "u", "nope"])
    assert {name: assignment.partitions for name, assignment in found.items()} == {
        "t": {0: PLAIN, 1: MOVING},
        "u": {0: ReplicaAssignment(ids(3))},
    }


@pytest.mark.kafka("ZKCT-38")
async def test_topics_and_partitions(f: Fixture) -> None:
    assert await f.zk.get_topics() == set()
    await topic(f, "t", p0=PLAIN)
    assert await f.zk.existing_partitions("t") == set()
    for tp in (T0, T1):
        await f.put(znodes.partition_path(tp))
    assert await f.zk.get_topics() == {"t"}
    assert await f.zk.existing_partitions("t") == {0, 1}


# partition states


def leadership(leader: int, epoch: int = 0, *, partition_epoch: int = 0, recovery: int = 0) -> Leadership:
    return Leadership(
        LeaderAndIsr(BrokerId(leader), ids(leader, 9), epoch, recovery, partition_epoch), ControllerEpoch(1)
    )


@pytest.mark.kafka("ZKCT-37")
async def test_update_leader_and_isr(f: Fixture) -> None:  # rules 1.50, 1.51
    await topic(f, "t", p0=PLAIN, p1=PLAIN)
    await f.zk.create_partition_states({T0: leadership(0), T1: leadership(1)}, f.fence)
    wanted = {tp: state.leader_and_isr for tp, state in {T0: leadership(2, 1), T1: leadership(2, 1)}.items()}
    with pytest.raises(ControllerMoved):
        await f.zk.update_leader_and_isr(wanted, ControllerEpoch(1), WRONG)
    wanted[T1] = wanted[T1].with_partition_epoch(4)  # not its version
    wanted[U0] = wanted[T0]  # not there
    result = await f.zk.update_leader_and_isr(wanted, ControllerEpoch(3), f.fence)
    assert result.updated == {T0: wanted[T0].with_partition_epoch(1)}
    assert result.retry == [T1]
    assert {tp: type(error) for tp, error in result.failed.items()} == {U0: NoNode}
    assert await f.zk.get_partition_states([T0, T1]) == {
        T0: Leadership(wanted[T0].with_partition_epoch(1), ControllerEpoch(3)),
        T1: leadership(1),
    }


@pytest.mark.kafka("ZKCT-39")
async def test_create_partition_states(f: Fixture) -> None:  # rules 1.29, 1.30, 1.52
    await topic(f, "t", p0=PLAIN, p1=PLAIN)
    states = {T0: leadership(0), T1: leadership(1)}
    with pytest.raises(ControllerMoved):
        await f.zk.create_partition_states(states, WRONG)
    assert await f.zk.create_partition_states(states, f.fence) == {T0: None, T1: None}
    paths = [znodes.partition_state_path(tp) for tp in states]
    for node, state in zip(await f.zk.get_data(paths), states.values(), strict=True):
        assert not isinstance(node, StoreError)
        assert (node.data, node.stat.version) == (znodes.encode_partition_state(state), 0)
        assert node.stat.czxid == node.stat.mzxid
    # the very state of this controller was left by an attempt whose answer was lost (1.52); another one stays
    other = {T0: states[T0], T1: leadership(2)}
    again = await f.zk.create_partition_states(other, f.fence)
    assert again[T0] is None
    assert isinstance(again[T1], NodeExists)
    later = {tp: Leadership(state.leader_and_isr, ControllerEpoch(2)) for tp, state in states.items()}
    again = await f.zk.create_partition_states(later, f.fence)
    assert [type(answer) for answer in again.values()] == [NodeExists, NodeExists]
    assert [answer.data for answer in await f.zk.get_data(paths) if isinstance(answer, NodeData)] == [
        znodes.encode_partition_state(state) for state in states.values()
    ]


@pytest.mark.kafka("ZKCT-40")
async def test_set_partition_states(f: Fixture) -> None:  # rules 1.46, 1.47, 1.50
    await topic(f, "t", p0=PLAIN, p1=PLAIN)
    await f.zk.create_partition_states({T0: leadership(0), T1: leadership(1)}, f.fence)
    data = znodes.encode_partition_state(leadership(2, 1))
    ops = [SetData(znodes.partition_state_path(tp), data, 0) for tp in (T0, T1)]
    with pytest.raises(ControllerMoved):
        await f.zk.fenced(ops, WRONG)
    first = await f.zk.fenced(ops[:1], f.fence)
    assert [answer.version for answer in first if isinstance(answer, Stat)] == [1]
    second = await f.zk.fenced(ops, f.fence)
    assert isinstance(second[0], BadVersion)
    assert isinstance(second[1], Stat)
    assert second[1].version == 1


@pytest.mark.kafka("ZKCT-42")
async def test_partition_states(f: Fixture) -> None:  # rule 1.28
    await topic(f, "t", p0=PLAIN, p1=PLAIN)
    states = {T0: leadership(0), T1: leadership(1, 5, recovery=RECOVERING)}
    await f.zk.create_partition_states(states, f.fence)
    await f.zk.store.write([SetData(znodes.partition_state_path(T0), znodes.encode_partition_state(states[T0]))])
    found = await f.zk.get_partition_states([T0, T1, U0])
    assert isinstance(found.pop(U0), NoNode)
    assert found == {T0: leadership(0, partition_epoch=1), T1: states[T1]}


# notifications


ISR, LOG_DIR = znodes.ISR_CHANGE_NOTIFICATION, znodes.LOG_DIR_EVENT_NOTIFICATION


async def notify(f: Fixture, parent: str, data: bytes) -> str:
    prefix = {ISR: "isr_change_", LOG_DIR: "log_dir_event_"}[parent]
    made = (await f.zk.store.write([Create(f"{parent}/{prefix}", data, sequential=True)]))[0]
    assert isinstance(made, str)
    return made


@pytest.mark.kafka("ZKCT-15")
async def test_isr_changes_as_they_are_written(f: Fixture) -> None:  # rule 1.32
    path = await notify(f, ISR, znodes.encode_partition_list([T0, T1, U0]))
    assert path == "/isr_change_notification/isr_change_0000000000"
    assert json.loads(await f.data(path) or b"") == {
        "version": 1,
        "partitions": [
            {"topic": "t", "partition": 0},
            {"topic": "t", "partition": 1},
            {"topic": "u", "partition": 0},
        ],
    }


@pytest.mark.kafka("ZKCT-16")
async def test_isr_changes_as_they_are_read(f: Fixture) -> None:  # rule 1.32
    assert await f.zk.get_notifications(ISR) == {}
    paths = [await notify(f, ISR, znodes.encode_partition_list(tps)) for tps in ([T0, T1], [U0])]
    found = await f.zk.get_notifications(ISR)
    assert list(found) == paths
    assert [znodes.decode_partition_list(path, data) for path, data in found.items()] == [[T0, T1], [U0]]


async def deletions_are_fenced(f: Fixture, parent: str) -> None:
    paths = [await notify(f, parent, b"{}") for _ in range(3)]
    await f.moved(lambda fence: f.zk.delete_notifications(paths[:1], fence))
    assert list(await f.zk.get_notifications(parent)) == paths[1:]
    await f.moved(lambda fence: f.zk.delete_all_notifications(parent, fence))
    assert await f.zk.get_notifications(parent) == {}


@pytest.mark.kafka("ZKCT-17")
async def test_isr_changes_are_deleted(f: Fixture) -> None:  # rule 1.48
    await deletions_are_fenced(f, ISR)


@pytest.mark.kafka("ZKCT-19")
async def test_log_dir_events_as_they_are_read(f: Fixture) -> None:  # rule 1.33
    assert await f.zk.get_notifications(LOG_DIR) == {}
    for failed in (3, 5):
        await notify(f, LOG_DIR, json.dumps({"version": 1, "broker": failed, "event": 1}).encode())
    found = await f.zk.get_notifications(LOG_DIR)
    assert [znodes.decode_log_dir_event(data) for data in found.values()] == [3, 5]


@pytest.mark.kafka("ZKCT-20")
async def test_log_dir_events_are_deleted(f: Fixture) -> None:  # rule 1.48
    await deletions_are_fenced(f, LOG_DIR)


# what administrators ask for


@pytest.mark.kafka("ZKCT-21")
async def test_reassignments(f: Fixture) -> None:  # rules 1.38, 1.48
    wanted = {T0: ids(1, 2), U0: ids(3)}
    await f.moved(lambda fence: admin_nodes.set_partition_reassignment(f.zk, wanted, fence))
    assert await admin_nodes.get_partition_reassignment(f.zk) == wanted
    await f.moved(lambda fence: admin_nodes.set_partition_reassignment(f.zk, {T0: ids(4)}, fence))
    assert await admin_nodes.get_partition_reassignment(f.zk) == {T0: (4,)}
    await f.moved(lambda fence: admin_nodes.delete_partition_reassignment(f.zk, fence))
    assert await f.data(znodes.REASSIGN_PARTITIONS) is None
    await admin_nodes.delete_partition_reassignment(f.zk, f.fence)  # nothing there is fine


@pytest.mark.kafka("ZKCT-41")
async def test_whether_partitions_are_being_reassigned(f: Fixture) -> None:
    assert await admin_nodes.get_partition_reassignment(f.zk) is None
    await admin_nodes.set_partition_reassignment(f.zk, {T0: ids(1)}, f.fence)
    assert await admin_nodes.get_partition_reassignment(f.zk) is not None


@pytest.mark.kafka("ZKCT-51")
async def test_preferred_elections(f: Fixture) -> None:  # rules 1.39, 1.48
    assert await admin_nodes.get_preferred_replica_election(f.zk) == set()
    await f.put(znodes.PREFERRED_REPLICA_ELECTION, znodes.encode_partition_list([T0, U0]))
    assert await admin_nodes.get_preferred_replica_election(f.zk) == {T0, U0}
    await f.moved(lambda fence: admin_nodes.delete_preferred_replica_election(f.zk, fence))
    assert await admin_nodes.get_preferred_replica_election(f.zk) == set()


# configuration


@pytest.mark.kafka("ZKCT-29")
async def test_configurations(f: Fixture) -> None:  # rules 1.34, 10.48
    assert await f.zk.get_config("topics", "t") == {}
    await f.zk.put_config("topics", "t", {"a": "1", "b": "2"})
    await f.zk.put_config("clients", "t", {"c": "3"})
    assert await f.zk.get_config("topics", "t") == {"a": "1", "b": "2"}
    await f.zk.put_config("topics", "t", {"a": "4"})
    assert await f.zk.get_config("topics", "t") == {"a": "4"}
    await f.zk.delete_topic_nodes("t", f.fence)
    assert await f.data(znodes.topic_config_path("t")) is None
    assert await f.zk.get_config("clients", "t") == {"c": "3"}


@pytest.mark.kafka("ZKCT-30")
async def test_changes_of_configuration_as_they_are_written(f: Fixture) -> None:  # rule 1.35
    await f.zk.change_config("topics", "t", {"a": "1"})
    assert await f.zk.get_children(znodes.CONFIG_CHANGES) == ["config_change_0000000000"]
    written = await f.data(f"{znodes.CONFIG_CHANGES}/config_change_0000000000")
    assert json.loads(written or b"") == {"version": 2, "entity_path": "topics/t"}


@pytest.mark.kafka("ZKCT-31")
async def test_configurations_of_many_topics(f: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 7.4
    await f.zk.put_config("topics", "t", {"cleanup.policy": "compact"})
    get_data = f.zk.get_data
    broken = NodeExists("an error of ZooKeeper")

    async def one_fails(paths: list[str]) -> list[object]:
        found = dict(zip(paths, await get_data(paths), strict=True))
        return [broken if path.endswith("/bad") else answer for path, answer in found.items()]

    monkeypatch.setattr(f.zk, "get_data", one_fails)
    assert await f.zk.get_topic_configs(["t", "none", "bad"]) == {
        "t": {"cleanup.policy": "compact"},
        "none": {},
        "bad": broken,
    }


@pytest.mark.kafka("ZKCT-57")
async def test_configurations_are_not_changed_without_a_controller(f: Fixture) -> None:  # rule 1.54
    await f.zk.delete_controller(f.fence)
    with pytest.raises(ControllerMoved):
        await f.zk.change_config("topics", "t", {"a": "1"})
    assert await f.zk.get_config("topics", "t") == {}
    assert await f.zk.get_children(znodes.CONFIG_CHANGES) == []


# brokers


@pytest.mark.kafka("ZKCT-32")
async def test_registration(f: Fixture) -> None:  # rules 1.15-1.22
    epoch = await f.zk.register_broker(broker(1, rack="r"), LATEST)
    assert json.loads(await f.data("/brokers/ids/1") or b"") == {
        "version": 5,
        "host": "127.0.0.1",
        "port": 1001,
        "endpoints": ["CONTROL://127.0.0.1:1001", "DATA://127.0.0.1:2001"],
        "listener_security_protocol_map": {"CONTROL": "PLAINTEXT", "DATA": "PLAINTEXT"},
        "jmx_port": -1,
        "timestamp": "1234",
        "rack": "r",
        "features": {},
    }
    (stat,) = await f.zk.exists(["/brokers/ids/1"])
    assert stat is not None
    assert (stat.czxid, stat.version, stat.ephemeral_owner) == (epoch, 1, f.zk.store.session_id)
    with pytest.raises(BrokerIdInUse):
        await f.client().register_broker(broker(1), LATEST)
    assert await f.zk.exists(["/brokers/ids/1"]) == [stat]


class Forgetful(MemoryZooKeeper):
    """A server that leaves the nodes of a session behind when it ends."""

    def _end(self, client: MemoryStore) -> None:
        return None


@pytest.mark.kafka("ZKCT-33")
async def test_a_registration_of_our_own_old_session_is_replaced() -> None:  # rule 1.22
    server = Forgetful()
    store = server.connect()
    zk = KafkaZkClient(store, now_ms=lambda: 1)
    await zk.ensure_paths([znodes.BROKER_IDS])
    first = await zk.register_broker(broker(1), LATEST)
    old = store.session_id
    server.expire(store)
    assert store.session_id != old
    second = await zk.register_broker(broker(1), LATEST)
    assert second > first
    (stat,) = await zk.exists(["/brokers/ids/1"])
    assert stat is not None
    assert (stat.ephemeral_owner, stat.czxid) == (store.session_id, second)
    assert await zk.register_broker(broker(1), LATEST) == second  # of this session: as it is


@pytest.mark.kafka("ZKCT-34")
async def test_brokers(f: Fixture) -> None:
    assert await f.zk.get_brokers() == {}
    assert await f.zk.get_broker(1) is None
    plain = Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9)
    second = RegisteredBroker(BrokerId(2), (plain,), "r", {"x": (1, 2)})
    epochs = {b.id: await f.zk.register_broker(b, LATEST) for b in (broker(1), second)}
    assert await f.zk.get_brokers() == {1: (broker(1), epochs[BrokerId(1)]), 2: (second, epochs[BrokerId(2)])}
    assert await f.zk.get_broker(2) == second


@pytest.mark.kafka("ZKCT-35")
async def test_a_registration_that_is_rewritten(f: Fixture) -> None:  # rules 1.20, 1.23
    epoch = await f.zk.register_broker(broker(1), LATEST)
    moved = RegisteredBroker(BrokerId(1), (Endpoint("PLAINTEXT", "PLAINTEXT", "elsewhere", 9),), "r", {})
    (answer,) = await f.zk.store.write([SetData("/brokers/ids/1", znodes.encode_broker(moved, LATEST, 5))])
    assert isinstance(answer, Stat)
    assert answer.mzxid > answer.czxid == epoch
    assert await f.zk.get_brokers() == {1: (moved, epoch)}


# the controller and the cluster


@pytest.mark.kafka("ZKCT-43")
async def test_controller_epoch() -> None:  # rules 1.12, 1.13, 2.7-2.9
    f = Fixture()
    assert await f.zk.get_controller_epoch() is None
    assert await f.zk.register_controller(BrokerId(1)) == (1, 1)
    assert await f.data("/controller_epoch") == b"1"
    assert await f.zk.get_controller_epoch() == (1, 1)
    stale, current = await f.zk.store.write([SetData("/controller_epoch", b"8", version) for version in (0, 1)])
    assert isinstance(stale, BadVersion)
    assert isinstance(current, Stat)
    assert await f.zk.get_controller_epoch() == (8, 2)


async def test_a_kraft_controller_is_not_deposed() -> None:  # rules 1.11, 2.10
    f = Fixture()
    await f.put("/controller_epoch", b"1")
    await f.put("/controller", b'{"version":2,"brokerid":3000,"timestamp":"1","kraftControllerEpoch":42}')
    with pytest.raises(ControllerMoved):
        await f.zk.register_controller(BrokerId(1))
    assert await f.zk.get_controller_id() == 3000
    assert await f.zk.get_controller_epoch() == (1, 0)


@pytest.mark.kafka("ZKCT-46")
async def test_controller(f: Fixture) -> None:  # rules 1.8, 1.48
    assert await f.zk.get_controller_id() == 1
    await f.moved(f.zk.delete_controller)
    assert await f.zk.get_controller_id() is None
    await f.zk.delete_controller(f.fence)  # nothing there is fine


@pytest.mark.kafka("ZKCT-47")
async def test_a_handler_runs_when_data_changes(f: Fixture) -> None:  # rules 1.56, 1.57
    calls: list[str] = []
    handler = ChangeHandler(
        created=lambda: calls.append("created"),
        changed=lambda: calls.append("changed"),
        deleted=lambda: calls.append("deleted"),
    )
    await f.put("/x", b"1")
    assert await f.zk.register_and_check("/x", handler)
    await f.zk.store.write([SetData("/x", b"2")])
    assert calls == ["changed"]


async def test_only_paths_with_a_handler_are_watched(f: Fixture) -> None:  # rule 1.56
    calls: list[str] = []
    await f.put("/x")
    f.zk.register_change_handler("/x", ChangeHandler(changed=lambda: calls.append("/x")))
    f.zk.register_change_handler("/z", ChangeHandler(created=lambda: calls.append("/z")))
    assert [stat is not None for stat in await f.zk.exists(["/x", "/y", "/z"])] == [True, False, False]
    f.zk.register_change_handler("/y", ChangeHandler(created=lambda: calls.append("/y")))  # after it was read
    await f.zk.store.write([SetData("/x", b""), Create("/y"), Create("/z")])
    assert calls == ["/x", "/z"]


async def test_reading_data_watches_what_has_a_handler(f: Fixture) -> None:  # rule 1.56
    calls: list[str] = []
    for path in ("/x", "/y"):
        await f.put(path)
    f.zk.register_change_handler("/x", ChangeHandler(changed=lambda: calls.append("/x")))
    await f.zk.get_data(["/x", "/y"])
    f.zk.register_change_handler("/y", ChangeHandler(changed=lambda: calls.append("/y")))
    await f.zk.store.write([SetData("/x", b""), SetData("/y", b"")])
    assert calls == ["/x"]


async def test_a_node_that_is_not_there_is_watched_by_reading_it(f: Fixture) -> None:  # rule 1.58
    calls: list[str] = []
    assert await f.zk.get_one("/x") is None
    f.zk.register_change_handler("/x", ChangeHandler(created=lambda: calls.append("/x")))
    await f.put("/x")
    assert calls == []
    await f.zk.store.write([Delete("/x")])
    assert await f.zk.get_one("/x") is None
    await f.put("/x")
    assert calls == ["/x"]


@pytest.mark.kafka("ZKCT-48")
async def test_cluster_id(f: Fixture) -> None:  # rule 1.40
    made = await f.zk.get_or_create_cluster_id()
    assert json.loads(await f.data("/cluster/id") or b"") == {"version": "1", "id": made}
    assert await f.client().get_or_create_cluster_id() == made
