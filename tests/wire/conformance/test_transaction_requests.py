"""TRX: requests and responses of transactions, and the record that ends one (section 16c of the transaction rules)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from kce import wire
from kce.wire import EndTransactionMarker, ErrorCode, Record, errors
from tests.wire.conformance.support import error_response, through_bytes

kafka = pytest.mark.kafka
ID, PID, EPOCH, THROTTLE_MS = "transaction1", 10, 1, 10
E = ErrorCode


def answered(message: wire.Message, version: int) -> Any:
    """The response as its receiver reads it."""
    frame = wire.encode_response(message, api_version=version, correlation_id=1)
    return wire.decode_response(frame, api_key=message.__api_key__, api_version=version)[1]


def topic(name: str, *partitions: int) -> wire.AddPartitionsToTxnTopic:
    return wire.AddPartitionsToTxnTopic(name=name, partitions=partitions)


TWO = (
    wire.AddPartitionsToTxnTransaction(
        transactional_id=ID, producer_id=PID, producer_epoch=EPOCH, verify_only=True, topics=(topic("topic", 0),)
    ),
    wire.AddPartitionsToTxnTransaction(
        transactional_id="transaction2", producer_id=PID + 1, producer_epoch=EPOCH + 1, verify_only=False,
        topics=(topic("topic", 1),),
    ),
)  # fmt: skip
OF_CLIENT = wire.AddPartitionsToTxnRequest(
    v3_and_below_transactional_id=ID, v3_and_below_producer_id=PID, v3_and_below_producer_epoch=EPOCH,
    v3_and_below_topics=(topic("topic", 0, 1),),
)  # fmt: skip


@kafka("TRX-1")
@pytest.mark.parametrize("version", range(6))
def test_add_partitions_to_txn(version: int) -> None:  # rules T14.3, T15.3
    given = OF_CLIENT if version < 4 else wire.AddPartitionsToTxnRequest(transactions=TWO)
    assert through_bytes(given, version) == given
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    answer = error_response(given, version, unknown)
    if version >= 4:
        assert answer.error_code == unknown
        assert wire.error_counts(answer) == {unknown: 1}
    else:
        assert wire.error_counts(answer) == {unknown: 2}
    throttled = answered(wire.AddPartitionsToTxnResponse(throttle_time_ms=THROTTLE_MS), version)
    assert throttled.throttle_time_ms == THROTTLE_MS


def results(name: str, *codes: tuple[str, int, E]) -> wire.AddPartitionsToTxnTopicResult:
    return wire.AddPartitionsToTxnTopicResult(
        name=name,
        results_by_partition=tuple(
            wire.AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)
            for of, number, code in codes
            if of == name
        ),
    )


def result(transactional_id: str, *codes: tuple[str, int, E]) -> wire.AddPartitionsToTxnResult:
    names = dict.fromkeys(name for name, _, _ in codes)
    return wire.AddPartitionsToTxnResult(
        transactional_id=transactional_id, topic_results=tuple(results(name, *codes) for name in names)
    )


def codes_of(found: Iterable[wire.AddPartitionsToTxnTopicResult]) -> dict[tuple[str, int], int]:
    return {(t.name, p.partition_index): p.partition_error_code for t in found for p in t.results_by_partition}


@kafka("TRX-2")
@kafka("TRX-5")
def test_batches_of_transactions() -> None:
    request = through_bytes(wire.AddPartitionsToTxnRequest(transactions=TWO), 5)
    assert {
        t.transactional_id: [(found.name, found.partitions) for found in t.topics] for t in request.transactions
    } == {ID: [("topic", (0,))], "transaction2": [("topic", (1,))]}
    given = {ID: ("topic", 0, E.UNKNOWN_TOPIC_OR_PARTITION), "transaction2": ("topic", 1, E.NOT_COORDINATOR)}
    answer = answered(
        wire.AddPartitionsToTxnResponse(
            results_by_transaction=tuple(result(name, code) for name, code in given.items())
        ),
        5,
    )
    assert {r.transactional_id: codes_of(r.topic_results) for r in answer.results_by_transaction} == {
        ID: {("topic", 0): E.UNKNOWN_TOPIC_OR_PARTITION}, "transaction2": {("topic", 1): E.NOT_COORDINATOR},
    }  # fmt: skip


@kafka("TRX-4")
@pytest.mark.parametrize("version", range(6))
def test_errors_of_partitions(version: int) -> None:
    one, two = ("topic1", 1, E.COORDINATOR_NOT_AVAILABLE), ("topic1", 2, E.NOT_COORDINATOR)
    if version < 4:
        given = wire.AddPartitionsToTxnResponse(
            throttle_time_ms=THROTTLE_MS, results_by_topic_v3_and_below=(results("topic1", one, two),)
        )
        counts = {one[2]: 1, two[2]: 1}
    else:
        other = ("topic2", 2, E.COORDINATOR_NOT_AVAILABLE)
        given = wire.AddPartitionsToTxnResponse(
            throttle_time_ms=THROTTLE_MS, results_by_transaction=(result("txn1", one, two), result("txn2", other))
        )
        counts = {E.NONE: 1, one[2]: 2, two[2]: 1}
    read = answered(given, version)
    assert read == given
    assert wire.error_counts(read) == counts
    assert read.throttle_time_ms == THROTTLE_MS


@kafka("TRX-6")
@kafka("TRX-7")
@pytest.mark.parametrize("version", range(5))
def test_end_txn(version: int) -> None:
    request = wire.EndTxnRequest(transactional_id="txn_id", producer_id=1, producer_epoch=0, committed=True)
    assert through_bytes(request, version) == request
    assert wire.error_counts(error_response(request, version, E.NOT_COORDINATOR)) == {E.NOT_COORDINATOR: 1}
    read = answered(wire.EndTxnResponse(error_code=E.NOT_COORDINATOR, throttle_time_ms=THROTTLE_MS), version)
    assert wire.error_counts(read) == {E.NOT_COORDINATOR: 1}
    assert read.throttle_time_ms == THROTTLE_MS


def offset_commit(version: int) -> wire.TxnOffsetCommitRequest:
    """Of two topics; with the member from version 3 on."""
    entry: Any = {"committed_offset": 100, "committed_metadata": "metadata"}
    if version >= 2:
        entry["committed_leader_epoch"] = 3
    member: Any = {} if version < 3 else {"member_id": "m", "generation_id": 5, "group_instance_id": "i"}
    return wire.TxnOffsetCommitRequest(
        transactional_id="t", group_id="g", producer_id=10, producer_epoch=1,
        topics=tuple(
            wire.TxnOffsetCommitRequestTopic(
                name=name, partitions=(wire.TxnOffsetCommitRequestPartition(partition_index=number, **entry),)
            )
            for name, number in (("topicOne", 1), ("topicTwo", 2))
        ),
        **member,
    )  # fmt: skip


def offset_codes(answer: wire.TxnOffsetCommitResponse) -> dict[tuple[str, int], int]:
    return {(t.name, p.partition_index): p.error_code for t in answer.topics for p in t.partitions}


@kafka("TRX-8")
@kafka("TRX-9")
@pytest.mark.parametrize("version", range(5))
def test_txn_offset_commit(version: int) -> None:
    request = offset_commit(version)
    assert through_bytes(request, version) == request
    for code in (E.NOT_COORDINATOR, E.UNKNOWN_MEMBER_ID):
        answer = error_response(request, version, code)
        assert offset_codes(answer) == {("topicOne", 1): code, ("topicTwo", 2): code}
        assert wire.error_counts(answer) == {code: 2}


@kafka("TRX-10")
@kafka("TRX-11")
@pytest.mark.parametrize("version", range(5))
def test_errors_of_offsets(version: int) -> None:
    codes = {("topicOne", 1): E.COORDINATOR_NOT_AVAILABLE, ("topicTwo", 2): E.NOT_COORDINATOR}
    given = wire.TxnOffsetCommitResponse(
        throttle_time_ms=THROTTLE_MS,
        topics=tuple(
            wire.TxnOffsetCommitResponseTopic(
                name=name,
                partitions=(wire.TxnOffsetCommitResponsePartition(partition_index=number, error_code=code),),
            )
            for (name, number), code in codes.items()
        ),
    )
    read = answered(given, version)
    assert offset_codes(read) == codes
    assert wire.error_counts(read) == dict.fromkeys(codes.values(), 1)
    assert read.throttle_time_ms == THROTTLE_MS


def marker_results(producer_id: int, name: str, number: int, code: E) -> wire.WritableTxnMarkerResult:
    entry = wire.WritableTxnMarkerPartitionResult(partition_index=number, error_code=code)
    return wire.WritableTxnMarkerResult(
        producer_id=producer_id, topics=(wire.WritableTxnMarkerTopicResult(name=name, partitions=(entry,)),)
    )


@kafka("TRX-12")
@kafka("TRX-13")
@pytest.mark.parametrize("version", range(2))
def test_write_txn_markers(version: int) -> None:  # rule T6.3
    marker = wire.WritableTxnMarker(
        producer_id=10, producer_epoch=2, transaction_result=True, coordinator_epoch=1,
        topics=(wire.WritableTxnMarkerTopic(name="topic", partition_indexes=(73,)),),
    )  # fmt: skip
    request = wire.WriteTxnMarkersRequest(markers=(marker,))
    assert through_bytes(request, version) == request
    answer = error_response(request, version, E.UNKNOWN_PRODUCER_ID)
    assert answer.markers == (marker_results(10, "topic", 73, E.UNKNOWN_PRODUCER_ID),)
    assert wire.error_counts(answer) == {E.UNKNOWN_PRODUCER_ID: 1}
    assert not hasattr(answer, "throttle_time_ms")


@kafka("TRX-14")
def test_errors_of_markers() -> None:
    given = wire.WriteTxnMarkersResponse(
        markers=(
            marker_results(1, "topic", 1, E.UNKNOWN_PRODUCER_ID),
            marker_results(2, "topic", 2, E.INVALID_PRODUCER_EPOCH),
        )
    )  # fmt: skip
    assert wire.error_counts(given) == {E.UNKNOWN_PRODUCER_ID: 1, E.INVALID_PRODUCER_EPOCH: 1}
    assert answered(given, 1) == given


# the record that ends a transaction (rule T12.1)


def control(kind: int, value: bytes) -> Record:
    return Record(offset=0, timestamp=0, key=bytes((0, 0)) + kind.to_bytes(2, "big"), value=value)


@kafka("TRX-15")
@kafka("TRX-16")
@kafka("TRX-17")
@kafka("TRX-18")
@pytest.mark.parametrize("record", [control(7, b"\0\0\0\0\0\1"), control(0, b"\xff\xff\0\0\0\1"), control(1, b"")])
def test_what_is_no_end(record: Record) -> None:
    """Of an unknown type, of a negative version, or too short. A marker of an unknown type cannot be made here."""
    with pytest.raises(errors.CorruptRecord):
        EndTransactionMarker.from_record(record)


@kafka("TRX-19")
@kafka("TRX-20")
def test_an_end() -> None:
    marker = EndTransactionMarker(committed=True, coordinator_epoch=79)
    assert EndTransactionMarker.from_record(marker.to_record(offset=0, timestamp=0)) == marker
    newer = control(1, bytes.fromhex("0005 0000004F 0000"))
    assert EndTransactionMarker.from_record(newer) == marker
