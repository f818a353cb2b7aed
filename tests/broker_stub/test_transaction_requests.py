"""Requests of transactions, at one broker that leads everything (docs/transaction-semantics.md).

Covers: broker_stub/handlers/add_partitions_to_txn.py, broker_stub/handlers/write_txn_markers.py.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce import wire
from kce.broker_stub.errors import Refused
from kce.broker_stub.groups.manager import Producer
from kce.broker_stub.groups.records import CommittedOffset
from kce.broker_stub.handlers import add_offsets_to_txn, create_topics, txn_offset_commit, write_txn_markers
from kce.broker_stub.log import Isolation
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.broker_stub.transactions.coordinator import InitResult
from kce.wire import ErrorCode as E
from kce.wire.record import EndTransactionMarker, Record, RecordBatch
from kce.wire.records import read_records, write_records
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.support import Node, lai_state, leader_and_isr, umr_state, update_metadata

STATE, OFFSETS = "__transaction_state", "__consumer_offsets"
ONE = {
    "transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1",
    "transaction.state.log.min.isr": "1", "transaction.partition.verification.enable": "false",
}  # fmt: skip


class Channel:
    """A controller that allocates producer ids from 70 on."""

    async def request(self, *args: Any) -> wire.Message:
        return wire.AllocateProducerIdsResponse(producer_id_start=70, producer_id_len=9)


def transactional(transactional_id: str | None) -> wire.ProduceRequest:
    """A record of producer 70 for a-0."""
    records = write_records(
        RecordBatch.of(
            Record(offset=0, timestamp=0, value=b"x"), producer_id=70, producer_epoch=0, base_sequence=0,
            is_transactional=True,
        )
    )  # fmt: skip
    data = wire.PartitionProduceData(index=0, records=records)
    return wire.ProduceRequest(
        transactional_id=transactional_id, acks=1, timeout_ms=1000,
        topic_data=(wire.TopicProduceData(name="a", partition_data=(data,)),),
    )  # fmt: skip


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

    async def commit_offset(
        self, offset: int, version: int = 4, partition: int = 0, *, pid: int = 70, epoch: int = 0
    ) -> int:
        entry = wire.TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata="m"
        )
        request = wire.TxnOffsetCommitRequest(
            transactional_id="t", group_id="g", producer_id=pid, producer_epoch=epoch,
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

    async def produce(self, transactional_id: str | None, version: int = 9) -> int:
        answer = await self.node.ask(transactional(transactional_id), version)
        return int(answer.responses[0].partition_responses[0].error_code)

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


def batched(*names: tuple[str, int, int], verify_only: bool = False) -> wire.AddPartitionsToTxnRequest:
    """Of ids and producers, each for a-0."""
    topics = (wire.AddPartitionsToTxnTopic(name="a", partitions=(0,)),)
    return wire.AddPartitionsToTxnRequest(
        transactions=tuple(
            wire.AddPartitionsToTxnTransaction(
                transactional_id=name, producer_id=pid, producer_epoch=epoch, verify_only=verify_only, topics=topics
            )
            for name, pid, epoch in names
        )
    )


def codes_by_id(answer: Any) -> dict[str, dict[tuple[str, int], int]]:
    return {
        one.transactional_id: {
            (topic.name, found.partition_index): found.partition_error_code
            for topic in one.topic_results
            for found in topic.results_by_partition
        }
        for one in answer.results_by_transaction
    }


@pytest.mark.kafka("APR-1")
@pytest.mark.parametrize("version", range(6))
async def test_a_known_and_an_unknown_topic(version: int) -> None:  # rule T5.3
    expected = {("a", 0): E.OPERATION_NOT_ATTEMPTED, ("unknownTopic", 0): E.UNKNOWN_TOPIC_OR_PARTITION}
    topics = tuple(wire.AddPartitionsToTxnTopic(name=name, partitions=(0,)) for name, _ in expected)
    async with with_producer() as broker:
        if version < 4:
            request = wire.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="foobar", v3_and_below_producer_id=1000, v3_and_below_producer_epoch=0,
                v3_and_below_topics=topics,
            )  # fmt: skip
            answer = await broker.node.ask(request, version)
            found = wire.AddPartitionsToTxnResult(
                transactional_id="foobar", topic_results=answer.results_by_topic_v3_and_below
            )
            answer = wire.AddPartitionsToTxnResponse(results_by_transaction=(found,))
        else:
            transaction = wire.AddPartitionsToTxnTransaction(
                transactional_id="foobar", producer_id=1000, producer_epoch=0, verify_only=False, topics=topics
            )
            answer = await broker.node.ask(wire.AddPartitionsToTxnRequest(transactions=(transaction,)), version)
        assert codes_by_id(answer) == {"foobar": expected}


@pytest.mark.kafka("APR-2")
async def test_one_id_is_known_of_two() -> None:  # rules T5.1, T5.4
    async with with_producer() as broker:
        answer = await broker.node.ask(batched(("t", 70, 0), ("barfoo", 1000, 0)), 5)
        assert codes_by_id(answer) == {"t": {("a", 0): E.NONE}, "barfoo": {("a", 0): E.INVALID_PRODUCER_ID_MAPPING}}


@pytest.mark.kafka("APR-3")
async def test_verify_only() -> None:  # rule T10.9
    async with with_producer() as broker:
        answer = await broker.node.ask(batched(("t", 70, 0), verify_only=True), 5)
        assert codes_by_id(answer) == {"t": {("a", 0): E.TRANSACTION_ABORTABLE}}
        described = await broker.node.ask(wire.DescribeTransactionsRequest(transactional_ids=("t",)), 0)
        assert described.transaction_states[0].topics == ()


@pytest.mark.kafka("TKA-12")
@pytest.mark.parametrize("version", range(5))
async def test_a_fenced_init_of_an_old_client(version: int) -> None:  # rule T4.17
    async with with_producer() as broker:
        broker.node.transactions.init_producer_id = fenced_init  # type: ignore[method-assign,assignment]
        code = E.PRODUCER_FENCED if version >= 4 else E.INVALID_PRODUCER_EPOCH
        assert await broker.init(version) == (code, -1, -1)


def fenced_init(name: str, timeout_ms: int, expected: object, on_done: Callable[[InitResult], None]) -> None:
    on_done(InitResult(E.PRODUCER_FENCED))


@pytest.mark.kafka("TKA-13")
@pytest.mark.kafka("TKA-14")
@pytest.mark.parametrize("version", range(4))
async def test_a_fenced_producer_of_an_old_client(version: int) -> None:  # rules T5.4, T5.7
    async with with_producer() as broker:
        code = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
        request = wire.AddOffsetsToTxnRequest(transactional_id="t", producer_id=70, producer_epoch=1, group_id="g")
        assert (await broker.node.ask(request, version)).error_code == code
        assert await broker.add(0, epoch=1, version=version) == {0: code}


@pytest.mark.kafka("TKA-7")
@pytest.mark.parametrize("partition", [-1, 9])
async def test_offsets_of_partitions_that_do_not_exist(partition: int) -> None:  # rule G7.17
    async with with_producer() as broker:
        assert await broker.commit_offset(1, partition=partition) == E.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.kafka("TKA-8")
@pytest.mark.kafka("TKA-9")
@pytest.mark.kafka("TKA-10")
async def test_offsets_are_passed_to_the_group_coordinator() -> None:  # rule G7.17
    """Those of partitions that exist; what it answers is joined with the rest."""
    asked: list[dict[TopicPartition, CommittedOffset]] = []
    answers = [
        dict.fromkeys((0, 1), E.NONE),
        {0: E.NONE, 1: E.OFFSET_METADATA_TOO_LARGE},
        dict.fromkeys((0, 1), E.NOT_COORDINATOR),
    ]

    def commit(
        group_id: str, committer: object, offsets: Any, on_committed: Any, producer: Producer, verify: object
    ) -> None:
        assert (group_id, producer.id, producer.epoch) == ("g", 70, 0)
        asked.append(offsets)
        on_committed({partition: answers[0][partition.partition] for partition in offsets})

    async with with_producer() as broker:
        broker.node.groups.verify_and_commit = commit  # type: ignore[method-assign,assignment]
        entries = tuple(
            wire.TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=10 + n, committed_metadata="m")
            for n in (0, 1, 2)
        )
        request = wire.TxnOffsetCommitRequest(
            transactional_id="t", group_id="g", producer_id=70, producer_epoch=0,
            topics=(
                wire.TxnOffsetCommitRequestTopic(name="a", partitions=entries),
                wire.TxnOffsetCommitRequestTopic(name="unknown", partitions=entries[:1]),
            ),
        )  # fmt: skip
        while answers:
            answer = await broker.node.ask(request, 4)
            found = {(t.name, p.partition_index): p.error_code for t in answer.topics for p in t.partitions}
            unknown = E.UNKNOWN_TOPIC_OR_PARTITION
            assert found == {
                ("a", 0): answers[0][0],
                ("a", 1): answers[0][1],
                ("a", 2): unknown,
                ("unknown", 0): unknown,
            }
            assert {p: (o.offset, o.metadata) for p, o in asked[-1].items()} == {
                TopicPartition("a", 0): (10, "m"), TopicPartition("a", 1): (11, "m"),
            }  # fmt: skip
            del answers[0]


async def test_commits_that_nobody_verifies_may_lack_a_producer_or_its_epoch() -> None:  # rule G7.20
    async with running() as broker:
        assert await broker.commit_offset(5, pid=-1) == E.NONE
        await broker.settle()
        assert broker.committed_offset() == 5  # at once
        assert await broker.commit_offset(6, epoch=-1) == E.UNKNOWN_SERVER_ERROR
        assert await broker.commit_offset(7, partition=9, epoch=-1) == E.UNKNOWN_TOPIC_OR_PARTITION
        await broker.settle()
        assert broker.committed_offset() == 5
        assert not broker.node.groups.manager.groups["g"].offsets.is_unstable(TopicPartition("a", 0))


@pytest.mark.kafka("TKA-36")
async def test_no_list_while_loading() -> None:  # rule T11.3
    async with with_producer() as broker:
        broker.node.transactions.manager._loading[0] = 1
        listed = await broker.node.ask(wire.ListTransactionsRequest(), 1)
        assert (listed.error_code, listed.transaction_states) == (E.COORDINATOR_LOAD_IN_PROGRESS, ())


@pytest.mark.kafka("TKA-28")
@pytest.mark.kafka("TKA-30")
async def test_markers_of_partitions_that_are_not_here() -> None:  # rule T7.2
    async with with_producer() as broker:
        assert await broker.mark(("a", 9)) == [E.UNKNOWN_TOPIC_OR_PARTITION]
        assert sorted(await broker.mark(("a", 9), ("a", 0))) == [E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION]
        assert broker.node.partition(0).log.log_end_offset == 1


@pytest.mark.kafka("TKA-27")
@pytest.mark.kafka("TKA-29")
async def test_markers_of_partitions_with_an_old_format() -> None:  # rule T7.2
    async with with_producer() as broker:
        log = broker.node.partition(0).log
        log.update_config(replace(log.config, record_version=1))
        unsupported = E.UNSUPPORTED_FOR_MESSAGE_FORMAT
        assert await broker.mark(("a", 0)) == [unsupported]
        assert sorted(await broker.mark(("a", 0), ("a", 1))) == [E.NONE, unsupported]
        assert (log.log_end_offset, broker.node.partition(1).log.log_end_offset) == (0, 1)


@pytest.mark.kafka("TKA-19")
@pytest.mark.parametrize("version", range(3, 12))
async def test_the_id_reaches_the_append(version: int) -> None:  # rule T10.1
    async with with_producer(**{"transaction.partition.verification.enable": "true"}) as broker:
        asked: list[str] = []

        def verify(name: str, pid: int, epoch: int, partitions: object, on_done: Any, *, knows_abortable: bool) -> None:
            asked.append(name)
            assert (pid, epoch, knows_abortable) == (70, 0, version >= 11)
            on_done({})

        broker.node.verifier.verify = verify  # type: ignore[method-assign,assignment]
        assert await broker.produce("t", version) == E.NONE
        assert asked == ["t"]


async def test_markers() -> None:  # rules T7.2 to T7.4, T7.8, T12.3, T12.4
    async with with_producer() as broker:
        assert await broker.mark(("a", 0), ("a", 7)) == [E.UNKNOWN_TOPIC_OR_PARTITION, E.NONE]
        log = broker.node.partition(0).log
        assert (log.log_end_offset, log.last_stable_offset) == (1, 1)
        assert await broker.mark(("a", 0), cep=5) == [E.NONE]
        assert await broker.mark(("a", 0), cep=4) == [E.TRANSACTION_COORDINATOR_FENCED]
        assert await broker.mark(("a", 9)) == [E.UNKNOWN_TOPIC_OR_PARTITION]
        assert (await broker.node.ask(wire.WriteTxnMarkersRequest(), 1)).markers == ()
        nothing = wire.WritableTxnMarker(producer_id=70, topics=())
        assert (await broker.node.ask(wire.WriteTxnMarkersRequest(markers=(nothing,)), 1)).markers == ()


@pytest.mark.parametrize("missing", ["producer_id", "producer_epoch"])
async def test_a_marker_needs_a_producer(missing: str) -> None:
    async with with_producer() as broker:
        topics = tuple(wire.WritableTxnMarkerTopic(name=name, partition_indexes=(0,)) for name in ("a", "nowhere"))
        values: dict[str, Any] = {"producer_id": 70, "producer_epoch": 0, missing: -1}
        of_unknown = wire.WritableTxnMarker(topics=topics[1:], **values)
        answer = await broker.node.ask(wire.WriteTxnMarkersRequest(markers=(of_unknown,)), 1)
        assert answer.markers[0].topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
        answer = await broker.node.ask(
            wire.WriteTxnMarkersRequest(markers=(wire.WritableTxnMarker(topics=topics, **values),)), 1
        )
        codes = [entry.error_code for topic in answer.markers[0].topics for entry in topic.partitions]
        assert codes == [E.UNKNOWN_SERVER_ERROR] * 2
        log = broker.node.partition(0).log
        assert log is not None
        assert log.log_end_offset == 0


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
        assert await broker.mark(("a", 0), committed=committed) == [E.NONE]  # of another topic
        await broker.settle()
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
    async with running(inter_broker_protocol_version="0.10.2", log_message_format_version="0.10.2") as broker:
        unsupported = E.UNSUPPORTED_VERSION
        assert await broker.add(0) == {0: unsupported}
        assert [await broker.end(commit=True), await broker.commit_offset(1)] == [unsupported] * 2
        assert await broker.mark(("a", 0)) == [unsupported]
        assert (await broker.node.ask(wire.AddOffsetsToTxnRequest(), 4)).error_code == unsupported


async def test_transactional_records_need_an_id() -> None:  # rules B3.1, T14.4
    async with with_producer() as broker:
        assert await broker.produce(None) == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await broker.produce("t") == E.NONE
        assert broker.node.partition(0).log.last_stable_offset == 0


async def test_records_that_are_not_verified() -> None:  # rules T10.6, T10.13, B3.43
    async with with_producer(**{"transaction.partition.verification.enable": "true"}) as broker:
        broker.node.cache.update(update_metadata(umr_state(0, leader=-1), topic=STATE, topic_id=uuid.UUID(int=2)))
        answer = await broker.node.ask(transactional("t"), 11)
        (found,) = answer.responses[0].partition_responses
        assert (found.error_code, found.base_offset, found.log_start_offset) == (E.NOT_ENOUGH_REPLICAS, -1, -1)
        assert found.error_message.endswith("COORDINATOR_NOT_AVAILABLE")


async def test_markers_of_several_producers(mock_clock: MockClock) -> None:  # rules T7.2, T7.3, T7.7, T12.1
    async with with_producer() as broker:

        def marker(pid: int, committed: bool, *topics: tuple[str, tuple[int, ...]]) -> wire.WritableTxnMarker:
            return wire.WritableTxnMarker(
                producer_id=pid,
                producer_epoch=3,
                transaction_result=committed,
                topics=tuple(wire.WritableTxnMarkerTopic(name=name, partition_indexes=of) for name, of in topics),
                coordinator_epoch=5,
            )

        def result(pid: int, *topics: tuple[str, dict[int, E]]) -> wire.WritableTxnMarkerResult:
            return wire.WritableTxnMarkerResult(
                producer_id=pid,
                topics=tuple(
                    wire.WritableTxnMarkerTopicResult(
                        name=name,
                        partitions=tuple(
                            wire.WritableTxnMarkerPartitionResult(partition_index=number, error_code=code)
                            for number, code in codes.items()
                        ),
                    )
                    for name, codes in topics
                ),
            )

        request = wire.WriteTxnMarkersRequest(
            markers=(
                marker(71, True, ("a", (0, 9)), ("b", (0,))),
                marker(72, False, ("a", (1, 0))),
                marker(73, True, ("b", (1,))),
                marker(71, False, ("a", (1,))),
            )
        )
        unknown = E.UNKNOWN_TOPIC_OR_PARTITION
        assert await broker.node.ask(request, 1) == wire.WriteTxnMarkersResponse(
            markers=(
                result(71, ("a", {9: unknown, 0: E.NONE, 1: E.NONE}), ("b", {0: unknown})),
                result(72, ("a", {1: E.NONE, 0: E.NONE})),
                result(73, ("b", {1: unknown})),
            )
        )
        written = {}
        for number in (0, 1):
            log = broker.node.partition(number).log
            batches = read_records(log.read(0, 10_000, Isolation.LOG_END).records).batches
            written[number] = [
                (one.producer_id, one.producer_epoch, one.is_control, one.is_transactional, one.base_timestamp,
                 EndTransactionMarker.from_record(one.records[0])) for one in batches
            ]  # fmt: skip
        now = broker.node.logs.now_ms()
        commit, abort = (EndTransactionMarker(committed=one, coordinator_epoch=5) for one in (True, False))
        assert written == {
            0: [(71, 3, True, True, now, commit), (72, 3, True, True, now, abort)],
            1: [(72, 3, True, True, now, abort), (71, 3, True, True, now, abort)],
        }


async def test_what_is_told_of_transactions(mock_clock: MockClock) -> None:  # rules T11.1 to T11.5
    async with with_producer() as broker:
        await broker.add(1, 0)
        await broker.add(0, topic=OFFSETS)  # clients must not
        now = broker.node.logs.now_ms()
        described = await broker.node.ask(wire.DescribeTransactionsRequest(transactional_ids=("u", "t", "")), 0)
        state = wire.DescribeTransactionsResponseTransactionState
        assert described == wire.DescribeTransactionsResponse(
            transaction_states=(
                state(transactional_id="u", error_code=E.TRANSACTIONAL_ID_NOT_FOUND),
                state(
                    transactional_id="t", transaction_state="Ongoing", transaction_timeout_ms=1000,
                    transaction_start_time_ms=now, producer_id=70, producer_epoch=0,
                    topics=(wire.DescribeTransactionsResponseTopicData(topic="a", partitions=(0, 1)),),
                ),
                state(transactional_id="", error_code=E.INVALID_REQUEST),
            )
        )  # fmt: skip
        one = wire.ListTransactionsResponseTransactionState(
            transactional_id="t", producer_id=70, transaction_state="Ongoing"
        )
        for asked, version, found in (
            ({}, 0, True), ({"producer_id_filters": (70,)}, 0, True), ({"producer_id_filters": (7,)}, 0, False),
            ({"state_filters": ("Ongoing", "yy", "x", "yy")}, 0, True), ({"state_filters": ("Empty",)}, 0, False),
            ({"duration_filter": 0}, 1, False), ({"duration_filter": -1}, 1, True),
        ):  # fmt: skip
            answer = await broker.node.ask(wire.ListTransactionsRequest(**asked), version)
            assert answer == wire.ListTransactionsResponse(
                unknown_state_filters=("yy", "x") if "yy" in str(asked) else (), transaction_states=(one,) * found
            ), asked


async def test_what_is_committed_in_a_transaction(mock_clock: MockClock) -> None:  # rules G7.17, G7.20
    async with with_producer() as broker:
        entries = (
            wire.TxnOffsetCommitRequestPartition(
                partition_index=0, committed_offset=5, committed_leader_epoch=2, committed_metadata=None
            ),
            wire.TxnOffsetCommitRequestPartition(partition_index=1, committed_offset=6, committed_metadata="m"),
        )
        await broker.node.ask(
            wire.TxnOffsetCommitRequest(
                transactional_id="t", group_id="g", producer_id=70, producer_epoch=0,
                topics=(wire.TxnOffsetCommitRequestTopic(name="a", partitions=entries),),
            ), 4,
        )  # fmt: skip
        now = broker.node.logs.now_ms()
        pending = broker.node.groups.manager.groups["g"].offsets.pending_of_producers[70]
        assert {tp.partition: stored.committed for tp, stored in pending.items()} == {
            0: CommittedOffset(offset=5, commit_timestamp=now, leader_epoch=2, metadata=""),
            1: CommittedOffset(offset=6, commit_timestamp=now, leader_epoch=-1, metadata="m"),
        }


@pytest.mark.parametrize("version", range(5))
async def test_an_offset_of_a_transaction_is_verified(version: int) -> None:  # rules T10.10, T10.14
    async with with_producer(**{"transaction.partition.verification.enable": "true"}) as broker:
        asked: list[Any] = []
        code = [E.NONE]

        def verify(*args: Any, knows_abortable: bool) -> None:
            asked.append((*args[:4], knows_abortable))
            args[4]({} if code[0] is E.NONE else {TopicPartition(OFFSETS, 0): code[0]})

        broker.node.verifier.verify = verify  # type: ignore[method-assign,assignment]
        code[0] = E.TRANSACTION_ABORTABLE
        assert await broker.commit_offset(5, version) == E.TRANSACTION_ABORTABLE
        code[0] = E.NONE
        assert await broker.commit_offset(5, version) == E.NONE
        assert asked == [("t", 70, 0, [TopicPartition(OFFSETS, 0)], version >= 4)] * 2


async def test_who_writes_to_a_partition() -> None:  # rule B7.24
    async with with_producer() as broker:
        assert await broker.produce("t") == E.NONE
        asked = wire.TopicRequest(name="a", partition_indexes=(0,))
        answer = await broker.node.ask(wire.DescribeProducersRequest(topics=(asked,)), 0)
        state = wire.ProducerState(
            producer_id=70, producer_epoch=0, last_sequence=0, last_timestamp=0, coordinator_epoch=-1,
            current_txn_start_offset=0,
        )  # fmt: skip
        found = wire.PartitionResponse(partition_index=0, active_producers=(state,))
        assert answer == wire.DescribeProducersResponse(topics=(wire.TopicResponse(name="a", partitions=(found,)),))


async def test_offsets_that_are_not_stable_yet() -> None:  # rules G7.27, G7.30
    async with with_producer() as broker:
        node = broker.node
        entry = wire.OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="m")
        topics = (wire.OffsetCommitRequestTopic(name="a", partitions=(entry,)),)
        await node.ask(wire.OffsetCommitRequest(group_id="g", topics=topics), 8)
        assert await broker.commit_offset(6) == E.NONE

        async def fetched(*, stable: bool, everything: bool) -> Any:
            wanted = wire.OffsetFetchRequestTopics(name="a", partition_indexes=(0,))
            group = wire.OffsetFetchRequestGroup(group_id="g", topics=None if everything else (wanted,))
            request = wire.OffsetFetchRequest(groups=(group,), require_stable=stable)
            (topic,) = (await node.ask(request, 9)).groups[0].topics
            (found,) = topic.partitions
            return topic.name, found

        made = wire.OffsetFetchResponsePartitions
        for everything in (True, False):
            assert await fetched(stable=False, everything=everything) == (
                "a", made(partition_index=0, committed_offset=5, committed_leader_epoch=-1, metadata="m"),
            )  # fmt: skip
            assert await fetched(stable=True, everything=everything) == (
                "a",
                made(
                    partition_index=0, committed_offset=-1, committed_leader_epoch=-1, metadata="",
                    error_code=E.UNSTABLE_OFFSET_COMMIT,
                ),
            )  # fmt: skip
        wanted = tuple(
            wire.OffsetDeleteRequestTopic(
                name=name, partitions=tuple(wire.OffsetDeleteRequestPartition(partition_index=n) for n in numbers)
            )
            for name, numbers in (("a", (0, 9, 1)), ("b", (0,)))
        )
        result, unknown = wire.OffsetDeleteResponsePartition, E.UNKNOWN_TOPIC_OR_PARTITION
        assert await node.ask(wire.OffsetDeleteRequest(group_id="g", topics=wanted), 0) == wire.OffsetDeleteResponse(
            topics=(
                wire.OffsetDeleteResponseTopic(
                    name="a",
                    partitions=(
                        result(partition_index=9, error_code=unknown), result(partition_index=0),
                        result(partition_index=1),
                    ),
                ),
                wire.OffsetDeleteResponseTopic(name="b", partitions=(result(error_code=unknown),)),
            )
        )  # fmt: skip


async def test_what_is_asked_of_an_authorizer_first() -> None:
    """And what is logged if it says no."""
    asked: list[Any] = []

    class Authorization:
        is_on = True

        def check(self, context: object, operation: object, kind: ResourceType, name: str) -> None:
            asked.append((kind, name))
            raise Refused(E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

        def check_cluster(self, context: object, operation: object) -> None:
            raise Refused(E.CLUSTER_AUTHORIZATION_FAILED)

        def allows_on_cluster(self, context: object, operation: object, **more: bool) -> bool:
            asked.append(more)
            return False

        async def denied_in_turns(
            self, context: object, operation: Operation, names: Any, **more: bool
        ) -> tuple[str, ...]:
            asked.append((operation, list(names), more))
            return ()

    async with with_producer() as broker:
        stub: Any = Authorization()
        services = replace(broker.node.services, authorization=stub)
        request, _ = broker.node.request(wire.TxnOffsetCommitRequest(), 3)
        for handler, message in (
            (txn_offset_commit, wire.TxnOffsetCommitRequest(transactional_id="t", group_id="g")),
            (add_offsets_to_txn, wire.AddOffsetsToTxnRequest(transactional_id="t", group_id="g")),
        ):
            with pytest.raises(Refused):
                handler.handle(request, message, services)  # type: ignore[arg-type]
        assert asked == [(ResourceType.TRANSACTIONAL_ID, "t")] * 2
        asked.clear()
        with pytest.raises(Refused):
            write_txn_markers.handle(request, wire.WriteTxnMarkersRequest(), services)
        assert asked == [{"log_denied": False}]
        asked.clear()
        await create_topics._denied(["a", "__cluster_metadata"], request.context, services)
        assert asked == [
            {"log_denied": False}, (Operation.CREATE, ["a"], {}),
            (Operation.DESCRIBE_CONFIGS, ["a"], {"log_denied": False}),
        ]  # fmt: skip
