"""RSM: the replica state machine (section 14 of docs/controller-semantics.md; rules of section 6c)."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from kce.controller.runtime import ControllerRuntime
from kce.controller.states import ReplicaState
from kce.zookeeper.model import BrokerId, ControllerEpoch, LeaderAndIsr, Leadership
from tests.controller.conformance.bench import TP, bench, ids, leader_and_isr, leadership, replica, stored
from tests.controller.support import World, put_replica_state, texts, world

NON_EXISTENT, NEW, ONLINE, OFFLINE, STARTED, SUCCESSFUL, INELIGIBLE = (
    ReplicaState.NON_EXISTENT,
    ReplicaState.NEW,
    ReplicaState.ONLINE,
    ReplicaState.OFFLINE,
    ReplicaState.DELETION_STARTED,
    ReplicaState.DELETION_SUCCESSFUL,
    ReplicaState.DELETION_INELIGIBLE,
)
R1 = replica(1)

REJECTED = {
    "RSM-5": (NON_EXISTENT, ONLINE),
    "RSM-6": (NON_EXISTENT, OFFLINE),
    "RSM-7": (NON_EXISTENT, STARTED),
    "RSM-8": (NON_EXISTENT, INELIGIBLE),
    "RSM-9": (NON_EXISTENT, SUCCESSFUL),
    "RSM-10": (NEW, NON_EXISTENT),
    "RSM-13": (NEW, STARTED),
    "RSM-14": (NEW, INELIGIBLE),
    "RSM-15": (NEW, SUCCESSFUL),
    "RSM-16": (ONLINE, NON_EXISTENT),
    "RSM-17": (ONLINE, NEW),
    "RSM-20": (ONLINE, STARTED),
    "RSM-21": (ONLINE, INELIGIBLE),
    "RSM-22": (ONLINE, SUCCESSFUL),
    "RSM-23": (OFFLINE, NON_EXISTENT),
    "RSM-24": (OFFLINE, NEW),
    "RSM-28": (OFFLINE, SUCCESSFUL),
    "RSM-29": (STARTED, NON_EXISTENT),
    "RSM-30": (STARTED, NEW),
    "RSM-31": (STARTED, ONLINE),
    "RSM-32": (STARTED, OFFLINE),
    "RSM-36": (SUCCESSFUL, NEW),
    "RSM-37": (SUCCESSFUL, ONLINE),
    "RSM-38": (SUCCESSFUL, OFFLINE),
    "RSM-39": (SUCCESSFUL, STARTED),
    "RSM-40": (SUCCESSFUL, INELIGIBLE),
    "RSM-41": (INELIGIBLE, NON_EXISTENT),
    "RSM-42": (INELIGIBLE, NEW),
    "RSM-44": (INELIGIBLE, STARTED),
    "RSM-45": (INELIGIBLE, SUCCESSFUL),
}


async def change(runtime: ControllerRuntime, before: ReplicaState, target: ReplicaState) -> ReplicaState:
    if before is not NON_EXISTENT:
        put_replica_state(runtime.context, R1, before)
    await runtime.replicas.handle_state_changes([R1], target)
    return runtime.context.replica_states.of(R1)


@pytest.mark.parametrize(
    ("before", "target"),
    [pytest.param(*states, id=case, marks=pytest.mark.kafka(case)) for case, states in REJECTED.items()],
)
async def test_rejected(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, before: ReplicaState, target: ReplicaState
) -> None:
    """State unchanged, an error logged, nothing sent, nothing forgotten."""
    async with world([1]) as w:
        runtime = await bench(w)
        caplog.clear()
        assert await change(runtime, before, target) is before
        assert [r.levelname for r in caplog.records if "t-0" in r.getMessage()] == ["ERROR"]
        assert runtime.context.replicas(TP) == ids(1)
        await w.settle()
        assert w.take() == []


@pytest.mark.kafka("RSM-1")
async def test_startup_with_a_live_broker(autojump_clock: MockClock) -> None:  # rule 6.32
    async with world([1]) as w:
        runtime = await bench(w)
        assert runtime.context.replica_states.of(R1) is NON_EXISTENT
        runtime.context.set_replica_states(runtime.context.assignments)
        await runtime.replicas.startup()
        assert runtime.context.replica_states.of(R1) is ONLINE


@pytest.mark.kafka("RSM-2")
async def test_startup_without_live_broker(autojump_clock: MockClock) -> None:  # rules 6.27, 6.32
    async with world([1]) as w:
        runtime = await bench(w)
        runtime.context.remove_live_brokers([BrokerId(1)])
        assert runtime.context.replica_states.of(R1) is NON_EXISTENT
        runtime.context.set_replica_states(runtime.context.assignments)
        await runtime.replicas.startup()
        assert runtime.context.replica_states.of(R1) is OFFLINE


@pytest.mark.kafka("RSM-3")
async def test_startup_with_a_replica_on_an_unknown_broker(autojump_clock: MockClock) -> None:  # rules 6.27, 6.32
    async with world([1]) as w:
        runtime = await bench(w, {0: [1, 9]})
        assert runtime.context.replica_states.of(R1) is NON_EXISTENT
        runtime.context.set_replica_states(runtime.context.assignments)
        await runtime.replicas.startup()
        assert runtime.context.replica_states.of(R1) is ONLINE
        assert runtime.context.replica_states.of(replica(9)) is OFFLINE


@pytest.mark.kafka("RSM-4")
async def test_nonexistent_to_new(autojump_clock: MockClock) -> None:
    async with world([1]) as w:
        assert await change(await bench(w), NON_EXISTENT, NEW) is NEW


@pytest.mark.kafka("RSM-11")
async def test_new_to_online(autojump_clock: MockClock) -> None:  # rule 6.23
    async with world([1]) as w:
        runtime = await bench(w)
        runtime.context.leadership[TP] = leadership(1, [1])
        assert await change(runtime, NEW, ONLINE) is ONLINE
        await w.settle()
        assert w.take() == []


@pytest.mark.kafka("RSM-12")
async def test_new_to_offline(autojump_clock: MockClock) -> None:  # rules 6.25, 6.27, 8.23
    async with world([1]) as w:
        runtime = await bench(w)
        assert await change(runtime, NEW, OFFLINE) is OFFLINE
        await w.settle()
        assert texts(w.take(), 1) == ["UMR alive=[1]", "SR t-0@-1"]  # the entry has no leadership to tell


async def gets_state_again(w: World, before: ReplicaState) -> bool:
    """Going Online from ``before`` sends the replica, and it alone, the leadership it may have missed (6.24)."""
    runtime = await bench(w, {0: [1, 2]})
    runtime.context.leadership[TP] = leadership(2, [1, 2], 7)
    assert await change(runtime, before, ONLINE) is ONLINE
    await w.settle()
    sent = w.take()
    (state,) = leader_and_isr(sent, 1)
    assert (state.leader, state.leader_epoch, state.isr, state.replicas) == (2, 7, (1, 2), (1, 2))
    return not state.is_new and not leader_and_isr(sent, 2)


@pytest.mark.kafka("RSM-18")
async def test_online_to_online(autojump_clock: MockClock) -> None:
    async with world([1, 2]) as w:
        assert await gets_state_again(w, ONLINE)


@pytest.mark.kafka("RSM-19")
async def test_online_to_offline(autojump_clock: MockClock) -> None:  # rules 6.25, 6.26, 6.28
    async with world([1, 2]) as w:
        runtime = await bench(w, {0: [1, 2]})
        await stored(w, runtime, TP, leadership(1, [1, 2]))
        assert await change(runtime, ONLINE, OFFLINE) is OFFLINE
        assert await w.state("t") == (-1, 1, (2,))
        written = LeaderAndIsr(BrokerId(-1), ids(2), 1, partition_epoch=1)
        assert runtime.context.leadership[TP] == Leadership(written, ControllerEpoch(1))
        await w.settle()
        sent = w.take()
        assert texts(sent, 1) == ["UMR alive=[1, 2] t-0:-1@1[2]", "SR t-0@0"]
        assert texts(sent, 2) == ["LAI t-0:-1@1[2]", "UMR alive=[1, 2] t-0:-1@1[2]"]
        (state,) = leader_and_isr(sent, 2)
        assert (state.replicas, state.is_new) == ((1, 2), False)


@pytest.mark.kafka("RSM-25")
async def test_offline_to_online(autojump_clock: MockClock) -> None:
    async with world([1, 2]) as w:
        assert await gets_state_again(w, OFFLINE)


@pytest.mark.kafka("RSM-26")
async def test_offline_to_deletion_started(autojump_clock: MockClock) -> None:  # rule 6.31
    async with world([1]) as w:
        runtime = await bench(w)
        assert await change(runtime, OFFLINE, STARTED) is STARTED
        await w.settle()
        assert texts(w.take(), 1) == ["SR t-0@-1delete"]


@pytest.mark.kafka("RSM-27")
async def test_offline_to_deletion_ineligible(autojump_clock: MockClock) -> None:
    async with world([1]) as w:
        assert await change(await bench(w), OFFLINE, INELIGIBLE) is INELIGIBLE


@pytest.mark.kafka("RSM-33")
async def test_deletion_started_to_deletion_ineligible(autojump_clock: MockClock) -> None:
    async with world([1]) as w:
        assert await change(await bench(w), STARTED, INELIGIBLE) is INELIGIBLE


@pytest.mark.kafka("RSM-34")
async def test_deletion_started_to_deletion_successful(autojump_clock: MockClock) -> None:
    async with world([1]) as w:
        assert await change(await bench(w), STARTED, SUCCESSFUL) is SUCCESSFUL


@pytest.mark.kafka("RSM-35")
async def test_deletion_successful_to_nonexistent(autojump_clock: MockClock) -> None:  # rule 6.31
    async with world([1]) as w:
        runtime = await bench(w)
        assert await change(runtime, SUCCESSFUL, NON_EXISTENT) is NON_EXISTENT
        assert runtime.context.replicas(TP) == ()
        assert runtime.context.replica_states.of(R1) is NON_EXISTENT


@pytest.mark.kafka("RSM-43")
async def test_deletion_ineligible_to_online(autojump_clock: MockClock) -> None:
    async with world([1, 2]) as w:
        assert await gets_state_again(w, INELIGIBLE)
