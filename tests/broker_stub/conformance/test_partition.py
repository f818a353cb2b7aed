"""unit/kafka/cluster/PartitionTest.scala (PT): epochs, followers' positions, the high watermark and the ISR."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce import wire
from kce.broker_stub.alter_partition_manager import AlterPartitionManager
from kce.broker_stub.zk_alter_partition_manager import ZkAlterPartitionManager
from kce.wire import ErrorCode
from kce.wire.metadata_version import LATEST
from kce.zookeeper.model import BrokerId, LeaderAndIsr
from tests.broker_stub.conformance.host import EPOCH, MAX_LAG_SECONDS, NEVER, Known, host, now
from tests.broker_stub.replication.support import A0, batch

kafka = pytest.mark.kafka


# epochs


@kafka("PT-1")
async def test_a_leaders_epoch_starts_at_the_end_of_its_log() -> None:  # rule B5.22
    async with host() as node:
        node.seed(2, epoch=0)
        node.seed(2, epoch=5)
        assert node.log.log_end_offset == 4
        await node.become(epoch=8, isr=(1,), replicas=(1,))
        assert node.log.log_end_offset == 4
        wanted = wire.OffsetForLeaderPartition(partition=0, current_leader_epoch=8, leader_epoch=8)
        topics = (wire.OffsetForLeaderTopic(topic="a", partitions=(wanted,)),)
        answer = await node.ask(wire.OffsetForLeaderEpochRequest(replica_id=-1, topics=topics))
        (found,) = answer.topics[0].partitions
        assert (found.error_code, found.leader_epoch, found.end_offset) == (ErrorCode.NONE, 8, 4)
        assert node.log.epoch_at(3) == 5


@kafka("PT-3")
async def test_a_follower_joins_with_the_start_of_the_leaders_epoch() -> None:  # rule 9.47
    async with host() as node:
        await node.become(epoch=8, isr=(1, 3), replicas=(1, 2, 3), is_new=True)
        assert (node.a0.leader_epoch, node.a0.isr) == (8, (1, 3))
        last_of_first = (await node.produce(batch(b"v1", b"v2"))).base_offset + 1
        await node.produce(batch(b"v1", b"v2", b"v3"))
        assert (node.log.log_start_offset, node.log.high_watermark) == (0, 0)
        await node.follower_fetches(3, 0)
        await node.follower_fetches(3, last_of_first)
        assert node.log.high_watermark == last_of_first
        await node.become(3, epoch=9, isr=(1, 3), replicas=(1, 2, 3))
        await node.become(1, epoch=10, isr=(1, 3), replicas=(1, 2, 3))
        epoch_start = node.log.log_end_offset
        await node.produce(batch(b"v1", b"v2"))
        await node.follower_fetches(2, 0)
        await node.follower_fetches(2, last_of_first)
        assert node.isrs == ((1, 3), (1, 3))
        await node.follower_fetches(2, epoch_start)
        assert node.isrs == ((1, 3), (1, 3, 2))
        assert set(node.submitter.proposed[0]) == {1, 2, 3}


@kafka("PT-32")
async def test_the_same_leader_epoch_keeps_what_is_known_of_followers(mock_clock: MockClock) -> None:  # rule 9.22
    mock_clock.jump(1)
    async with host() as node:
        await node.become(epoch=8, isr=(1,), replicas=(1, 2), is_new=True)
        assert (node.a0.partition_epoch, node.a0.leader_epoch, node.a0.isr) == (1, 8, (1,))
        assert node.follower(2) == Known(NEVER)
        await node.follower_fetches(2, 0)
        assert node.follower(2) == Known(now(), 0, 0)
        await node.become(epoch=8, partition_epoch=2, isr=(1,), replicas=(1, 2))
        assert (node.a0.partition_epoch, node.a0.leader_epoch, node.a0.isr) == (2, 8, (1,))
        assert node.follower(2) == Known(now(), 0, 0)


@kafka("PT-33")
async def test_the_same_leader_epoch_keeps_its_start() -> None:  # rule 9.22
    async with host() as node:
        await node.become(epoch=8, isr=(1,), replicas=(1, 2), is_new=True)
        assert (node.a0.partition_epoch, node.a0.leader_epoch, node.a0.isr) == (1, 8, (1,))
        assert (node.a0.epoch_start_offset, node.log.epoch_at(0)) == (0, 8)
        node.seed(2, epoch=8)
        await node.become(epoch=8, partition_epoch=2, isr=(1,), replicas=(1, 2))
        assert (node.a0.partition_epoch, node.a0.leader_epoch, node.a0.isr) == (2, 8, (1,))
        assert (node.a0.epoch_start_offset, node.log.epoch_at(0), node.log.epoch_at(1)) == (0, 8, 8)


# followers


@kafka("PT-6")
async def test_a_fetch_tells_where_the_follower_is(mock_clock: MockClock) -> None:  # rule 9.44
    async with host(records=6) as node:
        await node.become(isr=(1, 2), replicas=(1, 2), is_new=True)
        start = now()
        assert node.follower(2) == Known(start)
        mock_clock.jump(0.5)
        await node.follower_fetches(2, 3)
        assert node.follower(2) == Known(start, 0, 3)
        mock_clock.jump(0.5)
        await node.follower_fetches(2, 6)
        assert node.follower(2) == Known(now(), 0, 6)
        assert now() == start + 1000


@kafka("PT-31")
async def test_assignment_and_isr_follow_the_requests() -> None:  # rules 9.16, 9.22, 9.23
    async with host() as node:

        def known() -> tuple[object, ...]:
            it = node.a0
            return it.replicas, it.isr, it.adding_replicas, it.removing_replicas, node.followers

        moving = {"adding_replicas": (5, 6), "removing_replicas": (2, 3)}
        await node.become(isr=(1, 2, 3, 4), replicas=(1, 2, 3, 4), **moving)
        assert known() == ((1, 2, 3, 4), (1, 2, 3, 4), (5, 6), (2, 3), [2, 3, 4])
        await node.become(epoch=6, isr=(1, 4, 5, 6), replicas=(1, 4, 5, 6))
        assert known() == ((1, 4, 5, 6), (1, 4, 5, 6), (), (), [4, 5, 6])
        await node.become(2, epoch=7, isr=(2, 1), replicas=(1, 2, 3, 4))
        assert known() == ((1, 2, 3, 4), (), (), (), [])


@kafka("PT-36")
async def test_a_follower_knows_nothing_of_others() -> None:  # rule 9.23
    async with host() as node:
        await node.become(epoch=1, isr=(1, 2, 3), replicas=(1, 2, 3), is_new=True)
        assert (node.a0.partition_epoch, node.a0.leader_epoch, node.a0.leader) == (1, 1, 1)
        assert (node.a0.isr, node.followers, node.a0.replicas) == ((1, 2, 3), [2, 3], (1, 2, 3))
        await node.become(2, epoch=2, partition_epoch=2, isr=(1, 2, 3), replicas=(1, 2, 3))
        assert (node.a0.partition_epoch, node.a0.leader_epoch, node.a0.leader) == (2, 2, 2)
        assert (node.a0.isr, node.followers, node.a0.replicas) == ((), [], (1, 2, 3))


# who joins the ISR


@kafka("PT-9")
async def test_a_follower_that_has_everything_joins(mock_clock: MockClock) -> None:  # rules 9.47, 9.49
    mock_clock.jump(1)
    async with host(records=10) as node:
        await node.become(isr=(1,), replicas=(1, 2), is_new=True)
        assert node.a0.isr == (1,)
        assert node.follower(2) == Known(NEVER)
        await node.follower_fetches(2, 3)
        assert node.a0.isr == (1,)
        assert node.follower(2) == Known(NEVER, 0, 3)
        await node.follower_fetches(2, 10)
        ((item, _),) = node.submitter.submitted
        assert item.leader_and_isr.isr == (1, 2)
        (topic,) = AlterPartitionManager(1, lambda: 7, None, LATEST)._build((item,), 7, 3).topics  # type: ignore[arg-type]
        assert [member.broker_epoch for member in topic.partitions[0].new_isr_with_epochs] == [-1, -1]  # rule 9.53
        assert node.isrs == ((1,), (1, 2))
        assert node.follower(2) == Known(now(), 0, 10)
        node.written(2)
        assert node.isrs == ((1, 2), (1, 2))
        assert node.outcomes == (1, 0, 0)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ErrorCode.INVALID_REQUEST, marks=kafka("PT-8")),
        pytest.param(ErrorCode.INVALID_UPDATE_VERSION, marks=kafka("PT-10"), id="INVALID_UPDATE_VERSION, expansion"),
        pytest.param(ErrorCode.NEW_LEADER_ELECTED, marks=kafka("PT-21")),
        pytest.param(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, marks=kafka("PT-22")),
        pytest.param(ErrorCode.INVALID_UPDATE_VERSION, marks=kafka("PT-23")),
        pytest.param(ErrorCode.UNKNOWN_SERVER_ERROR, marks=kafka("PT-24")),
    ],
)
async def test_an_expansion_fails(error: ErrorCode, mock_clock: MockClock) -> None:  # rule 9.58
    mock_clock.jump(1)
    async with host(records=10) as node:
        await node.become(isr=(1,), replicas=(1, 2), is_new=True)
        assert (node.a0.isr, node.log.high_watermark) == ((1,), 10)
        assert node.follower(2) == Known(NEVER)
        await node.follower_fetches(2, 10)
        assert (node.isrs, node.in_flight) == (((1,), (1, 2)), 1)
        assert node.submitter.proposed == [(1, 2)]
        assert node.follower(2) == Known(now(), 0, 10)
        node.submitter.answer(A0, error)
        is_retried = error == ErrorCode.UNKNOWN_SERVER_ERROR
        assert (node.isrs, node.in_flight) == (((1,), (1, 2)), is_retried)
        assert node.outcomes == (0, 0, 1)


@pytest.mark.parametrize(
    "why", [pytest.param("dead", marks=kafka("PT-12")), pytest.param("shuts down", marks=kafka("PT-13"))]
)
async def test_who_is_not_eligible_joins_when_its_broker_is_alive(why: str, mock_clock: MockClock) -> None:
    """Rules 9.47, 9.58. A broker that shuts down is alive here until it is gone: only KRaft's brokers know that."""
    mock_clock.jump(1)
    async with host(alive=(1, 2), records=10) as node:

        def known() -> tuple[object, ...]:
            return node.isrs, node.a0.pending is not None, node.in_flight

        await node.become(isr=(1,), replicas=(1, 2), is_new=True)
        assert known() == (((1,), (1,)), False, 0)
        await node.follower_fetches(2, 10)
        assert node.follower(2) == Known(now(), 0, 10)
        assert known() == (((1,), (1, 2)), True, 1)
        node.submitter.answer(A0, ErrorCode.INELIGIBLE_REPLICA)
        assert known() == (((1,), (1,)), False, 0)
        await node.learn((1,))
        await node.follower_fetches(2, 10)
        assert known() == (((1,), (1,)), False, 0)
        await node.learn((1, 2))
        await node.follower_fetches(2, 10)
        assert known() == (((1,), (1, 2)), True, 1)
        node.written(1)
        assert known() == (((1, 2), (1, 2)), False, 0)


