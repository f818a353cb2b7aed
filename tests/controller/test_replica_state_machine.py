"""Transitions of replicas, allowed or not (RSM; section 6c of docs/controller-semantics.md)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from trio.testing import MockClock

from kce.controller import replica_state_machine
from kce.controller.states import ReplicaState
from kce.zookeeper.errors import ControllerMoved, IllegalState
from kce.zookeeper.model import BrokerId, PartitionReplica, ReplicaAssignment, TopicPartition
from kce.zookeeper.store import Delete, SetData, StoreError
from tests.controller.conformance.bench import TP
from tests.controller.support import prepared, put_replica_state, texts, world

R2 = PartitionReplica(TP, BrokerId(2))


@pytest.mark.parametrize(("before", "target"), list(itertools.product(ReplicaState, ReplicaState)))
async def test_replica_transitions(
    autojump_clock: MockClock, before: ReplicaState, target: ReplicaState
) -> None:  # rule 6.19
    async with world() as w:
        runtime = await prepared(w)
        replica = PartitionReplica(TP, BrokerId(3))
        put_replica_state(runtime.context, replica, before)
        await runtime.replicas.handle_state_changes([replica], target)
        allowed = before in replica_state_machine.TRANSITIONS[target]
        assert runtime.context.replica_states.of(replica) is (target if allowed else before)


async def test_an_invalid_transition_of_one_replica_beside_valid_ones(autojump_clock: MockClock) -> None:  # rule 6.19
    async with world() as w:
        runtime = await prepared(w)
        for target, allowed in replica_state_machine.TRANSITIONS.items():
            before = [*allowed, *(state for state in ReplicaState if state not in allowed)]
            partitions = [TopicPartition("t", number) for number in range(len(before))]
            replicas = [PartitionReplica(tp, BrokerId(3)) for tp in partitions]
            for tp, replica, state in zip(partitions, replicas, before, strict=True):
                runtime.context.set_assignment(tp, ReplicaAssignment((BrokerId(2), BrokerId(3))))
                put_replica_state(runtime.context, replica, state)
            await runtime.replicas.handle_state_changes(replicas[: len(allowed) + 1], target)
            assert runtime.context.replica_states.of(replicas[len(allowed)]) is before[len(allowed)], target


async def test_going_offline_leaves_the_isr(autojump_clock: MockClock) -> None:  # rules 6.25, 6.26, 6.28; RSM-19
    async with world() as w:
        runtime = await prepared(w)
        await runtime.replicas.handle_state_changes([R2], ReplicaState.OFFLINE)
        await w.settle()
        assert await w.state("t") == (-1, 1, (3,))
        sent = w.take()
        assert texts(sent, 3) == ["LAI t-0:-1@1[3]", "UMR alive=[1, 2, 3] t-0:-1@1[3]"]
        assert texts(sent, 2) == ["UMR alive=[1, 2, 3] t-0:-1@1[3]", "SR t-0@0"]  # the epoch before the change


@pytest.mark.parametrize("changed", ["not", "meanwhile", "to gone", "by a later controller"])
async def test_a_state_is_read_only_if_the_cache_has_another_version(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:  # rules 6.28, 6.30
    async with world() as w:
        runtime = await prepared(w)
        read, reads = runtime.zk.get_partition_states, 0

        async def counted(partitions: Sequence[TopicPartition]) -> object:
            nonlocal reads
            reads += 1
            return await read(partitions)

        monkeypatch.setattr(runtime.zk, "get_partition_states", counted)
        path = "/brokers/topics/t/partitions/0/state"
        content = b'{"version":1,"leader":3,"leader_epoch":8,"controller_epoch":%d,"isr":[3,2]}'
        if changed == "to gone":
            await w.store.write([Delete(path)])
        elif changed != "not":
            await w.store.write([SetData(path, content % (1 if changed == "meanwhile" else 99))])
        await runtime.replicas.handle_state_changes([R2], ReplicaState.OFFLINE)
        assert bool(reads) is (changed != "not")
        left = {"not": (-1, 1, (3,)), "meanwhile": (3, 9, (3,)), "by a later controller": (3, 8, (3, 2))}
        if changed in left:
            assert await w.state("t") == left[changed]
        else:
            assert await w.get(path) is None
        is_offline = changed in ("not", "meanwhile")
        assert (runtime.context.replica_states.of(R2) is ReplicaState.OFFLINE) is is_offline


async def test_the_last_isr_member_gains_an_epoch_only(autojump_clock: MockClock) -> None:  # rules 6.28, 6.29
    async with world() as w:
        runtime = await prepared(w)
        for replica in (R2, PartitionReplica(TP, BrokerId(3))):
            await runtime.replicas.handle_state_changes([replica], ReplicaState.OFFLINE)
        assert await w.state("t") == (-1, 2, (3,))
        await runtime.replicas.handle_state_changes([PartitionReplica(TP, BrokerId(3))], ReplicaState.OFFLINE)
        assert await w.state("t") == (-1, 3, (3,))


@pytest.mark.parametrize("content", [None, b"unreadable"])
@pytest.mark.parametrize("queued", [False, True])
async def test_a_replica_without_a_state_cannot_go_offline(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, content: bytes | None, queued: bool
) -> None:  # rule 6.30
    async with world() as w:
        runtime = await prepared(w)
        path = "/brokers/topics/t/partitions/0/state"
        await w.store.write([Delete(path) if content is None else SetData(path, content)])
        if queued:
            runtime.context.queue_for_deletion(["t"])
        await runtime.replicas.handle_state_changes([R2], ReplicaState.OFFLINE)
        assert runtime.context.replica_states.of(R2) is ReplicaState.ONLINE
        assert ("t-0 has no leader and ISR in ZooKeeper" in caplog.text) is not queued


async def test_a_new_replica_gets_the_known_leadership(autojump_clock: MockClock) -> None:  # rule 6.22
    async with world() as w:
        runtime = await prepared(w)
        runtime.context.set_assignment(TP, ReplicaAssignment((BrokerId(2), BrokerId(3), BrokerId(1))))
        await runtime.replicas.handle_state_changes([PartitionReplica(TP, BrokerId(1))], ReplicaState.NEW)
        await w.settle()
        assert texts(w.take(), 1)[0] == "LAI t-0:2@0[2, 3]new"


async def test_a_leader_cannot_become_new(autojump_clock: MockClock) -> None:  # rule 6.22
    async with world() as w:
        runtime = await prepared(w)
        put_replica_state(runtime.context, R2, ReplicaState.NON_EXISTENT)
        await runtime.replicas.handle_state_changes([R2], ReplicaState.NEW)
        assert runtime.context.replica_states.of(R2) is ReplicaState.NON_EXISTENT


async def test_a_batch_left_over_is_an_illegal_state(autojump_clock: MockClock) -> None:  # rules 2.20, 8.17; CFO-1
    async with world() as w:
        runtime = await prepared(w)
        runtime.batch.add_update_metadata([BrokerId(2)], [])
        with pytest.raises(IllegalState):
            runtime.send_update_metadata_to_all()
        runtime.batch.add_update_metadata([BrokerId(2)], [])
        other = await w.start_controller(3)
        await w.start_broker(4)  # the next event of the active controller meets it
        await w.settle()
        controllers = [w.nodes[1].controller, other]
        assert [c.is_active for c in controllers].count(True) == 1
        assert next(c for c in controllers if c.is_active).context.epoch > 1


async def test_a_controller_that_moved_says_so(autojump_clock: MockClock) -> None:  # rules 2.17, 6.4
    """Other failures are logged, and the next transition is not harmed by what was left in the batch."""
    async with world() as w:
        runtime = await prepared(w)
        await w.store.write([SetData("/controller_epoch", b"9")])
        with pytest.raises(ControllerMoved):
            await runtime.replicas.handle_state_changes([R2], ReplicaState.OFFLINE)
        with pytest.raises(ControllerMoved):
            await runtime.replicas.handle_state_changes([R2], ReplicaState.OFFLINE)


def test_store_errors_are_exceptions_by_path() -> None:
    from kce.zookeeper.store import NoNode

    assert str(NoNode("/x")) == "NoNode: /x"
    assert isinstance(NoNode("/x"), StoreError)
