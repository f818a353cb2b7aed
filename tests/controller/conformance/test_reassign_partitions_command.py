"""RPC: the requests of kafka-reassign-partitions, through their bytes (section 14 of docs/controller-semantics.md;
rules of sections 11a to 11c)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from kce import wire
from kce.controller.kafka_controller import KafkaController
from kce.wire import ErrorCode
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.model import TopicPartition
from kce.zookeeper.store import Create, SetData, value
from tests.broker_stub.support import Node
from tests.controller.conformance.cluster import propose_isr
from tests.controller.conformance.served import served_cluster
from tests.controller.support import World, world


async def reassign(node: Node, targets: Mapping[TopicPartition, Sequence[int] | None]) -> dict[TopicPartition, int]:
    """AlterPartitionReassignments; None cancels."""
    topics: dict[str, list[wire.ReassignablePartition]] = {}
    for tp, target in targets.items():
        replicas = None if target is None else tuple(target)
        topics.setdefault(tp.topic, []).append(
            wire.ReassignablePartition(partition_index=tp.partition, replicas=replicas)
        )
    answer = await node.ask(
        wire.AlterPartitionReassignmentsRequest(
            topics=tuple(wire.ReassignableTopic(name=t, partitions=tuple(ps)) for t, ps in topics.items())
        )
    )
    await wait_all_tasks_blocked()  # the answer confirms only the submission
    assert answer.error_code == 0
    return {TopicPartition(t.name, p.partition_index): p.error_code for t in answer.responses for p in t.partitions}


async def reassigning(node: Node) -> dict[TopicPartition, tuple[tuple[int, ...], ...]]:
    """ListPartitionReassignments of all: (replicas, adding, removing)."""
    answer = await node.ask(wire.ListPartitionReassignmentsRequest(topics=None))
    return {
        TopicPartition(t.name, p.partition_index): (p.replicas, p.adding_replicas, p.removing_replicas)
        for t in answer.topics
        for p in t.partitions
    }


FOO0, BAR0, BAZ1 = TopicPartition("foo", 0), TopicPartition("bar", 0), TopicPartition("baz", 1)
BEFORE = {FOO0: (0, 1, 2), BAR0: (3, 2, 1)}
TARGETS = {FOO0: (0, 1, 3), BAR0: (3, 2, 0)}


async def replicas(w: World, *partitions: TopicPartition) -> dict[TopicPartition, tuple[int, ...]]:
    found = await w.zk.get_topic_assignments([tp.topic for tp in partitions])
    return {tp: found[tp.topic].partitions[tp.partition].replicas for tp in partitions}


@asynccontextmanager
async def cluster(ibp: str = "3.9") -> AsyncIterator[tuple[World, KafkaController, dict[int, Node]]]:
    """Brokers 0 to 4, controller 0, and the topics of upstream's suite."""
    async with world([1, 2, 3, 4], ibp=MetadataVersion.parse(ibp)) as w:
        controller, nodes = await served_cluster(w)
        await w.create_topic("foo", {0: [0, 1, 2], 1: [1, 2, 3]})
        await w.create_topic("bar", {0: [3, 2, 1]})
        await w.create_topic("baz", {0: [1, 0, 2], 1: [2, 0, 1], 2: [0, 2, 1]})
        yield w, controller, nodes


async def begin(w: World, nodes: dict[int, Node]) -> None:
    """Partitions of foo and bar, whose new replicas have yet to catch up."""
    assert await reassigning(nodes[0]) == {}
    assert await replicas(w, FOO0, BAR0) == BEFORE
    assert await reassign(nodes[0], TARGETS) == {FOO0: ErrorCode.NONE, BAR0: ErrorCode.NONE}
    assert await reassigning(nodes[0]) == {FOO0: ((0, 1, 3, 2), (3,), (2,)), BAR0: ((3, 2, 0, 1), (0,), (1,))}
    assert FOO0 in nodes[3].replicas.partitions


async def is_done(w: World, nodes: dict[int, Node]) -> bool:
    for tp, leader in ((FOO0, 0), (BAR0, 3)):
        state = await w.state(tp.topic, tp.partition)
        assert (state[0], set(state[2])) == (leader, set(TARGETS[tp]))
    assert not nodes[2].logs.has_log(FOO0)
    assert not nodes[1].logs.has_log(BAR0)
    return await reassigning(nodes[0]) == {} and await replicas(w, FOO0, BAR0) == TARGETS


