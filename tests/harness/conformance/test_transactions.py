"""TransactionsTest and TransactionsWithMaxInFlightOneTest of Kafka, in clusters in memory: what the Java client asks is
asked here by hand (docs/transaction-semantics.md, 16d: TRT, TRO).
"""

from __future__ import annotations

import pytest
import trio

from kce import wire
from kce.wire import ErrorCode as E
from kce.wire.vocabulary import TopicPartition
from tests.clusters import node
from tests.harness.conformance.transactions import (
    ONE,
    TWO,
    World,
    eventually,
    everything,
    finish,
    running,
    send,
)
from tests.harness.test_transactions import STARTED_MS, TransactionalClient

case = pytest.mark.kafka


async def list_offset(client: TransactionalClient, topic: str, timestamp: int, *, committed: bool) -> tuple[int, int]:
    """(timestamp, offset) in partition 0; -1 if there is none."""
    entry = wire.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = wire.ListOffsetsRequest(
        replica_id=-1, isolation_level=int(committed), topics=(wire.ListOffsetsTopic(name=topic, partitions=(entry,)),)
    )
    answer = await client.of_leader(topic, 0, request, 7, lambda answer: answer.topics[0].partitions[0].error_code)
    (found,) = answer.topics[0].partitions
    assert found.error_code == E.NONE
    return found.timestamp, found.offset


@case("TRT-1")
async def test_an_aborted_and_a_committed_transaction() -> None:  # rules T6.1, T12.7
    async with running(1) as world:

        def starts_at_0() -> bool:
            partitions = [TopicPartition(ONE, 1), TopicPartition(TWO, 2)]
            hosted = [node(world.cluster, n).broker.replica_manager.partitions for n in (1, 2, 3)]
            logs = [of[partition].log for of in hosted for partition in partitions]
            return all(log is not None and log.log_start_offset == 0 for log in logs)

        producer = await world.producer()
        await send(producer, (TWO, 2, b"2"), (ONE, 1, b"4"))
        assert starts_at_0()
        await finish(producer, commit=False)
        assert starts_at_0()
        await send(producer, (ONE, 1, b"1"), (TWO, 2, b"3"))
        await finish(producer, commit=True)
        assert starts_at_0()
        assert sorted(await everything(producer, ONE, TWO)) == [b"1", b"3"]
        assert sorted(await everything(producer, ONE, TWO, committed=False)) == [b"1", b"2", b"3", b"4"]


@case("TRT-2")
async def test_what_is_undecided_is_not_seen() -> None:  # rules T12.6, T12.7
    async with running(2) as world:
        one, other = await world.producer("one"), await world.producer("other")
        for topic in (ONE, TWO):
            await other.add(0, topic=topic)
            await one.add(0, topic=topic)
            assert await other.produce(0, b"1", topic=topic) == E.NONE
            assert await one.produce(0, b"a", b"b", topic=topic, timestamp=STARTED_MS + 1) == E.NONE
            assert await other.produce(0, b"2", topic=topic, timestamp=STARTED_MS + 1) == E.NONE
        await finish(other, commit=True)
        for topic in (ONE, TWO):
            assert len(await one.read(0, topic=topic, committed=False)) == 4
            assert await list_offset(one, topic, STARTED_MS + 1, committed=False) == (STARTED_MS + 1, 1)
            assert await one.read(0, topic=topic) == [b"1"]
            assert await list_offset(one, topic, -1, committed=True) == (-1, 1)
            assert await list_offset(one, topic, STARTED_MS + 1, committed=True) == (-1, -1)


@case("TRT-3")
async def test_a_delayed_fetch_has_aborted_transactions() -> None:  # rule T12.10
    async with running(3) as world:
        one, other = await world.producer("one"), await world.producer("other")
        await one.add(0, topic=ONE)
        await other.add(0, topic=ONE)
        for producer, values in ((other, [b"x1"]), (one, [b"y1", b"y2"]), (other, [b"x2"])):
            assert await producer.produce(0, *values, topic=ONE) == E.NONE
        await finish(one, commit=False)
        await finish(other, commit=True)
        assert await one.read_offsets(0, ONE, min_bytes=100_000) == [(0, b"x1"), (3, b"x2")]


