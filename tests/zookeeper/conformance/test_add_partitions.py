"""ADD: partitions that are added to a topic (section 14 of docs/controller-semantics.md; rules of sections 10a to
10c)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest
from trio.testing import MockClock

from kce import wire
from kce.wire import ErrorCode
from kce.wire.messages.metadata import MetadataRequestTopic
from kce.zookeeper import admin, znodes
from kce.zookeeper.model import ReplicaAssignment
from kce.zookeeper.store import Create, value
from kce.zookeeper.topic_plans import AdminError
from tests.controller.conformance.bench import ids
from tests.controller.conformance.served import served_cluster
from tests.controller.support import World, world
from tests.zookeeper.conformance.topics import BROKERS, create, placed, refusal


async def grow(w: World, topic: str, count: int, assignments: Sequence[Sequence[int]] | None = None) -> None:
    found, added = await admin.plan_partitions(w.zk, topic, count, assignments, random=Random(0))
    await admin.add_partitions(w.zk, found, added)
    await w.settle()


async def grow_refusal(w: World, topic: str, count: int, assignments: Sequence[Sequence[int]]) -> ErrorCode:
    before = await placed(w, topic)
    with pytest.raises(AdminError) as refused:
        await grow(w, topic, count, assignments)
    assert await placed(w, topic) == before
    return refused.value.code


@pytest.mark.kafka("ADD-1")
async def test_wrong_number_of_replicas(autojump_clock: MockClock) -> None:  # rule 10.14
    async with world(BROKERS) as w:
        await create(w, "t", {0: [0, 1]})
        code = await grow_refusal(w, "t", 2, [[0, 1, 2]])
        assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.kafka("ADD-2")
async def test_a_gap_between_partitions(autojump_clock: MockClock) -> None:  # rule 10.5
    async with world(BROKERS) as w:
        for partitions in ((0, 2), (1, 2), (2, 3)):
            code = await refusal(w, "t", {partition: [0, 1] for partition in partitions})
            assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
            with pytest.raises(AdminError, match="partitions must be numbered from 0 without gaps"):
                await create(w, "t", {partition: [0, 1] for partition in partitions})


@pytest.mark.kafka("ADD-3")
async def test_fewer_assignments_than_partitions(autojump_clock: MockClock) -> None:  # rule 10.14
    async with world(BROKERS) as w:
        await create(w, "t", {0: [0, 1]})
        for assignment in ([0, 1], [0, 1, 2]):
            assert await grow_refusal(w, "t", 3, [assignment]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
            with pytest.raises(AdminError, match="by 2 but 1 assignments provided"):
                await grow(w, "t", 3, [assignment])
        without_0 = znodes.encode_topic(None, {1: ReplicaAssignment(ids(0, 1))})
        value((await w.store.write([Create(znodes.topic_path("u"), without_0)]))[0])
        assert await grow_refusal(w, "u", 2, [[0, 1]]) == ErrorCode.UNKNOWN_SERVER_ERROR
        with pytest.raises(AdminError, match="topic u has no partition 0"):
            await grow(w, "u", 2, [[0, 1]])


Described = dict[int, tuple[int, tuple[int, ...]]]


@asynccontextmanager
async def cluster(first: Sequence[int]) -> AsyncIterator[tuple[World, Callable[[], Awaitable[Described]]]]:
    """Four brokers that serve, a topic with one partition, and what each of them answers of it."""
    async with world([1, 2, 3]) as w:
        _, nodes = await served_cluster(w)
        await create(w, "t", {0: first})

        async def described() -> Described:
            request = wire.MetadataRequest(topics=(MetadataRequestTopic(name="t"),))
            answers = [(await node.ask(request, 9)).topics for node in nodes.values()]
            (topic,) = answers[0]
            assert answers == [answers[0]] * 4
            return {p.partition_index: (p.leader_id, p.replica_nodes) for p in topic.partitions}

        yield w, described


@pytest.mark.kafka("ADD-4")
async def test_added_partitions_get_leaders(autojump_clock: MockClock) -> None:  # rules 10.15, 10.32
    async with cluster([0, 1]) as (w, described):
        await grow(w, "t", 3)
        found = await described()
        assert sorted(found) == [0, 1, 2]
        for partition, (leader, replicas) in found.items():
            assert len(set(replicas)) == 2
            assert leader == replicas[0]
            assert await w.state("t", partition) == (leader, 0, replicas)


@pytest.mark.kafka("ADD-5")
async def test_manual_assignment(autojump_clock: MockClock) -> None:  # rule 10.14
    async with cluster([1, 2]) as (w, described):
        await grow(w, "t", 3, [[0, 1], [2, 3]])
        assert await placed(w, "t") == {0: (1, 2), 1: (0, 1), 2: (2, 3)}
        assert await described() == {0: (1, (1, 2)), 1: (0, (0, 1)), 2: (2, (2, 3))}


@pytest.mark.kafka("ADD-6")
async def test_placement_on_all_brokers(autojump_clock: MockClock) -> None:  # rules 10.15, 10.18-10.20
    async with cluster([2, 3, 0, 1]) as (w, described):
        await grow(w, "t", 7)
        found = await described()
        assert [found[partition][0] for partition in range(7)] == [2, 3, 0, 1, 2, 3, 0]
        assert [set(found[partition][1]) for partition in range(7)] == [{0, 1, 2, 3}] * 7
    async with cluster([0, 1, 2, 3]) as (w, described):
        await grow(w, "t", 7)
        assert {partition: replicas for partition, (_, replicas) in (await described()).items()} == {
            0: (0, 1, 2, 3),
            1: (1, 2, 3, 0),
            2: (2, 3, 0, 1),
            3: (3, 0, 1, 2),
            4: (0, 2, 3, 1),  # past as many partitions as there are brokers the shift is 1
            5: (1, 3, 0, 2),
            6: (2, 0, 1, 3),
        }


@pytest.mark.kafka("ADD-7")
async def test_placement_on_some_brokers(autojump_clock: MockClock) -> None:  # rules 10.15, 10.25
    async with cluster([1, 2]) as (w, described):
        await grow(w, "t", 3)
        # broker 1 is both the start and the shift
        assert await described() == {0: (1, (1, 2)), 1: (2, (2, 0)), 2: (3, (3, 1))}