@kafka("PT-25")
async def test_a_refused_request_is_sent_again_and_committed() -> None:  # rule 9.58
    sent = []

    class Channel:
        async def request(self, api_key: int, max_version: int, build: Any, error_codes: Any) -> wire.Message:
            (topic,) = build(max_version).topics
            (partition,) = topic.partitions
            sent.append(partition)
            written = wire.AlterPartitionResponsePartitionData(
                partition_index=0,
                error_code=ErrorCode.UNKNOWN_SERVER_ERROR if len(sent) == 1 else ErrorCode.NONE,
                leader_id=1,
                leader_epoch=partition.leader_epoch,
                isr=tuple(member.broker_id for member in partition.new_isr_with_epochs),
                partition_epoch=partition.partition_epoch + 1,
            )
            answered = wire.AlterPartitionResponseTopicData(topic_id=topic.topic_id, partitions=(written,))
            return wire.AlterPartitionResponse(topics=(answered,))

    async with host(records=10) as node, trio.open_nursery() as nursery:
        manager = AlterPartitionManager(1, lambda: 70, Channel(), LATEST)
        node.replication.isr._alter_partition_manager = manager
        nursery.start_soon(manager.run)
        await node.become(isr=(1, 2, 3), replicas=(1, 2, 3, 4), is_new=True)
        assert node.log.high_watermark == 0
        await node.follower_fetches(4, 10)
        await wait_all_tasks_blocked()
        assert (node.a0.isr, node.a0.partition_epoch, node.a0.pending) == ((1, 2, 3, 4), 2, None)
        assert len(sent) == 2
        nursery.cancel_scope.cancel()


