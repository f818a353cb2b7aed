"""ZKCT: Kafka's nodes in ZooKeeper (section 14 of docs/controller-semantics.md; rules of section 1).

Covers: kce.zookeeper.kafka_zk_client, kce.zookeeper.registration, kce.zookeeper.model.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping

import pytest

from kce.broker_stub.log import LogConfig
from kce.broker_stub.topic_configs import TopicConfigs
from kce.broker_stub.zookeeper.isr_store import ZkIsrStore
from kce.wire.metadata_version import LATEST
from kce.zookeeper import admin, admin_nodes, cluster_nodes, znodes
from kce.zookeeper.client import UNFENCED, ChangeHandler
from kce.zookeeper.errors import ControllerMoved
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import (
    RECOVERING,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    EpochZkVersion,
    LeaderAndIsr,
    Leadership,
    RegisteredBroker,
    ReplicaAssignment,
    TopicPartition,
)
from kce.zookeeper.registration import BrokerIdInUse
from kce.zookeeper.store import BadVersion, Create, Delete, NodeExists, NoNode, NotEmpty, Op, SetData, Stat, StoreError
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper
from tests.controller.conformance.bench import ids
from tests.controller.support import broker
from tests.zookeeper.conformance.nodes import T0, T1, U0, WRONG, Fixture, topic

# trees


@pytest.mark.kafka("ZKCT-6")
async def test_delete_recursive(f: Fixture) -> None:
    await f.zk._delete_recursive("/delete/does-not-exist", UNFENCED)
    await f.put("/a/b/c/d")
    await f.put("/a/x")
    await f.zk._delete_recursive("/a", UNFENCED)
    assert await f.zk.exists(["/a"]) == [None]
    await f.zk._delete_recursive("/a", UNFENCED)  # nothing there is fine
    with pytest.raises(ValueError, match="not so 'delete-invalid-path'"):
        await f.zk._delete_recursive("delete-invalid-path", UNFENCED)


@pytest.mark.kafka("ZKCT-7")
async def test_delete_recursive_with_the_epoch(f: Fixture) -> None:  # rule 1.55
    await f.zk._delete_recursive("/delete/does-not-exist", f.fence)
    await f.put("/a/b/c")
    await f.moved(lambda fence: f.zk._delete_recursive("/a", fence))
    assert await f.zk.exists(["/a"]) == [None]
    with pytest.raises(ValueError, match="not so 'delete-invalid-path'"):
        await f.zk._delete_recursive("delete-invalid-path", f.fence)


@pytest.mark.kafka("ZKCT-8")
async def test_create_recursive(f: Fixture) -> None:
    await f.zk.ensure_paths(["/root"])
    assert None not in await f.zk.exists(["/root"])
    await f.zk.ensure_paths(["/a/b/c"])
    assert None not in await f.zk.exists(["/a", "/a/b", "/a/b/c"])
    before = f.tree()
    await f.zk.ensure_paths(["/a/b/c"])  # what is there is fine
    assert f.tree() == before
    with pytest.raises(ValueError, match="not so 'create-invalid-path'"):
        await f.zk.ensure_paths(["create-invalid-path"])


@pytest.mark.kafka("ZKCT-12")
async def test_data_and_version(f: Fixture) -> None:
    assert await f.zk.get_one("/x") is None
    await f.put("/x")
    for version, data in enumerate((b"version1", b"version2")):
        await f.zk.store.write([SetData("/x", data, version)])
        found = await f.zk.get_one("/x")
        assert found is not None
        assert (found.data, found.stat.version) == (data, version + 1)


@pytest.mark.kafka("ZKCT-14")
async def test_sequential_nodes(f: Fixture) -> None:
    await f.zk.ensure_paths(["/q"])
    made = [(await f.zk.store.write([Create("/q/n_", data, sequential=True)]))[0] for data in (b"", b"d")]
    assert made == ["/q/n_0000000000", "/q/n_0000000001"]
    assert [await f.data(path) for path in ("/q/n_0000000000", "/q/n_0000000001")] == [b"", b"d"]


@pytest.mark.kafka("ZKCT-18")
async def test_log_directories_that_fail_are_reported(f: Fixture) -> None:  # rules 1.33, 9.68
    for i, failed in enumerate((3, 3, 4)):
        await f.zk.propagate_log_dir_event(failed)
        assert (
            await f.data(f"/log_dir_event_notification/log_dir_event_000000000{i}")
            == f'{{"version":1,"broker":{failed},"event":1}}'.encode()
        )
    assert len(await f.zk.get_notifications(LOG_DIR)) == 3


@pytest.mark.kafka("ZKCT-22")
async def test_data_and_stat(f: Fixture) -> None:
    assert await f.zk.get_one("/x") is None
    await f.put("/x", b"1")
    found = await f.zk.get_one("/x")
    assert found is not None
    assert [found.stat] == await f.zk.exists(["/x"])
    assert (found.stat.version, found.stat.ephemeral_owner) == (0, 0)
    assert found.stat.czxid == found.stat.mzxid > 0
    for version, data in enumerate((b"version1", b"version2")):
        await f.zk.store.write([SetData("/x", data, version)])
        found = await f.zk.get_one("/x")
        assert found is not None
        assert [found.stat] == await f.zk.exists(["/x"])
        assert (found.data, found.stat.version) == (data, version + 1)


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
    for deleted in ("/a/b/c", "/a"):
        await f.zk.ensure_paths(["/a/b/c"])
        await f.zk._delete_recursive(deleted, UNFENCED)
        assert await f.zk.exists(["/a/b/c"]) == [None]
    await f.zk.ensure_paths(["/a/b/c"])
    await f.zk.delete(["/a/b/c"], UNFENCED)
    assert await f.zk.exists(["/a/b/c"]) == [None]
    assert await f.zk.exists(["/a/b"]) != [None]
    await f.zk.delete(["/a/b/c"], UNFENCED)  # nothing there is fine
    with pytest.raises(NotEmpty):
        await f.zk.delete(["/a"], UNFENCED)


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
    assert await f.zk.get_topics() == set()
    assert await f.zk.get_topic_assignments(["t"]) == {}
    topic_id = await topic(f, "t", p0=PLAIN, p1=MOVING)
    assert await f.zk.get_topics() == {"t"}
    found = (await f.zk.get_topic_assignments(["t"]))["t"]
    assert (found.topic_id, found.partitions) == (topic_id, {0: PLAIN, 1: MOVING})
    finished = {0: PLAIN, 1: ReplicaAssignment(ids(2, 1)), 2: ReplicaAssignment(ids(1, 2))}
    await f.moved(lambda fence: f.zk.set_topic_assignments({"t": (topic_id, finished)}, fence))
    found = (await f.zk.get_topic_assignments(["t"]))["t"]
    assert (found.topic_id, found.partitions) == (topic_id, finished)
    await topic(f, "u", p0=PLAIN, p1=PLAIN)
    assert await f.zk.get_topics() == {"t", "u"}


async def topic_events(f: Fixture, *watches: bool) -> int:
    """Count watch events of a new topic after the topics were listed, with a watch or without."""
    calls: list[None] = []
    f.zk.register_child_handler(znodes.TOPICS, lambda: calls.append(None))
    for watch in watches:
        assert await f.zk.get_topics(watch=watch) == set()
    assert calls == []
    await topic(f, "t", p0=PLAIN)
    assert await f.zk.exists([znodes.topic_path("t")]) != [None]
    return len(calls)


@pytest.mark.kafka("ZKCT-10")
async def test_listing_topics_sets_a_watch(f: Fixture) -> None:  # rule 1.56
    """Listing them without a watch leaves the watch that there is."""
    assert await topic_events(f, True, False) == 1


@pytest.mark.kafka("ZKCT-11")
async def test_listing_topics_without_a_watch(f: Fixture) -> None:  # rule 1.56
    assert await topic_events(f, False) == 0


@pytest.mark.kafka("ZKCT-26")
async def test_topics_are_deleted_with_all_below(f: Fixture) -> None:  # rules 1.48, 10.48
    await f.zk.delete_topic_nodes(["t"], f.fence)  # nothing there is fine
    await topic(f, "t", p0=PLAIN)
    await f.put(znodes.partition_state_path(T0))
    await f.moved(lambda fence: f.zk.delete_topic_nodes(["t"], fence))
    assert await f.zk.exists([znodes.topic_path("t")]) == [None]
    assert await f.zk.get_topics() == set()


@pytest.mark.kafka("ZKCT-27")
async def test_markers_of_deletion(f: Fixture) -> None:  # rules 1.37, 1.48
    assert await f.zk.get_topic_deletions() == set()
    for name in ("t", "u"):
        await topic(f, name, p0=PLAIN)
        assert await admin.delete_topic(f.zk, name)
        assert await f.zk.exists([znodes.delete_topic_path(name)]) != [None]
    assert await f.zk.get_topic_deletions() == {"t", "u"}
    await f.moved(lambda fence: f.zk.delete_topic_deletions(["t"], fence))
    assert await f.zk.get_topic_deletions() == {"u"}
    await f.moved(lambda fence: f.zk.delete_topic_deletions(["t", "u"], fence))
    assert await f.zk.get_topic_deletions() == set()


@pytest.mark.kafka("ZKCT-36")
async def test_assignments_of_many_topics(f: Fixture) -> None:
    assert await f.zk.get_topic_assignments(["t", "u", "nope"]) == {}
    topic_id = await topic(f, "t", p0=ReplicaAssignment(()))
    await topic(f, "u", p0=ReplicaAssignment(ids(3)))
    wanted = ReplicaAssignment(ids(1, 2, 3), adding=ids(1), removing=ids(3))
    await f.moved(lambda fence: f.zk.set_topic_assignments({"t": (topic_id, {0: wanted})}, fence))
    found = await f.zk.get_topic_assignments(["t", "u", "nope"])
    assert {name: assignment.partitions for name, assignment in found.items()} == {
        "t": {0: wanted},
        "u": {0: ReplicaAssignment(ids(3))},
    }


@pytest.mark.kafka("ZKCT-38")
async def test_topics_and_partitions(f: Fixture) -> None:
    assert await f.zk.get_topics() == set()
    for name in ("t", "u"):
        await f.zk.ensure_paths([znodes.topic_path(name)])
    assert await f.zk.get_topics() == {"t", "u"}
    assert await f.zk.existing_partitions("t") == await f.zk.existing_partitions("u") == set()
    await f.zk.create_partition_states(states(), f.fence)
    assert await f.zk.existing_partitions("t") == {0, 1}
    assert await f.zk.existing_partitions("u") == set()


# partition states


EPOCH = ControllerEpoch(4)


def states(state: int = 0, *, partition_epoch: int = 0) -> dict[TopicPartition, Leadership]:
    """The two partitions of t in their ``state``-th state."""
    return {
        tp: Leadership(
            LeaderAndIsr(
                BrokerId(leader), ids(first + state, first + 1 + state), epoch + state, partition_epoch=partition_epoch
            ),
            EPOCH,
        )
        for tp, leader, first, epoch in ((T0, 1, 2, 0), (T1, 0, 1, 1))
    }


def alone(states: Mapping[TopicPartition, Leadership]) -> dict[TopicPartition, LeaderAndIsr]:
    return {tp: state.leader_and_isr for tp, state in states.items()}


def kinds(errors: Mapping[TopicPartition, StoreError | None]) -> dict[TopicPartition, str]:
    return {tp: str(error) for tp, error in errors.items()}


async def update(
    f: Fixture, wanted: Mapping[TopicPartition, LeaderAndIsr], fence: EpochZkVersion | None = None
) -> tuple[dict[TopicPartition, LeaderAndIsr], list[TopicPartition], dict[TopicPartition, str]]:
    result = await f.zk.update_leader_and_isr(wanted, EPOCH, f.fence if fence is None else fence)
    return result.updated, result.retry, kinds(result.failed)


@pytest.mark.kafka("ZKCT-37")
async def test_update_leader_and_isr(f: Fixture) -> None:  # rules 1.50, 1.51
    await f.zk.ensure_paths([znodes.topic_path("t")])
    missing = {tp: f"NoNode: /brokers/topics/{tp.topic}/partitions/{tp.partition}/state" for tp in (T0, T1, U0)}
    assert await update(f, alone(states())) == ({}, [], {T0: missing[T0], T1: missing[T1]})
    await f.zk.create_partition_states(states(), f.fence)
    before = f.tree()
    with pytest.raises(ControllerMoved):
        await update(f, alone(states()), WRONG)
    assert f.tree() == before
    assert await update(f, alone(states(1))) == (alone(states(1, partition_epoch=1)), [], {})
    assert await update(f, alone(states(1))) == ({}, [T0, T1], {})  # not their version
    mixed = {
        T0: LeaderAndIsr(BrokerId(1), ids(4, 5), 2, partition_epoch=1),
        T1: LeaderAndIsr(BrokerId(0), ids(3, 4), 2, partition_epoch=0),
        U0: LeaderAndIsr(BrokerId(0), ids(3, 4), 2, partition_epoch=0),
    }
    assert await update(f, mixed) == ({T0: mixed[T0].with_partition_epoch(2)}, [T1], {U0: missing[U0]})
    assert await f.zk.get_partition_states([T0, T1]) == {
        T0: states(2, partition_epoch=2)[T0],
        T1: states(1, partition_epoch=1)[T1],
    }


@pytest.mark.kafka("ZKCT-39")
async def test_create_partition_states(f: Fixture) -> None:  # rules 1.29, 1.30
    await f.zk.ensure_paths([znodes.topic_path("t")])
    before = f.tree()
    with pytest.raises(ControllerMoved):
        await f.zk.create_partition_states(states(), WRONG)
    assert f.tree() == before
    assert await f.zk.create_partition_states(states(), f.fence) == {T0: None, T1: None}
    for tp, state in states().items():
        found = await f.zk.get_one(f"/brokers/topics/t/partitions/{tp.partition}/state")
        assert found is not None
        assert znodes.decode_partition_state(found.data, 0) == state
        assert found.stat.version == 0
        assert found.stat.czxid == found.stat.mzxid
    again = await f.zk.create_partition_states(states(), f.fence)  # the very same
    assert kinds(again) == {tp: f"NodeExists: /brokers/topics/t/partitions/{tp.partition}/state" for tp in (T0, T1)}


@pytest.mark.kafka("ZKCT-40")
async def test_set_partition_states(f: Fixture) -> None:  # rules 1.46, 1.47, 1.50
    await f.zk.ensure_paths([znodes.topic_path("t")])

    async def write(client: KafkaZkClient, fence: EpochZkVersion, state: int, version: int) -> list[object]:
        """Types of errors and versions."""
        ops = [
            SetData(znodes.partition_state_path(tp), znodes.encode_partition_state(wanted), version)
            for tp, wanted in states(state).items()
        ]
        answers = await client.fenced(ops, fence)
        return [answer.version if isinstance(answer, Stat) else type(answer) for answer in answers]

    assert await write(f.zk, f.fence, 0, 0) == [NoNode, NoNode]
    await f.zk.create_partition_states(states(), f.fence)
    assert await write(f.zk, f.fence, 1, 0) == [1, 1]
    with pytest.raises(ControllerMoved):
        await write(f.zk, WRONG, 1, 0)
    assert await f.zk.get_partition_states([T0, T1]) == states(1, partition_epoch=1)
    assert await write(f.client(), f.fence, 2, 1) == [2, 2]  # another client may as well
    assert await write(f.zk, f.fence, 3, 1) == [BadVersion, BadVersion]


@pytest.mark.kafka("ZKCT-42")
async def test_partition_states(f: Fixture) -> None:  # rule 1.28
    async def found(*partitions: TopicPartition) -> dict[TopicPartition, Leadership]:
        """The existing states; the other partitions have no node."""
        answers = await f.zk.get_partition_states(partitions)
        assert list(answers) == list(partitions)
        assert all(isinstance(answer, Leadership | NoNode) for answer in answers.values())
        return {tp: answer for tp, answer in answers.items() if isinstance(answer, Leadership)}

    missing = TopicPartition("t", 2)
    assert await found(T0) == {}
    await f.zk.ensure_paths([znodes.topic_path("t")])
    initial = states()
    recovering = initial[T1].leader_and_isr._replace(recovery_state=RECOVERING)
    initial[T1] = initial[T1]._replace(leader_and_isr=recovering)
    await f.zk.create_partition_states(initial, f.fence)
    assert await found(T0, T1) == initial
    assert (await found(T0))[T0].leader_and_isr.leader == 1
    assert await found(missing) == {}
    assert await found(T0, missing) == {T0: initial[T0]}
    await f.zk.store.write([SetData(znodes.partition_state_path(T0), znodes.encode_partition_state(states(1)[T0]))])
    assert await found(T0) == {T0: states(1, partition_epoch=1)[T0]}


# notifications


ISR, LOG_DIR = znodes.ISR_CHANGE_NOTIFICATION, znodes.LOG_DIR_EVENT_NOTIFICATION
ISR_CHANGE, LOG_DIR_EVENT = "/isr_change_notification/isr_change_", "/log_dir_event_notification/log_dir_event_"


@pytest.mark.kafka("ZKCT-15")
async def test_isr_changes_as_they_are_written(f: Fixture) -> None:  # rule 1.32
    leader = ZkIsrStore(f.zk)
    await leader.notify_isr_changes([TopicPartition("topic-a", 0), TopicPartition("topic-b", 0)])
    assert (
        await f.data(f"{ISR_CHANGE}0000000000")
        == b'{"version":1,"partitions":[{"topic":"topic-a","partition":0},{"topic":"topic-b","partition":0}]}'
    )
    await leader.notify_isr_changes([TopicPartition("topic-b", 0)])
    assert await f.data(f"{ISR_CHANGE}0000000001") == b'{"version":1,"partitions":[{"topic":"topic-b","partition":0}]}'


@pytest.mark.kafka("ZKCT-16")
async def test_isr_changes_as_they_are_read() -> None:  # rule 1.32
    f = Fixture()
    assert await f.zk.get_notifications(ISR) == {}  # not even the parent is there
    await f.zk.create_top_level_paths()
    assert await f.zk.get_notifications(ISR) == {}
    for partitions in ([T0, T1], [T0]):  # one may have many
        await ZkIsrStore(f.zk).notify_isr_changes(partitions)
    found = await f.zk.get_notifications(ISR)
    assert list(found) == [f"{ISR_CHANGE}0000000000", f"{ISR_CHANGE}0000000001"]
    assert [cluster_nodes.decode_partition_list(path, data) for path, data in found.items()] == [[T0, T1], [T0]]


async def deletions_are_fenced(f: Fixture, parent: str, first: str, notify: Callable[[], Awaitable[None]]) -> None:
    await f.zk._delete_recursive(parent, f.fence)
    await f.zk.delete_notifications([f"{first}0000000000"], f.fence)  # not even the parent is there
    await f.zk.delete_all_notifications(parent, f.fence)
    await f.zk.create_top_level_paths()
    for _ in range(3):
        await notify()
    paths = [f"{first}000000000{i}" for i in range(3)]
    assert list(await f.zk.get_notifications(parent)) == paths
    await f.moved(lambda fence: f.zk.delete_notifications([paths[1]], fence))
    assert list(await f.zk.get_notifications(parent)) == [paths[0], paths[2]]
    await f.zk.delete_notifications([paths[1]], f.fence)  # nothing there is fine
    await f.moved(lambda fence: f.zk.delete_notifications([paths[0], paths[2]], fence))
    assert await f.zk.get_notifications(parent) == {}
    await notify()
    assert len(await f.zk.get_notifications(parent)) == 1
    await f.moved(lambda fence: f.zk.delete_all_notifications(parent, fence))
    assert await f.zk.get_notifications(parent) == {}


@pytest.mark.kafka("ZKCT-17")
async def test_isr_changes_are_deleted(f: Fixture) -> None:  # rule 1.48
    await deletions_are_fenced(f, ISR, ISR_CHANGE, lambda: ZkIsrStore(f.zk).notify_isr_changes([T0, T1]))


@pytest.mark.kafka("ZKCT-19")
async def test_log_dir_events_as_they_are_read() -> None:  # rule 1.33
    f = Fixture()
    assert await f.zk.get_notifications(LOG_DIR) == {}  # not even the parent is there
    await f.zk.create_top_level_paths()
    assert await f.zk.get_notifications(LOG_DIR) == {}
    for failed in (3, 3, 4):
        await f.zk.propagate_log_dir_event(failed)
    found = await f.zk.get_notifications(LOG_DIR)
    assert list(found) == [f"{LOG_DIR_EVENT}000000000{i}" for i in range(3)]
    assert [cluster_nodes.decode_log_dir_event(data) for data in found.values()] == [3, 3, 4]


@pytest.mark.kafka("ZKCT-20")
async def test_log_dir_events_are_deleted(f: Fixture) -> None:  # rule 1.48
    await deletions_are_fenced(f, LOG_DIR, LOG_DIR_EVENT, lambda: f.zk.propagate_log_dir_event(3))


# what administrators ask for


@pytest.mark.kafka("ZKCT-21")
async def test_reassignments(f: Fixture) -> None:  # rules 1.38, 1.48
    assert await admin_nodes.get_partition_reassignment(f.zk) is None
    wanted = {T0: ids(1, 2), T1: ids(2, 1, 3), U0: ids(3)}
    await f.moved(lambda fence: admin_nodes.set_partition_reassignment(f.zk, wanted, fence))
    assert await admin_nodes.get_partition_reassignment(f.zk) == wanted
    await f.moved(lambda fence: admin_nodes.set_partition_reassignment(f.zk, {T0: ids(4), U0: ids(3)}, fence))
    assert await admin_nodes.get_partition_reassignment(f.zk) == {T0: (4,), U0: (3,)}
    await f.moved(lambda fence: admin_nodes.delete_partition_reassignment(f.zk, fence))
    assert await f.data(znodes.REASSIGN_PARTITIONS) is None
    await admin_nodes.delete_partition_reassignment(f.zk, f.fence)  # nothing there is fine
    await f.put(
        znodes.REASSIGN_PARTITIONS, cluster_nodes.encode_partition_reassignment(wanted)
    )  # as an old tool does it
    assert await admin_nodes.get_partition_reassignment(f.zk) == wanted


@pytest.mark.kafka("ZKCT-41")
async def test_whether_partitions_are_being_reassigned(f: Fixture) -> None:
    assert await admin_nodes.get_partition_reassignment(f.zk) is None
    await f.put(znodes.REASSIGN_PARTITIONS)  # even without content
    assert await admin_nodes.get_partition_reassignment(f.zk) is not None


@pytest.mark.kafka("ZKCT-51")
async def test_preferred_elections(f: Fixture) -> None:  # rules 1.39, 1.48
    assert await admin_nodes.get_preferred_replica_election(f.zk) == set()
    await f.put(znodes.PREFERRED_REPLICA_ELECTION, cluster_nodes.encode_partition_list([T0, U0]))
    assert await admin_nodes.get_preferred_replica_election(f.zk) == {T0, U0}
    with pytest.raises(NodeExists):
        await f.put(znodes.PREFERRED_REPLICA_ELECTION, cluster_nodes.encode_partition_list([T0, U0]))
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
    await f.zk.put_config("topics", "u", {"a": "5"})
    assert await f.zk.get_children("/config/topics") == ["t", "u"]
    for name in ("t", "u"):
        await f.zk.delete_topic_nodes([name], f.fence)
        assert await f.data(znodes.topic_config_path(name)) is None
        assert await f.zk.get_config("topics", name) == {}
    assert await f.zk.get_config("clients", "t") == {"c": "3"}


@pytest.mark.kafka("ZKCT-30")
async def test_changes_of_configuration_as_they_are_written(f: Fixture) -> None:  # rule 1.35
    await f.zk._delete_recursive(znodes.CONFIG_CHANGES, f.fence)  # what is missing is made
    for i, name in enumerate(("topic1", "topic2")):
        await f.zk.change_config("topics", name, {"a": "1"})
        assert (
            await f.data(f"/config/changes/config_change_000000000{i}")
            == f'{{"version":2,"entity_path":"topics/{name}"}}'.encode()
        )
    assert len(await f.zk.get_children(znodes.CONFIG_CHANGES)) == 2


def log_configs(found: Mapping[str, object], **broker: str) -> dict[str, LogConfig]:
    """What a broker makes of the settings of topics."""
    configs = TopicConfigs({key.replace("_", "."): text for key, text in broker.items()})
    for name, config in found.items():
        assert isinstance(config, Mapping)
        configs.changed(name, config)
    return {name: configs.of(name) for name in found}


@pytest.mark.kafka("ZKCT-31")
async def test_configurations_of_many_topics(f: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 7.4
    assert await f.zk.get_topic_configs(["t"]) == {"t": {}}
    assert log_configs(await f.zk.get_topic_configs(["t"])) == {"t": LogConfig.of({})}
    first = {"segment.bytes": "1024", "cleanup.policy": "compact"}
    await f.zk.put_config("topics", "t", first)
    found = await f.zk.get_topic_configs(["t", "u"])
    assert found == {"t": first, "u": {}}
    assert log_configs(found) == {"t": LogConfig.of(first), "u": LogConfig.of({})}
    second = {"segment.bytes": "2048", "cleanup.policy": "compact"}
    await f.zk.put_config("topics", "u", second)
    found = await f.zk.get_topic_configs(["t", "u"])
    assert found == {"t": first, "u": second}
    assert log_configs(found) == {"t": LogConfig.of(first), "u": LogConfig.of(second)}
    with_defaults = log_configs(await f.zk.get_topic_configs(["t"]), log_roll_jitter_ms="100", log_segment_bytes="128")
    assert with_defaults == {"t": LogConfig.of({**first, "segment.jitter.ms": "100"})}
    get_data = f.zk.get_data
    broken = NodeExists("an error of ZooKeeper")

    async def one_fails(paths: list[str]) -> list[object]:
        found = dict(zip(paths, await get_data(paths), strict=True))
        return [broken if path.endswith("/bad") else answer for path, answer in found.items()]

    monkeypatch.setattr(f.zk, "get_data", one_fails)
    assert await f.zk.get_topic_configs(["t", "none", "bad"]) == {
        "t": first,
        "none": {},
        "bad": broken,
    }


@pytest.mark.kafka("ZKCT-57")
async def test_configurations_are_not_changed_without_a_controller(f: Fixture) -> None:  # rule 1.54
    await f.zk.delete_controller(f.fence)
    for kind, name in (("brokers", "1"), ("topics", "t")):
        with pytest.raises(ControllerMoved):
            await f.zk.change_config(kind, name, {"a": "1"})
        assert await f.zk.get_config(kind, name) == {}
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
    ours, other = await f.zk.get_broker(1), f.client()
    assert ours == await other.get_broker(1) == broker(1, rack="r")
    different = RegisteredBroker(BrokerId(1), (Endpoint("SSL", "SSL", "h", 9),), None, {"feature2": (4, 7)})
    assert await f.zk.register_broker(different, LATEST) == epoch  # of this session: neither an error nor a change
    with pytest.raises(BrokerIdInUse):
        await other.register_broker(different, LATEST)
    assert await f.zk.exists(["/brokers/ids/1"]) == [stat]
    assert await f.zk.get_broker(1) == ours


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
    assert await zk.get_broker(1) == broker(1)
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
    later = await f.zk.register_broker(second, LATEST)
    earlier = await f.client().register_broker(broker(1), LATEST)
    found = await f.zk.get_brokers()
    assert list(found.items()) == [(1, (broker(1), earlier)), (2, (second, later))]  # by their ids
    assert await f.zk.get_broker(1) == broker(1)
    assert await f.zk.get_broker(2) == second


@pytest.mark.kafka("ZKCT-35")
async def test_a_registration_that_is_rewritten(f: Fixture) -> None:  # rules 1.20, 1.23
    moved = RegisteredBroker(BrokerId(1), (Endpoint("PLAINTEXT", "PLAINTEXT", "elsewhere", 9),), "r", {})

    async def rewrite(client: KafkaZkClient, registered: RegisteredBroker) -> Stat | StoreError:
        data = znodes.encode_broker(registered, LATEST, 5)
        (answer,) = await client.store.write([SetData("/brokers/ids/1", data)])
        assert isinstance(answer, Stat | StoreError)
        return answer

    assert isinstance(await rewrite(f.zk, moved), NoNode)
    epoch = await f.zk.register_broker(broker(1), LATEST)
    other = f.client()
    for client, registered in ((f.zk, moved), (other, broker(1))):
        answer = await rewrite(client, registered)
        assert isinstance(answer, Stat)
        assert answer.mzxid > answer.czxid == epoch
        assert await other.get_brokers() == {1: (registered, epoch)}


# the controller and the cluster


@pytest.mark.kafka("ZKCT-43")
async def test_controller_epoch() -> None:  # rules 1.12, 1.13, 2.7-2.9
    f = Fixture()
    assert await f.zk.get_controller_epoch() is None

    async def write(op: Op) -> object:
        """The type of an error, a version or the path."""
        (answer,) = await f.zk.store.write([op])
        return (
            answer.version if isinstance(answer, Stat) else type(answer) if isinstance(answer, StoreError) else answer
        )

    first = Create("/controller_epoch", znodes.encode_controller_epoch(0))
    next_one = SetData("/controller_epoch", znodes.encode_controller_epoch(1), 0)
    assert await write(next_one) is NoNode
    assert await write(first) == "/controller_epoch"
    assert await f.zk.get_controller_epoch() == (0, 0)
    assert await write(first) is NodeExists
    assert await write(next_one) == 1
    assert await f.zk.get_controller_epoch() == (1, 1)
    assert await write(next_one) is BadVersion
    assert await f.zk.register_controller(BrokerId(1)) == (2, 2)
    assert await f.data("/controller_epoch") == b"2"
    await f.zk._delete_recursive("/controller_epoch", UNFENCED)
    await f.zk._delete_recursive("/controller", UNFENCED)
    assert await f.zk.register_controller(BrokerId(1)) == (1, 1)


async def test_a_kraft_controller_is_not_deposed() -> None:  # rules 1.11, 2.10
    f = Fixture()
    await f.put("/controller_epoch", b"1")
    await f.put("/controller", b'{"version":2,"brokerid":3000,"timestamp":"1","kraftControllerEpoch":42}')
    with pytest.raises(ControllerMoved):
        await f.zk.register_controller(BrokerId(1))
    assert await f.zk.get_controller_id() == 3000
    assert await f.zk.get_controller_epoch() == (1, 0)


@pytest.mark.kafka("ZKCT-46")
async def test_controller() -> None:  # rules 1.8, 1.48
    f = Fixture()
    assert await f.zk.get_controller_id() is None
    _, f.fence = await f.zk.register_controller(BrokerId(1))
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
    assert not await f.zk.register_and_check("/x", handler)
    await f.put("/x", b"1")
    assert calls == ["created"]
    assert await f.zk.register_and_check("/x", handler)
    await f.zk.store.write([SetData("/x", b"2")])
    assert calls == ["created", "changed"]


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
