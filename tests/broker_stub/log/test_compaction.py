"""What a compaction keeps of each batch, decision by decision (rules B6.22, B6.23)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kce.broker_stub.log.compaction import NO_OFFSET, Compaction, KeyOffsets, Transactions
from kce.broker_stub.log.indexes import AbortedTransaction
from kce.broker_stub.log.producer_state import ProducedBatch, ProducerState
from kce.wire.record import (
    NO_TIMESTAMP,
    Codec,
    ControlRecordType,
    EndTransactionMarker,
    Record,
    RecordBatch,
    TimestampType,
)
from tests.broker_stub.log.support import NOW_MS

RETENTION_MS = 1000


def data(*pairs: tuple[bytes | None, bytes | None], first: int = 0, producer_id: int = -1, **more: Any) -> RecordBatch:
    """Each record is one ms later than the one before it."""
    records = (
        Record(offset=first + i, timestamp=NOW_MS - 500 + i, key=key, value=value)
        for i, (key, value) in enumerate(pairs)
    )
    return RecordBatch.of(*records, producer_id=producer_id, is_transactional=producer_id >= 0, **more)


def end(at: int, producer_id: int = 5, *, committed: bool = False, epoch: int = 0) -> RecordBatch:
    marker = EndTransactionMarker(committed=committed, coordinator_epoch=0).to_record(offset=at, timestamp=NOW_MS - 500)
    return RecordBatch.of(marker, producer_id=producer_id, producer_epoch=epoch, is_transactional=True, is_control=True)


def aborted(first: int, last: int, producer_id: int = 5) -> AbortedTransaction:
    return AbortedTransaction(producer_id, first, last, last + 1)


# the keys that are read


def test_the_last_offset_of_each_key_is_known() -> None:
    keys = KeyOffsets(3)
    assert (len(keys), keys.latest, keys.get(b"a")) == (0, NO_OFFSET, NO_OFFSET)
    assert keys.add(data((b"a", b""), (None, b""), (b"b", b""), first=4), 5, counts=True)
    assert (len(keys), keys.latest, keys.get(b"a"), keys.get(b"b")) == (1, 6, NO_OFFSET, 6)
    assert keys.add(data((b"a", b""), (b"b", b""), first=7), 7, counts=True)
    assert (len(keys), keys.latest, keys.get(b"a"), keys.get(b"b")) == (2, 8, 7, 8)
    assert keys.add(data((b"a", b""), first=9), 5, counts=False)
    assert (keys.latest, keys.get(b"a")) == (9, 7)
    assert keys.add(data((b"c", b""), first=3), 5, counts=True)  # before all that is dirty
    assert (len(keys), keys.latest, keys.get(b"c")) == (2, 9, NO_OFFSET)


def test_there_is_room_for_so_many_keys() -> None:
    keys = KeyOffsets(2)
    assert keys.add(data((b"a", b""), (b"b", b"")), 0, counts=True)
    assert not keys.add(data((b"c", b""), first=2), 0, counts=True)
    assert (len(keys), keys.latest) == (2, 1)


# transactions


def test_data_of_an_aborted_transaction_goes_and_its_marker_stays() -> None:
    found = Transactions()
    first, second = aborted(2, 4), aborted(6, 8)
    found.expect([second, first])
    assert not found.is_discarded(data((b"k", b""), first=1, producer_id=5))  # ends before it begins
    assert found.is_discarded(data((b"k", b""), first=2, producer_id=5))
    assert not found.is_discarded(data((b"k", b""), first=3, producer_id=6))
    assert not found.is_discarded(data((b"k", b""), first=3))
    assert not found.is_discarded(end(4))
    assert found.take_kept() == [first]
    assert found.take_kept() == []
    assert not found.is_discarded(data((b"k", b""), first=5, producer_id=5))
    assert found.is_discarded(end(8))  # without data
    assert found.is_discarded(end(9))  # without a transaction
    assert found.take_kept() == []


def test_a_producer_has_one_aborted_transaction_at_a_time() -> None:
    found = Transactions()
    found.expect([aborted(0, 3), aborted(2, 9)])
    assert found.is_discarded(data((b"k", b""), first=0, producer_id=5))
    assert found.is_discarded(data((b"k", b""), first=2, producer_id=5))
    assert not found.is_discarded(end(3))
    assert found.take_kept() == [aborted(0, 3)]


def test_a_commit_without_data_goes() -> None:
    found = Transactions()
    assert found.is_discarded(end(0, committed=True))
    assert not found.is_discarded(data((b"k", b""), first=1, producer_id=5))
    assert not found.is_discarded(end(2, committed=True))
    assert found.is_discarded(end(3, committed=True))
    assert found.is_discarded(replace(end(4), records=()))


def test_other_control_records_stay() -> None:
    key = (0).to_bytes(2) + int(ControlRecordType.LEADER_CHANGE).to_bytes(2)
    assert not Transactions().is_discarded(RecordBatch.of(Record(offset=0, key=key, value=b""), is_control=True))


# batches


def compaction(
    *read: RecordBatch, producers: dict[int, ProducerState] | None = None, end_offset: int = 100, now_ms: int = NOW_MS
) -> Compaction:
    keys = KeyOffsets(100)
    for batch in read:
        assert keys.add(batch, 0, counts=True)
    return Compaction(keys, Transactions(), producers or {}, now_ms, RETENTION_MS, end_offset)


LATER = data((b"a", b"2"), (b"z", b"2"), first=10)


@pytest.mark.parametrize("timestamp_type", TimestampType)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_what_is_superseded_goes(timestamp_type: TimestampType, codec: Codec) -> None:
    one = data((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"z", b"1"), timestamp_type=timestamp_type, codec=codec)
    kept = compaction(one, LATER).filtered(one)
    is_appended = timestamp_type is TimestampType.LOG_APPEND_TIME
    assert kept == replace(
        one, records=one.records[1:3], base_timestamp=NOW_MS - 499,
        max_timestamp=NOW_MS - 497 if is_appended else NOW_MS - 498,
    )  # fmt: skip


def test_what_was_not_read_stays() -> None:
    later = data((b"a", b"3"), (None, b"4"), first=11)
    run = compaction(data((b"a", b"2"), first=10))
    assert run.filtered(later) is later
    at_the_end = data((b"a", b"1"), (None, b"x"), first=9)
    assert run.filtered(at_the_end) is None
    run.keys.latest = 9
    kept = run.filtered(at_the_end)
    assert kept is not None
    assert [record.offset for record in kept.records] == [10]


def test_a_tombstone_gets_a_horizon_and_goes_after_it() -> None:
    one = data((b"b", None), (b"c", b"1"))
    first = compaction(one).filtered(one)
    assert first == replace(one, base_timestamp=NOW_MS + RETENTION_MS, has_delete_horizon=True)
    assert compaction(one, now_ms=NOW_MS + RETENTION_MS - 1).filtered(first) is first
    last = compaction(one, now_ms=NOW_MS + RETENTION_MS).filtered(first)
    assert last == replace(first, records=one.records[1:], max_timestamp=NOW_MS - 499)


def test_a_tombstone_in_a_batch_that_loses_others_keeps_its_horizon() -> None:
    one = replace(data((b"a", b"1"), (b"b", None)), base_timestamp=NOW_MS + 7, has_delete_horizon=True)
    kept = compaction(one, LATER).filtered(one)
    assert kept == replace(one, records=one.records[1:])


def test_the_marker_of_an_aborted_transaction_gets_a_horizon_and_goes_after_it() -> None:
    marker = end(8)
    run = compaction()
    first = run.filtered(marker)
    assert first == replace(marker, base_timestamp=NOW_MS + RETENTION_MS, has_delete_horizon=True)
    assert compaction(now_ms=NOW_MS + RETENTION_MS - 1).filtered(first) is first
    assert compaction(now_ms=NOW_MS + RETENTION_MS).filtered(first) is None


def test_data_of_an_aborted_transaction_goes_at_once() -> None:
    one = data((b"b", b"1"), first=2, producer_id=5)
    run = compaction(one)
    run.transactions.expect([aborted(2, 3)])
    assert run.filtered(one) is None
    marker = end(3)
    assert run.filtered(marker) is marker
    assert run.transactions.take_kept() == [aborted(2, 3)]


EMPTIED = {"records": (), "codec": Codec.NONE, "base_timestamp": NO_TIMESTAMP, "has_delete_horizon": False}


@pytest.mark.parametrize(
    ("producers", "end_offset", "stays"),
    [
        ({}, 2, True),
        ({}, 1, False),
        ({}, 3, False),
        ({5: ProducerState(0, batches=(ProducedBatch(0, 1, 1, NOW_MS),))}, 100, True),
        ({5: ProducerState(0, batches=(ProducedBatch(2, 3, 1, NOW_MS),))}, 100, False),
        ({5: ProducerState(0, batches=(ProducedBatch(0, 1, 1, NOW_MS), ProducedBatch(2, 3, 1, NOW_MS)))}, 100, False),
        ({5: ProducerState(0)}, 100, False),  # it is no marker
        ({6: ProducerState(0, batches=(ProducedBatch(0, 1, 1, NOW_MS),))}, 100, False),
    ],
)
def test_a_batch_that_is_needed_stays_without_records(
    producers: dict[int, ProducerState], end_offset: int, stays: bool
) -> None:
    one = data((b"a", b"1"), (b"z", b"1"), producer_id=5, codec=Codec.GZIP)
    kept = compaction(one, LATER, producers=producers, end_offset=end_offset).filtered(one)
    assert kept == (replace(one, **EMPTIED) if stays else None)
    if kept is not None:
        assert compaction(LATER, producers=producers, end_offset=end_offset).filtered(kept) is kept


@pytest.mark.parametrize(("epoch", "stays"), [(3, True), (4, False)])
def test_the_marker_of_a_producers_epoch_stays_without_records(epoch: int, stays: bool) -> None:
    marker = replace(end(8, epoch=3), base_timestamp=NOW_MS, has_delete_horizon=True)
    kept = compaction(producers={5: ProducerState(epoch)}).filtered(marker)
    assert kept == (replace(marker, **EMPTIED) if stays else None)


@pytest.mark.parametrize("timestamp_type", TimestampType)
@pytest.mark.parametrize("magic", [0, 1])
def test_what_is_superseded_goes_from_old_batches(magic: int, timestamp_type: TimestampType) -> None:
    kind = timestamp_type if magic else TimestampType.CREATE_TIME
    records = tuple(
        Record(offset=i, timestamp=NOW_MS if magic else NO_TIMESTAMP, key=key, value=value)
        for i, (key, value) in enumerate(((b"a", b"1"), (b"b", b"1"), (None, b"1"), (b"c", None), (b"d", None)))
    )
    one = RecordBatch.of(*records, magic=magic, codec=Codec.GZIP, timestamp_type=kind)
    run = compaction(one, data((b"a", b"2"), (b"d", b"2"), first=10))
    run = replace(run, old_delete_horizon_ms=70)
    for modified_ms, left in ((70, (1,)), (71, (1, 3))):
        assert run.filtered_old(one, modified_ms) == RecordBatch.of(
            *(records[i] for i in left), magic=magic, codec=Codec.GZIP, timestamp_type=kind
        )
    assert run.filtered_old(RecordBatch.of(records[0], magic=magic), 71) is None
    assert run.filtered_old(kept := RecordBatch.of(records[1], magic=magic), 0) is kept
    later = RecordBatch.of(replace(records[2], offset=12), magic=magic)
    assert run.filtered_old(later, 0) is later
