"""TransactionMetadataTest and TransactionLogTest of Kafka (docs/transaction-semantics.md, 16a: TMT, TLT).

Covers: broker_stub/transactions/metadata.py, broker_stub/transactions/records.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kce.broker_stub.errors import Refused
from kce.broker_stub.transactions.metadata import (
    NONE,
    IllegalTransition,
    TransactionMetadata,
    TransactionState,
    Values,
    is_exhausted,
)
from kce.broker_stub.transactions.records import read_key, read_value, write_key, write_value
from kce.wire import ErrorCode
from kce.wire.errors import EncodeError
from kce.wire.record import Record, RecordBatch
from kce.wire.records import read_records, write_records
from kce.wire.vocabulary import TopicPartition

case = pytest.mark.kafka
S = TransactionState
PID, NOW_MS, TIMEOUT_MS = 23423, 1_700_000_000_000, 30_000
LAST = 2**15 - 1


def metadata(state: TransactionState = S.EMPTY, epoch: int = 1, **more: Any) -> TransactionMetadata:
    values = Values(
        producer_id=PID, producer_epoch=epoch, timeout_ms=TIMEOUT_MS, last_update_ms=NOW_MS, state=state
    )  # fmt: skip
    return TransactionMetadata("txnlId", values._replace(**more))


def no_ids() -> Iterator[int]:
    raise AssertionError("no new producer id is needed")
    yield


def bump(m: TransactionMetadata, epoch: int | None = None, now_ms: int = NOW_MS) -> None:
    expected = None if epoch is None else (PID, epoch)
    m.complete(m.prepare_init(TIMEOUT_MS, expected, no_ids(), now_ms))


def producer(m: TransactionMetadata) -> tuple[int, int, int]:
    """Id, epoch, last epoch."""
    return m.values.producer_id, m.values.producer_epoch, m.values.last_producer_epoch


@pytest.mark.parametrize(
    ("epoch", "last", "given", "after"),
    [
        pytest.param(NONE, NONE, None, (PID, 0, NONE), marks=case("TMT-1")),
        pytest.param(735, NONE, None, (PID, 736, NONE), marks=case("TMT-2")),
        pytest.param(NONE, NONE, 735, (PID, 0, NONE), marks=case("TMT-17")),
        pytest.param(735, NONE, 735, (PID, 736, 735), marks=case("TMT-18")),
        pytest.param(735, 734, 734, (PID, 735, 734), marks=case("TMT-19")),
    ],
)
def test_the_next_epoch(epoch: int, last: int, given: int | None, after: tuple[int, int, int]) -> None:
    """Rules T4.5, T4.6."""
    m = metadata(epoch=epoch, last_producer_epoch=last)
    bump(m, given)
    assert producer(m) == after


@case("TMT-3")
def test_no_epoch_after_the_last() -> None:  # rules T4.13, T4.15
    m = metadata(epoch=LAST - 1)
    assert is_exhausted(m.values.producer_epoch)
    with pytest.raises(IllegalTransition):
        m._next_epoch(None)
    with pytest.raises(IllegalTransition):
        m.prepare_init(TIMEOUT_MS, (PID, LAST - 2), no_ids(), NOW_MS)


@case("TMT-20")
def test_a_fenced_epoch() -> None:  # rule T4.6
    m = metadata(epoch=735, last_producer_epoch=734, last_producer_id=PID)
    with pytest.raises(Refused) as refused:
        bump(m, 733)
    assert refused.value.code is ErrorCode.PRODUCER_FENCED


@case("TMT-4")
def test_time_goes_back_when_the_epoch_grows() -> None:  # rules T2.7, T2.9
    m = metadata(epoch=1, start_ms=1)
    bump(m, 1, NOW_MS - 1)
    assert producer(m) == (PID, 2, 1)
    assert (m.values.start_ms, m.values.last_update_ms) == (1, NOW_MS - 1)


@case("TMT-5")
@case("TMT-13")
def test_time_goes_back_when_the_producer_id_rotates() -> None:  # rules T4.13, T2.9
    m = metadata(epoch=LAST - 1, start_ms=1)
    m.complete(m.prepare_init(TIMEOUT_MS, (PID, LAST - 1), iter([PID + 1]), NOW_MS - 1))
    assert producer(m) == (PID + 1, 0, LAST - 1)
    assert m.values.last_producer_id == PID
    assert (m.values.start_ms, m.values.last_update_ms) == (1, NOW_MS - 1)


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(S.ONGOING, marks=case("TMT-14")),
        pytest.param(S.PREPARE_ABORT, marks=case("TMT-15")),
        pytest.param(S.PREPARE_COMMIT, marks=case("TMT-16")),
    ],
)
def test_no_rotation_within_a_transaction(state: TransactionState) -> None:  # rule T2.3
    m = metadata(state, LAST - 1, last_producer_id=PID)
    with pytest.raises(IllegalTransition):
        m._to(S.EMPTY, producer_id=9893, producer_epoch=0, last_producer_epoch=NONE)


@case("TMT-6")
def test_time_goes_back_when_partitions_are_added() -> None:  # rules T2.9, T2.10
    m = metadata(start_ms=NOW_MS)
    first, second = TopicPartition("topic1", 0), TopicPartition("topic2", 0)
    for added, expected, at in ((first, {first}, NOW_MS - 1), (second, {first, second}, NOW_MS - 2)):
        m.complete(m.prepare_add(frozenset({added}), at))
        assert m.values.partitions == expected
        assert producer(m) == (PID, 1, NONE)
        assert (m.values.start_ms, m.values.last_update_ms) == (NOW_MS - 1, at)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(S.ONGOING, S.PREPARE_COMMIT, marks=case("TMT-7")),
        pytest.param(S.ONGOING, S.PREPARE_ABORT, marks=case("TMT-8")),
        pytest.param(S.PREPARE_COMMIT, S.COMPLETE_COMMIT, marks=case("TMT-9")),
        pytest.param(S.PREPARE_ABORT, S.COMPLETE_ABORT, marks=case("TMT-10")),
    ],
)
def test_time_goes_back_when_a_transaction_ends(before: TransactionState, after: TransactionState) -> None:
    """Rules T2.7, T2.9."""
    m = metadata(before, start_ms=1)
    if before is S.ONGOING:
        m.complete(m.prepare_end(commit=after is S.PREPARE_COMMIT, now_ms=NOW_MS - 1))
    else:
        m.complete(m.prepare_complete(NOW_MS - 1))
    assert m.values.state is after
    assert producer(m) == (PID, 1, NONE)
    assert (m.values.start_ms, m.values.last_update_ms) == (1, NOW_MS - 1)


@case("TMT-11")
def test_a_fence_has_the_last_epoch() -> None:  # rule T4.14
    m = metadata(S.ONGOING, LAST - 1)
    assert is_exhausted(m.values.producer_epoch)
    fence = m.prepare_fence()
    assert (fence.producer_epoch, fence.last_producer_epoch) == (LAST, NONE)
    assert m.pending is S.PREPARE_EPOCH_FENCE
    m.pending = None
    aborted = m.prepare_end(commit=False, now_ms=NOW_MS)
    m.complete(aborted)
    assert aborted.producer_id == PID


@case("TMT-12")
def test_no_fence_beyond_it() -> None:  # rule T4.14
    m = metadata(S.ONGOING, LAST)
    assert is_exhausted(m.values.producer_epoch)
    with pytest.raises(IllegalTransition):
        m.prepare_fence()


@case("TMT-21")
@case("TMT-22")
def test_ids_and_names_of_states() -> None:  # rule T2.1
    """Java's client knows these names; Dead it does not."""
    assert {state.label for state in S} == {
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence",
        "Dead",
    }  # fmt: skip
    assert sorted(state.id for state in S) == list(range(8))
    for state in S:
        assert S((state.id, state.label)) is state


