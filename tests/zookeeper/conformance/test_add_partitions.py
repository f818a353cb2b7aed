"""ADD: partitions that are added to a topic (section 14 of docs/controller-semantics.md; rules of sections 10a to
10c)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from trio.testing import MockClock

from kce.wire import ErrorCode
from kce.zookeeper import admin
from kce.zookeeper.admin import AdminError
from kce.zookeeper.model import TopicPartition
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
        code = await refusal(w, "t", {0: [0, 1], 2: [0, 1]})
        assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.kafka("ADD-3")
async def test_fewer_assignments_than_partitions(autojump_clock: MockClock) -> None:  # rule 10.14
    async with world(BROKERS) as w:
        await create(w, "t", {0: [0, 1]})
        assert await grow_refusal(w, "t", 3, [[0, 1]]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.kafka("ADD-4")
async def test_added_partitions_get_leaders(autojump_clock: MockClock) -> None:  # rules 10.15, 10.32
    async with world(BROKERS) as w:
        controller = await w.start_controller(0)
        await create(w, "t", {0: [0, 1]})
        await grow(w, "t", 3)
        for partition in (1, 2):
            replicas = controller.context.replicas(TopicPartition("t", partition))
            assert len(set(replicas)) == 2
            assert await w.state("t", partition) == (replicas[0], 0, replicas)


@pytest.mark.kafka("ADD-5")
async def test_manual_assignment(autojump_clock: MockClock) -> None:  # rule 10.14
    async with world(BROKERS) as w:
        await w.start_controller(0)
        await create(w, "t", {0: [0, 2]})
        await grow(w, "t", 3, [[0, 1], [2, 3]])
        assert await placed(w, "t") == {0: (0, 2), 1: (0, 1), 2: (2, 3)}
        assert await w.state("t", 2) == (2, 0, (2, 3))


@pytest.mark.kafka("ADD-6")
async def test_placement_on_all_brokers(autojump_clock: MockClock) -> None:  # rules 10.15, 10.18-10.20
    async with world(BROKERS) as w:
        await create(w, "t", {0: [0, 1, 2, 3]})
        await grow(w, "t", 7)
        assert await placed(w, "t") == {
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
    async with world(BROKERS) as w:
        await create(w, "t", {0: [1, 2]})
        await grow(w, "t", 3)
        assert await placed(w, "t") == {0: (1, 2), 1: (2, 0), 2: (3, 1)}  # broker 1 is both the start and the shift
