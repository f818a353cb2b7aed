"""PSM: the partition state machine (section 14 of docs/controller-semantics.md; rules of sections 6a and 6b)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trio.testing import MockClock

from kce.controller.errors import StateChangeFailed
from kce.controller.leader_selection import Strategy
from kce.controller.runtime import ControllerRuntime
from kce.controller.states import PartitionState, ReplicaState
from kce.controller.topic_deletion import TopicDeletion
from kce.wire.metadata_version import MetadataVersion
from kce.wire.vocabulary import RECOVERED, RECOVERING
from kce.zookeeper import znodes
from kce.zookeeper.model import BrokerId, LeaderAndIsr, PartitionReplica, TopicPartition
from kce.zookeeper.store import Create, StoreError, value
from tests.controller.conformance.bench import TP, bench, leader_and_isr, leadership, put_config, stored
from tests.controller.support import World, put_replica_state, texts, world

NON_EXISTENT, NEW, ONLINE, OFFLINE = (
    PartitionState.NON_EXISTENT,
    PartitionState.NEW,
    PartitionState.ONLINE,
    PartitionState.OFFLINE,
)
STATE = znodes.partition_state_path(TP)


class Unreachable(StoreError):
    """ZooKeeper cannot be reached."""


async def unreachable(*args: Any) -> Any:
    raise Unreachable("/")


async def change(runtime: ControllerRuntime, before: PartitionState, target: PartitionState) -> PartitionState:
    runtime.context.put_partition_state(TP, before)
    await runtime.partitions.handle_state_changes([TP], target, Strategy.OFFLINE)
    return runtime.context.partition_state(TP)


async def rejected(w: World, caplog: pytest.LogCaptureFixture, before: PartitionState, target: PartitionState) -> bool:
    """State unchanged, an error logged, nothing sent."""
    runtime = await bench(w)
    caplog.clear()
    after = await change(runtime, before, target)
    await w.settle()
    logged = [r for r in caplog.records if r.levelname == "ERROR" and "t-0" in r.getMessage()]
    return after is before and len(logged) == 1 and w.take() == []


@pytest.mark.kafka("PSM-1")
async def test_nonexistent_to_new(autojump_clock: MockClock) -> None:
    async with world([1]) as w:
        assert await change(await bench(w), NON_EXISTENT, NEW) is NEW


@pytest.mark.kafka("PSM-2")
async def test_nonexistent_to_online(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with world([1]) as w:
        assert await rejected(w, caplog, NON_EXISTENT, ONLINE)


@pytest.mark.kafka("PSM-3")
async def test_nonexistent_to_offline(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with world([1]) as w:
        assert await rejected(w, caplog, NON_EXISTENT, OFFLINE)


@pytest.mark.kafka("PSM-4")
async def test_new_to_online(autojump_clock: MockClock) -> None:  # rules 6.7, 6.8
    async with world([1]) as w:
        runtime = await bench(w, {0: [1]})
        assert await change(runtime, NEW, ONLINE) is ONLINE
        assert await w.state("t") == (1, 0, (1,))
        assert runtime.context.leadership[TP] == leadership(1, [1])
        await w.settle()
        assert texts(w.take(), 1) == ["LAI t-0:1@0[1]new", "UMR alive=[1] t-0:1@0[1]"]


@pytest.mark.kafka("PSM-5")
async def test_new_to_online_when_creation_throws(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world([1]) as w:
        runtime = await bench(w, {0: [1], 1: [1]})
        other = TopicPartition("t", 1)
        await stored(w, runtime, other, leadership(1, [1]))
        runtime.context.put_partition_state(other, ONLINE)
        runtime.context.put_partition_state(TP, NEW)
        monkeypatch.setattr(runtime.zk, "create_partition_states", unreachable)
        await runtime.partitions.handle_state_changes([TP, other], ONLINE, Strategy.PREFERRED)
        assert runtime.context.partition_state(TP) is NEW
        assert TP not in runtime.context.leadership
        await w.settle()
        assert texts(w.take(), 1)[0] == "LAI t-1:1@1[1]"  # the batch was sent with what else there was


@pytest.mark.kafka("PSM-6")
async def test_new_to_online_when_the_state_exists(autojump_clock: MockClock) -> None:  # rule 6.8
    async with world([1]) as w:
        runtime = await bench(w)
        await w.zk.ensure_paths([znodes.partition_path(TP)])
        value((await w.store.write([Create(STATE, b"of somebody else")]))[0])
        assert await change(runtime, NEW, ONLINE) is NEW
        assert await w.get(STATE) == b"of somebody else"
        await w.settle()
        assert w.take() == []


@pytest.mark.kafka("PSM-7")
async def test_new_to_offline(autojump_clock: MockClock) -> None:
    async with world([1]) as w:
        assert await change(await bench(w), NEW, OFFLINE) is OFFLINE


@pytest.mark.kafka("PSM-8")
async def test_new_to_nonexistent(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with world([1]) as w:
        assert await rejected(w, caplog, NEW, NON_EXISTENT)


@pytest.mark.kafka("PSM-9")
async def test_online_to_online(autojump_clock: MockClock) -> None:  # rules 6.13, 6.16, 7.13
    async with world([1]) as w:
        runtime = await bench(w)
        await stored(w, runtime, TP, leadership(1, [1]))
        runtime.context.put_partition_state(TP, ONLINE)
        results = await runtime.partitions.handle_state_changes([TP], ONLINE, Strategy.PREFERRED)
        assert runtime.context.partition_state(TP) is ONLINE
        assert await w.state("t") == (1, 1, (1,))
        assert results == {TP: LeaderAndIsr(BrokerId(1), (BrokerId(1),), 1, RECOVERED, 1)}
        await w.settle()
        assert texts(w.take(), 1) == ["LAI t-0:1@1[1]", "UMR alive=[1] t-0:1@1[1]"]


@pytest.mark.kafka("PSM-10")
async def test_online_to_online_for_controlled_shutdown(autojump_clock: MockClock) -> None:  # rule 7.14
    async with world([1, 2]) as w:
        runtime = await bench(w, {0: [1, 2]})
        await stored(w, runtime, TP, leadership(1, [1, 2]))
        runtime.context.shutting_down.add(BrokerId(1))
        runtime.context.put_partition_state(TP, ONLINE)
        await runtime.partitions.handle_state_changes([TP], ONLINE, Strategy.CONTROLLED_SHUTDOWN)
        assert runtime.context.partition_state(TP) is ONLINE
        assert await w.state("t") == (2, 1, (2,))
        await w.settle()
        sent = w.take()
        for broker in (1, 2):
            assert [(s.leader, s.leader_epoch, s.isr, s.replicas, s.is_new) for s in leader_and_isr(sent, broker)] == [
                (2, 1, (2,), (1, 2), False)
            ]


@pytest.mark.kafka("PSM-11")
async def test_online_to_offline(autojump_clock: MockClock) -> None:
    async with world([1]) as w:
        assert await change(await bench(w), ONLINE, OFFLINE) is OFFLINE


@pytest.mark.kafka("PSM-12")
async def test_online_to_nonexistent(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with world([1]) as w:
        assert await rejected(w, caplog, ONLINE, NON_EXISTENT)


@pytest.mark.kafka("PSM-13")
async def test_online_to_new(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with world([1]) as w:
        assert await rejected(w, caplog, ONLINE, NEW)


@pytest.mark.kafka("PSM-14")
async def test_offline_to_online(autojump_clock: MockClock) -> None:  # rule 7.5
    async with world([1]) as w:
        runtime = await bench(w)
        await stored(w, runtime, TP, leadership(-1, [1], 4))
        assert await change(runtime, OFFLINE, ONLINE) is ONLINE
        assert await w.state("t") == (1, 5, (1,))
        await w.settle()
        assert texts(w.take(), 1) == ["LAI t-0:1@5[1]", "UMR alive=[1] t-0:1@5[1]"]


@pytest.mark.kafka("PSM-15")
@pytest.mark.parametrize(("ibp", "recovery"), [("3.2-IV0", RECOVERING), ("3.1", RECOVERED)])
@pytest.mark.parametrize("forced", [True, False])
async def test_offline_to_online_uncleanly(
    autojump_clock: MockClock, ibp: str, recovery: int, forced: bool
) -> None:  # rules 7.6, 11.32
    """By the strategy, or by the topic's configuration."""
    async with world([1], ibp=MetadataVersion.parse(ibp)) as w:
        runtime = await bench(w, {0: [9, 1]})
        if not forced:
            await put_config(w, "t", unclean_leader_election_enable="true")
        await stored(w, runtime, TP, leadership(9, [9]))
        runtime.context.put_partition_state(TP, OFFLINE)
        await runtime.partitions.handle_state_changes([TP], ONLINE, Strategy.UNCLEAN if forced else Strategy.OFFLINE)
        assert runtime.context.partition_state(TP) is ONLINE
        assert await w.state("t") == (1, 1, (1,))
        assert json.loads(await w.get(STATE) or b"").get("leader_recovery_state", RECOVERED) == recovery
        await w.settle()
        (state,) = leader_and_isr(w.take(), 1)
        assert (state.leader, state.isr, state.replicas, state.is_new) == (1, (1,), (9, 1), False)
        assert state.leader_recovery_state == recovery


