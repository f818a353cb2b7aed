"""Topics and partitions: creation, addition, deletion (section 10 of docs/controller-semantics.md)."""

from __future__ import annotations

import json
from random import Random

import pytest
from trio.testing import MockClock

import wire
from controller import admin, zk_data
from controller.context import ReplicaState
from controller.events import ReplicaDeletionAnswered
from controller.model import BrokerId, PartitionReplica, ReplicaAssignment, TopicPartition
from controller.store import Create, SetData
from tests.controller.support import texts, world


async def test_traffic_of_a_fresh_topic(autojump_clock: MockClock) -> None:  # rule 10.29; CI-8
    async with world() as w:
        controller = await w.start_controller(1)
        w.take()
        topic_id = await w.create_topic("t", {0: [1, 2], 1: [2, 1]})
        sent = w.take()
        told = ["LAI t-0:1@0[1, 2]new t-1:2@0[2, 1]new", "UMR alive=[1, 2, 3] t-0:1@0[1, 2] t-1:2@0[2, 1]"]
        assert texts(sent, 1) == told
        assert texts(sent, 2) == told
        assert texts(sent, 3) == told[1:]
        assert await w.state("t", 1) == (2, 0, (2, 1))
        assert controller.context.topic_ids == {"t": topic_id}
        node = json.loads(await w.get("/brokers/topics/t/partitions/0/state") or b"")
        assert node == {"version": 1, "leader": 1, "leader_epoch": 0, "controller_epoch": 1, "isr": [1, 2]}
        leaders = [s.message.live_leaders for s in sent if isinstance(s.message, wire.LeaderAndIsrRequest)]
        assert [{(x.broker_id, x.port) for x in some} for some in leaders] == [{(1, 2001), (2, 2002)}] * 2  # rule 8.15


async def test_a_topic_whose_node_is_no_json_has_no_partitions(autojump_clock: MockClock) -> None:  # rules 1.26, 4.7
    async with world() as w:
        await w.zk.make_top_level_paths()
        for topic, content in {"before": b"{nonsense", "fine": b'{"version":1,"partitions":{"0":[1]}}'}.items():
            await w.store.write([Create(zk_data.topic_path(topic), content)])
        controller = await w.start_controller(1)
        await w.store.write([Create(zk_data.topic_path("after"), b"nonsense")])
        await w.settle()
        assert controller.context.topics == {"before", "fine", "after"}
        assert controller.context.topic_ids.keys() == {"before", "fine", "after"}
        for topic in ("before", "after"):  # written anew, for its id
            node = json.loads(await w.get(zk_data.topic_path(topic)) or b"")
            assert (node["version"], node["partitions"]) == (3, {})
        assert await w.state("fine") == (1, 0, (1,))
        found, added = await admin.plan_partitions(w.zk, "fine", 2, None, random=Random(0))
        await admin.add_partitions(w.zk, found, added)
        await w.settle()
        assert len(controller.context.topic_assignments("fine")) == 2


async def test_a_dead_replica_is_assigned_but_not_in_the_isr(autojump_clock: MockClock) -> None:  # rule 10.30; CI-9
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [9, 2, 3]})
        assert await w.state("t") == (2, 0, (2, 3))


async def test_no_live_replica_leaves_it_new_until_one_comes(autojump_clock: MockClock) -> None:  # rule 10.31
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [8, 9]})
        assert await w.get("/brokers/topics/t/partitions/0/state") is None
        await w.start_broker(9)
        await w.settle()
        assert await w.state("t") == (9, 0, (9,))


async def test_added_partitions(autojump_clock: MockClock) -> None:  # rules 10.32, 10.33; CI-10
    async with world() as w:
        controller = await w.start_controller(1)
        topic_id = await w.create_topic("t", {0: [1, 2]})
        w.take()
        grown = {0: ReplicaAssignment((BrokerId(3),)), 1: ReplicaAssignment((BrokerId(2), BrokerId(3)))}
        await w.store.write([SetData("/brokers/topics/t", zk_data.encode_topic(topic_id, grown))])
        await w.settle()
        assert await w.state("t", 1) == (2, 0, (2, 3))
        assert controller.context.replicas(TopicPartition("t", 0)) == (1, 2)  # ignored until failover
        assert texts(w.take(), 2) == ["LAI t-1:2@0[2, 3]new", "UMR alive=[1, 2, 3] t-1:2@0[2, 3]"]


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
        assert controller.context.replica_state(replica) is ReplicaState.DELETION_STARTED
        await w.stop_broker(3)
        await w.settle()
        assert controller.context.topics_ineligible_for_deletion == {"t"}
        assert (
            controller.context.replica_state(replica) is ReplicaState.OFFLINE
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


async def test_deletions_that_failed_are_told_with_their_reason(
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
        controller.context.being_reassigned |= {TopicPartition("t", 0), TopicPartition("w", 0)}
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
        await w.store.write([SetData("/brokers/topics/t", zk_data.encode_topic(topic_id, grown))])
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


async def test_create_topic_by_admin(autojump_clock: MockClock) -> None:  # rules 10.5, 10.7; AZC-2, AZC-3, AZC-4
    async with world() as w:
        await w.start_controller(1)
        topic_id = await admin.create_topic(
            w.zk, "orders.v1", partitions=4, replication_factor=2, config={"retention.ms": "5"}, random=Random(3)
        )
        await w.settle()
        (described,) = await admin.describe_topics(w.zk)
        assert (described.topic_id, described.config) == (topic_id, {"retention.ms": "5"})
        assert [len(p.assignment.replicas) for p in described.partitions] == [2] * 4
        assert all(p.leadership is not None for p in described.partitions)
        for bad, why in (
            ("orders.v1", "already exists"),
            ("orders_v1", "collides"),
            ("a/b", "no topic name"),
            ("", "no topic name"),
            ("..", "no topic name"),
            ("x" * 250, "no topic name"),
        ):
            with pytest.raises(admin.AdminError, match=why):
                await admin.create_topic(w.zk, bad, random=Random(1))
        with pytest.raises(admin.AdminError, match="larger than the number of available brokers, 3"):
            await admin.create_topic(w.zk, "wide", replication_factor=4, random=Random(1))
        for assignment in ({1: [1]}, {0: [1], 1: [1, 2]}, {0: [1, 1]}, {0: []}, {}):
            with pytest.raises(admin.AdminError, match="manual"):
                await admin.create_topic(w.zk, "manual", assignment=assignment, random=Random(1))
        await w.store.write([Create("/admin/delete_topics/gone")])
        w.nodes[1].controller.close()
        await w.settle()
        await w.zk.ensure_paths(["/admin/delete_topics/gone"])
        with pytest.raises(admin.AdminError, match="still being deleted"):
            await admin.create_topic(w.zk, "gone", random=Random(1))
        with pytest.raises(admin.AdminError, match="there is no topic nope"):
            await admin.delete_topic(w.zk, "nope")
        with pytest.raises(admin.AdminError, match=r"there is no topic nope; there are: orders.v1"):
            await admin.describe_topics(w.zk, ["nope"])
