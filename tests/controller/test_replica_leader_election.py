"""Elections by request, by znode and for balance (sections 11d, 11e)."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import trio
from trio.testing import MockClock

from kce.controller.errors import OperationResult, failure_result
from kce.controller.kafka_controller import KafkaController
from kce.controller.replica_leader_election import ElectionResults
from kce.wire import ErrorCode
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.errors import ControllerMoved
from kce.zookeeper.model import BrokerId, ElectionType, TopicPartition
from kce.zookeeper.store import Create, SetData, value
from tests.controller import requests
from tests.controller.support import World, join_isr, texts, world

TP = TopicPartition("t", 0)


PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN


#: in Kafka's words, which its tools print
TEXTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "The partition does not exist.",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "The topic is being deleted.",
    ErrorCode.ELECTION_NOT_NEEDED: "Leader election not needed for topic partition.",
}


async def elect(
    w: World, controller: KafkaController, partitions: Collection[TopicPartition], kind: ElectionType = PREFERRED
) -> dict[TopicPartition, BrokerId | ErrorCode]:
    answers: list[dict[TopicPartition, BrokerId | OperationResult]] = []
    requests.elect_leaders(controller, partitions, kind, answers.append)
    await w.settle()
    (answer,) = answers
    for result in answer.values():
        if isinstance(result, OperationResult):
            assert bool(result.message) == (result.code is not ErrorCode.NOT_CONTROLLER)
            assert result.message == TEXTS.get(result.code, result.message)
    return {tp: result.code if isinstance(result, OperationResult) else result for tp, result in answer.items()}


async def led_by_the_second(w: World, controller: KafkaController, topic: str = "t", partitions: int = 1) -> None:
    """[2, 3] with leader 3 and both in the ISR."""
    await w.create_topic(topic, {p: [2, 3] for p in range(partitions)})
    await w.stop_broker(2)
    await w.settle()
    await w.start_broker(2)
    await w.settle()
    for p in range(partitions):
        assert await join_isr(w, controller, TopicPartition(topic, p), (3, 2)) == 0


async def by_znode(w: World, partitions: Collection[TopicPartition]) -> None:
    data = cluster_nodes.encode_partition_list(partitions)
    value((await w.store.write([Create(znodes.PREFERRED_REPLICA_ELECTION, data)]))[0])
    await w.settle()


async def test_preferred_election_by_request(autojump_clock: MockClock) -> None:  # rules 11.30, 11.33, 7.12
    async with world() as w:
        controller = await w.start_controller(1)
        await led_by_the_second(w, controller)
        w.take()
        unknown = [TopicPartition("t", 5), TopicPartition("u", 0)]
        result = await elect(w, controller, [TP, *unknown])
        assert result == {TP: 2} | dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert await w.state("t") == (2, 2, (3, 2))  # the ISR is left as it is
        assert texts(w.take(), 2) == ["LAI t-0:2@2[3, 2]", "UMR alive=[1, 2, 3] t-0:2@2[3, 2]"]
        assert await elect(w, controller, [TP]) == {TP: ErrorCode.ELECTION_NOT_NEEDED}


async def test_no_preferred_leader(autojump_clock: MockClock) -> None:  # rules 7.20, 11.33
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        await w.stop_broker(2)
        await w.settle()
        assert await elect(w, controller, [TP]) == {TP: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
        answers: list[dict[TopicPartition, BrokerId | OperationResult]] = []
        requests.elect_leaders(controller, [TP], PREFERRED, answers.append)
        await w.settle()
        (result,) = answers[0].values()
        assert isinstance(result, OperationResult)
        assert "t-0" in result.message


async def test_unclean_election_by_request(autojump_clock: MockClock) -> None:  # rules 11.30, 11.32; 7.6
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        assert await elect(w, controller, [TP], UNCLEAN) == {TP: ErrorCode.ELECTION_NOT_NEEDED}
        for gone in (3, 2):
            await w.stop_broker(gone)
            await w.settle()
        assert await elect(w, controller, [TP], UNCLEAN) == {TP: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
        await w.start_broker(3)
        await w.settle()
        assert await elect(w, controller, [TP], UNCLEAN) == {TP: 3}
        assert await w.state("t") == (3, 3, (3,))


async def test_elections_that_are_refused(autojump_clock: MockClock) -> None:  # rules 11.30, 3.26, 11.31
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        await w.create_topic("new", {0: [9]})
        w.brokers[3].mute = True
        await w.zk.ensure_paths([znodes.delete_topic_path("t")])
        await w.settle()
        assert await elect(w, controller, [TP]) == {TP: ErrorCode.INVALID_TOPIC_EXCEPTION}
        idle = await w.start_controller(2)
        assert await elect(w, idle, [TP]) == {TP: ErrorCode.NOT_CONTROLLER}
        answers: list[object] = []
        requests.elect_leaders(controller, [TopicPartition("new", 0)], PREFERRED, answers.append)  # without leadership
        await w.settle()
        assert answers == []
        assert controller.is_active


async def test_election_by_znode_twice(autojump_clock: MockClock) -> None:  # rules 11.29, 11.34; CI-16, CI-17
    async with world() as w:
        controller = await w.start_controller(1)
        await led_by_the_second(w, controller)
        await by_znode(w, [TP, TopicPartition("u", 0)])
        assert await w.get(znodes.PREFERRED_REPLICA_ELECTION) is None
        assert await w.state("t") == (2, 2, (3, 2))
        await w.stop_broker(2)
        await w.settle()
        await w.start_broker(2)
        await w.settle()
        await join_isr(w, controller, TP, (3, 2))
        await by_znode(w, [TP])
        assert await w.get(znodes.PREFERRED_REPLICA_ELECTION) is None
        assert await w.state("t") == (2, 4, (3, 2))


async def test_election_by_znode_without_the_preferred(autojump_clock: MockClock) -> None:  # CI-18
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        await w.stop_broker(2)
        await w.settle()
        await by_znode(w, [TP])
        assert await w.get(znodes.PREFERRED_REPLICA_ELECTION) is None
        assert await w.state("t") == (3, 1, (3,))


async def test_an_election_that_waits_for_the_next_controller(autojump_clock: MockClock) -> None:  # 4.17, 4.18
    async with world() as w:
        controller = await w.start_controller(1)
        await led_by_the_second(w, controller)
        controller.close()
        await w.settle()
        await by_znode(w, [TP, TopicPartition("u", 3)])
        await w.start_controller(3)
        await w.kill_controller(1)
        await w.settle()
        assert (await w.state("t"))[0] == 2
        assert await w.get(znodes.PREFERRED_REPLICA_ELECTION) is None
        await by_znode(w, [TP])  # watched again
        assert await w.get(znodes.PREFERRED_REPLICA_ELECTION) is None


async def test_a_pending_election_without_leadership_is_dropped(autojump_clock: MockClock) -> None:  # rule 4.19
    async with world() as w:
        first = await w.start_controller(1)
        await w.create_topic("t", {0: [9]})
        first.close()
        await w.settle()
        await by_znode(w, [TP])
        w.spawn_controller(3)
        await w.kill_controller(1)
        await w.settle()
        assert w.nodes[3].controller.failovers == 1
        assert await w.get(znodes.PREFERRED_REPLICA_ELECTION) is None


async def test_a_leader_that_shuts_down_is_none_to_keep(autojump_clock: MockClock) -> None:  # rules 11.30, 11.45
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [3]})
        for is_live, code in (
            (True, ErrorCode.ELECTION_NOT_NEEDED),
            (False, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        ):
            if not is_live:
                requests.controlled_shutdown(controller, 3, -1, lambda _: None)
                await w.settle()
            answers: list[ElectionResults] = []
            requests.elect_leaders(controller, [TP], ElectionType.UNCLEAN, answers.append)
            await w.settle()
            (result,) = answers
            refusal = result[TP]
            assert isinstance(refusal, OperationResult)
            assert refusal.code == code
        assert (await w.state("t"))[0] == 3


async def test_leaders_are_rebalanced(autojump_clock: MockClock) -> None:  # rules 11.37-11.40; CI-19
    async with world() as w:
        controller = await w.start_controller(1)
        await led_by_the_second(w, controller)
        assert controller.context.preferred_replica_imbalance_count == 1
        assert (await w.state("t"))[0] == 3
        await trio.sleep(5.1)
        await w.settle()
        assert await w.state("t") == (2, 2, (3, 2))
        assert controller.context.preferred_replica_imbalance_count == 0
        await led_by_the_second(w, controller, "u")
        await trio.sleep(290)
        assert (await w.state("u"))[0] == 3
        await trio.sleep(11)
        await w.settle()
        assert (await w.state("u"))[0] == 2


@pytest.mark.parametrize(("percentage", "balanced"), [(49, True), (50, False)])
async def test_the_imbalance_has_to_be_above_the_limit(
    autojump_clock: MockClock, percentage: int, balanced: bool
) -> None:  # rule 11.39
    async with world() as w:
        controller = await w.start_controller(1, leader_imbalance_per_broker_percentage=percentage)
        await led_by_the_second(w, controller)
        await w.create_topic("u", {0: [2, 3]})
        await trio.sleep(5.1)
        await w.settle()
        assert (await w.state("t"))[0] == (2 if balanced else 3)


async def test_topics_to_be_deleted_do_not_count_for_the_balance(autojump_clock: MockClock) -> None:  # rule 11.38
    async with world() as w:
        controller = await w.start_controller(1, leader_imbalance_per_broker_percentage=50)
        await led_by_the_second(w, controller)
        await w.create_topic("balanced", {0: [2, 3], 1: [2, 3]})
        await w.create_topic("going", {number: [2, 9] for number in range(3)})  # 9 cannot delete its replicas
        await w.zk.ensure_paths([znodes.delete_topic_path("going")])
        await w.settle()
        assert controller.context.is_queued_for_deletion("going")
        assert [(await w.state("going", number))[0] for number in range(3)] == [-1, -1, -1]
        await trio.sleep(5.1)
        await w.settle()
        assert (await w.state("t"))[0] == 3  # one of three is misplaced; with those that go it would be four of six


async def test_what_is_not_rebalanced(autojump_clock: MockClock) -> None:  # rules 11.38, 11.40
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        await w.stop_broker(2)
        await w.settle()
        await w.start_broker(2)  # not in the ISR
        await w.settle()
        await trio.sleep(5.1)
        await w.settle()
        assert await w.state("t") == (3, 1, (3,))
        controller.close()  # the timer goes with the role
        await w.settle()
        await trio.sleep(1000)


async def test_a_partition_under_reassignment_is_rebalanced_too(autojump_clock: MockClock) -> None:  # 11.40; CI-21
    async with world() as w:
        controller = await w.start_controller(1)
        await led_by_the_second(w, controller)
        requests.alter_partition_reassignments(controller, {TP: [2, 3, 9]}, lambda _: None)
        await w.start_broker(9)
        await w.settle()
        requests.alter_partition_reassignments(controller, {TP: [2, 3, 9]}, lambda _: None)
        await w.settle()
        assert controller.context.being_reassigned == {TP}
        await trio.sleep(5.1)
        await w.settle()
        assert (await w.state("t"))[0] == 2


async def test_a_preferred_election_that_is_no_object_is_kept(autojump_clock: MockClock) -> None:  # rules 1.39, 11.29
    async with world() as w:
        controller = await w.start_controller(1)
        await w.store.write([Create(znodes.PREFERRED_REPLICA_ELECTION, b"[]")])
        await w.settle()
        assert await w.get(znodes.PREFERRED_REPLICA_ELECTION) == b"[]"
        assert controller.loop.failures == {}


def test_codes_of_failed_elections() -> None:
    assert failure_result(ControllerMoved("x")) == OperationResult(ErrorCode.STALE_CONTROLLER_EPOCH, "x")
    assert failure_result(ValueError("y")) == OperationResult(ErrorCode.UNKNOWN_SERVER_ERROR, "y")


async def test_a_controller_that_was_moved_says_so(autojump_clock: MockClock) -> None:
    async with world() as w:
        controller = await w.start_controller(1)
        await led_by_the_second(w, controller)
        await w.store.write([SetData("/controller_epoch", b"9")])
        assert await elect(w, controller, [TP]) == {TP: ErrorCode.NOT_CONTROLLER}
        assert (await w.state("t"))[0] == 3
