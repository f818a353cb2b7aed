"""No error of the store is lost: each operation on znodes is refused once at each of its writes and reads.

Covers: zookeeper/admin_nodes.py, zookeeper/registration.py, zookeeper/client.py, zookeeper/security_nodes.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import pytest

from kce.wire.metadata_version import LATEST
from kce.zookeeper import admin, admin_nodes, security_nodes, znodes
from kce.zookeeper.errors import IllegalState
from kce.zookeeper.kafka_zk_client import UNFENCED, KafkaZkClient
from kce.zookeeper.model import (
    BrokerId,
    ControllerEpoch,
    EpochZkVersion,
    LeaderAndIsr,
    Leadership,
    ReplicaAssignment,
    TopicPartition,
)
from kce.zookeeper.store import (
    Check,
    Create,
    MultiFailed,
    NoAuth,
    NodeData,
    Op,
    OpResult,
    SessionExpired,
    SetData,
    Stat,
    StoreError,
)
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper
from tests.controller.support import broker

FENCE = EpochZkVersion(1)
A0 = TopicPartition("a", 0)
ID = uuid.UUID(int=7)
STATE = Leadership(
    LeaderAndIsr(leader=BrokerId(1), leader_epoch=0, isr=(BrokerId(1),), partition_epoch=0), ControllerEpoch(1)
)


class Refusing(MemoryStore):
    """Counts requests of ``kind``, and refuses one of them, the first being number 0, and every write of a path."""

    kind = ""
    count = 0
    refused: int | None = None
    forbidden = ""

    def _refuses(self, kind: str, *ops: Op) -> bool:
        if any(op.path == self.forbidden for op in ops):
            return True
        if kind != self.kind:
            return False
        self.count += 1
        return self.count - 1 == self.refused

    async def write(self, ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
        answers: list[OpResult | StoreError] = []
        for op in ops:
            refused = self._refuses("write", op)
            answers += [NoAuth(op.path)] if refused else await super().write([op], fence=fence)
        return answers

    async def multi(self, groups: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed]:
        answers: list[list[OpResult] | MultiFailed] = []
        for ops in groups:
            refused = self._refuses("write", *ops)
            failed = MultiFailed(len(ops) - 1, NoAuth(ops[-1].path))
            answers += [failed] if refused else await super().multi([ops])
        return answers

    async def get_data(
        self, paths: Sequence[str], *, watch: Sequence[bool] | bool = False
    ) -> list[NodeData | StoreError]:
        found = await super().get_data(paths, watch=watch)
        return [NoAuth(p) if self._refuses("read") else answer for p, answer in zip(paths, found, strict=True)]

    async def get_children(self, paths: Sequence[str], *, watch: bool = False) -> list[list[str] | StoreError]:
        found = await super().get_children(paths, watch=watch)
        return [NoAuth(p) if self._refuses("read") else answer for p, answer in zip(paths, found, strict=True)]


async def cluster() -> tuple[KafkaZkClient, Refusing]:
    """Broker 1 is registered and controller; topic a has one partition."""
    store = Refusing(MemoryZooKeeper(), 77)
    zk = KafkaZkClient(store, now_ms=lambda: 1234, new_uuid=lambda: ID)
    await zk.create_top_level_paths()
    await security_nodes.create_token_paths(zk)
    await zk.register_broker(broker(1), LATEST)
    assert (await zk.register_controller(BrokerId(1)))[1] == FENCE
    await admin.write_topic(zk, "a", {0: (1,)}, {"retention.ms": "7"}, ID)
    await zk.create_partition_states({A0: STATE}, FENCE)
    await admin_nodes.set_partition_reassignment(zk, {A0: (BrokerId(1),)}, FENCE)
    await zk.store.write([Create("/admin/preferred_replica_election", b'{"version":1,"partitions":[]}')])
    return zk, store


Operation = Callable[[KafkaZkClient], Awaitable[Any]]

WRITES: dict[str, Operation] = {
    "ensure_paths": lambda zk: zk.ensure_paths(["/x/y/z"]),
    "get_or_create_cluster_id": lambda zk: zk.get_or_create_cluster_id(),
    "register_broker": lambda zk: zk.register_broker(broker(2), LATEST),
    "set_topic_assignments": lambda zk: zk.set_topic_assignments({"a": (None, {0: ReplicaAssignment(())})}, FENCE),
    "put_config": lambda zk: zk.put_config("topics", "a", {}),
    "put_config of a new kind": lambda zk: zk.put_config("things", "a", {}),
    "change_config": lambda zk: zk.change_config("topics", "a", {}),
    "change_config of a new topic": lambda zk: zk.change_config("topics", "b", {}),
    "propagate_log_dir_event": lambda zk: zk.propagate_log_dir_event(1),
    "put_feature": lambda zk: zk.put_feature(b"", create=True),
    "delete": lambda zk: zk.delete(["/brokers/topics/a/partitions/0/state"], FENCE),
    "delete, not fenced": lambda zk: zk.delete(["/brokers/topics/a/partitions/0/state"], UNFENCED),
    "delete_controller": lambda zk: zk.delete_controller(FENCE),
    "set_partition_reassignment": lambda zk: admin_nodes.set_partition_reassignment(zk, {}, FENCE),
    "delete_partition_reassignment": lambda zk: admin_nodes.delete_partition_reassignment(zk, FENCE),
    "delete_preferred_replica_election": lambda zk: admin_nodes.delete_preferred_replica_election(zk, FENCE),
    "allocate_producer_ids": lambda zk: admin_nodes.allocate_producer_ids(zk, BrokerId(1)),
    "generate_broker_id": lambda zk: admin_nodes.generate_broker_id(zk, 1000),
    "write_topic": lambda zk: admin.write_topic(zk, "b", {0: (1,)}, {}, ID),
    "create_topic": lambda zk: admin.create_topic(zk, "b", assignment={0: (1,)}, random=None),  # type: ignore[arg-type]
    "delete_topic": lambda zk: admin.delete_topic(zk, "a"),
    "notify_token_change": lambda zk: security_nodes.notify_token_change(zk, "t"),
}

READS: dict[str, Operation] = {
    "get_topics": lambda zk: zk.get_topics(),
    "get_topic_assignments": lambda zk: zk.get_topic_assignments(["a"]),
    "get_config": lambda zk: zk.get_config("topics", "a"),
    "get_topic_deletions": lambda zk: zk.get_topic_deletions(),
    "existing_partitions": lambda zk: zk.existing_partitions("a"),
    "get_feature": lambda zk: zk.get_feature(),
    "get_brokers": lambda zk: zk.get_brokers(),
    "get_broker": lambda zk: zk.get_broker(1),
    "get_controller_id": lambda zk: zk.get_controller_id(),
    "get_controller_epoch": lambda zk: zk.get_controller_epoch(),
    "get_or_create_cluster_id": lambda zk: zk.get_or_create_cluster_id(),
    "get_partition_reassignment": lambda zk: admin_nodes.get_partition_reassignment(zk),
    "get_preferred_replica_election": lambda zk: admin_nodes.get_preferred_replica_election(zk),
    "allocate_producer_ids": lambda zk: admin_nodes.allocate_producer_ids(zk, BrokerId(1)),
    "create_topic": WRITES["create_topic"],
}


@pytest.mark.parametrize(
    ("kind", "operation"),
    [
        pytest.param(kind, operation, id=f"{kind} {name}")
        for kind, operations in (("write", WRITES), ("read", READS))
        for name, operation in operations.items()
    ],
)
async def test_each_refusal_is_raised(kind: str, operation: Operation) -> None:
    number = 0
    while True:
        zk, store = await cluster()
        store.kind, store.refused = kind, number
        try:
            await operation(zk)
        except NoAuth:
            number += 1
        else:  # there was no request of that number
            assert store.count == number > 0, f"the refusal of request {number} of {store.count} is lost"
            return


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("/brokers/topics/a", ["/brokers/topics/a", "/config/topics/a", "/admin/delete_topics/a"]),
        ("/config/topics/a", ["/config/topics/a", "/admin/delete_topics/a"]),
        ("/admin/delete_topics/a", ["/admin/delete_topics/a"]),
    ],
)
async def test_topics_are_deleted_as_far_as_allowed(path: str, left: list[str]) -> None:  # rule 10.48
    zk, store = await cluster()
    await admin.delete_topic(zk, "a")
    store.forbidden = path
    with pytest.raises(NoAuth, match=path):
        await zk.delete_topic_nodes(["a"], FENCE)
    paths = ["/brokers/topics/a", "/config/topics/a", "/admin/delete_topics/a"]
    assert [p for p, stat in zip(paths, await store.exists(paths), strict=True) if stat is not None] == left


async def test_states_that_are_refused_are_told_by_partition() -> None:  # rules 1.30, 1.50, 1.51
    zk, store = await cluster()
    states = {TopicPartition("a", number): STATE for number in (1, 2)}
    store.kind, store.refused = "write", 3  # the nodes of both partitions come first
    created = await zk.create_partition_states(states, FENCE)
    assert [type(error) for error in created.values()] == [type(None), NoAuth]
    store.count = 0
    store.refused = 1
    isr = dict.fromkeys((A0, TopicPartition("a", 1), TopicPartition("a", 9)), STATE.leader_and_isr)
    result = await zk.update_leader_and_isr(isr, ControllerEpoch(1), FENCE)
    assert list(result.updated) == [A0]
    assert result.updated[A0].partition_epoch == 1
    assert {tp.partition: type(error).__name__ for tp, error in result.failed.items()} == {1: "NoAuth", 9: "NoNode"}
    assert result.retry == []
    again = await zk.update_leader_and_isr({A0: STATE.leader_and_isr}, ControllerEpoch(1), FENCE)
    assert (again.updated, again.retry, again.failed) == ({}, [A0], {})
    await store.write([SetData("/controller_epoch", b"9")])
    with pytest.raises(Exception, match="/controller_epoch is no longer at version 1"):
        await zk.update_leader_and_isr({A0: STATE.leader_and_isr}, ControllerEpoch(1), FENCE)


async def test_a_registration_whose_answer_was_lost_is_ours_in_the_next_session_too() -> None:  # rule 1.22
    """The write happened, its answer did not arrive; then the session ends, and its node is still there."""

    class Forgetful(MemoryZooKeeper):
        def _end(self, client: MemoryStore) -> None:
            return None

    class Lossy(MemoryStore):
        async def multi(self, groups: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed]:
            await super().multi(groups)
            return await super().multi(groups)  # sent again

    server = Forgetful()
    store = Lossy(server, 77)
    zk = KafkaZkClient(store, now_ms=lambda: 1)
    await zk.ensure_paths([znodes.BROKER_IDS])
    first = await zk.register_broker(broker(1), LATEST)
    (stat,) = await store.exists(["/brokers/ids/1"])
    assert isinstance(stat, Stat)
    assert (stat.czxid, stat.ephemeral_owner) == (first, 77)
    server.expire(store)
    second = await zk.register_broker(broker(1), LATEST)
    assert second > first
    await store.aclose()
    with pytest.raises(SessionExpired):
        await zk.register_broker(broker(1), LATEST)


UNWATCHED: dict[str, Operation] = {
    "create_topic": WRITES["create_topic"],
    "create_topic that is placed": lambda zk: admin.create_topic(zk, "b", random=Random(1)),
    "describe_topics": lambda zk: admin.describe_topics(zk),
    "check_endpoints_free": lambda zk: zk.check_endpoints_free(broker(3)),
}


@pytest.mark.parametrize("operation", UNWATCHED.values(), ids=UNWATCHED)
async def test_administration_sets_no_watches_for_the_controller(operation: Operation) -> None:  # rule 1.56
    """It shares the client with the controller, whose handlers would be called."""
    zk, store = await cluster()
    called: list[str] = []
    for parent in (znodes.TOPICS, znodes.BROKER_IDS):
        zk.register_child_handler(parent, lambda parent=parent: called.append(parent))  # type: ignore[misc]
    await operation(zk)
    await store.write([Create(f"{parent}/99") for parent in (znodes.TOPICS, znodes.BROKER_IDS)])
    assert called == []


async def test_a_client_without_ids_creates_no_topics() -> None:
    zk = KafkaZkClient(MemoryZooKeeper().connect(), now_ms=lambda: 0)
    await zk.create_top_level_paths()
    with pytest.raises(IllegalState, match="this client was made without new_uuid"):
        await admin.create_topic(zk, "a", assignment={0: (1,)}, random=Random(1))
