"""Every transition of partitions and replicas, allowed or not (PSM and RSM of docs/controller-semantics.md)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from trio.testing import MockClock

from controller.context import (
    VALID_PREVIOUS_PARTITION_STATES,
    VALID_PREVIOUS_REPLICA_STATES,
    PartitionState,
    ReplicaState,
)
from controller.errors import IllegalState
from controller.leader_selection import Strategy
from controller.model import BrokerId, LeaderAndIsr, PartitionReplica, ReplicaAssignment, TopicPartition
from controller.store import Create, Delete, SetData, StoreError
from tests.controller.support import World, texts, world

TP = TopicPartition("t", 0)
R2 = PartitionReplica(TP, BrokerId(2))


async def prepared(w: World):  # type: ignore[no-untyped-def]
    controller = await w.start_controller(1)
    await w.create_topic("t", {0: [2, 3]})
    w.take()
    return controller._core


@pytest.mark.parametrize(("before", "target"), list(itertools.product(PartitionState, PartitionState)))
async def test_partition_transitions(
    autojump_clock: MockClock, before: PartitionState, target: PartitionState
) -> None:  # rule 6.2
    async with world() as w:
        core = await prepared(w)
        if before is PartitionState.NEW:  # nothing in ZooKeeper yet
            await w.store.write([Delete("/brokers/topics/t/partitions/0/state")])
        core.context.put_partition_state(TP, before)
        await core.partitions.handle_state_changes([TP], target, Strategy.OFFLINE)
        allowed = before in VALID_PREVIOUS_PARTITION_STATES[target]
        assert core.context.partition_state(TP) is (target if allowed else before)


@pytest.mark.parametrize(("before", "target"), list(itertools.product(ReplicaState, ReplicaState)))
async def test_replica_transitions(
    autojump_clock: MockClock, before: ReplicaState, target: ReplicaState
) -> None:  # rule 6.19
    async with world() as w:
        core = await prepared(w)
        replica = PartitionReplica(TP, BrokerId(3))
        core.context.put_replica_state(replica, before)
        await core.replicas.handle_state_changes([replica], target)
        allowed = before in VALID_PREVIOUS_REPLICA_STATES[target]
        assert core.context.replica_state(replica) is (target if allowed else before)


async def test_an_invalid_transition_of_one_replica_beside_valid_ones(autojump_clock: MockClock) -> None:  # rule 6.19
    async with world() as w:
        core = await prepared(w)
        for target, allowed in VALID_PREVIOUS_REPLICA_STATES.items():
            before = [*allowed, *(state for state in ReplicaState if state not in allowed)]
            partitions = [TopicPartition("t", number) for number in range(len(before))]
            replicas = [PartitionReplica(tp, BrokerId(3)) for tp in partitions]
            for tp, replica, state in zip(partitions, replicas, before, strict=True):
                core.context.set_assignment(tp, ReplicaAssignment((BrokerId(2), BrokerId(3))))
                core.context.put_replica_state(replica, state)
            await core.replicas.handle_state_changes(replicas[: len(allowed) + 1], target)
            assert core.context.replica_state(replicas[len(allowed)]) is before[len(allowed)], target


async def test_one_invalid_transition_does_not_hold_up_the_others(autojump_clock: MockClock) -> None:  # rule 5.22
    async with world() as w:
        core = await prepared(w)
        unknown = TopicPartition("t", 9)
        await core.partitions.handle_state_changes([unknown, TP], PartitionState.OFFLINE)
        assert core.context.partition_state(TP) is PartitionState.OFFLINE
        assert core.context.partition_state(unknown) is PartitionState.NON_EXISTENT
        assert core.context.offline_partition_count == 1


async def test_an_election_goes_round_until_its_write_fits(autojump_clock: MockClock) -> None:  # rule 6.13
    async with world() as w:
        core = await prepared(w)
        path = "/brokers/topics/t/partitions/0/state"
        read = core.zk.get_partition_states
        rounds = 0

        async def overtaken(partitions):  # type: ignore[no-untyped-def]
            nonlocal rounds
            rounds += 1
            answer = await read(partitions)
            if rounds < 3:  # somebody writes between the read and the write
                await w.store.write([SetData(path, await w.get(path) or b"")])
            return answer

        core.zk.get_partition_states = overtaken
        results = await core.partitions.handle_state_changes([TP], PartitionState.ONLINE, Strategy.PREFERRED)
        assert rounds == 3
        assert isinstance(results[TP], LeaderAndIsr)
        assert await w.state("t") == (2, 1, (2, 3))


@pytest.mark.parametrize("what", ["gone", "unreadable", "newer controller"])
async def test_elections_that_cannot_be(autojump_clock: MockClock, what: str) -> None:  # rule 6.14
    async with world() as w:
        core = await prepared(w)
        path = "/brokers/topics/t/partitions/0/state"
        content = {
            "gone": None,
            "unreadable": b"?",
            "newer controller": b'{"version":1,"leader":2,"leader_epoch":0,"controller_epoch":99,"isr":[2,3]}',
        }[what]
        await w.store.write([Delete(path) if content is None else SetData(path, content)])
        core.context.put_partition_state(TP, PartitionState.OFFLINE)
        results = await core.partitions.handle_state_changes([TP], PartitionState.ONLINE, Strategy.OFFLINE)
        assert isinstance(results[TP], Exception)
        assert core.context.partition_state(TP) is PartitionState.OFFLINE
        assert texts(w.take(), 2) == []


async def test_an_election_without_strategy_is_a_mistake(autojump_clock: MockClock) -> None:  # rules 6.4, 6.5
    async with world() as w:
        core = await prepared(w)
        results = await core.partitions.handle_state_changes([TP], PartitionState.ONLINE)
        assert isinstance(results[TP], ValueError)
        assert core.context.partition_state(TP) is PartitionState.ONLINE


async def test_a_clean_election_needs_no_configuration(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rules 7.3, 7.4
    async with world() as w:
        core = await prepared(w)

        async def unreadable(topics: Iterable[str]) -> dict[str, StoreError]:
            return {topic: StoreError("unreadable") for topic in topics}

        monkeypatch.setattr(core.zk, "get_topic_configs", unreadable)
        core.context.remove_live_brokers([BrokerId(2)])  # 3 is in the ISR and alive
        core.context.put_partition_state(TP, PartitionState.OFFLINE)
        await core.partitions.handle_state_changes([TP], PartitionState.ONLINE, Strategy.OFFLINE)
        assert await w.state("t") == (3, 1, (3,))


async def test_one_topic_is_triggered(autojump_clock: MockClock) -> None:  # rules 3.29, 6.11
    async with world() as w:
        core = await prepared(w)
        await w.create_topic("u", {0: [3]})
        other = TopicPartition("u", 0)
        for tp in (TP, other):
            core.context.put_partition_state(tp, PartitionState.OFFLINE)
        await core.partitions.trigger_online("t")
        assert core.context.partitions_in_state(PartitionState.OFFLINE) == [other]
        core.context.queue_for_deletion(["u"])
        await core.partitions.trigger_online("u")
        await core.partitions.trigger_online()
        assert core.context.partitions_in_state(PartitionState.OFFLINE) == [other]


async def test_creation_that_collides_stays_new(autojump_clock: MockClock) -> None:  # rule 6.8; PSM-6
    async with world() as w:
        core = await prepared(w)
        await w.zk.ensure_paths(["/brokers/topics/u/partitions/0"])
        await w.store.write([Create("/brokers/topics/u/partitions/0/state", b"mine")])
        other = TopicPartition("u", 0)
        core.context.set_assignment(other, core.context.assignment(TP))
        core.context.put_partition_state(other, PartitionState.NEW)
        await core.partitions.handle_state_changes([other], PartitionState.ONLINE, Strategy.OFFLINE)
        assert core.context.partition_state(other) is PartitionState.NEW
        assert await w.get("/brokers/topics/u/partitions/0/state") == b"mine"


async def test_going_offline_leaves_the_isr(autojump_clock: MockClock) -> None:  # rules 6.25, 6.26, 6.28; RSM-19
    async with world() as w:
        core = await prepared(w)
        await core.replicas.handle_state_changes([R2], ReplicaState.OFFLINE)
        await w.settle()
        assert await w.state("t") == (-1, 1, (3,))
        sent = w.take()
        assert texts(sent, 3) == ["LAI t-0:-1@1[3]", "UMR alive=[1, 2, 3] t-0:-1@1[3]"]
        assert texts(sent, 2) == ["UMR alive=[1, 2, 3] t-0:-1@1[3]", "SR t-0@0"]  # the epoch before the change


async def test_the_last_isr_member_gains_an_epoch_only(autojump_clock: MockClock) -> None:  # rules 6.28, 6.29
    async with world() as w:
        core = await prepared(w)
        for replica in (R2, PartitionReplica(TP, BrokerId(3))):
            await core.replicas.handle_state_changes([replica], ReplicaState.OFFLINE)
        assert await w.state("t") == (-1, 2, (3,))
        await core.replicas.handle_state_changes([PartitionReplica(TP, BrokerId(3))], ReplicaState.OFFLINE)
        assert await w.state("t") == (-1, 3, (3,))


@pytest.mark.parametrize("content", [None, b"unreadable"])
@pytest.mark.parametrize("queued", [False, True])
async def test_a_replica_without_a_state_cannot_go_offline(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, content: bytes | None, queued: bool
) -> None:  # rule 6.30
    async with world() as w:
        core = await prepared(w)
        path = "/brokers/topics/t/partitions/0/state"
        await w.store.write([Delete(path) if content is None else SetData(path, content)])
        if queued:
            core.context.queue_for_deletion(["t"])
        await core.replicas.handle_state_changes([R2], ReplicaState.OFFLINE)
        assert core.context.replica_state(R2) is ReplicaState.ONLINE
        assert ("there is no leader and ISR information of t-0" in caplog.text) is not queued


async def test_a_new_replica_is_told_what_there_is(autojump_clock: MockClock) -> None:  # rule 6.22
    async with world() as w:
        core = await prepared(w)
        core.context.set_assignment(TP, ReplicaAssignment((BrokerId(2), BrokerId(3), BrokerId(1))))
        await core.replicas.handle_state_changes([PartitionReplica(TP, BrokerId(1))], ReplicaState.NEW)
        await w.settle()
        assert texts(w.take(), 1)[0] == "LAI t-0:2@0[2, 3]new"


async def test_a_leader_cannot_become_new(autojump_clock: MockClock) -> None:  # rule 6.22
    async with world() as w:
        core = await prepared(w)
        core.context.replica_states_of(R2.replica).pop(R2.topic_partition)
        await core.replicas.handle_state_changes([R2], ReplicaState.NEW)
        assert core.context.replica_state(R2) is ReplicaState.NON_EXISTENT


async def test_a_batch_left_over_is_an_illegal_state(autojump_clock: MockClock) -> None:  # rules 2.20, 8.17; CFO-1
    async with world() as w:
        core = await prepared(w)
        core.batch.add_update_metadata([BrokerId(2)], [])
        with pytest.raises(IllegalState):
            core.send_update_metadata_to_all()
        core.batch.add_update_metadata([BrokerId(2)], [])
        other = await w.start_controller(3)
        await w.start_broker(4)  # the next event of the active controller meets it
        await w.settle()
        controllers = [w.nodes[1].controller, other]
        assert [c.is_active for c in controllers].count(True) == 1
        assert next(c for c in controllers if c.is_active).context.epoch > 1


def test_store_errors_are_exceptions_by_path() -> None:
    from controller.store import NoNode

    assert str(NoNode("/x")) == "NoNode: /x"
    assert isinstance(NoNode("/x"), StoreError)
