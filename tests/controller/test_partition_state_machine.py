"""Transitions of partitions, allowed or not (PSM; sections 6a, 6b of docs/controller-semantics.md)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from trio.testing import MockClock

from kce.controller import partition_state_machine
from kce.controller.leader_selection import Strategy
from kce.controller.states import PartitionState
from kce.zookeeper.model import BrokerId, LeaderAndIsr, TopicPartition
from kce.zookeeper.store import Create, Delete, SetData, StoreError
from tests.controller.conformance.bench import TP, bench, leadership, stored
from tests.controller.support import prepared, texts, world


@pytest.mark.parametrize(("before", "target"), list(itertools.product(PartitionState, PartitionState)))
async def test_partition_transitions(
    autojump_clock: MockClock, before: PartitionState, target: PartitionState
) -> None:  # rule 6.2
    async with world() as w:
        runtime = await prepared(w)
        if before is PartitionState.NEW:  # nothing in ZooKeeper yet
            await w.store.write([Delete("/brokers/topics/t/partitions/0/state")])
        runtime.context.put_partition_state(TP, before)
        await runtime.partitions.handle_state_changes([TP], target, Strategy.OFFLINE)
        allowed = before in partition_state_machine.TRANSITIONS[target]
        assert runtime.context.partition_state(TP) is (target if allowed else before)


async def test_one_invalid_transition_does_not_hold_up_the_others(autojump_clock: MockClock) -> None:  # rule 5.22
    async with world() as w:
        runtime = await prepared(w)
        unknown = TopicPartition("t", 9)
        await runtime.partitions.handle_state_changes([unknown, TP], PartitionState.OFFLINE)
        assert runtime.context.partition_state(TP) is PartitionState.OFFLINE
        assert runtime.context.partition_state(unknown) is PartitionState.NON_EXISTENT
        assert runtime.context.offline_partition_count == 1


async def test_an_election_goes_round_until_its_write_fits(autojump_clock: MockClock) -> None:  # rule 6.13
    async with world() as w:
        runtime = await prepared(w)
        path = "/brokers/topics/t/partitions/0/state"
        read = runtime.zk.get_partition_states
        rounds = 0

        async def overtaken(partitions):  # type: ignore[no-untyped-def]
            nonlocal rounds
            rounds += 1
            answer = await read(partitions)
            if rounds < 3:  # somebody writes between the read and the write
                await w.store.write([SetData(path, await w.get(path) or b"")])
            return answer

        runtime.zk.get_partition_states = overtaken
        results = await runtime.partitions.handle_state_changes([TP], PartitionState.ONLINE, Strategy.PREFERRED)
        assert rounds == 3
        assert isinstance(results[TP], LeaderAndIsr)
        assert await w.state("t") == (2, 1, (2, 3))


@pytest.mark.parametrize("what", ["gone", "unreadable", "newer controller"])
async def test_elections_that_cannot_be(autojump_clock: MockClock, what: str) -> None:  # rule 6.14
    async with world() as w:
        runtime = await prepared(w)
        path = "/brokers/topics/t/partitions/0/state"
        content = {
            "gone": None,
            "unreadable": b"?",
            "newer controller": b'{"version":1,"leader":2,"leader_epoch":0,"controller_epoch":99,"isr":[2,3]}',
        }[what]
        await w.store.write([Delete(path) if content is None else SetData(path, content)])
        runtime.context.put_partition_state(TP, PartitionState.OFFLINE)
        results = await runtime.partitions.handle_state_changes([TP], PartitionState.ONLINE, Strategy.OFFLINE)
        assert isinstance(results[TP], Exception)
        assert runtime.context.partition_state(TP) is PartitionState.OFFLINE
        assert texts(w.take(), 2) == []


async def test_an_election_without_strategy_is_a_mistake(autojump_clock: MockClock) -> None:  # rules 6.4, 6.5
    async with world() as w:
        runtime = await prepared(w)
        results = await runtime.partitions.handle_state_changes([TP], PartitionState.ONLINE)
        assert isinstance(results[TP], ValueError)
        assert runtime.context.partition_state(TP) is PartitionState.ONLINE


async def test_a_clean_election_needs_no_configuration(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rules 7.3, 7.4
    async with world() as w:
        runtime = await prepared(w)

        async def unreadable(topics: Iterable[str]) -> dict[str, StoreError]:
            return {topic: StoreError("unreadable") for topic in topics}

        monkeypatch.setattr(runtime.zk, "get_topic_configs", unreadable)
        runtime.context.remove_live_brokers([BrokerId(2)])  # 3 is in the ISR and alive
        runtime.context.put_partition_state(TP, PartitionState.OFFLINE)
        await runtime.partitions.handle_state_changes([TP], PartitionState.ONLINE, Strategy.OFFLINE)
        assert await w.state("t") == (3, 1, (3,))


async def test_an_unclean_election_needs_the_configuration(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rules 7.3, 7.4
    async with world() as w:
        runtime = await prepared(w)
        error = StoreError("unreadable")

        async def unreadable(topics: Iterable[str]) -> dict[str, StoreError]:
            return dict.fromkeys(topics, error)

        monkeypatch.setattr(runtime.zk, "get_topic_configs", unreadable)
        runtime.context.remove_live_brokers([BrokerId(2), BrokerId(3)])  # the ISR
        runtime.context.put_partition_state(TP, PartitionState.OFFLINE)
        results = await runtime.partitions.handle_state_changes([TP], PartitionState.ONLINE, Strategy.OFFLINE)
        assert results == {TP: error}
        assert runtime.context.partition_state(TP) is PartitionState.OFFLINE


async def test_a_state_that_cannot_be_read_is_the_result_of_an_election(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule 6.14
    async with world() as w:
        runtime = await prepared(w)
        error = StoreError("NoAuth")

        async def refused(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, StoreError]:
            return dict.fromkeys(partitions, error)

        monkeypatch.setattr(runtime.zk, "get_partition_states", refused)
        results = await runtime.partitions.handle_state_changes([TP], PartitionState.ONLINE, Strategy.PREFERRED)
        assert results == {TP: error}


async def test_one_topic_is_triggered(autojump_clock: MockClock) -> None:  # rules 3.29, 6.11
    async with world() as w:
        runtime = await prepared(w)
        await w.create_topic("u", {0: [3]})
        other = TopicPartition("u", 0)
        for tp in (TP, other):
            runtime.context.put_partition_state(tp, PartitionState.OFFLINE)
        await runtime.partitions.trigger_online("t")
        assert runtime.context.partitions_in_state(PartitionState.OFFLINE) == [other]
        runtime.context.queue_for_deletion(["u"])
        await runtime.partitions.trigger_online("u")
        await runtime.partitions.trigger_online()
        assert runtime.context.partitions_in_state(PartitionState.OFFLINE) == [other]


async def test_creation_that_collides_stays_new(autojump_clock: MockClock) -> None:  # rule 6.8; PSM-6
    async with world() as w:
        runtime = await prepared(w)
        await w.zk.ensure_paths(["/brokers/topics/u/partitions/0"])
        await w.store.write([Create("/brokers/topics/u/partitions/0/state", b"mine")])
        other = TopicPartition("u", 0)
        runtime.context.set_assignment(other, runtime.context.assignment(TP))
        runtime.context.put_partition_state(other, PartitionState.NEW)
        await runtime.partitions.handle_state_changes([other], PartitionState.ONLINE, Strategy.OFFLINE)
        assert runtime.context.partition_state(other) is PartitionState.NEW
        assert await w.get("/brokers/topics/u/partitions/0/state") == b"mine"


async def test_alike_partitions_differ_in_their_log_directories(autojump_clock: MockClock) -> None:  # rule 5.11
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    async with world([1, 2]) as w:
        runtime = await bench(w, {0: [1, 2], 1: [1, 2]})
        for tp in (first, second):
            runtime.context.set_assignment(tp, runtime.context.assignment(first))
            await stored(w, runtime, tp, leadership(1, [1, 2]))
            runtime.context.put_partition_state(tp, PartitionState.OFFLINE)
        runtime.context.replicas_on_offline_dirs[BrokerId(1)] = {second}
        results = await runtime.partitions.handle_state_changes(
            [first, second], PartitionState.ONLINE, Strategy.OFFLINE
        )
        assert [getattr(results[tp], "leader", None) for tp in (first, second)] == [1, 2]


async def test_one_of_alike_partitions_is_elected_uncleanly(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rules 5.11, 7.3
    lost, kept = TopicPartition("t", 0), TopicPartition("t", 1)
    async with world([1, 2]) as w:
        runtime = await bench(w, {0: [1, 2], 1: [1, 2]})
        for tp in (lost, kept):
            runtime.context.set_assignment(tp, runtime.context.assignment(lost))
            await stored(w, runtime, tp, leadership(1, [1]))
            runtime.context.put_partition_state(tp, PartitionState.OFFLINE)
        runtime.context.replicas_on_offline_dirs[BrokerId(1)] = {lost}

        async def allowed(topics: Iterable[str]) -> dict[str, dict[str, str]]:
            return {topic: {"unclean.leader.election.enable": "true"} for topic in topics}

        monkeypatch.setattr(runtime.zk, "get_topic_configs", allowed)
        results = await runtime.partitions.handle_state_changes([lost, kept], PartitionState.ONLINE, Strategy.OFFLINE)
        assert [getattr(results[tp], "leader", None) for tp in (lost, kept)] == [2, 1]
