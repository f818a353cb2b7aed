"""DEL: deletion of topics in a cluster of stub brokers (section 14 of docs/controller-semantics.md; section 10f)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.log.names import CLEANER_OFFSET_CHECKPOINT
from kce.controller.kafka_controller import KafkaController
from kce.controller.states import ReplicaState
from kce.wire import ErrorCode
from kce.zookeeper import admin, znodes
from kce.zookeeper.model import BrokerId, PartitionReplica, TopicPartition
from kce.zookeeper.store import Create, Delete, value
from kce.zookeeper.topic_plans import AdminError
from tests.broker_stub.support import Node
from tests.controller import requests
from tests.controller.conformance.cluster import add_partitions, event_thread_blocked, stop
from tests.controller.conformance.served import restart, serve, served_cluster
from tests.controller.support import World, world

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@asynccontextmanager
async def cluster(
    *partitions: Sequence[int], **settings: bool
) -> AsyncIterator[tuple[World, KafkaController, dict[int, Node]]]:
    """Controller 0 and brokers 1 and 2; topic t."""
    async with world([1, 2]) as w:
        controller, nodes = await served_cluster(w, **settings)
        await w.create_topic("t", dict(enumerate(partitions)))
        yield w, controller, nodes


async def delete(w: World, topic: str = "t") -> None:
    assert await admin.delete_topic(w.zk, topic)
    await w.settle()


async def is_gone(w: World, nodes: dict[int, Node], topic: str = "t", partitions: int = 2) -> bool:
    """Has the topic gone from ZooKeeper, from caches, from logs, and from what the cleaner knows?"""
    paths = (znodes.topic_path(topic), znodes.topic_config_path(topic), znodes.delete_topic_path(topic))
    if any([await w.get(path) is not None for path in paths]):
        return False
    for node in nodes.values():
        if topic in node.cache.snapshot.topics:
            return False
        known = [directory.read_checkpoint(CLEANER_OFFSET_CHECKPOINT) for directory in node.logs.online]
        for partition in (TopicPartition(topic, p) for p in range(partitions)):
            if node.logs.has_log(partition) or any(partition in offsets for offsets in known):
                return False
    return True


@pytest.mark.kafka("DEL-1")
async def test_all_replicas_alive(autojump_clock: MockClock) -> None:  # rules 10.42-10.48
    async with cluster([0, 1], [1, 2]) as (w, _, nodes):
        assert nodes[1].logs.has_log(T0)
        await delete(w)
        assert await is_gone(w, nodes)


@pytest.mark.kafka("DEL-2")
async def test_deletion_is_resumed_when_a_follower_returns(autojump_clock: MockClock) -> None:  # rules 10.43, 10.47
    async with cluster([0, 1], [0, 2]) as (w, controller, nodes):
        await stop(w, 1)
        await delete(w)
        assert await w.get(znodes.topic_path("t")) is not None
        assert await w.get(znodes.delete_topic_path("t")) is not None
        assert controller.context.topics_ineligible_for_deletion == {"t"}
        assert not nodes[2].logs.has_log(T1)
        nodes[1] = await restart(w, 1)
        assert await is_gone(w, nodes)


@pytest.mark.kafka("DEL-3")
async def test_deletion_is_resumed_by_the_next_controller(autojump_clock: MockClock) -> None:  # rule 4.12
    async with cluster([1, 2]) as (w, _, nodes):
        second = await w.start_controller(2)
        await stop(w, 1)
        await delete(w)
        await stop(w, 0)
        assert second.is_active
        assert second.context.topics_to_delete == {"t"}
        assert await w.get(znodes.topic_path("t")) is not None
        assert await w.get(znodes.delete_topic_path("t")) is not None
        alive = {2: nodes[2], 1: await restart(w, 1)}
        assert await is_gone(w, alive)


@pytest.mark.kafka("DEL-4")
async def test_reassignment_of_a_topic_that_is_being_deleted(autojump_clock: MockClock) -> None:  # rule 11.21
    async with cluster([0, 1]) as (w, controller, nodes):
        await stop(w, 1)
        await delete(w)
        answers: list[object] = []
        requests.alter_partition_reassignments(controller, {T0: [2]}, answers.append)
        await w.settle()
        (answer,) = answers
        assert {tp: result.code for tp, result in answer.items()} == {T0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}  # type: ignore[attr-defined]
        assert controller.context.being_reassigned == set()
        nodes[1] = await restart(w, 1)
        assert await is_gone(w, nodes)


@pytest.mark.kafka("DEL-5")
async def test_partitions_added_during_deletion_are_reverted(autojump_clock: MockClock) -> None:  # rule 10.32
    async with cluster([0, 1, 2]) as (w, controller, nodes):
        second = await w.start_controller(2)
        await stop(w, 1)
        await delete(w)
        states = {b: controller.context.replica_states.of(PartitionReplica(T0, BrokerId(b))) for b in (0, 1, 2)}
        tried, dead = ReplicaState.DELETION_SUCCESSFUL, ReplicaState.OFFLINE
        assert states == {0: tried, 1: dead, 2: tried}
        more = wire.CreatePartitionsRequest(topics=(wire.CreatePartitionsTopic(name="t", count=2),), timeout_ms=1000)
        (result,) = (await nodes[0].ask(more)).results
        assert result.error_code != ErrorCode.NONE
        await add_partitions(w, "t", {1: [0, 2]})  # as admin code does that asks nobody
        assert list((await w.zk.get_topic_assignments(["t"]))["t"].partitions) == [0]
        assert controller.context.partitions_of("t") == [T0]
        await stop(w, 0)
        assert second.is_active
        assert await w.get(znodes.delete_topic_path("t")) is not None
        nodes[1] = await restart(w, 1)
        await w.start_controller(0)
        assert await is_gone(w, {b: nodes[b] for b in (1, 2)})


@pytest.mark.kafka("DEL-6")
async def test_deletion_after_an_addition_wins(autojump_clock: MockClock) -> None:  # rules 10.37, 10.48
    async with cluster([0, 1, 2]) as (w, _, nodes):
        await stop(w, 1)
        await add_partitions(w, "t", {1: [0, 1, 2], 2: [0, 1, 2]})
        assert nodes[2].logs.has_log(T1)
        await delete(w)
        nodes[1] = await restart(w, 1)
        assert await is_gone(w, nodes, partitions=3)


async def test_deletion_during_addition_wins(autojump_clock: MockClock) -> None:  # rules 10.37, 10.48
    async with cluster([0, 1]) as (w, controller, nodes):
        async with event_thread_blocked(w, controller):
            await add_partitions(w, "t", {1: [0, 2]})
            await delete(w)
        assert await is_gone(w, nodes)


@pytest.mark.kafka("DEL-7")
async def test_partitions_added_while_deletion_begins_are_never_made(autojump_clock: MockClock) -> None:  # rule 10.32
    async with cluster([0, 1]) as (w, controller, nodes):
        async with event_thread_blocked(w, controller):
            await delete(w)
            await add_partitions(w, "t", {1: [0, 1, 2], 2: [0, 1, 2]})
        assert not any(
            t.topic_name == "t" and state.partition_index > 0
            for sent in w.log
            for t in getattr(sent.message, "topic_states", ())
            for state in t.partition_states
        )
        assert await is_gone(w, nodes, partitions=3)


@pytest.mark.kafka("DEL-8")
async def test_a_topic_of_the_same_name_afterwards(autojump_clock: MockClock) -> None:  # rule 10.51
    async with cluster([0, 1]) as (w, controller, nodes):
        first = controller.context.topic_ids["t"]
        await delete(w)
        assert await is_gone(w, nodes)
        await w.create_topic("t", {0: [0, 1]})
        assert await w.state("t") == (0, 0, (0, 1))
        second = controller.context.topic_ids["t"]
        assert second != first
        assert [nodes[broker].logs.topic_id(T0) for broker in (0, 1)] == [second, second]


@pytest.mark.kafka("DEL-9")
async def test_a_topic_that_does_not_exist(autojump_clock: MockClock) -> None:  # rules 10.36, 10.37
    async with cluster([0, 1]) as (w, _, nodes):
        with pytest.raises(AdminError) as refused:
            await admin.delete_topic(w.zk, "other")
        assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        value((await w.store.write([Create(znodes.delete_topic_path("other"))]))[0])
        await w.settle()
        assert await w.get(znodes.delete_topic_path("other")) is None
        assert await is_gone(w, nodes, "other")
        assert await w.state("t") == (0, 0, (0, 1))
        assert nodes[0].logs.has_log(T0)
        assert nodes[1].logs.has_log(T0)


async def delete_topics(node: Node, topic: str) -> int:
    """The code that DeleteTopics is answered with."""
    message = wire.DeleteTopicsRequest(topics=(wire.DeleteTopicState(name=topic),), timeout_ms=1000)
    (result,) = (await node.ask(message)).responses
    return int(result.error_code)


@pytest.mark.kafka("DEL-11")
async def test_a_topic_that_is_marked_already(autojump_clock: MockClock) -> None:  # rule 10.36
    async with cluster([0, 1]) as (w, _, nodes):
        await stop(w, 1)
        assert await admin.delete_topic(w.zk, "t") is True
        assert await admin.delete_topic(w.zk, "t") is False
        nodes[1] = await restart(w, 1)
        assert await is_gone(w, nodes)
        assert await delete_topics(nodes[0], "t") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.kafka("DEL-12")
async def test_deletion_is_disabled(autojump_clock: MockClock) -> None:  # rule 10.37
    async with cluster([0, 1], delete_topic_enable=False) as (w, controller, nodes):
        refusing = serve(w, 0, delete_topic_enable="false")
        assert await delete_topics(refusing, "t") == ErrorCode.TOPIC_DELETION_DISABLED
        assert await w.get(znodes.delete_topic_path("t")) is None
        await delete(w)
        assert await w.get(znodes.delete_topic_path("t")) is None
        assert await w.state("t") == (0, 0, (0, 1))
        assert nodes[0].logs.has_log(T0)
        assert nodes[1].logs.has_log(T0)
        assert controller.context.topics_to_delete == set()


@pytest.mark.kafka("DEL-13")
async def test_a_topic_of_which_a_partition_is_gone(autojump_clock: MockClock) -> None:  # rule 4.12
    """The state that a controller leaves when it dies between two partitions."""
    async with cluster([0, 1, 2], [0, 1, 2]) as (w, _, nodes):
        await stop(w, 1, 2, 0)
        gone = znodes.partition_path(T0)
        for answer in await w.store.write([Delete(znodes.partition_state_path(T0)), Delete(gone)]):
            value(answer)
        assert await admin.delete_topic(w.zk, "t")
        await w.start_controller(0)
        again = {b: await restart(w, b, nodes[b].logs) for b in (1, 2)}
        assert await is_gone(w, again)


async def test_a_topic_that_is_deleted_in_part(autojump_clock: MockClock) -> None:  # rules 4.12, 9.30
    async with cluster([1, 2]) as (w, _, nodes):
        await stop(w, 2)
        await delete(w)
        assert not nodes[1].logs.has_log(T0)
        assert nodes[2].logs.has_log(T0)
        await stop(w, 1)
        await stop(w, 0)
        w.nodes.clear()
        await w.start_controller(0)
        again = {b: await restart(w, b, nodes[b].logs) for b in (1, 2)}
        assert await is_gone(w, again)