@kafka("PT-26")
async def test_one_change_is_in_flight(mock_clock: MockClock) -> None:  # rule 9.48
    async with host(records=10) as node:
        await node.become(isr=(1, 2, 3), replicas=(1, 2, 3, 4), is_new=True)
        assert node.log.high_watermark == 0
        await node.follower_fetches(4, 10)
        assert (node.isrs, node.in_flight) == (((1, 2, 3), (1, 2, 3, 4)), 1)
        mock_clock.jump(MAX_LAG_SECONDS + 0.001)
        node.shrink()
        assert node.in_flight == len(node.submitter.submitted) == 1
        assert node.isrs == ((1, 2, 3), (1, 2, 3, 4))


@kafka("PT-27")
async def test_a_leader_writes_its_isr_itself(autojump_clock: MockClock) -> None:  # rule 9.60
    class Store:
        async def update_isr(self, item: Any) -> int | None:
            await trio.lowlevel.checkpoint()
            return 2 if item.leader_and_isr.partition_epoch == 1 else None

        async def notify_isr_changes(self, partitions: Any) -> None:
            await trio.lowlevel.checkpoint()

    async with host(records=10) as node, trio.open_nursery() as nursery:
        manager = ZkAlterPartitionManager(Store())
        node.replication.isr._alter_partition_manager = manager
        nursery.start_soon(manager.run)
        await node.become(isr=(1, 2, 3), replicas=(1, 2, 3, 4), is_new=True)
        assert node.log.high_watermark == 0
        await node.follower_fetches(4, 10)
        assert node.a0.pending is not None
        await trio.sleep(0.1)
        assert (node.a0.isr, node.a0.partition_epoch, node.a0.pending) == ((1, 2, 3, 4), 2, None)
        nursery.cancel_scope.cancel()


