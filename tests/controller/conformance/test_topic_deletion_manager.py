"""TDM: deletion of topics, step by step (section 14 of docs/controller-semantics.md; rules of section 10f)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from trio.testing import MockClock

from kce import wire
from kce.controller.events import ReplicaDeletionAnswered
from kce.controller.kafka_controller import KafkaController
from kce.controller.states import PartitionState, ReplicaState
from kce.controller.topic_deletion import TopicDeletion
from kce.zookeeper.model import BrokerEpoch, BrokerId, PartitionReplica, TopicPartition
from tests.controller.conformance.bench import bench
from tests.controller.support import FakeBroker, World, broker, texts, world

PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]
OF_BOTH = [*PARTITIONS, TopicPartition("u", 0), TopicPartition("u", 1)]
BROKERS = (1, 2, 3)


def silence(fake: FakeBroker) -> None:
    """Make the broker name no replica in StopReplica responses, so that no event follows (rule 8.43)."""
    plain = fake.answer

    def answer(request: object, header: wire.Header) -> wire.Message:
        return wire.StopReplicaResponse() if isinstance(request, wire.StopReplicaRequest) else plain(request, header)

    fake.answer = answer


async def cluster(w: World) -> KafkaController:
    """Topics t and u: two partitions each on brokers 1, 2 and 3, which delete nothing by themselves."""
    controller = await w.start_controller(1)
    for topic in ("t", "u"):
        await w.create_topic(topic, {0: [1, 2, 3], 1: [2, 3, 1]})
    for made in w.brokers.values():
        silence(made)
    w.take()
    return controller


async def request_deletion(w: World, *topics: str) -> None:
    await w.zk.ensure_paths([f"/admin/delete_topics/{topic}" for topic in topics])
    await w.settle()


async def come_back(w: World, broker_id: int) -> None:
    """Start the broker again; it still deletes nothing by itself."""
    silence(await w.start_broker(broker_id))
    await w.settle()


async def deleted_by(w: World, controller: KafkaController, *brokers: int, of: Sequence[TopicPartition]) -> None:
    """Report the replicas of these brokers as deleted."""
    for broker_id in brokers:
        controller.loop.put(ReplicaDeletionAnswered(BrokerId(broker_id), 0, tuple((tp, 0) for tp in of)))
        await w.settle()


def states(controller: KafkaController, broker_id: int) -> set[ReplicaState]:
    return {controller.context.replica_states.of(PartitionReplica(tp, BrokerId(broker_id))) for tp in PARTITIONS}


def queues(controller: KafkaController) -> tuple[set[str], set[str], set[str]]:
    """Topics to delete, those of which the deletion has started, and those that cannot be deleted now."""
    context = controller.context
    return (
        set(context.topics_to_delete),
        set(context.topics_with_deletion_started),
        set(context.topics_ineligible_for_deletion),
    )


def assert_gone(controller: KafkaController, *topics: str) -> None:
    context = controller.context
    partitions = [tp for tp in OF_BOTH if tp.topic in topics]
    assert not context.topics & set(topics)
    assert not any(context.partitions_of(topic) for topic in topics)
    assert not any(tp in context.leadership or tp in context.partition_states for tp in partitions)
    assert {s for i in range(10) for s in context.replica_states.on(BrokerId(i), partitions)} <= {
        ReplicaState.NON_EXISTENT
    }
    assert queues(controller) == (set(), set(), set())


@pytest.mark.kafka("TDM-1")
async def test_initialization(autojump_clock: MockClock) -> None:  # rule 10.38
    async with world([]) as w:
        runtime = await bench(w)
        deletion = TopicDeletion(runtime)
        assert deletion.enabled
        await deletion.initialize({"a", "b", "c"}, {"b", "c", "d"})
        assert runtime.context.topics_to_delete == {"a", "b", "c"}
        assert runtime.context.topics_ineligible_for_deletion == {"b", "c"}


@pytest.mark.kafka("TDM-2")
async def test_basic_deletion(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:  # 10.42, 10.48
    async with world(BROKERS) as w:
        controller = await cluster(w)
        calls: Counter[object] = Counter()
        for machine in (controller._runtime.partitions, controller._runtime.replicas):

            async def counted(
                of: object, target: object, *more: object, plain: Any = machine.handle_state_changes
            ) -> Any:
                calls[target] += 1
                return await plain(of, target, *more)

            monkeypatch.setattr(machine, "handle_state_changes", counted)
        await request_deletion(w, "t", "u")
        context = controller.context
        assert {context.partition_state(tp) for tp in OF_BOTH} == {PartitionState.NON_EXISTENT}
        for of in BROKERS:
            replicas = {context.replica_states.of(PartitionReplica(tp, BrokerId(of))) for tp in OF_BOTH}
            assert replicas == {ReplicaState.DELETION_STARTED}
        assert queues(controller) == ({"t", "u"}, {"t", "u"}, set())
        sent = w.take()
        for receiver in BROKERS:
            (update,) = (text for text in texts(sent, receiver) if text.startswith("UMR"))
            assert all(f"{tp}:-2@0" in update for tp in OF_BOTH)
        for answering in BROKERS:
            assert await w.get("/brokers/topics/t") is not None
            await deleted_by(w, controller, answering, of=OF_BOTH)
        assert_gone(controller, "t", "u")
        assert calls == {
            PartitionState.OFFLINE: 1,
            PartitionState.NON_EXISTENT: 1,
            ReplicaState.DELETION_INELIGIBLE: 1,
            ReplicaState.OFFLINE: 1,
            ReplicaState.DELETION_STARTED: 1,
            ReplicaState.DELETION_SUCCESSFUL: len(BROKERS),  # one for each answer
            ReplicaState.NON_EXISTENT: 2,  # one for each topic
        }
        for topic in ("t", "u"):
            for path in (f"/brokers/topics/{topic}", f"/admin/delete_topics/{topic}"):
                assert await w.get(path) is None


@pytest.mark.kafka("TDM-3")
async def test_deletion_with_a_broker_that_is_dead(autojump_clock: MockClock) -> None:  # rules 10.41, 10.43, 10.47
    async with world(BROKERS) as w:
        controller = await cluster(w)
        context = controller.context
        await w.stop_broker(3)
        await w.settle()
        w.take()
        await request_deletion(w, "t")
        assert {context.partition_state(tp) for tp in PARTITIONS} == {PartitionState.NON_EXISTENT}
        assert any("t-0:-2@0" in text and "t-1:-2@0" in text for text in texts(w.take(), 1))
        assert [states(controller, b) for b in BROKERS] == [
            {ReplicaState.DELETION_STARTED},
            {ReplicaState.DELETION_STARTED},
            {ReplicaState.DELETION_INELIGIBLE},
        ]
        assert queues(controller) == ({"t"}, {"t"}, {"t"})
        await deleted_by(w, controller, 1, 2, of=PARTITIONS)
        assert [states(controller, b) for b in BROKERS] == [
            {ReplicaState.DELETION_SUCCESSFUL},
            {ReplicaState.DELETION_SUCCESSFUL},
            {ReplicaState.OFFLINE},
        ]
        assert {context.partition_state(tp) for tp in PARTITIONS} == {PartitionState.NON_EXISTENT}
        assert queues(controller) == ({"t"}, {"t"}, {"t"})
        await come_back(w, 3)
        assert [states(controller, b) for b in BROKERS] == [
            {ReplicaState.DELETION_SUCCESSFUL},
            {ReplicaState.DELETION_SUCCESSFUL},
            {ReplicaState.DELETION_STARTED},
        ]
        assert "SR t-1@-2delete t-0@-2delete" in texts(w.take(), 3)
        await deleted_by(w, controller, 3, of=PARTITIONS)
        assert_gone(controller, "t")


@pytest.mark.kafka("TDM-4")
async def test_a_broker_dies_after_deletion_has_started(autojump_clock: MockClock) -> None:  # rules 10.40, 10.49
    async with world(BROKERS) as w:
        controller = await cluster(w)
        await request_deletion(w, "t")
        assert [states(controller, b) for b in BROKERS] == [{ReplicaState.DELETION_STARTED}] * 3
        await w.stop_broker(3)
        await w.settle()
        waiting = [{ReplicaState.DELETION_STARTED}, {ReplicaState.DELETION_STARTED}, {ReplicaState.DELETION_INELIGIBLE}]
        assert [states(controller, b) for b in BROKERS] == waiting
        assert queues(controller) == ({"t"}, {"t"}, {"t"})
        controller.context.add_live_brokers([(broker(3), BrokerEpoch(10**6))])
        await TopicDeletion(controller._runtime).resume(["t"])
        assert [states(controller, b) for b in BROKERS] == waiting  # while others are Started
        assert queues(controller) == ({"t"}, {"t"}, set())
        await deleted_by(w, controller, 1, 2, of=PARTITIONS)
        assert [states(controller, b) for b in BROKERS] == [
            {ReplicaState.DELETION_SUCCESSFUL},
            {ReplicaState.DELETION_SUCCESSFUL},
            {ReplicaState.DELETION_STARTED},
        ]
        assert queues(controller) == ({"t"}, {"t"}, set())
        await deleted_by(w, controller, 3, of=PARTITIONS)
        assert_gone(controller, "t")
