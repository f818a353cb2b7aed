"""RPC: the requests of kafka-reassign-partitions, through their bytes (section 14 of docs/controller-semantics.md;
rules of sections 11a to 11c)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from kce import wire
from kce.wire import ErrorCode
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper import znodes
from kce.zookeeper.model import TopicPartition
from kce.zookeeper.store import Create, SetData, value
from tests.broker_stub.support import Node
from tests.controller.conformance.bench import TP
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
    await wait_all_tasks_blocked(0.0001)  # the answer tells of submission
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


@pytest.mark.kafka("RPC-1")
async def test_reassignment(autojump_clock: MockClock) -> None:  # rules 11.5-11.13, 11.25
    async with world([1, 2, 3]) as w:
        controller, nodes = await served_cluster(w)
        await w.create_topic("t", {0: [0, 1]})
        assert await reassign(nodes[0], {TP: [2, 3]}) == {TP: ErrorCode.NONE}
        assert await reassigning(nodes[0]) == {TP: ((2, 3, 0, 1), (2, 3), (0, 1))}
        assert TP in nodes[2].replicas.partitions
        await propose_isr(w, controller, [0, 1, 2, 3])
        assert await reassigning(nodes[0]) == {}
        leader, _, isr = await w.state("t")
        assert (leader, isr) == (2, (2, 3))
        assert nodes[2].partition(0, "t").is_leader
        for gone in (0, 1):
            assert not nodes[gone].logs.has_log(TP)


async def isr_by_the_leader(w: World, isr: Sequence[int], *, notify: bool) -> None:
    """As a leader below 2.7-IV2 does it: it writes the state itself, and may say so (rules 1.32, 1.53)."""
    path = znodes.partition_state_path(TP)
    node = json.loads(await w.get(path) or b"")
    value((await w.store.write([SetData(path, json.dumps({**node, "isr": list(isr)}).encode())]))[0])
    if notify:
        said = znodes.encode_partition_list([TP])
        value((await w.store.write([Create("/isr_change_notification/isr_change_", said, sequential=True)]))[0])
    await w.settle()


@pytest.mark.kafka("RPC-2")
async def test_reassignment_without_alter_partition(autojump_clock: MockClock) -> None:  # rules 11.3, 11.17
    async with world([1], ibp=MetadataVersion.parse("2.7-IV1")) as w:
        _, nodes = await served_cluster(w)
        await w.create_topic("t", {0: [0]})
        assert await reassign(nodes[0], {TP: [1]}) == {TP: ErrorCode.NONE}
        assert list(await reassigning(nodes[0])) == [TP]
        await isr_by_the_leader(w, [0, 1], notify=False)
        assert await reassigning(nodes[0]) == {}
        assert await w.state("t") == (1, 3, (1,))


@pytest.mark.kafka("RPC-3")
async def test_reassignment_during_an_upgrade(autojump_clock: MockClock) -> None:  # rules 11.17, 11.68
    async with world([1]) as w:
        _, nodes = await served_cluster(w)
        await w.create_topic("t", {0: [0]})
        assert await reassign(nodes[0], {TP: [1]}) == {TP: ErrorCode.NONE}
        await isr_by_the_leader(w, [0, 1], notify=False)
        assert list(await reassigning(nodes[0])) == [TP]  # a controller of 3.9 does not watch the state
        await isr_by_the_leader(w, [0, 1], notify=True)
        assert await reassigning(nodes[0]) == {}
        assert await w.state("t") == (1, 3, (1,))


@pytest.mark.kafka("RPC-8")
async def test_cancellation(autojump_clock: MockClock) -> None:  # rules 11.19, 11.27
    async with world([1, 2]) as w:
        _, nodes = await served_cluster(w)
        await w.create_topic("t", {0: [0, 1]})
        assert await reassign(nodes[0], {TP: [0, 2]}) == {TP: ErrorCode.NONE}
        assert TP in nodes[2].replicas.partitions
        assert await reassign(nodes[0], {TP: None}) == {TP: ErrorCode.NONE}
        assert await reassigning(nodes[0]) == {}
        assert (await w.zk.get_topic_assignments(["t"]))["t"].partitions[0].replicas == (0, 1)
        leader, _, isr = await w.state("t")
        assert (leader, isr) == (0, (0, 1))
        assert not nodes[2].logs.has_log(TP)
        assert await reassign(nodes[0], {TP: None}) == {TP: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}


@pytest.mark.kafka("RPC-9")
async def test_cancellation_when_an_adding_replica_is_in_the_isr(autojump_clock: MockClock) -> None:  # rule 11.19
    async with world([1, 2, 3]) as w:
        controller, nodes = await served_cluster(w)
        await w.create_topic("t", {0: [0, 1]})
        assert await reassign(nodes[0], {TP: [0, 2, 3]}) == {TP: ErrorCode.NONE}
        await propose_isr(w, controller, [0, 1, 2])
        assert (await w.state("t"))[2] == (0, 1, 2)
        assert await reassign(nodes[0], {TP: None}) == {TP: ErrorCode.NONE}
        assert await reassigning(nodes[0]) == {}
        leader, _, isr = await w.state("t")
        assert (leader, isr) == (0, (0, 1))
        assert not nodes[2].logs.has_log(TP)
