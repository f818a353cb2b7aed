"""TDM: deletion of topics, step by step (section 14 of docs/controller-semantics.md; rules of section 10f)."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from kce import wire
from kce.controller.context import PartitionState, ReplicaState
from kce.controller.events import ReplicaDeletionAnswered
from kce.controller.kafka_controller import KafkaController
from kce.controller.topic_deletion import TopicDeletion
from kce.zookeeper.model import BrokerId, PartitionReplica, TopicPartition
from tests.controller.conformance.bench import bench
from tests.controller.support import World, texts, world

PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]
BROKERS = (1, 2, 3)


async def cluster(w: World) -> KafkaController:
    """Topic t: two partitions on brokers 1, 2 and 3, which answer no StopReplica by themselves."""
    controller = await w.start_controller(1)
    await w.create_topic("t", {0: [1, 2, 3], 1: [2, 3, 1]})
    for broker in w.brokers.values():
        plain = broker.answer

        def silent(request: object, header: wire.Header, plain: object = plain) -> wire.Message:
            if isinstance(request, wire.StopReplicaRequest):
                return wire.StopReplicaResponse()  # names no replica, so no event follows (rule 8.43)
            return plain(request, header)  # type: ignore[operator, no-any-return]

        broker.answer = silent
    w.take()
    return controller


async def request_deletion(w: World) -> None:
    await w.zk.ensure_paths(["/admin/delete_topics/t"])
    await w.settle()


async def deleted_by(w: World, controller: KafkaController, *brokers: int, error: int = 0) -> None:
    """Those brokers say that they have deleted their replicas, or why not."""
    for broker in brokers:
        errors = tuple((tp, error) for tp in PARTITIONS)
        controller.loop.put(ReplicaDeletionAnswered(BrokerId(broker), 0, errors))
        await w.settle()


def states(controller: KafkaController, broker: int) -> set[ReplicaState]:
    return {controller.context.replica_state(PartitionReplica(tp, BrokerId(broker))) for tp in PARTITIONS}


def assert_gone(controller: KafkaController) -> None:
    context = controller.context
    assert "t" not in context.topics | context.topics_to_delete | context.topics_with_deletion_started
    assert context.partitions_of("t") == []
    assert not any(tp in context.leadership or tp in context.partition_states for tp in PARTITIONS)
    assert not any(tp in context.replica_states_of(BrokerId(broker)) for tp in PARTITIONS for broker in range(10))


@pytest.mark.kafka("TDM-1")
async def test_initialization(autojump_clock: MockClock) -> None:  # rule 10.38
    async with world([]) as w:
        runtime = await bench(w)
        deletion = TopicDeletion(runtime)
        await deletion.initialize({"a", "b", "c"}, {"b", "c", "d"})
        assert runtime.context.topics_to_delete == {"a", "b", "c"}
        assert runtime.context.topics_ineligible_for_deletion == {"b", "c"}


@pytest.mark.kafka("TDM-2")
async def test_basic_deletion(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:  # 10.42, 10.48
    async with world(BROKERS) as w:
        controller = await cluster(w)
        zk = w.nodes[1].zk
        calls: list[str] = []
        delete_nodes = zk.delete_topic_nodes

        async def counted(topic: str, *args: object) -> None:
            calls.append(topic)
            await delete_nodes(topic, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(zk, "delete_topic_nodes", counted)
        await request_deletion(w)
        context = controller.context
        assert {context.partition_state(tp) for tp in PARTITIONS} == {PartitionState.NON_EXISTENT}
        assert [states(controller, b) for b in BROKERS] == [{ReplicaState.DELETION_STARTED}] * 3
        assert context.topics_with_deletion_started == {"t"}
        sent = w.take()
        for broker in BROKERS:
            sent_to_broker = texts(sent, broker)
            (update,) = (text for text in sent_to_broker if text.startswith("UMR"))
            assert "t-0:-2@0" in update
            assert "t-1:-2@0" in update
        assert calls == []
        await deleted_by(w, controller, *BROKERS)
        assert calls == ["t"]
        assert_gone(controller)
        for path in ("/brokers/topics/t", "/admin/delete_topics/t"):
            assert await w.get(path) is None


@pytest.mark.kafka("TDM-3")
async def test_deletion_with_a_broker_that_is_dead(autojump_clock: MockClock) -> None:  # rules 10.41, 10.43, 10.47
    async with world(BROKERS) as w:
        controller = await cluster(w)
        context = controller.context
        await w.stop_broker(3)
        await w.settle()
        await request_deletion(w)
        assert [states(controller, b) for b in BROKERS] == [
            {ReplicaState.DELETION_STARTED},
            {ReplicaState.DELETION_STARTED},
            {ReplicaState.DELETION_INELIGIBLE},
        ]
        assert context.topics_ineligible_for_deletion == {"t"}
        await deleted_by(w, controller, 1, 2)
        assert [states(controller, b) for b in BROKERS] == [
            {ReplicaState.DELETION_SUCCESSFUL},
            {ReplicaState.DELETION_SUCCESSFUL},
            {ReplicaState.OFFLINE},
        ]
        assert context.topics_to_delete == {"t"}
        await w.start_broker(3)
        await w.settle()
        assert context.topics_ineligible_for_deletion == set()
        # the broker that came answers by itself: Started, Successful, done
        assert_gone(controller)
        assert "SR t-0@-2delete t-1@-2delete" in texts(w.take(), 3)


@pytest.mark.kafka("TDM-4")
async def test_a_broker_dies_after_deletion_has_started(autojump_clock: MockClock) -> None:  # rules 10.40, 10.49
    async with world(BROKERS) as w:
        controller = await cluster(w)
        context = controller.context
        await request_deletion(w)
        await w.stop_broker(3)
        await w.settle()
        assert [states(controller, b) for b in BROKERS] == [
            {ReplicaState.DELETION_STARTED},
            {ReplicaState.DELETION_STARTED},
            {ReplicaState.DELETION_INELIGIBLE},
        ]
        assert context.topics_ineligible_for_deletion == {"t"}
        w.take()
        await TopicDeletion(controller._runtime).resume(["t"])
        await w.settle()
        assert states(controller, 3) == {ReplicaState.DELETION_INELIGIBLE}  # while others are Started
        assert w.take() == []
        await deleted_by(w, controller, 1, 2)
        assert states(controller, 1) == states(controller, 2) == {ReplicaState.DELETION_SUCCESSFUL}
        await w.start_broker(3)
        await w.settle()
        assert_gone(controller)