# TransactionLogTest

PARTITIONS = frozenset(
    TopicPartition(t, n) for t, n in [("topic1", 0), ("topic1", 1), *(("topic2", i) for i in range(3))]
)


def written(**more: Any) -> Values:
    return Values(producer_id=PID, producer_epoch=0, timeout_ms=1000, last_update_ms=0)._replace(**more)


@case("TLT-1")
def test_an_empty_transaction_has_no_partitions() -> None:  # rule T9.3
    with pytest.raises(EncodeError):
        write_value(written(partitions=PARTITIONS))


@case("TLT-2")
def test_records_of_six_states() -> None:  # rules T9.1, T9.2
    states = [S.EMPTY, S.ONGOING, S.PREPARE_COMMIT, S.COMPLETE_COMMIT, S.PREPARE_ABORT, S.COMPLETE_ABORT]
    names = ["zero", "one", "two", "three", "four", "five"]
    expected = {
        name: written(producer_id=i, state=state, partitions=frozenset() if state is S.EMPTY else PARTITIONS)
        for i, (name, state) in enumerate(zip(names, states, strict=True))
    }
    records = [
        Record(offset=i, key=write_key(name), value=write_value(values))
        for i, (name, values) in enumerate(expected.items())
    ]
    (batch,) = read_records(write_records(RecordBatch.of(*records))).batches
    assert {read_key(r.key or b""): read_value(r.value or b"") for r in batch.records} == expected


@case("TLT-5")
def test_the_version_that_is_written() -> None:  # rule T9.3
    value = write_value(written(state=S.COMPLETE_COMMIT, last_update_ms=500, start_ms=500))
    assert value[:2] == b"\0\0"


@pytest.mark.parametrize(
    "tagged",
    [pytest.param(False, marks=case("TLT-7")), pytest.param(True, marks=case("TLT-8"))],
)
def test_the_flexible_version_is_read(tagged: bool) -> None:  # rules T9.2, T9.3
    """Tagged fields 0 and 1, a string and an int32, in the value and in a topic."""
    tags = bytes.fromhex("02 00 05 0003 666F6F 01 04 00000FA0") if tagged else b"\0"
    value = bytes.fromhex("0001 00000000000003E8 0064 000003E8 04 02 06 746F706963 02 00000001") + tags
    value += bytes.fromhex("00000000000007D0 0000000000000BB8") + tags
    assert read_value(value) == Values(
        producer_id=1000, producer_epoch=100, timeout_ms=1000, state=S.COMPLETE_COMMIT,
        partitions=frozenset({TopicPartition("topic", 1)}), last_update_ms=2000, start_ms=3000,
    )  # fmt: skip


@case("TLT-9")
def test_a_key_of_an_unknown_version() -> None:  # rule T9.1
    assert read_key(bytes.fromhex("7FFF 0000")) is None