# who leaves the ISR


@kafka("PT-14")
async def test_a_shrink_is_proposed_again(mock_clock: MockClock) -> None:  # rule 9.58
    async with host(records=10) as node:
        await node.become(isr=(1, 2), replicas=(1, 2), is_new=True)
        assert node.log.high_watermark == 0
        mock_clock.jump(MAX_LAG_SECONDS + 0.001)
        node.shrink()
        assert (node.submitter.proposed, node.in_flight) == ([(1,)], 1)
        assert node.isrs == ((1, 2), (1, 2))
        node.submitter.answer(A0, ErrorCode.NETWORK_EXCEPTION)
        assert (node.outcomes, node.a0.partition_epoch, node.in_flight) == ((0, 0, 1), 1, 1)
        assert (node.isrs, node.log.high_watermark) == (((1, 2), (1, 2)), 0)
        node.written(2)
        assert (node.outcomes, node.a0.partition_epoch, node.in_flight) == ((0, 1, 1), 2, 0)
        assert (node.isrs, node.log.high_watermark) == (((1,), (1,)), 10)


@kafka("PT-15")
async def test_a_follower_that_does_not_fetch_leaves(mock_clock: MockClock) -> None:  # rules 9.43 to 9.46
    async with host(records=10) as node:
        await node.become(isr=(1, 2, 3), replicas=(1, 2, 3), is_new=True)
        start = now()
        assert node.log.high_watermark == 0
        await node.follower_fetches(2, 10)
        assert node.follower(3) == Known(start)
        node.shrink()
        assert (node.in_flight, node.a0.isr) == (0, (1, 2, 3))
        mock_clock.jump(MAX_LAG_SECONDS + 0.001)
        node.shrink()
        assert (node.outcomes, node.submitter.proposed, node.in_flight) == ((0, 0, 0), [(1, 2)], 1)
        assert (node.isrs, node.log.high_watermark) == (((1, 2, 3), (1, 2, 3)), 0)
        node.written(2)
        assert (node.outcomes, node.a0.partition_epoch, node.in_flight) == ((0, 1, 0), 2, 0)
        assert (node.isrs, node.log.high_watermark) == (((1, 2), (1, 2)), 10)


@kafka("PT-17")
async def test_a_leader_and_isr_overtakes_a_shrink(mock_clock: MockClock) -> None:  # rules 9.51, 9.59
    async with host(records=10) as node:
        await node.become(isr=(1, 2), replicas=(1, 2), is_new=True)
        assert node.log.high_watermark == 0
        assert node.follower(2) == Known(now())
        mock_clock.jump(MAX_LAG_SECONDS + 0.001)
        node.shrink()
        assert node.a0.pending is not None
        await node.become(isr=(1, 2), replicas=(1, 2), partition_epoch=2)
        assert (node.log.high_watermark, node.a0.pending) == (0, None)
        mock_clock.jump(MAX_LAG_SECONDS + 0.001)
        node.shrink()
        assert node.a0.pending is None  # until the first change is answered
        node.written(10)
        assert (node.a0.isr, node.a0.partition_epoch) == ((1, 2), 2)
        node.shrink()
        assert node.a0.pending is not None


