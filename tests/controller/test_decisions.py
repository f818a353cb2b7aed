"""Decisions whose inversion no other test noticed."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.controller import dispatch
from kce.controller import events as ev
from kce.controller.errors import BrokenBatch
from kce.controller.kafka_controller import KafkaController
from kce.controller.partition_states import update_leader_and_isr
from kce.wire import ErrorCode
from kce.zookeeper import admin, cluster_nodes, znodes
from kce.zookeeper.model import BrokerId, ControllerEpoch, EpochZkVersion, LeaderAndIsr, Leadership, TopicPartition
from kce.zookeeper.store import Create, Delete, SetData
from tests.controller import requests
from tests.controller.conformance.cluster import event_thread_blocked
from tests.controller.support import join_isr, leaderships_of, world

TP = TopicPartition("t", 0)


async def test_watch_events_that_were_drained_can_be_put_again(autojump_clock: MockClock) -> None:  # rule 3.2
    """An expiry drains a pending change of the brokers; those of the next session are seen."""
    async with world(brokers=(2,)) as w:
        controller = await w.start_controller(1)
        async with event_thread_blocked(w, controller):
            controller.loop.put(ev.BrokersChanged())
            w.server.expire(w.nodes[1].store)
        await w.settle()
        assert controller.is_active
        await w.start_broker(3)
        await w.settle()
        assert set(controller.context.broker_epochs) == {1, 2, 3}


async def test_topics_with_dead_replicas_are_ineligible_at_failover(autojump_clock: MockClock) -> None:  # 4.12, 10.38
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [1, 9]})  # no broker 9: its replica is offline
        await w.create_topic("moving", {0: [2, 3]})
        w.brokers[1].mute = True  # t is not deleted before the failover
        await admin.delete_topic(w.zk, "t")
        await w.settle()
        seen: list[set[str]] = []
        resume = controller._role.deletion.resume_all

        async def resume_all() -> None:
            seen.append(set(controller.context.topics_ineligible_for_deletion))
            await resume()

        controller._role.deletion.resume_all = resume_all  # type: ignore[method-assign]
        await w.store.write([Delete("/controller")])
        await w.settle()
        assert controller.failovers == 2
        assert seen[0] == {"t"}


async def test_a_rebalance_does_not_survive_a_resignation(autojump_clock: MockClock) -> None:  # rule 4.27
    async with world(brokers=(2,)) as w:
        first = await w.start_controller(1)
        due: list[float] = []
        put = first._role._scheduler._put
        first._role._scheduler._put = lambda event: (due.append(trio.current_time()), put(event))  # type: ignore[assignment,func-returns-value]
        await trio.sleep(3)
        await w.store.write([Delete("/controller")])
        await w.settle()
        assert first.failovers == 2
        elected_at = trio.current_time()
        await trio.sleep(6)
        assert [round(at - elected_at) for at in due] == [5]  # of the second reign alone


async def test_answers_about_topics_whose_deletion_has_not_started_are_ignored(
    autojump_clock: MockClock,
) -> None:  # rule 8.43
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [1, 2]})
        failed = ErrorCode.KAFKA_STORAGE_ERROR
        error = wire.StopReplicaPartitionError(topic_name="t", partition_index=0, error_code=failed)
        response = wire.StopReplicaResponse(partition_errors=(error,))
        events: list[ev.ControllerEvent] = []
        controller.loop.put = events.append  # type: ignore[method-assign]
        controller.stop_replica(response, BrokerId(2), frozenset([TP]))
        assert events == []
        controller.context.topics_with_deletion_started.add("t")
        controller.stop_replica(response, BrokerId(2), frozenset())
        assert events == []  # not deleted by this request
        controller.stop_replica(response, BrokerId(2), frozenset([TP]))
        assert [type(event) for event in events] == [ev.ReplicaDeletionAnswered]


async def test_a_completed_reassignment_removes_only_its_own_entry(autojump_clock: MockClock) -> None:  # rule 11.16
    """An entry of the same partition with another target stays."""
    async with world(brokers=(1, 2, 3, 4)) as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [1, 2]})
        answers: list[object] = []
        requests.alter_partition_reassignments(controller, {TP: (1, 3)}, answers.append)
        await w.settle()
        other = {TP: (BrokerId(1), BrokerId(4))}
        async with event_thread_blocked(w, controller):  # so that the new entry starts nothing
            controller._runtime.zk.unregister_change_handler(znodes.REASSIGN_PARTITIONS)
            await w.store.write(
                [Create(znodes.REASSIGN_PARTITIONS, cluster_nodes.encode_partition_reassignment(other))]
            )
        await join_isr(w, controller, TP, [1, 2, 3])
        assert controller.context.replicas(TP) == (1, 3)
        data = await w.get(znodes.REASSIGN_PARTITIONS)
        assert data is not None
        assert cluster_nodes.decode_partition_reassignment(data) == other


async def test_requests_have_the_partition_epoch(autojump_clock: MockClock) -> None:  # rules 1.29, 13.7
    async with world() as w:
        controller: KafkaController = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        assert [epoch for _, epoch in leaderships_of(w.take(), TP)] == [0, 0]
        await w.stop_broker(2)
        await w.settle()
        assert {epoch for _, epoch in leaderships_of(w.take(), TP)} == {1}
        await join_isr(w, controller, TP, [3])
        await w.store.write([SetData("/brokers/topics/t", await w.get("/brokers/topics/t") or b"")])
        assert controller.context.leadership[TP].leader_and_isr.partition_epoch == 1


@pytest.mark.parametrize(("epoch", "is_ours"), [(1, True), (2, False)])
async def test_a_state_of_another_controller_is_not_our_lost_write(
    epoch: int, is_ours: bool, autojump_clock: MockClock
) -> None:
    """Rule 1.52: equal but for the controller epoch."""
    async with world() as w:
        await w.start_controller(1)
        zk = w.nodes[1].zk
        wanted = LeaderAndIsr(BrokerId(1), (BrokerId(1), BrokerId(2)), leader_epoch=5)
        path = znodes.partition_state_path(TP)
        await zk.ensure_paths([path])
        found = znodes.encode_partition_state(Leadership(wanted, ControllerEpoch(epoch)))
        await w.store.write([SetData(path, found)])
        result = await update_leader_and_isr(zk, {TP: wanted}, ControllerEpoch(1), EpochZkVersion(1))
        assert (list(result.updated), result.retry) == (([TP], []) if is_ours else ([], [TP]))


async def test_leaders_are_rebalanced_at_every_interval(autojump_clock: MockClock) -> None:  # rule 11.37
    async with world(brokers=(2,)) as w:
        controller = await w.start_controller(1, leader_imbalance_check_interval_seconds=10)
        started = trio.current_time()
        due: list[int] = []
        scheduler = controller._role._scheduler
        put = scheduler._put

        def noted(event: ev.ControllerEvent) -> None:
            due.append(round(trio.current_time() - started))
            put(event)

        scheduler._put = noted
        await trio.sleep(40)
        assert due == [5, 15, 25, 35]


async def test_a_controlled_shutdown_that_breaks_a_batch_ends_the_reign(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # rules 2.20, 11.42
    """Other errors do not."""
    async with world() as w:
        controller = await w.start_controller(1)
        answers: list[wire.Message | None] = []
        request = wire.ControlledShutdownRequest(broker_id=2, broker_epoch=-1)
        for error, failovers in ((KeyError(9), 1), (BrokenBatch("broken"), 2)):

            async def fails(*_: object, error: Exception = error) -> None:
                raise error

            monkeypatch.setattr(dispatch, "shut_down_broker", fails)
            controller.submit(request, 3, answers.append)
            await w.settle()
            assert answers.pop() == wire.ControlledShutdownResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
            assert controller.failovers == failovers
            logged = any(record.exc_info and record.exc_info[1] is error for record in caplog.records)
            assert logged == isinstance(error, BrokenBatch)
