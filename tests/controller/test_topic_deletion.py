"""Deletion of topics (section 10f of docs/controller-semantics.md)."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from kce import wire
from kce.controller.events import ReplicaDeletionAnswered
from kce.controller.states import ReplicaState
from kce.zookeeper import admin, znodes
from kce.zookeeper.model import BrokerId, PartitionReplica, ReplicaAssignment, TopicPartition
from kce.zookeeper.store import Create, SetData
from tests.controller.support import texts, world


async def test_deletion_with_all_replicas_alive(autojump_clock: MockClock) -> None:  # rules 10.42-10.48; DEL-1, DEL-8
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [1, 2]})
        w.take()
        await admin.delete_topic(w.zk, "t")
        await w.settle()
        sent = w.take()
        assert texts(sent, 2) == ["UMR alive=[1, 2, 3] t-0:-2@0[1, 2]", "SR t-0@-2", "SR t-0@-2delete"]  # rule 10.44
        assert texts(sent, 3) == ["UMR alive=[1, 2, 3] t-0:-2@0[1, 2]"]
        for path in ("/brokers/topics/t", "/admin/delete_topics/t", "/config/topics/t"):
            assert await w.get(path) is None
        assert controller.context.topics == set()
        assert controller.context.topic_ids == {}
        await w.create_topic("t", {0: [2]})
        assert await w.state("t") == (2, 0, (2,))


async def test_deletion_waits_for_a_dead_replica(autojump_clock: MockClock) -> None:  # rules 10.43, 10.49; DEL-2
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        await w.stop_broker(3)
        await w.settle()
        await admin.delete_topic(w.zk, "t")
        await w.settle()
        assert controller.context.topics_ineligible_for_deletion == {"t"}
        assert await w.get("/brokers/topics/t") is not None
        await w.start_broker(3)
        await w.settle()
        assert await w.get("/brokers/topics/t") is None
        assert await w.get("/admin/delete_topics/t") is None


async def test_a_broker_that_dies_before_it_has_deleted(autojump_clock: MockClock) -> None:  # rules 10.49, 11.57
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        w.brokers[3].mute = True
        await admin.delete_topic(w.zk, "t")
        await w.settle()
        replica = PartitionReplica(TopicPartition("t", 0), BrokerId(3))
        assert controller.context.replica_states.of(replica) is ReplicaState.DELETION_STARTED
        await w.stop_broker(3)
        await w.settle()
        assert controller.context.topics_ineligible_for_deletion == {"t"}
        assert (
            controller.context.replica_states.of(replica) is ReplicaState.OFFLINE
        )  # the retry of an ineligible one (10.41)
        await w.start_broker(3)
        await w.settle()
        assert await w.get("/brokers/topics/t") is None


async def test_deletion_is_resumed_by_the_next_controller(autojump_clock: MockClock) -> None:  # DEL-3
    async with world() as w:
        await w.start_controller(1)
        await w.start_controller(2)
        await w.create_topic("t", {0: [2, 3]})
        w.brokers[3].mute = True
        await admin.delete_topic(w.zk, "t")
        await w.settle()
        assert await w.get("/brokers/topics/t") is not None
        w.brokers[3].mute = False
        w.brokers[3].break_connections()
        await w.kill_controller(1)
        await w.settle()
        assert await w.get("/brokers/topics/t") is None


async def test_failed_deletions_are_logged_with_their_reason(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:  # rule 10.46
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        for broker in (2, 3):
            w.brokers[broker].mute = True
        await admin.delete_topic(w.zk, "t")
        await w.settle()
        tp = TopicPartition("t", 0)
        by_partition = ReplicaDeletionAnswered(BrokerId(2), 0, ((tp, wire.ErrorCode.KAFKA_STORAGE_ERROR),))
        at_the_top = ReplicaDeletionAnswered(BrokerId(3), wire.ErrorCode.STALE_CONTROLLER_EPOCH, ((tp, 0),))
        for event in (by_partition, at_the_top):
            controller.loop.put(event)
        await w.settle()
        assert "broker 2 did not delete t-0: KAFKA_STORAGE_ERROR" in caplog.text
        assert "broker 3 did not delete t-0: STALE_CONTROLLER_EPOCH" in caplog.text


async def test_a_queued_topic_that_is_reassigned_is_halted(autojump_clock: MockClock) -> None:  # rules 10.37, 10.39
    async with world() as w:
        controller = await w.start_controller(1)
        for topic in ("t", "u", "v"):
            await w.create_topic(topic, {0: [2, 3]})
        w.brokers[3].mute = True
        for topic in ("t", "u"):
            await admin.delete_topic(w.zk, topic)
        await w.settle()
        assert controller.context.topics_ineligible_for_deletion == set()
        controller.context.being_reassigned.update((TopicPartition("t", 0), TopicPartition("w", 0)))
        await admin.delete_topic(w.zk, "v")
        await w.settle()
        assert controller.context.topics_ineligible_for_deletion == {"t"}
        assert controller.context.topics_to_delete == {"t", "u", "v"}


async def test_a_refused_replica_deletion_waits_for_a_broker_event(autojump_clock: MockClock) -> None:  # 10.46, 10.47
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        plain = w.brokers[3].answer

        def refuse(request: object, header: wire.Header) -> wire.Message:
            if isinstance(request, wire.StopReplicaRequest):
                error = wire.StopReplicaPartitionError(topic_name="t", error_code=wire.ErrorCode.KAFKA_STORAGE_ERROR)
                return wire.StopReplicaResponse(partition_errors=(error,))
            return plain(request, header)

        w.brokers[3].answer = refuse
        await admin.delete_topic(w.zk, "t")
        await w.settle()
        assert controller.context.topics_ineligible_for_deletion == {"t"}
        assert await w.get("/brokers/topics/t") is not None
        w.brokers[3].answer = plain
        await w.stop_broker(3)
        await w.settle()
        await w.start_broker(3)
        await w.settle()
        assert await w.get("/brokers/topics/t") is None


async def test_markers_of_unknown_topics_and_of_all_when_disabled(
    autojump_clock: MockClock,
) -> None:  # rule 10.37; DEL-12
    async with world() as w:
        await w.start_controller(1, delete_topic_enable=False)
        await w.create_topic("t", {0: [2]})
        await w.zk.ensure_paths(["/admin/delete_topics/nonsense", "/admin/delete_topics/t"])
        await w.settle()
        assert await w.zk.get_children("/admin/delete_topics") == []
        assert await w.get("/brokers/topics/t") is not None


async def test_partitions_added_to_a_topic_being_deleted_are_reverted(
    autojump_clock: MockClock,
) -> None:  # 10.32; DEL-5
    async with world() as w:
        await w.start_controller(1)
        topic_id = await w.create_topic("t", {0: [2, 3]})
        w.brokers[3].mute = True
        await admin.delete_topic(w.zk, "t")
        await w.settle()
        grown = {p: ReplicaAssignment((BrokerId(2), BrokerId(3))) for p in (0, 1)}
        await w.store.write([SetData("/brokers/topics/t", znodes.encode_topic(topic_id, grown))])
        await w.settle()
        left = (await w.zk.get_topic_assignments(["t"]))["t"]
        assert list(left.partitions) == [0]


async def test_a_topic_node_deleted_by_hand(autojump_clock: MockClock) -> None:  # rules 5.17, 5.18
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2]})
        await w.zk._delete_recursive("/brokers/topics/t", w.nodes[1].controller.context.epoch_zk_version)
        await w.settle()
        assert controller.context.topics == set()
        await w.create_topic("t", {0: [3]})
        assert await w.get("/brokers/topics/t/partitions/0/state") is None  # not before the next failover


async def test_a_topic_created_and_marked_during_a_disconnection_is_deleted(autojump_clock: MockClock) -> None:  # 10.37
    """The watch of /admin/delete_topics fires before that of /brokers/topics."""
    async with world() as w:
        controller = await w.start_controller(1)
        w.server.disconnect(w.registrations[1])
        await w.create_topic("t", {0: [2, 3]})
        await admin.delete_topic(w.zk, "t")
        await w.settle()
        w.server.reconnect(w.registrations[1])
        await w.settle()
        assert await w.zk.get_topics() == set()
        assert await w.get("/admin/delete_topics/t") is None
        assert controller.context.topics == set()
        assert controller.loop.failures == {}


async def test_the_marker_of_a_topic_that_does_not_exist_is_removed(autojump_clock: MockClock) -> None:  # rule 10.37
    async with world() as w:
        controller = await w.start_controller(1)
        await w.store.write([Create("/admin/delete_topics/nope")])
        await w.settle()
        assert await w.get("/admin/delete_topics/nope") is None
        assert controller.context.topics_to_delete == set()
