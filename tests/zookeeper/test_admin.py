"""Bounds of what administrators may write: numbers of partitions, broker ids, sizes of znodes.

Covers: zookeeper/topic_plans.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from kce.wire import ErrorCode
from kce.zookeeper import admin, topic_plans, znodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import ReplicaAssignment, TopicAssignment
from kce.zookeeper.store import MAX_REQUEST_BYTES, Create, MultiFailed, Op, StoreError
from kce.zookeeper.topic_plans import MAX_PARTITIONS, AdminError
from tests.controller.support import broker, world
from tests.zookeeper.conformance.topics import refusal


async def test_too_many_partitions_are_refused_quickly(autojump_clock: MockClock) -> None:
    async with world() as w:
        started = time.monotonic()
        for count in (MAX_PARTITIONS + 1, 1_000_000, 2**31 - 1):
            with pytest.raises(AdminError, match=f"at most {MAX_PARTITIONS} partitions") as refused:
                await admin.create_topic(w.zk, "t", partitions=count, random=Random(0))
            assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert time.monotonic() - started < 5
        assert await w.zk.get_topics() == set()
        with pytest.raises(AdminError) as refused:  # the other errors come first, as in Kafka
            await admin.create_topic(w.zk, "t", partitions=1_000_000, replication_factor=9, random=Random(0))
        assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


async def test_too_many_added_partitions_are_refused(autojump_clock: MockClock) -> None:
    async with world() as w:
        await admin.create_topic(w.zk, "t", random=Random(0))
        with pytest.raises(AdminError, match="at most 46341 partitions are possible, not 1000000") as refused:
            await admin.plan_partitions(w.zk, "t", 1_000_000, None, random=Random(0))
        assert refused.value.code is ErrorCode.INVALID_PARTITIONS


async def test_replicas_are_broker_ids(autojump_clock: MockClock) -> None:
    async with world() as w:
        assert await refusal(w, "t", {0: [1, 2**31]}) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        await admin.create_topic(w.zk, "t", assignment={0: [1, 2**31 - 1]}, random=Random(0))


async def test_a_topic_that_does_not_fit_into_a_znode(autojump_clock: MockClock) -> None:
    """4,000 partitions with 1,000 replicas each."""
    async with world() as w:
        replicas = list(range(100_000, 101_000))
        assert await refusal(w, "t", dict.fromkeys(range(4000), replicas)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        few = {p: ReplicaAssignment(tuple(replicas)) for p in range(500)}  # type: ignore[arg-type]
        await w.store.write([Create(znodes.topic_path("u"), znodes.encode_topic(None, few))])
        found = TopicAssignment("u", UUID(int=1), few)
        with pytest.raises(AdminError, match="the replicas of 1000 partitions do not fit") as refused:
            await admin.add_partitions(w.zk, found, dict.fromkeys(range(500, 1000), replicas))
        assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


async def test_a_configuration_that_does_not_fit_into_a_znode(autojump_clock: MockClock) -> None:
    async with world() as w:
        with pytest.raises(AdminError, match="the configuration is too large") as refused:
            await admin.create_topic(
                w.zk, "t", assignment={0: [1]}, config={"x": "y" * MAX_REQUEST_BYTES}, random=Random(0)
            )
        assert refused.value.code is ErrorCode.INVALID_CONFIG
        assert await w.zk.get_topics() == set()


async def test_a_new_topics_configuration_has_version_0(autojump_clock: MockClock) -> None:  # rule 10.7
    async with world() as w:
        await admin.create_topic(w.zk, "t", assignment={0: [1]}, config={"a": "1"}, random=Random(0))
        ((stat,),) = [await w.store.exists(["/config/topics/t"])]
        assert stat is not None
        assert stat.version == 0
        await w.zk.put_config("topics", "t", {"a": "2"})
        assert await w.zk.get_config("topics", "t") == {"a": "2"}


async def test_partitions_need_racks_on_all_brokers_or_on_none(autojump_clock: MockClock) -> None:  # rule 10.13
    """Even with assignments, and for an unknown topic."""
    async with world(brokers=(1,)) as w:
        await w.start_broker(2, rack="r")
        await admin.create_topic(w.zk, "t", assignment={0: [1]}, random=Random(0))
        for topic, assignments in (("t", [[2]]), ("t", None), ("none", None)):
            with pytest.raises(AdminError, match="have no rack") as refused:
                await admin.plan_partitions(w.zk, topic, 2, assignments, random=Random(0))
            assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


async def test_a_node_that_is_only_a_controller_takes_no_replicas(autojump_clock: MockClock) -> None:
    async with world(brokers=(1,)) as w:
        only = replace(broker(7), controller_only=True)
        await KafkaZkClient(w.server.connect(), now_ms=lambda: 0).register_broker(only, w.ibp)
        assert await refusal(w, "t", {0: [1, 7]}) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        with pytest.raises(AdminError) as refused:
            await admin.create_topic(w.zk, "t", replication_factor=2, random=Random(0))
        assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
        await admin.create_topic(w.zk, "t", partitions=9, random=Random(0))
        found = (await w.zk.get_topic_assignments(["t"]))["t"]
        assert {a.replicas for a in found.partitions.values()} == {(1,)}


async def test_a_topic_that_cannot_be_written(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:

        async def refused(groups: Sequence[Sequence[Op]]) -> list[MultiFailed]:
            await trio.lowlevel.checkpoint()
            return [MultiFailed(1, StoreError("no"))] * len(groups)

        monkeypatch.setattr(w.zk.store, "multi", refused)
        with pytest.raises(StoreError, match="no"):
            await admin.write_topic(w.zk, "t", {0: [1]}, {}, None)


def test_a_topic_without_partitions_does_not_exist() -> None:
    for found in (None, TopicAssignment("t", None, {})):
        with pytest.raises(AdminError, match="The topic 't' does not exist") as refused:
            topic_plans.planned_partitions("t", found, {1: None}, 2, None, random=Random(0))
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_each_added_partition_has_as_many_replicas_as_the_first() -> None:  # rule 10.14
    found = TopicAssignment("t", None, {0: ReplicaAssignment((1,))})
    with pytest.raises(AdminError, match=r"0 has 1 while partitions \[2\] have replication factors \[2\]") as refused:
        topic_plans.planned_partitions("t", found, {1: None, 2: None}, 3, [[1], [1, 2]], random=Random(0))
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


async def test_a_topic_that_cannot_be_written_is_an_error(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configuration is there, so that it is written in steps."""
    async with world(brokers=(1,)) as w:
        await w.zk.put_config("topics", "t", {})
        write = w.zk.store.write

        async def denied(ops: Sequence[Op]) -> Sequence[object]:
            return [StoreError(f"{op.path} is denied") if op.path == "/brokers/topics/t" else (await write([op]))[0]
                    for op in ops]  # fmt: skip

        monkeypatch.setattr(w.zk.store, "write", denied)
        with pytest.raises(StoreError, match="/brokers/topics/t is denied"):
            await admin.create_topic(w.zk, "t", assignment={0: [1]}, random=Random(0))
