"""What a failover and a resignation do, in order (rules 4.1 to 4.20 and 4.26 to 4.32).

Covers: controller/runtime.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce.controller import events as ev
from kce.controller.kafka_controller import KafkaController
from kce.zookeeper import znodes
from kce.zookeeper.model import BrokerId, ControllerEpoch, LeaderAndIsr, Leadership, TopicPartition
from kce.zookeeper.store import Delete, SessionExpired, StoreError
from tests.controller.support import World, world

CHILDREN = {
    znodes.BROKER_IDS: ev.BrokersChanged(),
    znodes.TOPICS: ev.TopicsChanged(),
    znodes.DELETE_TOPICS: ev.TopicDeletionRequested(),
    znodes.LOG_DIR_EVENT_NOTIFICATION: ev.LogDirEventNotified(),
    znodes.ISR_CHANGE_NOTIFICATION: ev.IsrChangeNotified(),
}


def recorded(
    monkeypatch: pytest.MonkeyPatch, calls: list[str], owner: type[Any], name: str, methods: tuple[str, ...]
) -> None:
    for method in methods:
        plain = getattr(owner, method)

        def call(self: Any, *values: Any, plain: Any = plain, label: str = f"{name}.{method}", **more: Any) -> Any:
            calls.append(label)
            return plain(self, *values, **more)

        monkeypatch.setattr(owner, method, call)


def observed(monkeypatch: pytest.MonkeyPatch, controller: KafkaController) -> list[str]:
    """Each call that a failover or a resignation makes, from now on."""
    role, calls = controller._role, list[str]()
    runtime = role.runtime
    for owner, name, methods in (
        (role.features, "features", ("set_up",)),
        (role.elections, "elections", ("watch", "unwatch", "resume_at_failover")),
        (role.reassignment, "reassignment", ("watch", "unwatch", "resume_at_failover")),
        (role.topics, "topics", ("load", "unwatch_all")),
        (role.brokers, "brokers", ("watch", "unwatch_all")),
        (role.deletion, "deletion", ("initialize", "resume_all")),
        (runtime.replicas, "replicas", ("startup",)),
        (runtime.partitions, "partitions", ("startup",)),
        (runtime, "runtime", ("refresh_leadership", "send_update_metadata_to_all")),
        (runtime.channels, "channels", ("add_brokers", "shutdown")),
        (role._context, "context", ("set_live_brokers", "clear_leadership", "clear")),
        (role._scheduler, "scheduler", ("clear", "schedule")),
    ):
        recorded(monkeypatch, calls, type(owner), name, methods)
    return calls


async def again(w: World) -> None:
    """Resign, and be elected again."""
    await w.store.write([Delete("/controller")])
    await w.settle()


async def test_the_steps_of_a_resignation_and_a_failover(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(brokers=(1,)) as w:
        controller = await w.start_controller(1)
        calls = observed(monkeypatch, controller)
        await again(w)
        assert controller.context.epoch == 2
        assert calls[:7] == [
            "reassignment.unwatch", "elections.unwatch", "brokers.unwatch_all", "topics.unwatch_all", "scheduler.clear",
            "channels.shutdown", "context.clear",
        ]  # fmt: skip
        assert calls[7:] == [
            "features.set_up", "elections.watch", "reassignment.watch", "context.set_live_brokers", "topics.load",
            "context.clear_leadership", "brokers.watch", "runtime.refresh_leadership", "channels.add_brokers",
            "deletion.initialize", "runtime.send_update_metadata_to_all", "replicas.startup", "partitions.startup",
            "reassignment.resume_at_failover", "reassignment.watch", "deletion.resume_all",
            "elections.resume_at_failover", "scheduler.schedule", "elections.watch",
        ]  # fmt: skip


async def test_what_is_watched(autojump_clock: MockClock) -> None:
    async with world(brokers=(1, 2)) as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [1]})
        zk, queue = w.nodes[1].zk, controller.loop._queue
        assert set(zk._child_handlers) >= set(CHILDREN)
        for path, event in CHILDREN.items():
            zk._child_handlers[path]()
            assert queue.pop()[0] == event
        triggers = {
            znodes.REASSIGN_PARTITIONS: ev.ReassignPartitionsCreated(),
            znodes.PREFERRED_REPLICA_ELECTION: ev.PreferredReplicaElectionCreated(),
        }
        for path, event in triggers.items():  # type: ignore[assignment]
            handler = zk._change_handlers[path]
            assert handler.created is not None
            assert (handler.changed, handler.deleted) == (None, None)
            handler.created()
            assert queue.pop()[0] == event
        nodes = {znodes.broker_path(1), znodes.broker_path(2), znodes.topic_path("t")}
        assert set(zk._change_handlers) >= nodes | set(triggers)
        for path in nodes:
            handler = zk._change_handlers[path]
            assert handler.changed is not None
            assert (handler.created, handler.deleted) == (None, None)
        controller.context.being_reassigned.add(TopicPartition("t", 0))
        await controller._role.resign()
        assert not controller.context.being_reassigned
        assert not set(zk._child_handlers) & set(CHILDREN)
        assert not set(zk._change_handlers) & (nodes | set(triggers))
        assert (controller._role.brokers._watched, controller._role.topics._watched) == (set(), set())
        assert (controller.context.epoch, controller.context.epoch_zk_version) == (0, 0)  # rule 4.31


@pytest.mark.parametrize("error", [SessionExpired("gone"), StoreError("refused")])
async def test_leaderships_are_read_in_parts_and_a_failure_is_raised_as_it_is(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, error: Exception
) -> None:  # rule 4.10
    async with world([1]) as w:
        runtime = (await w.start_controller(1))._runtime
        partitions = [TopicPartition("t", number) for number in range(3)]
        read: list[TopicPartition] = []

        async def states(part: list[TopicPartition]) -> dict[TopicPartition, Leadership]:
            if read:
                raise error
            read.extend(part)
            return {tp: Leadership(LeaderAndIsr(BrokerId(1), (BrokerId(1),)), ControllerEpoch(1)) for tp in part}

        monkeypatch.setattr("kce.controller.runtime._READ_AT_ONCE", 2)
        monkeypatch.setattr(runtime.zk, "get_partition_states", states)
        with pytest.raises(type(error)) as raised:
            await runtime.refresh_leadership(partitions)
        assert raised.value is error
        assert list(runtime.context.leadership) == read == partitions[:2]


async def test_several_reads_of_leaderships_are_under_way_and_end_in_any_order(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:  # rule 4.10
    async with world([1]) as w:
        runtime = (await w.start_controller(1))._runtime
        partitions = [TopicPartition("t", number) for number in range(9)]
        under_way: list[int] = []
        most: list[list[int]] = []

        async def states(part: list[TopicPartition]) -> dict[TopicPartition, Leadership]:
            first = part[0].partition
            under_way.append(first)
            most.append(list(under_way))
            await trio.sleep(10 - first)  # those sent later are answered earlier
            under_way.remove(first)
            return {tp: Leadership(LeaderAndIsr(BrokerId(1), (BrokerId(1),)), ControllerEpoch(1)) for tp in part}

        monkeypatch.setattr("kce.controller.runtime._READ_AT_ONCE", 2)
        monkeypatch.setattr(runtime.zk, "get_partition_states", states)
        began = trio.current_time()
        await runtime.refresh_leadership(iter(partitions))
        assert max(map(len, most)) == 3
        assert trio.current_time() - began == 14  # 10 for the first three, then the two that remain take 4 at most
        assert list(runtime.context.leadership) == partitions  # in the order of the question
