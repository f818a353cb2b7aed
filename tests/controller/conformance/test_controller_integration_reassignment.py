"""CI-12 to CI-21, CI-28, CI-29, CI-38, CI-54: reassignments, and elections of preferred replicas (section 14 of
docs/controller-semantics.md; rules of sections 11a to 11e).

A leader epoch that a rule counts with "+n" starts at 0 here."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.controller.errors import OperationResult
from kce.controller.kafka_controller import KafkaController
from kce.metrics import MetricName, Timer
from kce.wire import ErrorCode
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper import znodes
from kce.zookeeper.model import ElectionType, TopicPartition
from tests.controller import requests
from tests.controller.conformance.bench import TP
from tests.controller.conformance.cluster import (
    another_takes_over_unseen,
    create,
    decided_in,
    elect_by_znode,
    event_thread_blocked,
    has_resigned,
    propose_isr,
    reassign_by_znode,
    start,
    stop,
)
from tests.controller.support import World, world

U0 = TopicPartition("u", 0)


async def replicas(w: World, topic: str = "t", partition: int = 0) -> tuple[int, ...]:
    found = (await w.zk.get_topic_assignments([topic]))[topic].partitions[partition]
    assert not found.is_being_reassigned
    return found.replicas


def timer_of(controller: KafkaController) -> Timer:
    found = controller.metrics[MetricName("kafka.controller", "ControllerStats", "PartitionReassignmentRateAndTimeMs")]
    assert isinstance(found, Timer)
    return found


@pytest.mark.kafka("CI-12")
async def test_reassignment(autojump_clock: MockClock) -> None:  # rules 11.5-11.13, 11.16
    async with world([1]) as w:
        controller = await w.start_controller(0)
        timer = timer_of(controller)
        await w.create_topic("t", {0: [0]})
        counted = timer.count
        await reassign_by_znode(w, {TP: [1]})
        await propose_isr(w, controller, [0, 1])
        assert await w.state("t") == (1, 3, (1,))
        assert await replicas(w) == (1,)
        assert await w.get(znodes.REASSIGN_PARTITIONS) is None
        assert timer.count > counted


@pytest.mark.kafka("CI-13")
async def test_reassignment_to_a_broker_with_a_failed_log_dir(autojump_clock: MockClock) -> None:  # rules 9.24, 11.5
    async with world([1]) as w:
        controller = await w.start_controller(0)
        await w.create_topic("t", {0: [0]})
        timer = timer_of(controller)
        counted = timer.count
        has_log: set[tuple[str, int]] = set()
        plain = w.brokers[1].answer

        def one_dir_failed(request: Any, header: wire.Header) -> wire.Message:
            """What it has no log of may lie in the failed dir, unless it is new."""
            answer = plain(request, header)
            if not isinstance(request, wire.LeaderAndIsrRequest):
                return answer
            topics = []
            for topic in request.topic_states:
                errors = []
                for state in topic.partition_states:
                    known = (topic.topic_name, state.partition_index)
                    if state.is_new:
                        has_log.add(known)
                    code = ErrorCode.NONE if known in has_log else ErrorCode.KAFKA_STORAGE_ERROR
                    errors.append(
                        wire.LeaderAndIsrPartitionError(partition_index=state.partition_index, error_code=code)
                    )
                topics.append(wire.LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=tuple(errors)))
            return wire.LeaderAndIsrResponse(topics=tuple(topics))

        w.brokers[1].answer = one_dir_failed
        await reassign_by_znode(w, {TP: [1]})
        await propose_isr(w, controller, [0, 1])
        assert await w.state("t") == (1, 3, (1,))
        assert await replicas(w) == (1,)
        assert await w.get(znodes.REASSIGN_PARTITIONS) is None
        assert timer.count > counted
        assert controller.context.replicas_on_offline_dirs == {}


@pytest.mark.kafka("CI-14")
async def test_reassignment_to_a_dead_broker_makes_no_progress(autojump_clock: MockClock) -> None:  # rule 11.20
    async with world([1]) as w:
        await w.start_controller(0)
        await w.create_topic("t", {0: [0]})
        await stop(w, 1)
        await reassign_by_znode(w, {TP: [1]})
        assert await w.state("t") == (0, 1, (0,))
        assert await w.get(znodes.REASSIGN_PARTITIONS) is not None


@pytest.mark.kafka("CI-15")
async def test_reassignment_goes_on_when_the_broker_comes(autojump_clock: MockClock) -> None:  # rules 11.13, 11.17
    async with world([1]) as w:
        controller = await w.start_controller(0)
        await w.create_topic("t", {0: [0]})
        await stop(w, 1)
        await reassign_by_znode(w, {TP: [1]})
        assert await w.state("t") == (0, 1, (0,))
        await start(w, 1)
        await propose_isr(w, controller, [0, 1])
        assert await w.state("t") == (1, 4, (1,))
        assert await replicas(w) == (1,)
        assert await w.get(znodes.REASSIGN_PARTITIONS) is None


async def leader_dies_and_returns(w: World, controller: KafkaController) -> None:
    """Restart the leader of t-0 on [1, 0]: the preferred replica rejoins the ISR but does not lead."""
    epoch = (await w.state("t"))[1] if TP in controller.context.leadership else -1
    if epoch < 0:
        await w.create_topic("t", {0: [1, 0]})
        epoch = 0
    await stop(w, 1)
    assert await w.state("t") == (0, epoch + 1, (0,))
    await start(w, 1)
    await propose_isr(w, controller, [0, 1])


@pytest.mark.kafka("CI-16")
async def test_preferred_election(autojump_clock: MockClock) -> None:  # rules 11.29-11.34
    async with world([1]) as w:
        controller = await w.start_controller(0)
        await leader_dies_and_returns(w, controller)
        await elect_by_znode(w, TP)
        assert await w.state("t") == (1, 2, (0, 1))
        assert await w.get(znodes.PREFERRED_REPLICA_ELECTION) is None


@pytest.mark.kafka("CI-17")
async def test_preferred_elections_one_after_the_other(autojump_clock: MockClock) -> None:  # rules 1.57, 11.34
    async with world([1]) as w:
        controller = await w.start_controller(0)
        for epoch in (2, 4):
            await leader_dies_and_returns(w, controller)
            await elect_by_znode(w, TP)
            assert (await w.state("t"))[:2] == (1, epoch)
            assert await w.get(znodes.PREFERRED_REPLICA_ELECTION) is None


@pytest.mark.kafka("CI-18")
async def test_preferred_election_of_a_dead_replica(autojump_clock: MockClock) -> None:  # rules 7.12, 11.34
    async with world([1]) as w:
        await w.start_controller(0)
        await w.create_topic("t", {0: [1, 0]})
        await stop(w, 1)
        await elect_by_znode(w, TP)
        assert await w.get(znodes.PREFERRED_REPLICA_ELECTION) is None
        assert await w.state("t") == (0, 1, (0,))


async def rebalance(w: World) -> None:
    """Past the next look at the balance of leaders (rule 11.37)."""
    await trio.sleep(301)
    await w.settle()


@pytest.mark.kafka("CI-19")
async def test_leaders_are_balanced(autojump_clock: MockClock) -> None:  # rules 11.37-11.40
    async with world([1]) as w:
        controller = await w.start_controller(0)
        await leader_dies_and_returns(w, controller)
        await rebalance(w)
        assert await w.state("t") == (1, 2, (0, 1))


@pytest.mark.kafka("CI-20")
async def test_leaders_are_balanced_while_other_partitions_move(autojump_clock: MockClock) -> None:  # rule 11.40
    async with world([1, 2]) as w:
        controller = await w.start_controller(0)
        await w.create_topic("u", {0: [0]})
        await stop(w, 2)
        await reassign_by_znode(w, {U0: [2]})
        assert await w.state("u") == (0, 1, (0,))
        await leader_dies_and_returns(w, controller)
        await rebalance(w)
        assert await w.state("t") == (1, 2, (0, 1))
        await start(w, 2)
        await propose_isr(w, controller, [0, 2], topic="u")
        assert await w.state("u") == (2, 4, (2,))
        assert await replicas(w, "u") == (2,)
        assert await w.get(znodes.REASSIGN_PARTITIONS) is None


@pytest.mark.kafka("CI-21")
async def test_a_partition_is_balanced_while_it_moves(autojump_clock: MockClock) -> None:  # rules 11.15, 11.40
    async with world([1, 2]) as w:
        controller = await w.start_controller(0)
        await w.create_topic("t", {0: [0, 1]})
        await stop(w, 2)
        await reassign_by_znode(w, {TP: [1, 0, 2]})
        assert await w.state("t") == (0, 1, (0, 1))
        await rebalance(w)
        assert await w.state("t") == (1, 2, (0, 1))
        assert await w.get(znodes.REASSIGN_PARTITIONS) is not None
        await start(w, 2)
        assert await w.state("t") == (1, 3, (0, 1))
        await propose_isr(w, controller, [0, 1, 2])
        assert (await w.state("t"))[::2] == (1, (0, 1, 2))
        assert await replicas(w) == (1, 0, 2)
        assert await w.get(znodes.REASSIGN_PARTITIONS) is None


@pytest.mark.kafka("CI-28")
async def test_a_moved_controller_meets_a_preferred_election(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:  # rules 1.48, 2.18
    caplog.set_level("INFO")
    async with world([1]) as w:
        controller = await w.start_controller(0)
        await leader_dies_and_returns(w, controller)
        before = await w.state("t")
        await another_takes_over_unseen(w, controller)
        await elect_by_znode(w, TP)
        assert has_resigned(controller, caplog)
        assert await w.state("t") == before
        assert await w.get(znodes.PREFERRED_REPLICA_ELECTION) is not None


@pytest.mark.kafka("CI-29")
async def test_a_moved_controller_meets_a_reassignment(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:  # rules 1.48, 2.18
    caplog.set_level("INFO")
    async with world([1]) as w:
        controller = await w.start_controller(0)
        await w.create_topic("t", {0: [0]})
        await another_takes_over_unseen(w, controller)
        await reassign_by_znode(w, {TP: [1]})
        assert has_resigned(controller, caplog)
        assert await replicas(w) == (0,)
        assert await w.state("t") == (0, 0, (0,))


@pytest.mark.kafka("CI-38")
async def test_preempted_events_are_answered(autojump_clock: MockClock) -> None:  # rules 3.37, 11.41
    async with world([]) as w:
        controller = await w.start_controller(0)
        await w.create_topic("t", {0: [0]})
        shutdowns: list[Any] = []
        answers: list[Any] = []
        async with event_thread_blocked(w, controller):
            requests.controlled_shutdown(controller, 0, -1, shutdowns.append)
            requests.elect_leaders(controller, [TP], ElectionType.PREFERRED, answers.append)
            requests.alter_partition_reassignments(controller, {TP: [0]}, answers.append)
            requests.list_partition_reassignments(controller, None, answers.append)
            assert answers == []
            controller.close()
            assert [answer.error_code for answer in shutdowns] == [ErrorCode.STALE_CONTROLLER_EPOCH]
            election, *others = answers
            assert {tp: result.code for tp, result in election.items()} == {TP: ErrorCode.NOT_CONTROLLER}
            assert [isinstance(other, OperationResult) and other.code for other in others] == [
                ErrorCode.NOT_CONTROLLER
            ] * 2
        assert (len(shutdowns), len(answers)) == (1, 3)


@pytest.mark.kafka("CI-54")
async def test_a_topic_id_survives_downgrade_reassignment_and_upgrade(autojump_clock: MockClock) -> None:  # 4.7, 11.13
    async with world([1], ibp=MetadataVersion.parse("2.7-IV0")) as w:
        controller = await w.start_controller(0)
        await create(w, "t", {0: [1]})
        assert await w.state("t") == (1, 0, (1,))

        async def topic_id() -> UUID | None:
            """In ZooKeeper and in the context."""
            stored = (await w.zk.get_topic_assignments(["t"]))["t"].topic_id
            assert controller.context.topic_ids == ({"t": stored} if stored else {})
            assert controller.context.topic_names == ({stored: "t"} if stored else {})
            return stored

        async def restart(version: str) -> KafkaController:
            await stop(w, 0)
            w.ibp = MetadataVersion.parse(version)
            return await w.start_controller(0)

        assert await topic_id() is None
        controller = await restart("3.9")
        made = await topic_id()
        assert made is not None
        controller = await restart("2.7-IV0")
        assert (await w.state("t"), await decided_in(w, "t")) == ((1, 0, (1,)), 1)
        assert await topic_id() == made
        answers: list[Any] = []
        requests.alter_partition_reassignments(controller, {TP: [1]}, answers.append)
        await w.settle()
        assert (await w.state("t"), await decided_in(w, "t")) == ((1, 1, (1,)), 3)
        assert await topic_id() == made
        controller = await restart("3.9")
        assert (await w.state("t"), await decided_in(w, "t")) == ((1, 1, (1,)), 3)
        assert await topic_id() == made
        await w.zk.ensure_paths([znodes.delete_topic_path("t")])
        await w.settle()
        assert controller.context.topic_ids == controller.context.topic_names == {}