@pytest.mark.kafka("RPC-1")
async def test_reassignment(autojump_clock: MockClock) -> None:  # rules 11.5-11.13, 11.25
    async with cluster() as (w, controller, nodes):
        await begin(w, nodes)
        await propose_isr(w, controller, [0, 1, 2, 3], topic="foo")
        await propose_isr(w, controller, [3, 2, 1, 0], topic="bar")
        assert await is_done(w, nodes)


async def isr_by_the_leader(w: World, tp: TopicPartition, isr: Sequence[int], *, notify: bool) -> None:
    """Change the ISR as a leader below 2.7-IV2 does: write the state, optionally notify (rules 1.32, 1.53)."""
    path = znodes.partition_state_path(tp)
    node = json.loads(await w.get(path) or b"")
    value((await w.store.write([SetData(path, json.dumps({**node, "isr": list(isr)}).encode())]))[0])
    if notify:
        notification = cluster_nodes.encode_partition_list([tp])
        value((await w.store.write([Create("/isr_change_notification/isr_change_", notification, sequential=True)]))[0])
    await w.settle()


@pytest.mark.kafka("RPC-2")
async def test_reassignment_without_alter_partition(autojump_clock: MockClock) -> None:  # rules 11.3, 11.17
    async with cluster("2.7-IV1") as (w, _, nodes):
        await begin(w, nodes)
        await isr_by_the_leader(w, FOO0, [0, 1, 2, 3], notify=False)
        assert list(await reassigning(nodes[0])) == [BAR0]
        await isr_by_the_leader(w, BAR0, [3, 2, 1, 0], notify=False)
        assert await is_done(w, nodes)


@pytest.mark.kafka("RPC-3")
async def test_reassignment_during_an_upgrade(autojump_clock: MockClock) -> None:  # rules 11.17, 11.68
    async with cluster() as (w, _, nodes):
        await begin(w, nodes)
        for tp, isr in ((FOO0, [0, 1, 2, 3]), (BAR0, [3, 2, 1, 0])):
            await isr_by_the_leader(w, tp, isr, notify=False)
            assert tp in await reassigning(nodes[0])  # a controller of 3.9 does not watch the state
            await isr_by_the_leader(w, tp, isr, notify=True)
            assert tp not in await reassigning(nodes[0])
        assert await is_done(w, nodes)


@pytest.mark.kafka("RPC-8")
async def test_cancellation(autojump_clock: MockClock) -> None:  # rules 11.19, 11.27
    async with cluster() as (w, _, nodes):
        targets = {FOO0: (0, 1, 3), BAZ1: (0, 2, 3)}
        assert await reassign(nodes[0], targets) == dict.fromkeys(targets, ErrorCode.NONE)
        assert await reassigning(nodes[0]) == {FOO0: ((0, 1, 3, 2), (3,), (2,)), BAZ1: ((0, 2, 3, 1), (3,), (1,))}
        assert {FOO0, BAZ1} <= set(nodes[3].replicas.partitions)
        none = dict.fromkeys(targets)
        assert await reassign(nodes[0], none) == dict.fromkeys(targets, ErrorCode.NONE)
        assert await reassigning(nodes[0]) == {}
        refused = dict.fromkeys(targets, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        assert await reassign(nodes[0], none) == refused
        assert await replicas(w, FOO0, BAZ1) == {FOO0: (0, 1, 2), BAZ1: (0, 2, 1)}
        for tp in targets:
            leader, _, isr = await w.state(tp.topic, tp.partition)
            assert (leader, set(isr)) == ({FOO0: 0, BAZ1: 2}[tp], {0, 1, 2})
            assert not nodes[3].logs.has_log(tp)


@pytest.mark.kafka("RPC-9")
async def test_cancellation_when_an_adding_replica_is_in_the_isr(autojump_clock: MockClock) -> None:  # rule 11.19
    async with cluster() as (w, controller, nodes):
        assert await reassign(nodes[0], {FOO0: (0, 3, 4)}) == {FOO0: ErrorCode.NONE}
        await propose_isr(w, controller, [0, 1, 2, 3], topic="foo")
        assert (await w.state("foo"))[2] == (0, 1, 2, 3)
        assert await reassign(nodes[0], {FOO0: None}) == {FOO0: ErrorCode.NONE}
        assert await reassigning(nodes[0]) == {}
        leader, _, isr = await w.state("foo")
        assert (leader, isr) == (0, (0, 1, 2))
        assert await replicas(w, FOO0) == {FOO0: (0, 1, 2)}
        for broker in (3, 4):
            assert not nodes[broker].logs.has_log(FOO0)
