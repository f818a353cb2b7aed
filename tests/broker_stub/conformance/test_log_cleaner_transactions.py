"""LogCleanerTest and LogCleanerManagerTest of Kafka: transactions (docs/transaction-semantics.md, 16e: TLC).

Covers: broker_stub/log/compaction.py.
"""

from __future__ import annotations

from typing import Final

import pytest
import trio

from kce.broker_stub.log import Origin
from kce.broker_stub.log.cleaner import Cleanable, Cleaner, cleanable
from kce.broker_stub.log.indexes import AbortedTransaction
from kce.wire import ControlRecordType, Record, RecordBatch
from kce.wire.records import read_records, write_records
from tests.broker_stub.log.support import NOW_MS, PARTITION, Context, a_log, batch, everything, marker

case = pytest.mark.kafka
COMMIT, ABORT = True, False
#: delete.retention.ms
RETENTION_MS: Final = 86_400_000
END_OF_TIME: Final = 2**63 - 1
LATE: Final = END_OF_TIME - RETENTION_MS - 1
#: of log.cleaner.dedupe.buffer.size: the bytes of one key; a tenth of them stays free
KEY_BYTES: Final = 24


class Compacted:
    """A compacted log, and the producers that write to it."""

    def __init__(self, keys: int = 10_000, **settings: object) -> None:
        self.context = Context()
        self.log = a_log(self.context, **{"cleanup_policy": "compact", "segment_bytes": 1024, **settings})
        self.now_ms = NOW_MS
        self.cleaner = Cleaner({PARTITION: self.log}, lambda: self.now_ms, -(-keys * 10 // 9) * KEY_BYTES)
        self.dirty = 0
        self._sequences: dict[int, int] = {}

    def append(self, producer: int, *keys: int, origin: Origin = Origin.CLIENT, leader_epoch: int = 0) -> None:
        """A batch of its transaction, a record a key."""
        sequence = self._sequences.get(producer, 0)
        texts = [b"%d" % key for key in keys]
        made = (Record(offset=i, timestamp=NOW_MS, key=text, value=text) for i, text in enumerate(texts))
        one = RecordBatch.of(
            *made, producer_id=producer, producer_epoch=0, base_sequence=sequence, is_transactional=True
        )
        self._sequences[producer] = sequence + len(keys)
        self.log.append_as_leader(write_records(one), leader_epoch, origin=origin)

    def forget_sequence(self, producer: int) -> None:
        self._sequences.pop(producer)

    def end(self, producer: int, committed: bool, leader_epoch: int = 0) -> None:
        records = marker(producer, committed=committed)
        self.log.append_as_leader(records, leader_epoch, origin=Origin.COORDINATOR)

    def put(self, key: int, value: int) -> None:
        self.log.append_as_leader(batch(b"%d" % value, key=b"%d" % key), 0)

    def clean(self, now_ms: int = NOW_MS, first_dirty: int | None = None) -> None:
        """A pass over all but the active segment, however much of it is dirty; ``dirty`` moves."""
        self.now_ms = now_ms
        start = self.dirty if first_dirty is None else first_dirty
        one = Cleanable(self.log, start, self.log.segments.active.base_offset, 0, 1, is_due=False)
        trio.run(self.cleaner._clean, one)
        self.dirty = self.cleaner.ends[PARTITION]

    def clean_twice(self, now_ms: int, first_dirty: int | None = None) -> None:
        """The second time after the retention of what the first has marked."""
        start = self.dirty if first_dirty is None else first_dirty
        self.clean(now_ms, start)
        self.clean(now_ms + RETENTION_MS + 1, start)

    def batches(self) -> tuple[RecordBatch, ...]:
        found = b""
        for segment in self.log.segments:
            for place in segment.scan(0):
                found += bytes(segment.read(place.position, place.header.size))
        return read_records(found).batches

    def bases(self) -> list[int]:
        return [one.base_offset for one in self.batches()]

    def last_offsets(self) -> list[int]:
        return [one.last_offset for one in self.batches()]

    def offsets(self) -> list[int]:
        """Of records with key and value."""
        return [r.offset for one in self.batches() for r in one.records if r.key is not None and r.value is not None]

    def keys(self) -> list[int]:
        return [int(r.key or b"") for one in self.batches() if not one.is_control for r in one.records]

    def last_sequences(self) -> dict[int, int]:
        data = [one for one in self.batches() if not one.is_control and one.producer_id >= 0]
        return {one.producer_id: one.base_sequence + one.last_offset - one.base_offset for one in data}

    def aborted(self, end: int = 100) -> list[AbortedTransaction]:
        return list(self.log.segments.aborted(0, end))

    def all_complete(self) -> bool:
        return all(state.transaction is None for state in self.log.known_producers().values())


@case("TLC-1")
def test_passes_that_end_inside_a_segment() -> None:  # rules T12.16, T12.17
    one = Compacted(keys=3, delete_retention_ms=50_000)
    one.append(1, 1, 2)
    one.append(2, 2, 3)
    one.append(1, 3, 4)
    one.end(1, COMMIT)
    one.end(2, COMMIT)
    one.append(1, 2, 3)
    one.end(1, ABORT)
    one.append(2, 4, 5)
    one.append(1, 5, 6)
    one.end(1, COMMIT)
    one.end(2, ABORT)
    one.append(2, 6, 7)
    one.end(2, COMMIT)
    one.log.roll()
    assert one.log.log_end_offset == 20
    expected = [AbortedTransaction(1, 8, 10, 11), AbortedTransaction(2, 11, 16, 17)]
    assert one.all_complete()
    assert one.aborted() == expected

    one.clean()
    assert one.dirty == 4
    assert one.bases() == [0, 2, 4, 6, 7, 10, 13, 15, 16, 17, 19]
    assert one.offsets() == [0, 2, 3, 4, 5, 6, 7, 10, 13, 14, 15, 16, 17, 18, 19]
    assert one.all_complete()
    assert one.aborted() == expected

    one.clean()
    assert one.dirty == 14
    assert one.bases() == [0, 2, 4, 6, 7, 10, 13, 15, 16, 17, 19]
    assert one.offsets() == [0, 2, 4, 5, 6, 7, 10, 13, 14, 15, 16, 17, 18, 19]
    assert one.all_complete()
    assert one.aborted() == []

    one.clean(NOW_MS + 50_000)
    assert one.dirty == 20
    assert one.bases() == [0, 2, 4, 6, 7, 13, 15, 17, 19]
    assert one.offsets() == [0, 2, 4, 5, 6, 7, 13, 15, 17, 18, 19]
    assert one.all_complete()
    assert one.aborted() == []


@case("TLC-2")
def test_aborted_values_supersede_nothing() -> None:  # rule T12.16
    one = Compacted(segment_bytes=2048)
    one.append(1, 1, 2)
    one.append(2, 2, 3)
    one.append(1, 3, 4)
    one.end(1, ABORT)
    one.end(2, COMMIT)
    one.append(1, 2)
    one.end(1, COMMIT)
    before = one.aborted(one.log.log_end_offset)
    assert before
    one.log.roll()
    one.clean()
    assert one.keys() == [3, 2]
    assert one.offsets() == [3, 6, 7, 8, 9]
    assert one.aborted(one.log.log_end_offset) == before


@case("TLC-3")
def test_transactions_in_several_segments() -> None:  # rule T12.16
    one = Compacted()
    one.append(1, 1, 2)
    one.append(3, 2, 3)
    one.append(2, 3, 4)
    one.log.roll()
    one.append(2, 5, 6)
    one.append(3, 6, 7)
    one.append(1, 7, 8)
    one.end(2, ABORT)
    one.append(3, 8, 9)
    one.end(3, COMMIT)
    one.append(1, 9, 10)
    one.end(1, ABORT)
    one.clean()
    assert one.keys() == [2, 3, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10]
    one.log.roll()
    one.append(2, 11)
    one.append(1, 12)
    one.clean()
    assert one.keys() == [2, 3, 6, 7, 8, 9, 11, 12]


@case("TLC-4")
def test_a_commit_in_another_segment() -> None:  # rule T12.17
    one = Compacted(segment_bytes=128)
    one.append(1, 1)
    one.log.roll()
    one.end(1, COMMIT)
    one.log.roll()
    one.clean_twice(LATE)
    assert one.offsets() == one.last_offsets() == [0, 1]


@case("TLC-5")
def test_an_abort_in_another_segment() -> None:  # rules T12.17, T12.18
    one = Compacted(segment_bytes=128)
    one.append(1, 1)
    one.log.roll()
    one.end(1, ABORT)
    one.log.roll()
    for now_ms in (LATE, END_OF_TIME):
        one.clean(now_ms, 0)
        assert one.offsets() == [1]
        assert one.last_offsets() == [0, 1]


@case("TLC-6")
def test_a_commit_goes_after_its_data() -> None:  # rule T12.17
    one = Compacted(segment_bytes=256)
    one.append(1, 1)
    one.append(1, 2, 3)
    one.end(1, COMMIT)
    one.append(1, 2)
    one.end(1, COMMIT)
    one.log.roll()
    one.clean(LATE)
    assert one.keys() == [1, 3, 2]
    assert one.offsets() == [0, 2, 3, 4, 5]
    one.append(1, 1, 3)
    one.end(1, COMMIT)
    one.log.roll()
    for _ in range(2):  # the first has met its data, the second gives it the horizon
        one.clean(LATE)
        assert one.keys() == [2, 1, 3]
        assert one.offsets() == [3, 4, 5, 6, 7, 8]
    one.clean(END_OF_TIME)
    assert one.keys() == [2, 1, 3]
    assert one.offsets() == [4, 5, 6, 7, 8]


@case("TLC-7")
def test_segments_without_a_record_that_stays() -> None:  # rule T12.17
    one = Compacted(max_message_bytes=100, segment_bytes=1000)
    one.append(1, 1)
    one.end(1, ABORT)
    one.append(1, 2)
    one.append(1, 2)
    one.end(1, COMMIT)
    one.log.roll()
    one.clean(LATE, 0)
    assert one.keys() == [2]
    assert one.offsets() == [1, 3, 4]
    one.clean_twice(LATE, 0)
    assert one.keys() == [2]
    assert one.offsets() == [3, 4]


@case("TLC-8")
def test_an_abort_goes_after_its_data() -> None:  # rule T12.17
    one = Compacted(segment_bytes=256)
    one.append(1, 1)
    one.append(1, 2, 3)
    one.end(1, ABORT)
    one.append(1, 3)
    one.end(1, COMMIT)
    one.log.roll()
    one.clean(LATE)
    assert one.keys() == [3]
    assert one.offsets() == [3, 4, 5]
    one.clean_twice(LATE)
    assert one.keys() == [3]
    assert one.offsets() == [4, 5]


@case("TLC-9")
def test_an_empty_batch_keeps_its_commit() -> None:  # rules T12.17, T12.18
    one = Compacted(segment_bytes=256)
    one.append(1, 2, 3)
    one.log.roll()
    one.append(2, 2, 3)
    one.end(2, COMMIT)
    one.log.roll()
    one.put(2, 2)
    one.put(3, 3)
    one.end(1, COMMIT)
    one.log.roll()
    for _ in range(2):
        one.clean(LATE)
        assert one.keys() == [2, 3]
        assert one.offsets() == [4, 5, 6, 7]
        assert one.last_offsets() == [1, 3, 4, 5, 6, 7]
    one.append(2, 1)
    one.end(2, COMMIT)
    one.log.roll()
    one.clean(LATE)
    assert one.keys() == [2, 3, 1]
    assert one.offsets() == [4, 5, 6, 7, 8, 9]
    assert one.last_offsets() == [1, 4, 5, 6, 7, 8, 9]
    one.clean_twice(LATE)
    assert one.keys() == [2, 3, 1]
    assert one.offsets() == [5, 6, 7, 8, 9]
    assert one.last_offsets() == [1, 5, 6, 7, 8, 9]


@case("TLC-10")
def test_an_empty_batch_keeps_its_abort() -> None:  # rules T12.17, T12.18
    one = Compacted(segment_bytes=256)
    one.append(1, 2, 3)
    one.end(1, ABORT)
    one.log.roll()

    def state() -> tuple[list[tuple[int, int, int]], list[int], list[int], list[int]]:
        found = [(a.producer_id, a.first_offset, a.last_offset) for a in one.aborted()]
        return found, one.keys(), one.offsets(), one.last_offsets()

    indexed = [(1, 0, 2)]
    assert state()[0] == indexed
    one.clean(LATE)
    assert state() == (indexed, [], [2], [1, 2])
    one.clean_twice(LATE)
    assert state() == (indexed, [], [2], [1, 2])
    one.append(1, 1)
    one.log.roll()
    one.clean(LATE)
    assert state() == (indexed, [1], [2, 3], [2, 3])
    one.clean_twice(LATE)
    assert state() == ([], [1], [3], [3])


@case("TLC-11")
def test_an_empty_batch_goes_though_its_sequence_comes_again() -> None:  # rule T12.18
    """A group coordinator writes sequence 0 each time."""
    one = Compacted(segment_bytes=2048)
    for key in (1, 2):
        one.append(1, key, origin=Origin.REPLICATION)
        one.end(1, COMMIT)
        one.forget_sequence(1)
    one.put(1, 1)
    one.put(2, 1)
    one.log.roll()
    one.clean(LATE, 0)
    assert one.offsets() == [1, 3, 4, 5]
    assert one.last_offsets() == [1, 2, 3, 4, 5]
    one.clean_twice(LATE, 0)
    assert one.offsets() == [3, 4, 5]
    assert one.last_offsets() == [2, 3, 4, 5]


@case("TLC-12")
def test_the_last_sequence_stays_though_it_was_aborted() -> None:  # rule T12.18
    one = Compacted(keys=7)
    one.append(1, 1)
    one.append(1, 2, 3)
    one.end(1, ABORT)
    one.log.roll()
    one.clean(first_dirty=0)
    assert (one.last_offsets(), one.last_sequences(), one.keys(), one.offsets()) == ([2, 3], {1: 2}, [], [3])
    one.append(1, 1, 5)
    one.log.roll()
    one.clean(first_dirty=0)
    assert (one.last_offsets(), one.last_sequences()) == ([3, 5], {1: 4})
    assert (one.keys(), one.offsets()) == ([1, 5], [3, 4, 5])


@case("TLC-13")
def test_a_record_with_the_key_of_a_marker() -> None:  # rule T12.16
    one = Compacted(keys=7)
    one.append(1, 1, leader_epoch=5)
    one.end(1, COMMIT, leader_epoch=5)
    key = (0).to_bytes(2) + int(ControlRecordType.COMMIT).to_bytes(2)
    assert key == read_records(everything(one.log, 1)).batches[0].records[0].key
    one.log.append_as_leader(batch(b"foo", key=key, producer_id=2, is_transactional=True), 5)
    one.end(2, COMMIT, leader_epoch=5)
    one.log.roll()
    assert one.offsets() == [0, 1, 2, 3]
    one.clean(first_dirty=0)
    assert one.last_offsets() == one.offsets() == [0, 1, 2, 3]


@case("TLC-14")
def test_undecided_data_is_not_cleanable() -> None:  # rule T12.15
    lag_ms = 60 * 60 * 1000
    one = Compacted(min_compaction_lag_ms=lag_ms)
    log, context = one.log, one.context
    one.append(15, 1, 2)
    one.append(15, 3)
    log.roll()
    log.set_high_watermark(3)
    context.time_ms += lag_ms + 1

    def cleanable_range() -> tuple[int, int]:
        found = cleanable(log, 0, context.time_ms)
        return found.first_dirty, found.end

    assert cleanable_range() == (0, 0)
    abort = marker(15, committed=False, coordinator_epoch=15, timestamp=context.time_ms)
    log.append_as_leader(abort, 0, origin=Origin.COORDINATOR)
    log.roll()
    log.set_high_watermark(4)
    assert cleanable_range() == (0, 3)
    context.time_ms += lag_ms + 1
    assert cleanable_range() == (0, 4)