@pytest.mark.kafka("PSM-16")
async def test_offline_to_online_when_the_read_throws(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule 6.14
    async with world([1]) as w:
        runtime = await bench(w)
        await stored(w, runtime, TP, leadership(-1, [1]))
        before = await w.zk.get_one(STATE)
        with monkeypatch.context() as patch:
            patch.setattr(runtime.zk, "get_partition_states", unreachable)
            assert await change(runtime, OFFLINE, ONLINE) is OFFLINE
        assert await w.zk.get_one(STATE) == before
        await w.settle()
        assert w.take() == []


@pytest.mark.kafka("PSM-17")
async def test_offline_to_online_without_a_state(autojump_clock: MockClock) -> None:  # rule 6.14
    async with world([1]) as w:
        runtime = await bench(w)
        runtime.context.leadership[TP] = leadership(-1, [1])
        runtime.context.put_partition_state(TP, OFFLINE)
        results = await runtime.partitions.handle_state_changes([TP], ONLINE, Strategy.OFFLINE)
        assert isinstance(results[TP], StateChangeFailed)
        assert runtime.context.partition_state(TP) is OFFLINE
        assert await w.get(STATE) is None
        await w.settle()
        assert w.take() == []


@pytest.mark.kafka("PSM-18")
async def test_offline_to_nonexistent(autojump_clock: MockClock) -> None:
    async with world([1]) as w:
        assert await change(await bench(w), OFFLINE, NON_EXISTENT) is NON_EXISTENT


@pytest.mark.kafka("PSM-19")
async def test_offline_to_new(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with world([1]) as w:
        assert await rejected(w, caplog, OFFLINE, NEW)


@pytest.mark.kafka("PSM-20")
async def test_offline_partitions_are_counted(autojump_clock: MockClock) -> None:  # rule 5.19
    async with world([1]) as w:
        runtime = await bench(w, {p: [1] for p in range(4)})
        partitions = [TopicPartition("t", p) for p in range(4)]
        for tp in partitions:
            await stored(w, runtime, tp, leadership(1, [1]))
            runtime.context.put_partition_state(tp, NEW)
        await runtime.partitions.handle_state_changes(partitions, OFFLINE)
        assert runtime.context.offline_partition_count == len(partitions)
        await runtime.partitions.handle_state_changes(partitions, ONLINE, Strategy.OFFLINE)
        assert runtime.context.offline_partition_count == 0


@pytest.mark.kafka("PSM-21")
async def test_the_count_is_frozen_once_deletion_has_started(autojump_clock: MockClock) -> None:  # rule 5.19
    async with world([1]) as w:
        runtime = await bench(w, {p: [1] for p in range(4)})
        partitions = [TopicPartition("t", p) for p in range(4)]
        for tp in partitions:
            runtime.context.put_partition_state(tp, NEW)
        runtime.context.topics_to_delete.add("t")
        runtime.context.topics_with_deletion_started.add("t")
        for target in (OFFLINE, NON_EXISTENT):
            await runtime.partitions.handle_state_changes(partitions, target)
            assert {runtime.context.partition_state(tp) for tp in partitions} == {target}
            assert runtime.context.offline_partition_count == 0


@pytest.mark.kafka("PSM-22")
async def test_topics_that_are_queued_for_deletion_do_not_count(autojump_clock: MockClock) -> None:  # 5.19, 10.42
    async with world([1]) as w:
        runtime = await bench(w, {p: [1] for p in range(4)})
        partitions = [TopicPartition("t", p) for p in range(4)]
        stays = TopicPartition("u", 0)
        await runtime.partitions.handle_state_changes([*partitions, stays], NEW)
        await runtime.partitions.handle_state_changes([*partitions, stays], OFFLINE)
        for tp in partitions:
            put_replica_state(runtime.context, PartitionReplica(tp, BrokerId(1)), ReplicaState.OFFLINE)
        assert runtime.context.offline_partition_count == len(partitions) + 1
        await TopicDeletion(runtime).enqueue({"t"})
        assert runtime.context.offline_partition_count == 1
        assert {runtime.context.partition_state(tp) for tp in partitions} == {NON_EXISTENT}


async def test_deletion_leaves_the_count_as_it_was(autojump_clock: MockClock) -> None:  # rules 5.19, 10.42
    async with world([1]) as w:
        runtime = await bench(w, {p: [1] for p in range(4)})
        partitions = [TopicPartition("t", p) for p in range(4)]
        for tp in partitions:
            runtime.context.put_partition_state(tp, ONLINE)
        stays = TopicPartition("u", 0)
        runtime.context.put_partition_state(stays, OFFLINE)
        runtime.context.topics_to_delete.add("t")
        await runtime.partitions.handle_state_changes(partitions, OFFLINE)
        assert runtime.context.offline_partition_count == len(partitions) + 1
        await runtime.partitions.handle_state_changes(partitions, NON_EXISTENT)
        assert runtime.context.offline_partition_count == 1
