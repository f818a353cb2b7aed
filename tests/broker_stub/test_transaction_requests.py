"""Requests of transactions, at one broker that leads everything (docs/transaction-semantics.md).

Covers: broker_stub/handlers/add_partitions_to_txn.py, broker_stub/handlers/write_txn_markers.py.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kce import wire
from kce.wire import ErrorCode as E
from kce.wire.record import Record, RecordBatch
from kce.wire.records import write_records
from tests.broker_stub.support import Node, lai_state, leader_and_isr, umr_state, update_metadata

STATE, OFFSETS = "__transaction_state", "__consumer_offsets"
ONE = {
    "transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1",
    "transaction.state.log.min.isr": "1",
}  # fmt: skip


class Channel:
    """A controller that allocates producer ids from 70 on."""

    async def request(self, *args: Any) -> wire.Message:
        return wire.AllocateProducerIdsResponse(producer_id_start=70, producer_id_len=9)


class Broker:
    def __init__(self, node: Node) -> None:
        self.node = node

    async def settle(self) -> None:
        await wait_all_tasks_blocked()

    async def init(self, version: int = 5, **more: Any) -> tuple[int, int, int]:
        request = wire.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000, **more)
        answer = await self.node.ask(request, version)
        return answer.error_code, answer.producer_id, answer.producer_epoch

    async def add(
        self, *partitions: int, version: int = 3, topic: str = "a", epoch: int = 0, pid: int = 70
    ) -> dict[int, int]:
        topics = (wire.AddPartitionsToTxnTopic(name=topic, partitions=partitions),)
        request = wire.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t", v3_and_below_producer_id=pid, v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=topics,
        )  # fmt: skip
        (found,) = (await self.node.ask(request, version)).results_by_topic_v3_and_below
        return {result.partition_index: result.partition_error_code for result in found.results_by_partition}

    async def end(self, *, commit: bool, epoch: int = 0, version: int = 4) -> int:
        request = wire.EndTxnRequest(transactional_id="t", producer_id=70, producer_epoch=epoch, committed=commit)
        return int((await self.node.ask(request, version)).error_code)

    async def commit_offset(self, offset: int, version: int = 4, partition: int = 0) -> int:
        entry = wire.TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata="m"
        )
        request = wire.TxnOffsetCommitRequest(
            transactional_id="t", group_id="g", producer_id=70, producer_epoch=0,
            topics=(wire.TxnOffsetCommitRequestTopic(name="a", partitions=(entry,)),),
        )  # fmt: skip
        (topic,) = (await self.node.ask(request, version)).topics
        return int(topic.partitions[0].error_code)

    async def mark(
        self, *partitions: tuple[str, int], committed: bool = True, pid: int = 70, cep: int = 0
    ) -> list[int]:
        """As the coordinator would."""
        topics = tuple(
            wire.WritableTxnMarkerTopic(name=topic, partition_indexes=(number,)) for topic, number in partitions
        )
        marker = wire.WritableTxnMarker(
            producer_id=pid, producer_epoch=0, transaction_result=committed, topics=topics, coordinator_epoch=cep
        )
        (result,) = (await self.node.ask(wire.WriteTxnMarkersRequest(markers=(marker,)), 1)).markers
        assert result.producer_id == pid
        return [entry.error_code for topic in result.topics for entry in topic.partitions]

    def committed_offset(self) -> int | None:
        group = self.node.groups.manager.groups.get("g")
        found = None if group is None else next(iter(group.offsets.stored.values()), None)
        return None if found is None else found.committed.offset


@asynccontextmanager
async def running(**properties: str) -> AsyncIterator[Broker]:
    """It leads a-0, a-1 and both internal topics, each with one replica."""
    async with trio.open_nursery() as nursery:
        node = Node(nursery=nursery, channel=Channel(), **{**ONE, **properties})
        alone: Any = {"isr": (1,), "replicas": (1,)}
        for i, (topic, count) in enumerate((("a", 2), (STATE, 1), (OFFSETS, 1)), 1):
            named: Any = {"topic": topic, "topic_id": uuid.UUID(int=i)}
            node.cache.update(update_metadata(*(umr_state(n, **alone) for n in range(count)), **named))
            await node.ask(leader_and_isr(*(lai_state(n, **alone) for n in range(count)), **named))
        nursery.start_soon(node.groups.manager.run)
        nursery.start_soon(node.transactions.manager.run)
        broker = Broker(node)
        await broker.settle()
        yield broker
        nursery.cancel_scope.cancel()


async def test_a_first_producer_waits_for_its_id() -> None:  # rules T3.2, T4.1, T4.17
    async with running() as broker:
        assert await broker.init() == (E.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)
        await broker.settle()
        assert await broker.init() == (E.NONE, 70, 0)
        assert await broker.init(producer_id=70, producer_epoch=0) == (E.NONE, 70, 1)
        assert await broker.init(producer_id=71, producer_epoch=0) == (E.PRODUCER_FENCED, -1, -1)
        assert await broker.init(3, producer_id=71, producer_epoch=0) == (E.INVALID_PRODUCER_EPOCH, -1, -1)


@asynccontextmanager
async def with_producer(**properties: str) -> AsyncIterator[Broker]:
    """Producer 70 with epoch 0."""
    async with running(**properties) as broker:
        broker.node.producer_ids.request_block()
        await broker.settle()
        assert await broker.init() == (E.NONE, 70, 0)
        yield broker


@pytest.mark.kafka("TKA-17")
@pytest.mark.kafka("TKA-20")
@pytest.mark.parametrize("version", range(4))
async def test_partitions_of_clients(version: int) -> None:  # rules T1.5, T5.3, T5.4
    async with with_producer() as broker:
        not_attempted, unknown = E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION
        assert await broker.add(0, 5, -1, version=version) == {0: not_attempted, 5: unknown, -1: unknown}
        assert await broker.add(0, topic=OFFSETS, version=version) == {0: E.TOPIC_AUTHORIZATION_FAILED}
        fenced = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
        assert await broker.add(0, 1, epoch=3, version=version) == {0: fenced, 1: fenced}
        assert await broker.add(0, pid=71, version=version) == {0: E.INVALID_PRODUCER_ID_MAPPING}
        assert await broker.add(0, 1, version=version) == {0: E.NONE, 1: E.NONE}


@pytest.mark.kafka("TKA-15")
async def test_partitions_of_brokers() -> None:  # rules T5.1, T5.3, T10.9
    async with with_producer() as broker:
        await broker.add(0)

        def asked(name: str, *partitions: int, verify_only: bool) -> wire.AddPartitionsToTxnTransaction:
            topics = (wire.AddPartitionsToTxnTopic(name="a", partitions=partitions),)
            return wire.AddPartitionsToTxnTransaction(
                transactional_id=name, producer_id=70, producer_epoch=0, verify_only=verify_only, topics=topics
            )

        request = wire.AddPartitionsToTxnRequest(
            transactions=(
                asked("t", 0, 1, verify_only=True), asked("u", 0, verify_only=True),
                asked("t", 0, 9, verify_only=False), asked("t", 1, verify_only=False), asked("t", 1, verify_only=True),
            )
        )  # fmt: skip
        answer = await broker.node.ask(request, 4)
        assert answer.error_code == E.NONE
        assert [
            (one.transactional_id, [r.partition_error_code for r in one.topic_results[0].results_by_partition])
            for one in answer.results_by_transaction
        ] == [
            ("t", [E.NONE, E.TRANSACTION_ABORTABLE]), ("u", [E.INVALID_PRODUCER_ID_MAPPING]),
            ("t", [E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION]), ("t", [E.NONE]), ("t", [E.NONE]),
        ]  # fmt: skip
        assert (await broker.node.ask(wire.AddPartitionsToTxnRequest(), 5)).results_by_transaction == ()  # rule T5.5


async def test_markers() -> None:  # rules T7.2 to T7.4, T7.8, T12.3, T12.4
    async with with_producer() as broker:
        assert await broker.mark(("a", 0), ("a", 7)) == [E.UNKNOWN_TOPIC_OR_PARTITION, E.NONE]
        log = broker.node.partition(0).log
        assert (log.log_end_offset, log.last_stable_offset) == (1, 1)
        assert await broker.mark(("a", 0), cep=5) == [E.NONE]
        assert await broker.mark(("a", 0), cep=4) == [E.TRANSACTION_COORDINATOR_FENCED]
        assert await broker.mark(("a", 9)) == [E.UNKNOWN_TOPIC_OR_PARTITION]
        assert (await broker.node.ask(wire.WriteTxnMarkersRequest(), 1)).markers == ()


@pytest.mark.parametrize("committed", [True, False])
async def test_offsets_in_a_transaction(committed: bool) -> None:  # rules T5.7, T7.6, G7.20, G7.21
    async with with_producer() as broker:
        request = wire.AddOffsetsToTxnRequest(transactional_id="t", producer_id=70, producer_epoch=0, group_id="g")
        assert (await broker.node.ask(request, 4)).error_code == E.NONE
        described = await broker.node.ask(wire.DescribeTransactionsRequest(transactional_ids=("t", "u")), 0)
        known, unknown = described.transaction_states
        assert [(topic.topic, topic.partitions) for topic in known.topics] == [(OFFSETS, (0,))]
        assert (known.transaction_state, known.producer_id, known.transaction_timeout_ms) == ("Ongoing", 70, 1000)
        assert unknown.error_code == E.TRANSACTIONAL_ID_NOT_FOUND
        assert await broker.commit_offset(5) == E.NONE
        assert await broker.commit_offset(5, partition=9) == E.UNKNOWN_TOPIC_OR_PARTITION
        assert broker.committed_offset() is None
        assert await broker.end(commit=committed) == E.NONE
        assert await broker.mark((OFFSETS, 0), committed=committed) == [E.NONE]
        await broker.settle()
        assert broker.committed_offset() == (5 if committed else None)


@pytest.mark.kafka("TKA-11")
async def test_offsets_while_groups_are_loading() -> None:
    async with with_producer() as broker:
        broker.node.groups.manager._loading.add(0)
        assert await broker.commit_offset(5, version=1) == E.COORDINATOR_NOT_AVAILABLE
        assert await broker.commit_offset(5, version=2) == E.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.kafka("TKA-18")
@pytest.mark.parametrize("version", range(5))
async def test_the_end(version: int) -> None:  # rules T5.8, T2.6
    async with with_producer() as broker:
        assert await broker.end(commit=True, version=version) == E.INVALID_TXN_STATE
        await broker.add(0)
        fenced = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
        assert await broker.end(commit=True, epoch=1, version=version) == fenced
        assert await broker.end(commit=True, version=version) == E.NONE
        assert await broker.end(commit=True, version=version) == E.CONCURRENT_TRANSACTIONS
        listed = await broker.node.ask(wire.ListTransactionsRequest(state_filters=("PrepareCommit", "x")), 1)
        assert listed.unknown_state_filters == ("x",)
        assert [(one.transactional_id, one.producer_id) for one in listed.transaction_states] == [("t", 70)]


@pytest.mark.kafka("TKA-21")
@pytest.mark.kafka("TKA-22")
@pytest.mark.kafka("TKA-23")
@pytest.mark.kafka("TKA-24")
@pytest.mark.kafka("TKA-25")
async def test_a_protocol_without_transactions() -> None:  # rule T14.2
    async with running(inter_broker_protocol_version="0.10.2") as broker:
        unsupported = E.UNSUPPORTED_VERSION
        assert await broker.add(0) == {0: unsupported}
        assert [await broker.end(commit=True), await broker.commit_offset(1)] == [unsupported] * 2
        assert await broker.mark(("a", 0)) == [unsupported]
        assert (await broker.node.ask(wire.AddOffsetsToTxnRequest(), 4)).error_code == unsupported


async def test_transactional_records_need_an_id() -> None:  # rules B3.1, T14.4
    async with with_producer() as broker:
        records = write_records(
            RecordBatch.of(
                Record(offset=0, timestamp=0, value=b"x"), producer_id=70, producer_epoch=0, base_sequence=0,
                is_transactional=True,
            )
        )  # fmt: skip
        for name, code in ((None, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), ("t", E.NONE)):
            data = wire.PartitionProduceData(index=0, records=records)
            request = wire.ProduceRequest(
                transactional_id=name, acks=1, timeout_ms=1000,
                topic_data=(wire.TopicProduceData(name="a", partition_data=(data,)),),
            )  # fmt: skip
            answer = await broker.node.ask(request, 9)
            assert answer.responses[0].partition_responses[0].error_code == code
        assert broker.node.partition(0).log.last_stable_offset == 0
