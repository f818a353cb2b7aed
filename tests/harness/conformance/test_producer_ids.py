"""Ids that expire, and blocks of producer ids, in clusters in memory (docs/transaction-semantics.md: TRE, PIE, PII)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kce import wire
from kce.wire import ErrorCode as E
from kce.wire.record import Record, RecordBatch
from kce.wire.records import write_records
from tests.harness.conformance.transactions import (
    ONE,
    TWO,
    World,
    active_producers,
    eventually,
    everything,
    finish,
    running,
    send,
)
from tests.harness.test_transactions import STARTED_MS, TransactionalClient

case = pytest.mark.kafka
EXPIRING = {
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    "producer.id.expiration.check.interval.ms": "500",
}


@case("TRE-1")
async def test_an_id_that_has_expired() -> None:  # rules T8.7, T5.2
    async with running(
        8, **EXPIRING, transactional_id_expiration_ms="10000", producer_id_expiration_ms="5000"
    ) as world:
        producer = await world.producer()
        await send(producer, (ONE, 0, b"2"), (TWO, 0, b"4"))
        await finish(producer, commit=False)
        assert await producer.state() == "CompleteAbort"
        await eventually(lambda: expired(producer))
        assert await producer.add(3, topic=ONE) == E.INVALID_PRODUCER_ID_MAPPING
        await producer.init()
        await send(producer, (TWO, 1, b"2"), (ONE, 2, b"4"), (TWO, 2, b"1"), (ONE, 3, b"3"))
        await finish(producer, commit=True)
        assert sorted(await everything(producer, ONE, TWO)) == [b"1", b"2", b"3", b"4"]


async def expired(client: TransactionalClient) -> bool:
    request = wire.DescribeTransactionsRequest(transactional_ids=(client.id,))
    answer = await client.ask(request, 0, lambda answer: answer.transaction_states[0].error_code)
    return bool(answer.transaction_states[0].error_code == E.TRANSACTIONAL_ID_NOT_FOUND)


@case("TRE-2")
async def test_a_producer_id_that_has_expired() -> None:  # rules T4.5, B3.53
    async with running(
        9, **EXPIRING, transactional_id_expiration_ms="10000", producer_id_expiration_ms="5000"
    ) as world:
        producer = await world.producer()
        await send(producer, (ONE, 0, b"2"))
        (old,) = await active_producers(producer, ONE, 0)
        await finish(producer, commit=False)

        async def is_gone() -> bool:
            return not await active_producers(producer, ONE, 0)

        await eventually(is_gone)
        producer = await world.producer()
        await send(producer, (ONE, 0, b"4"), (ONE, 3, b"3"))
        await finish(producer, commit=True)
        (new,) = await active_producers(producer, ONE, 0)
        assert (new.producer_id, new.producer_epoch) == (old.producer_id, old.producer_epoch + 1)
        assert await everything(producer, ONE) == [b"4", b"3"]


@case("PIE-2")
async def test_an_id_that_has_expired_before_its_producer_id() -> None:  # rules T8.7, B3.53
    async with running(
        10, **EXPIRING, transactional_id_expiration_ms="5000", producer_id_expiration_ms="10000"
    ) as world:
        producer = await world.producer()
        await send(producer, (ONE, 0, b"2"))
        assert len(await active_producers(producer, ONE, 0)) == 1
        await finish(producer, commit=False)
        await eventually(lambda: expired(producer))
        assert len(await active_producers(producer, ONE, 0)) == 1
        assert await producer.add(0, topic=ONE) == E.INVALID_PRODUCER_ID_MAPPING
        await producer.init()
        await send(producer, (ONE, 0, b"4"), (ONE, 0, b"3"))
        assert await active_producers(producer, ONE, 0)
        await finish(producer, commit=True)
        assert await everything(producer, ONE) == [b"4", b"3"]


async def send_idempotent(client: TransactionalClient, sequence: int, later_ms: int = 0) -> None:
    """A record of producer 7, without a transaction."""
    record = Record(offset=0, timestamp=STARTED_MS + later_ms, key=b"key", value=b"value")
    records = write_records(RecordBatch.of(record, producer_id=7, producer_epoch=0, base_sequence=sequence))
    data = wire.TopicProduceData(name=ONE, partition_data=(wire.PartitionProduceData(index=0, records=records),))
    request = wire.ProduceRequest(acks=-1, timeout_ms=5000, topic_data=(data,))

    def code(answer: Any) -> int:
        return int(answer.responses[0].partition_responses[0].error_code)

    assert code(await client.of_leader(ONE, 0, request, 9, code)) == E.NONE


async def has_no_producer(client: TransactionalClient) -> bool:
    return not await active_producers(client, ONE, 0)


@case("PIE-1")
async def test_a_producer_id_expires_and_comes_back() -> None:  # rule B3.53
    async with running(16, **EXPIRING, producer_id_expiration_ms="10000") as world:
        client = world.client()
        await send_idempotent(client, 0)
        assert len(await active_producers(client, ONE, 0)) == 1
        await eventually(lambda: has_no_producer(client))
        await send_idempotent(client, 1, 20_000)
        assert len(await active_producers(client, ONE, 0)) == 1


@case("PIE-3")
async def test_the_expiration_of_producer_ids_changes() -> None:  # rule B3.53
    async with running(17, **EXPIRING, producer_id_expiration_ms="5000") as world:
        client = world.client()
        await send_idempotent(client, 0)
        assert len(await active_producers(client, ONE, 0)) == 1
        await eventually(lambda: has_no_producer(client))
        await client.configure("producer.id.expiration.ms", "100000")
        await send_idempotent(client, 1, 20_000)
        assert len(await active_producers(client, ONE, 0)) == 1
        with trio.move_on_after(30):
            await eventually(lambda: has_no_producer(client))
        assert len(await active_producers(client, ONE, 0)) == 1
        await client.configure("producer.id.expiration.ms", "100")
        await world.cluster.restart(1)
        await eventually(lambda: has_no_producer(client), 10)


async def take_ids(world: World, broker: int, count: int = 1001) -> list[int]:
    """By InitProducerId without an id; more than a block of them."""
    found: list[int] = []
    request = wire.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=10)
    async with world.client().connected(broker) as client:
        while len(found) < count:
            answer: Any = await client.request(request, 5)
            if answer.error_code == E.COORDINATOR_LOAD_IN_PROGRESS:
                await trio.sleep(0.1)
                continue
            assert answer.error_code == E.NONE
            found.append(answer.producer_id)
    return found


@pytest.mark.parametrize(
    ("brokers", "properties"),
    [
        pytest.param(3, {"inter.broker.protocol.version": "2.8-IV1"}, marks=case("PII-1")),
        pytest.param(3, {"inter.broker.protocol.version": "3.0-IV0"}, marks=case("PII-1")),
        pytest.param(1, {"offsets.topic.replication.factor": "1"}, marks=case("PII-3")),
    ],
)
async def test_producer_ids_are_unique(brokers: int, properties: dict[str, str]) -> None:  # rules B3.59, 1.43
    async with running(15, brokers, **properties) as world:
        ids = [one for broker in range(1, brokers + 1) for one in await take_ids(world, broker)]
        assert len(set(ids)) == len(ids) == 1001 * brokers


@case("PII-2")
async def test_producer_ids_are_unique_while_the_protocol_rises() -> None:  # rules B3.59, 1.43
    """One broker gets its blocks from the controller, the others theirs from ZooKeeper; then all from the controller,
    one after the other."""
    newer = {"inter.broker.protocol.version": "3.0-IV0"}
    async with running(16, nodes={1: newer}, inter_broker_protocol_version="2.8") as world:
        ids = [one for broker in (1, 2, 3) for one in await take_ids(world, broker)]
        for broker in (2, 3):
            world.cluster.member(broker).properties.update(newer)
            await world.cluster.restart(broker)
            ids += await take_ids(world, broker)
        assert len(set(ids)) == len(ids) == 5 * 1001