@kafka("PT-18")
async def test_who_had_everything_at_its_previous_fetch_stays(mock_clock: MockClock) -> None:  # rule 9.44
    async with host(records=10) as node:
        await node.become(isr=(1, 2), replicas=(1, 2), is_new=True)
        start = now()
        assert node.log.high_watermark == 0
        assert node.follower(2) == Known(start)
        mock_clock.jump(20)
        first = now()
        await node.follower_fetches(2, 5)
        assert node.follower(2) == Known(start, 0, 5)
        assert node.log.high_watermark == 5
        mock_clock.jump(20)
        node.seed(5, EPOCH)
        await node.follower_fetches(2, 10)
        assert node.follower(2) == Known(first, 0, 10)
        assert node.log.high_watermark == 10
        node.shrink()
        assert (node.a0.isr, node.in_flight) == ((1, 2), 0)


@kafka("PT-19")
async def test_who_has_everything_stays(mock_clock: MockClock) -> None:  # rule 9.44
    async with host(records=10) as node:
        await node.become(isr=(1, 2), replicas=(1, 2), is_new=True)
        assert node.log.high_watermark == 0
        assert node.follower(2) == Known(now())
        await node.follower_fetches(2, 10)
        assert node.follower(2) == Known(now(), 0, 10)
        assert node.log.high_watermark == 10
        mock_clock.jump(MAX_LAG_SECONDS + 0.001)
        node.shrink()
        assert (node.a0.isr, node.in_flight) == ((1, 2), 0)


@kafka("PT-20")
async def test_a_shrink_fails(mock_clock: MockClock) -> None:  # rule 9.58
    async with host(records=10) as node:
        await node.become(isr=(1, 2), replicas=(1, 2), is_new=True)
        assert node.log.high_watermark == 0
        assert node.follower(2) == Known(now())
        mock_clock.jump(MAX_LAG_SECONDS + 0.001)
        node.shrink()
        assert (node.a0.isr, node.in_flight, node.log.high_watermark) == ((1, 2), 1, 0)
        node.submitter.answer(A0, ErrorCode.INVALID_UPDATE_VERSION)
        assert node.a0.pending is not None
        assert node.a0.pending.leader_and_isr == LeaderAndIsr(BrokerId(1), (BrokerId(1),), EPOCH, partition_epoch=1)
        assert (node.a0.isr, node.in_flight, node.log.high_watermark) == ((1, 2), 0, 0)


# the high watermark


@kafka("PT-11")
@pytest.mark.parametrize(("alive", "high_watermark"), [((1,), 20), ((1, 2), 10)])
async def test_who_cannot_join_does_not_hold_the_high_watermark(
    alive: tuple[int, ...], high_watermark: int, mock_clock: MockClock
) -> None:  # rule 9.50
    async with host(records=10) as node:
        await node.become(isr=(1, 2), replicas=(1, 2))
        assert node.isrs == ((1, 2), (1, 2))
        await node.follower_fetches(2, 10)
        assert node.follower(2) == Known(now(), 0, 10)
        assert node.log.high_watermark == 10
        await node.learn(alive)
        node.seed(10, EPOCH)
        await node.become(isr=(1,), replicas=(1, 2), partition_epoch=2)
        assert node.a0.is_leader
        assert node.isrs == ((1,), (1,))
        node.shrink()
        assert node.in_flight == 0
        assert node.log.high_watermark == high_watermark


@kafka("PT-16")
async def test_the_high_watermark_needs_the_least_isr() -> None:  # rule B3.15
    async with host(records=10, min_insync_replicas="3") as node:
        await node.become(isr=(1, 2), replicas=(1, 2, 3), is_new=True)
        assert len(node.a0.isr) < node.a0.min_isr
        assert node.log.high_watermark == 0
        await node.follower_fetches(2, 10)
        assert node.log.high_watermark == 0
        await node.follower_fetches(3, 10)
        assert (node.log.high_watermark, len(node.a0.maximal_isr), node.in_flight) == (0, 3, 1)
        node.written(2)
        assert len(node.a0.isr) == node.a0.min_isr
        assert node.log.high_watermark == 10