@case("TRT-6")
@case("TRT-7")
@case("TRT-13")
async def test_a_second_producer_fences_the_first() -> None:  # rules T4.9, T5.7, T13.6
    async with running(4) as world:
        first = await world.producer()
        await send(first, (ONE, 0, b"1"), (TWO, 0, b"3"))
        second = await world.producer()
        await send(second, (ONE, 0, b"4"), (TWO, 0, b"4"))
        assert await first.end(commit=True) == E.PRODUCER_FENCED
        assert await first.add_offsets() == E.PRODUCER_FENCED
        assert await first.produce(0, b"5", topic=ONE) == E.INVALID_PRODUCER_EPOCH
        await finish(second, commit=True)
        assert await everything(second, ONE, TWO) == [b"4", b"4"]


@case("TRT-14")
async def test_a_fenced_producer_adds_no_partition() -> None:  # rule T5.4
    async with running(5) as world:
        first = await world.producer()
        await send(first, (ONE, 0, b"1"), (TWO, 0, b"3"))
        await finish(first, commit=False)
        second = await world.producer()
        await send(second, (ONE, 0, b"4"), (TWO, 0, b"4"))
        assert await first.add(0, topic=ONE) == E.PRODUCER_FENCED
        await finish(second, commit=True)
        assert await everything(second, ONE, TWO) == [b"4", b"4"]


@case("TRT-15")
async def test_a_transaction_that_takes_too_long() -> None:  # rules T8.1 to T8.3
    async with running(6) as world:
        producer = world.client("expiringProducer")
        await producer.init(timeout_ms=100)
        await send(producer, (ONE, 0, b"1"))
        await producer.wait_for("CompleteAbort")
        assert await producer.add(0, topic=ONE) == E.PRODUCER_FENCED
        assert await producer.produce(0, b"2", topic=ONE) == E.INVALID_PRODUCER_EPOCH
        assert await everything(producer, ONE, committed=False) == [b"1"]
        assert await everything(producer, ONE) == []


@case("TRT-16")
async def test_many_markers_for_one_leader() -> None:  # rules T6.4, T7.3
    async with running(7) as world:
        large, single = "largeTopic", "largeTopicOneReplica"
        await world.cluster.create_topic(large, partitions=10, replication_factor=3)
        await world.cluster.create_topic(single, partitions=10, replication_factor=1)
        producer = await world.producer()

        async def produce(topic: str, start: int, end: int) -> None:
            assert await producer.add(*range(10), topic=topic) == E.NONE
            for i in range(10):
                values = [b"%d" % n for n in range(start + i, end, 10)]
                assert await producer.produce(i, *values, topic=topic) == E.NONE

        await produce(large, 0, 5000)
        await produce(single, 5000, 10000)
        await finish(producer, commit=False)
        await produce(large, 10000, 11000)
        await finish(producer, commit=True)
        found = await everything(producer, single, large, count=10)
        assert sorted(map(int, found)) == list(range(10000, 11000))
        found = await everything(producer, single, large, committed=False, count=10)
        assert sorted(map(int, found)) == list(range(11000))


@case("TRO-1")
async def test_one_broker() -> None:  # rule T6.4
    more = {"transaction_state_log_replication_factor": "1", "transaction_state_log_min_isr": "1"}
    async with running(11, brokers=1, offsets_topic_replication_factor="1", **more) as world:
        producer = await world.producer()
        await send(producer, (TWO, 0, b"2"), (ONE, 0, b"4"))
        await finish(producer, commit=False)
        await send(producer, (ONE, 0, b"1"), (TWO, 0, b"3"))
        await finish(producer, commit=True)
        assert sorted(await everything(producer, ONE, TWO)) == [b"1", b"3"]


