"""Brokers that die, return, bounce and change (sections 6, 7 and 11g of docs/controller-semantics.md)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from trio.testing import MockClock

from kce import wire
from kce.controller.events import ControllerEvent, ControllerState
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.model import RECOVERED, BrokerId, TopicPartition
from kce.zookeeper.store import Create, SetData
from tests.controller import requests
from tests.controller.conformance.cluster import event_thread_blocked
from tests.controller.support import World, broker, texts, world


async def test_death_of_a_leader(autojump_clock: MockClock) -> None:  # rule 11.58
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3, 1]})
        w.take()
        await w.stop_broker(2)
        await w.settle()
        assert await w.state("t") == (3, 1, (3, 1))
        assert texts(w.take(), 3) == [
            "LAI t-0:3@1[3, 1]",
            "UMR alive=[1, 3] t-0:3@1[3, 1]",
            "LAI t-0:3@1[3, 1]",  # the assignment without the dead replica hears it again, with the same epoch
            "UMR alive=[1, 3] t-0:3@1[3, 1]",
        ]


async def test_death_of_a_follower(autojump_clock: MockClock) -> None:  # rule 11.59; CI-5
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [1, 2, 3]})
        w.take()
        await w.stop_broker(2)
        await w.settle()
        assert await w.state("t") == (1, 1, (1, 3))
        sent = w.take()
        assert texts(sent, 1) == ["LAI t-0:1@1[1, 3]", "UMR alive=[1, 3] t-0:1@1[1, 3]"]
        metadata = [s.message for s in sent if isinstance(s.message, wire.UpdateMetadataRequest)]
        assert metadata[-1].topic_states[0].partition_states[0].offline_replicas == (2,)


async def test_death_of_the_last_isr_member_keeps_it(autojump_clock: MockClock) -> None:  # rules 7.18, 11.60; CI-22
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [2]})
        w.take()
        await w.stop_broker(2)
        await w.settle()
        assert await w.state("t") == (-1, 1, (2,))
        metadata = w.take()[-1].message
        assert isinstance(metadata, wire.UpdateMetadataRequest)
        state = metadata.topic_states[0].partition_states[0]
        assert (state.leader, state.offline_replicas) == (-1, (2,))


async def test_unclean_election_by_topic_and_by_broker_setting(autojump_clock: MockClock) -> None:  # rules 7.4, 7.6
    for by_broker, by_topic, elected in (
        (False, None, False),
        (True, None, True),
        (False, True, True),
        (True, False, False),
    ):
        async with world() as w:
            controller = await w.start_controller(1, unclean_leader_election_enable=by_broker)
            await w.create_topic("t", {0: [2, 3]})
            if by_topic is not None:
                await w.zk.ensure_paths(["/config/topics/t"])
                config = {"unclean.leader.election.enable": str(by_topic).lower()}
                await w.store.write([SetData("/config/topics/t", cluster_nodes.encode_config(config))])
            await w.stop_broker(3)
            await w.settle()
            await w.stop_broker(2)
            await w.settle()
            await w.start_broker(3)
            await w.settle()
            leader, _, isr = await w.state("t")
            assert (leader, isr) == ((3, (3,)) if elected else (-1, (2,)))
            if elected:
                known = controller.context.leadership[("t", 0)]  # type: ignore[index]
                assert known.leader_and_isr.recovery_state != RECOVERED


async def test_return_of_a_broker(autojump_clock: MockClock) -> None:  # rules 11.54, 11.55
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [1, 2]})
        await w.stop_broker(2)
        await w.settle()
        w.take()
        await w.start_broker(2)
        await w.settle()
        sent = w.take()
        assert texts(sent, 2) == [
            "UMR alive=[1, 2, 3] t-0:1@1[1]",  # the full picture first
            "LAI t-0:1@1[1]",
            "UMR alive=[1, 2, 3] t-0:1@1[1]",
        ]
        assert texts(sent, 3)[0] == "UMR alive=[1, 2, 3]"  # the others hear of the broker alone
        assert await w.state("t") == (1, 1, (1,))  # into the ISR it comes only when the leader asks


async def test_return_of_the_only_isr_member_brings_the_partition_back(autojump_clock: MockClock) -> None:
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        for gone in (3, 2):
            await w.stop_broker(gone)
            await w.settle()
        assert await w.state("t") == (-1, 2, (2,))
        await w.start_broker(2)
        await w.settle()
        assert await w.state("t") == (2, 3, (2,))


async def test_a_bounced_broker_loses_leadership_and_gets_everything_again(
    autojump_clock: MockClock,
) -> None:  # 8.37, 11.62
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        before = controller.context.broker_epochs[2]  # type: ignore[index]
        w.take()
        await w.bounce_broker(2)
        await w.settle()
        after = controller.context.broker_epochs[2]  # type: ignore[index]
        assert after > before
        assert await w.state("t") == (3, 1, (3,))
        sent = [s for s in w.take() if s.broker == 2]
        assert texts(sent, 2)[-3:] == [
            "UMR alive=[1, 2, 3] t-0:3@1[3]",
            "LAI t-0:3@1[3]",
            "UMR alive=[1, 2, 3] t-0:3@1[3]",
        ]
        assert {s.message.broker_epoch for s in sent} == {after}


async def test_a_broker_with_no_replicas(autojump_clock: MockClock) -> None:  # rule 11.61; CI-7
    async with world() as w:
        await w.start_controller(1)
        w.take()
        await w.stop_broker(3)
        await w.settle()
        assert texts(w.take(), 1) == ["UMR alive=[1, 2]"]


async def test_a_registration_rewritten_in_place(autojump_clock: MockClock) -> None:  # rules 1.23, 11.63
    async with world() as w:
        controller = await w.start_controller(1)
        w.take()
        epoch = controller.context.broker_epochs[3]  # type: ignore[index]
        moved = broker(3)
        moved = type(moved)(moved.id, (moved.endpoints[0], moved.endpoints[1]._replace(port=4444)))
        await w.store.write([SetData(znodes.broker_path(3), znodes.encode_broker(moved, w.ibp, 0))])
        await w.settle()
        assert texts(w.take(), 2) == ["UMR alive=[1, 2, 3]"]
        assert controller.context.broker_epochs[3] == epoch  # type: ignore[index]
        rack_only = type(moved)(moved.id, moved.endpoints, rack="r9")
        await w.store.write([SetData(znodes.broker_path(3), znodes.encode_broker(rack_only, w.ibp, 0))])
        await w.settle()
        assert w.take() == []


async def notify_of_log_dirs(w: World, broker_id: int) -> None:
    event = b'{"version":1,"broker":%d,"event":1}' % broker_id
    await w.store.write([Create("/log_dir_event_notification/log_dir_event_", event, sequential=True)])
    await w.settle()


async def test_log_directories_that_are_back(autojump_clock: MockClock) -> None:  # rules 8.40, 11.67
    async with world() as w:
        controller = await w.start_controller(1)
        ids = {topic: await w.create_topic(topic, {0: [2, 3]}) for topic in ("t", "u")}
        plain, codes = w.brokers[2].answer, dict.fromkeys(ids, wire.ErrorCode.KAFKA_STORAGE_ERROR)

        def answer(request: object, header: wire.Header) -> wire.Message:
            if not isinstance(request, wire.LeaderAndIsrRequest):
                return plain(request, header)
            return wire.LeaderAndIsrResponse(
                topics=tuple(
                    wire.LeaderAndIsrTopicError(
                        topic_id=ids[topic], partition_errors=(wire.LeaderAndIsrPartitionError(error_code=code),)
                    )
                    for topic, code in codes.items()
                )
            )

        w.brokers[2].answer = answer
        await notify_of_log_dirs(w, 2)
        t, u = (TopicPartition(topic, 0) for topic in ids)
        assert controller.context.replicas_on_offline_dirs == {2: {t, u}}
        codes.update(t=wire.ErrorCode.NONE, u=wire.ErrorCode.STALE_CONTROLLER_EPOCH)  # which says nothing of it
        await notify_of_log_dirs(w, 2)
        assert controller.context.replicas_on_offline_dirs == {2: {u}}


async def test_offline_log_directories(autojump_clock: MockClock) -> None:  # rules 8.40, 11.65-11.67
    async with world() as w:
        controller = await w.start_controller(1)
        topic_id = await w.create_topic("t", {0: [2, 3]})
        w.take()

        def storage_error(request: object, header: wire.Header) -> wire.Message:
            if isinstance(request, wire.LeaderAndIsrRequest):
                failed = wire.LeaderAndIsrPartitionError(error_code=wire.ErrorCode.KAFKA_STORAGE_ERROR)
                return wire.LeaderAndIsrResponse(
                    topics=(wire.LeaderAndIsrTopicError(topic_id=topic_id, partition_errors=(failed,)),)
                )
            return wire.UpdateMetadataResponse() if header.api_key == 6 else wire.StopReplicaResponse()

        w.brokers[2].answer = storage_error
        await notify_of_log_dirs(w, 2)
        assert controller.context.replicas_on_offline_dirs == {2: {("t", 0)}}
        assert await w.state("t") == (3, 1, (3,))
        assert await w.zk.get_children("/log_dir_event_notification") == []
        await w.stop_broker(2)
        await w.settle()
        assert controller.context.replicas_on_offline_dirs == {}


async def test_answers_that_change_nothing_are_counted_and_wait_for_no_other_task(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rules 3.6, 8.40
    async with world() as w:
        controller = await w.start_controller(1)
        topic_id = await w.create_topic("t", {0: [2, 3]})
        failed = wire.LeaderAndIsrPartitionError(error_code=wire.ErrorCode.KAFKA_STORAGE_ERROR)
        in_topic = wire.LeaderAndIsrResponse(
            topics=(wire.LeaderAndIsrTopicError(topic_id=topic_id, partition_errors=(failed,)),)
        )
        in_partition = wire.LeaderAndIsrResponse(partition_errors=(replace(failed, topic_name="t"),))
        refused = wire.ErrorCode.STALE_CONTROLLER_EPOCH
        queued: list[ControllerEvent] = []
        monkeypatch.setattr(controller.loop, "put", queued.append)
        waits, timer = (
            controller.loop._queue_time,
            controller.loop._timers[ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED],
        )
        counted = waits.count, timer.count
        for response in (
            wire.LeaderAndIsrResponse(),
            in_topic,
            in_partition,
            wire.LeaderAndIsrResponse(error_code=refused),
        ):
            controller.leader_and_isr(response, BrokerId(2))
        for code in (wire.ErrorCode.NONE, refused):
            controller.update_metadata(wire.UpdateMetadataResponse(error_code=code), BrokerId(2))
        assert len(queued) == 4
        assert (waits.count, timer.count) == (counted[0] + 2, counted[1] + 1)
        controller.context.replicas_on_offline_dirs[BrokerId(2)] = {TopicPartition("t", 0)}
        controller.leader_and_isr(wire.LeaderAndIsrResponse(), BrokerId(2))
        assert len(queued) == 5
        controller.context.replicas_on_offline_dirs.clear()
        monkeypatch.undo()
        async with event_thread_blocked(w, controller):  # what comes first may change what is offline
            controller.leader_and_isr(wire.LeaderAndIsrResponse(), BrokerId(2))
            controller.update_metadata(wire.UpdateMetadataResponse(), BrokerId(2))
            assert len(controller.loop) == 2


async def test_controlled_shutdown(autojump_clock: MockClock) -> None:  # rules 11.43-11.46; CI-24
    async with world((0, 1, 2)) as w:
        controller = await w.start_controller(0)
        await w.create_topic("t", {0: [0, 1, 2]})
        epochs = controller.context.broker_epochs
        w.take()
        answers: list[wire.ControlledShutdownResponse] = []
        requests.controlled_shutdown(controller, 2, epochs[2], answers.append)  # type: ignore[index]
        await w.settle()
        assert answers[-1] == wire.ControlledShutdownResponse()
        assert await w.state("t") == (0, 1, (0, 1))
        # twice, and for nothing but to stop following
        assert [t for t in texts(w.take(), 2) if not t.startswith("UMR")] == ["SR t-0@0", "SR t-0@0"]
        requests.controlled_shutdown(controller, 1, epochs[1], answers.append)  # type: ignore[index]
        await w.settle()
        assert answers[-1] == wire.ControlledShutdownResponse()
        requests.controlled_shutdown(controller, 0, epochs[0], answers.append)  # type: ignore[index]
        await w.settle()
        assert answers[-1].remaining_partitions == (wire.RemainingPartition(topic_name="t", partition_index=0),)
        assert (await w.state("t"))[0] == 0


async def test_controlled_shutdown_leaves_alone(autojump_clock: MockClock) -> None:  # rules 11.43, 11.45
    async with world((0, 1, 2)) as w:
        controller = await w.start_controller(0)
        await w.create_topic("single", {0: [2]})
        await w.create_topic("dying", {0: [9, 1, 2]})
        await w.zk.ensure_paths(["/admin/delete_topics/dying"])
        await w.settle()
        before = await w.state("dying"), await w.state("single")
        w.take()
        answers: list[wire.ControlledShutdownResponse] = []
        requests.controlled_shutdown(controller, 2, -1, answers.append)
        await w.settle()
        assert answers == [wire.ControlledShutdownResponse()]
        assert (await w.state("dying"), await w.state("single")) == before
        assert w.take() == []


async def test_controlled_shutdown_refusals(autojump_clock: MockClock) -> None:  # rules 11.41, 11.42; CI-25
    async with world() as w:
        controller = await w.start_controller(1)
        other = await w.start_controller(2)
        epoch = controller.context.broker_epochs[3]  # type: ignore[index]
        expected = {
            (controller, 3, epoch - 1): wire.ErrorCode.STALE_BROKER_EPOCH,
            (controller, 9, -1): wire.ErrorCode.BROKER_NOT_AVAILABLE,
            (controller, 9, 5): wire.ErrorCode.UNKNOWN_SERVER_ERROR,
            (other, 3, epoch): wire.ErrorCode.STALE_CONTROLLER_EPOCH,
            (controller, 3, epoch + 1): wire.ErrorCode.NONE,
        }
        for (who, broker_id, broker_epoch), code in expected.items():
            answers: list[wire.ControlledShutdownResponse] = []
            requests.controlled_shutdown(who, broker_id, broker_epoch, answers.append)
            await w.settle()
            assert [a.error_code for a in answers] == [code]


async def test_reassignments_are_resumed_before_deletions(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule 11.54
    async with world(brokers=(2,)) as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        role, resumed = controller._role, list[str]()
        resume_on, resume = role.reassignment.resume_on, role.deletion.resume

        async def reassignments(brokers: Collection[BrokerId]) -> None:
            resumed.append(f"reassignments on {sorted(brokers)}")
            await resume_on(brokers)

        async def deletions(topics: Collection[str]) -> None:
            resumed.append(f"deletions of {sorted(topics)}")
            await resume(topics)

        monkeypatch.setattr(role.reassignment, "resume_on", reassignments)
        monkeypatch.setattr(role.deletion, "resume", deletions)
        await w.start_broker(3)
        await w.settle()
        assert resumed == ["reassignments on [3]", "deletions of ['t']"]