@case("TRT-8")
async def test_an_offset_with_metadata() -> None:  # rules G7.20, T5.7
    async with running(12) as world:
        producer = await world.producer("group")
        assert await producer.add_offsets() == E.NONE
        producer_id, epoch = producer.producer
        entry = wire.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=110, committed_leader_epoch=15, committed_metadata="some metadata"
        )
        request = wire.TxnOffsetCommitRequest(
            transactional_id="group", group_id="group", producer_id=producer_id, producer_epoch=epoch,
            topics=(wire.TxnOffsetCommitRequestTopic(name=ONE, partitions=(entry,)),),
        )  # fmt: skip
        answer = await producer.ask(request, 3, lambda answer: answer.topics[0].partitions[0].error_code, kind=0)
        assert answer.topics[0].partitions[0].error_code == E.NONE
        await finish(producer, commit=True)
        await world.producer("other")

        async def is_committed() -> bool:
            topics = (wire.OffsetFetchRequestTopic(name=ONE, partition_indexes=(0,)),)
            fetch = wire.OffsetFetchRequest(group_id="group", topics=topics)
            answer = await producer.ask(fetch, 7, kind=0)
            (found,) = answer.topics[0].partitions
            return (found.committed_offset, found.committed_leader_epoch, found.metadata) == (110, 15, "some metadata")

        await eventually(is_committed)


def epoch_in_log(world: World, leader: int, topic: str, producer_id: int) -> int:
    log = node(world.cluster, leader).broker.replica_manager.partitions[TopicPartition(topic, 0)].log
    assert log is not None
    return log.known_producers()[producer_id].epoch


async def leader_of(world: World, topic: str) -> int:
    (found,) = await world.cluster.describe_topics([topic])
    leadership = found.partitions[0].leadership
    assert leadership is not None
    return leadership.leader_and_isr.leader


@case("TRT-18")
async def test_a_producer_goes_on_with_a_higher_epoch() -> None:  # rules T4.7, T6.1
    """After a batch that could not be sent, as the leader of its partition was dead."""
    async with running(13) as world:
        topic = "test-topic"
        await world.cluster.create_topic(topic, partitions=1, replication_factor=1)
        leader = await leader_of(world, topic)
        producer = await world.producer()
        await send(producer, (topic, 0, b"4"))
        await finish(producer, commit=True)
        producer_id, initial = producer.producer
        assert epoch_in_log(world, leader, topic, producer_id) == initial
        await send(producer, (ONE, 0, b"2"))
        assert await producer.add(0, topic=topic) == E.NONE
        await world.cluster.kill(leader)
        with trio.move_on_after(5) as sending:
            await producer.produce(0, b"3", topic=topic)
        assert sending.cancelled_caught
        await world.cluster.start(leader)
        await finish(producer, commit=False)
        await producer.bump()
        await send(producer, (TWO, 0, b"2"), (ONE, 0, b"4"), (topic, 0, b"1"), (topic, 0, b"3"))
        await finish(producer, commit=True)
        found = await everything(producer, ONE, TWO) + await producer.read(0, topic=topic)
        assert sorted(found) == [b"1", b"2", b"3", b"4", b"4"]
        assert epoch_in_log(world, leader, topic, producer_id) > initial


@case("TRT-19")
async def test_a_fence_that_fails() -> None:  # rules T4.10, T9.7
    async with running(14) as world:
        first = await world.producer()
        await send(first, (ONE, 0, b"4"))
        await finish(first, commit=True)
        leader = await leader_of(world, ONE)
        producer_id, initial = first.producer
        assert epoch_in_log(world, leader, ONE, producer_id) == initial
        others = [n for n in (1, 2, 3) if n != first.coordinator]
        for broker in others:
            await world.cluster.stop(broker)
        with trio.move_on_after(1) as fencing:
            await world.producer()
        assert fencing.cancelled_caught
        for broker in others:
            await world.cluster.start(broker)
        third = await world.producer()
        await send(third, (ONE, 0, b"4"))
        await finish(third, commit=True)
        assert third.producer == (producer_id, initial + 1)
        assert epoch_in_log(world, await leader_of(world, ONE), ONE, producer_id) == initial + 1
