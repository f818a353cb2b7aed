"""One partition's log.

Covers: broker_stub/log/segments.py, broker_stub/log/segment.py, broker_stub/log/config.py, broker_stub/log/files.py,
broker_stub/log/appending.py.
"""

from __future__ import annotations

import struct
import uuid
from random import Random

import pytest

from kce.broker_stub.errors import (
    ApiException,
    InconsistentTopicId,
    KafkaStorageError,
    MessageTooLarge,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordListTooLarge,
)
from kce.broker_stub.log import Isolation, Origin
from kce.broker_stub.log.appending import UnexpectedOffset
from kce.broker_stub.log.log import UNKNOWN_OFFSET
from kce.broker_stub.log.lookup import EARLIEST, LATEST, offsets_before
from kce.broker_stub.log.segment import Segment
from kce.broker_stub.log.segments import FlushableLog, OffsetMetadata
from kce.harness.world.memory_disk import MemoryDisk
from kce.wire import Codec, ErrorCode
from kce.wire.batch_header import read_headers
from tests.broker_stub.log.support import (
    FOLDER,
    NOW_MS,
    Context,
    a_log,
    append,
    base_offsets,
    batch,
    config,
    everything,
    marker,
    produced,
    values,
)

kafka = pytest.mark.kafka
#: bytes of a batch of one record of one byte
ONE = len(batch(b"v"))


def test_what_is_appended_is_read() -> None:
    log = a_log()
    assert [append(log, b"a", b"b"), append(log, b"c", codec=Codec.ZSTD), append(log, b"d")] == [0, 2, 3]
    assert values(log) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    assert values(log, 1) == values(log)  # the batch with the offset is read as a whole
    assert values(log, 2) == [(2, b"c"), (3, b"d")]
    assert (log.log_end_offset, log.size) == (4, len(everything(log)))
    assert log.leader_epochs == ((0, 0),)


@kafka("ULT-53")
def test_should_apply_epoch_to_message_on_append_if_leader() -> None:
    log = a_log()
    for epoch in (0, 0, 3, 72):
        append(log, epoch=epoch)
    assert [header.partition_leader_epoch for _, header in read_headers(everything(log))] == [0, 0, 3, 72]
    assert log.leader_epochs == ((0, 0), (3, 2), (72, 3))
    assert log.end_offset_of(3) == (3, 3)


@kafka("ULT-54")
def test_follower_should_save_epoch_information_from_replicated_messages_to_the_epoch_cache() -> None:
    log = a_log()
    for offset in range(50):
        log.append_as_follower(batch(base_offset=offset, leader_epoch=42 if offset < 20 else 43))
    assert log.leader_epochs == ((42, 0), (43, 20))
    assert values(log) == [(i, b"v") for i in range(50)]


# offsets and reads


@kafka("ULT-18")
def test_append_and_read_with_sequential_offsets() -> None:
    log = a_log(segment_bytes=71 * 3)
    sent = [b"%d" % i for i in range(0, 100, 2)]
    for value in sent:
        append(log, value)
    assert len(log.segments) > 10
    for i, value in enumerate(sent):
        found = log.read(i, 1, Isolation.LOG_END, at_least_one=True)
        assert found.start.offset == i
        assert next(record for _, record in values(log, i)) == value
    assert log.read(len(sent), 100, Isolation.LOG_END).records == b""


@kafka("ULT-19")
def test_append_and_read_with_non_sequential_offsets() -> None:
    log = a_log(segment_bytes=72 * 3)
    offsets = [*range(50), *range(50, 200, 7)]
    for offset in offsets:
        log.append_as_follower(batch(b"%d" % offset, base_offset=offset, leader_epoch=0))
    for offset in range(50, 190):
        expected = next(known for known in offsets if known >= offset)
        (_, header), *_ = read_headers(log.read(offset, 1, Isolation.LOG_END, at_least_one=True).records)
        assert header.base_offset == expected


@kafka("ULT-20")
def test_read_at_log_gap() -> None:
    log = a_log(segment_bytes=300)
    while len(log.segments) == 1:
        append(log, b"42")
    gap = log.segments[0].next_offset() - 1
    log.segments[0].truncate_to(gap, now_ms=NOW_MS)
    found = log.read(gap, 200, Isolation.LOG_END).records
    assert next(read_headers(found))[1].base_offset == gap + 1


@kafka("ULT-21")
def test_read_with_min_message() -> None:
    log = a_log(segment_bytes=72)
    for i in (*range(50), *range(50, 200, 7)):
        log.append_as_follower(batch(b"%d" % (i % 10), base_offset=i, leader_epoch=0))
    for offset in range(50, 190):
        found = log.read(offset, 0, Isolation.LOG_END, at_least_one=True)
        assert len(found.records) == ONE
        assert not found.is_incomplete


@kafka("ULT-22")
def test_read_with_too_small_max_length() -> None:
    log = a_log()
    for _ in range(5):
        append(log)
    nothing = log.read(2, 0, Isolation.LOG_END)
    assert (nothing.records, nothing.is_incomplete) == (b"", True)
    some = log.read(2, 30, Isolation.LOG_END)
    assert (len(some.records), some.is_incomplete) == (30, True)
    assert not log.read(2, ONE, Isolation.LOG_END).is_incomplete


@kafka("ULT-23")
def test_read_out_of_range() -> None:
    log = a_log(log_start_offset=1024)
    append(log, b"42")
    log.set_high_watermark(1025)
    assert log.read(1025, 1000, Isolation.LOG_END).records == b""
    for offset in (1023, 1026):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 1000, Isolation.LOG_END)


@kafka("ULT-24")
def test_compressed_messages() -> None:
    log = a_log(segment_bytes=110)
    append(log, b"hello", b"there", codec=Codec.GZIP)
    append(log, b"alpha", b"beta", codec=Codec.GZIP)
    assert len(log.segments) == 2
    for offset in range(4):
        found = read_headers(log.read(offset, 4096, Isolation.LOG_END).records)
        assert next(found)[1].base_offset == offset - offset % 2


@pytest.mark.parametrize(
    ("isolation", "end"),
    [
        pytest.param(Isolation.LOG_END, 7, marks=kafka("ULT-4")),
        pytest.param(Isolation.HIGH_WATERMARK, 5, marks=kafka("ULT-5")),
        pytest.param(Isolation.COMMITTED, 3, marks=kafka("ULT-6")),
    ],
)
def test_a_reader_sees_up_to(isolation: Isolation, end: int) -> None:
    log = a_log()
    for _ in range(3):
        append(log)
    log.append_as_leader(produced(1, 0, transactional=True), 0)
    for _ in range(3):
        append(log)
    log.set_high_watermark(5)
    for offset in range(end):
        found = log.read(offset, 10_000, isolation, at_least_one=True)
        assert [header.base_offset for _, header in read_headers(found.records)] == list(range(offset, end))
    for offset in range(end, 8):
        found = log.read(offset, 10_000, isolation, at_least_one=True)
        assert (found.records, found.start.offset) == (b"", offset)
    assert log.located_end(isolation) == OffsetMetadata(end, 0, end * ONE)


@kafka("ULT-7")
def test_offset_snapshot() -> None:
    log = a_log()
    append(log, b"0")
    append(log, b"0")
    log.set_high_watermark(1)
    assert (log.log_start_offset, log.log_end_offset, log.last_stable_offset) == (0, 2, 1)
    assert log.end == OffsetMetadata(2, 0, 2 * ONE)
    assert log.located_high_watermark() == log.located_last_stable() == OffsetMetadata(1, 0, ONE)


def test_aborted_transactions_are_listed() -> None:
    """Rules B4.17, B3.65."""
    log = a_log(segment_bytes=400)
    log.append_as_leader(produced(1, 0, transactional=True), 0)
    log.append_as_leader(produced(2, 0, transactional=True), 0)
    append(log)
    log.append_as_leader(marker(1, committed=False), 0, origin=Origin.COORDINATOR)
    log.append_as_leader(marker(2, committed=True), 0, origin=Origin.COORDINATOR)
    assert log.last_stable_offset == 0
    log.set_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == 5
    (aborted,) = log.read(0, 10_000, Isolation.COMMITTED).aborted
    assert aborted == (1, 0, 3, 1)
    assert log.read(4, 10_000, Isolation.COMMITTED).aborted == ()
    assert log.read(0, 10_000, Isolation.HIGH_WATERMARK).aborted == ()


# high watermark


@kafka("ULT-1")
def test_high_watermark_metadata_updated_after_segment_roll() -> None:
    log = a_log()
    append(log)
    log.set_high_watermark(1)
    assert log.located_high_watermark() == OffsetMetadata(1, 0, ONE)
    log.roll()
    assert log.located_high_watermark() == OffsetMetadata(1, 1, 0)
    append(log)
    assert log.located_high_watermark() == OffsetMetadata(1, 1, 0)


@kafka("ULT-2")
def test_high_watermark_maintenance() -> None:
    log = a_log()
    assert log.high_watermark == 0
    append(log, b"0", b"1", b"2")
    assert log.high_watermark == 0
    assert log.maybe_increment_high_watermark(OffsetMetadata(1))
    assert log.high_watermark == 1
    assert not log.maybe_increment_high_watermark(OffsetMetadata(0))
    assert (log.set_high_watermark(4), log.high_watermark) == (3, 3)
    with pytest.raises(ValueError, match="beyond the end"):
        log.maybe_increment_high_watermark(OffsetMetadata(4))
    assert log.set_high_watermark(2) == 2
    append(log, b"3", b"4", b"5")
    log.increment_log_start_offset(2)
    assert log.set_high_watermark(0) == 2
    log.truncate_to(3)
    assert log.set_high_watermark(9) == 3
    log.truncate_fully(7)
    assert (log.high_watermark, log.log_start_offset, log.log_end_offset) == (7, 7, 7)


# rolling


@kafka("ULT-13")
def test_size_based_log_roll() -> None:
    log = a_log(segment_bytes=10 * (ONE - 1))
    for _ in range(11):
        append(log)
    assert base_offsets(log) == [0, 9]


@kafka("ULT-11")
def test_time_based_log_roll_during_append() -> None:
    context = Context()
    log = a_log(context, segment_ms=1000)
    context.time_ms += 2000
    append(log, timestamp=context.time_ms)
    assert base_offsets(log) == [0]  # the first batch is never rolled away from an empty segment
    append(log, timestamp=context.time_ms + 1000)
    assert base_offsets(log) == [0]
    append(log, timestamp=context.time_ms + 1001)
    assert base_offsets(log) == [0, 2]
    context.time_ms += 100_000
    append(log, timestamp=context.time_ms - 100_000)
    assert base_offsets(log) == [0, 2]  # the timestamps of records count, not the clock (rule B6.11)
    append(log, timestamp=-1)
    assert base_offsets(log) == [0, 2]
    log.roll()
    append(log, timestamp=-1)
    context.time_ms += 1001
    append(log, timestamp=-1)  # without timestamps, the clock counts
    assert base_offsets(log) == [0, 2, 5, 6]


@kafka("ULT-12")
def test_time_based_log_roll_jitter() -> None:
    log = a_log(segment_ms=10_000, segment_jitter_ms=5000)
    log.roll()
    jitter = log.segments.active.jitter_ms
    assert 0 < jitter < 5000
    append(log, timestamp=NOW_MS)
    append(log, timestamp=NOW_MS + 10_000 - jitter)
    assert len(log.segments) == 1
    append(log, timestamp=NOW_MS + 10_001 - jitter)
    assert len(log.segments) == 2


@kafka("ULT-14")
def test_log_rolls() -> None:
    """Up to the size, at the size, and when an index is full."""
    log = a_log(segment_bytes=4 * ONE)
    for _ in range(8):
        append(log)
    assert base_offsets(log) == [0, 4]
    log = a_log(index_interval_bytes=0, segment_index_bytes=48)
    for _ in range(9):
        append(log, timestamp=NOW_MS)
    assert base_offsets(log) == [0, 7]


@kafka("ULT-15")
def test_rolling_segment_that_already_exists() -> None:
    """An empty segment is replaced, and the log goes on."""
    log = a_log()
    log.roll()
    assert base_offsets(log) == [0]
    append(log)
    log.roll(1)
    log.roll(1)
    append(log, b"w")
    assert base_offsets(log) == [0, 1]
    assert values(log) == [(0, b"v"), (1, b"w")]


@kafka("ULT-16")
def test_append_with_no_timestamp() -> None:
    log = a_log()
    append(log, timestamp=-1)
    assert log.segments[0].max_timestamp.timestamp == -1
    assert log.segments[0].largest_timestamp_ms == NOW_MS


def test_an_offset_far_away_gets_a_segment_of_its_own() -> None:
    """31 bits relative to the base offset (rule B6.10)."""
    log = a_log()
    append(log)
    log.append_as_follower(batch(base_offset=2**31, leader_epoch=0))
    assert base_offsets(log) == [0, 2**31]
    assert [offset for offset, _ in values(log)] == [0, 2**31]


@kafka("ULT-41")
def test_take_snapshot_on_roll() -> None:
    log = a_log(segment_bytes=2 * ONE)
    for i in range(6):
        log.append_as_leader(produced(1, i), 0)
    assert base_offsets(log) == [0, 2, 4]
    assert log.producers.snapshots == (2, 4)
    assert log.recovery_point == 4


# appending as a follower


@kafka("ULT-25")
def test_non_sequential_append() -> None:
    log = a_log()
    append(log, b"0", b"1")
    log.append_as_follower(batch(b"2", base_offset=10, leader_epoch=0))
    log.append_as_follower(batch(b"3", base_offset=12, leader_epoch=0) + batch(b"4", base_offset=15, leader_epoch=0))
    assert [offset for offset, _ in values(log)] == [0, 1, 10, 12, 15]
    assert log.log_end_offset == 16


def test_a_follower_indexes_batches_as_their_leader_does() -> None:
    """One by one, though it appends them together (rule B6.4)."""
    leader, follower = (a_log(index_interval_bytes=1, segment_ms=60_000) for _ in range(2))
    for second in range(4):
        append(leader, timestamp=NOW_MS + 20_000 * second)
    follower.append_as_follower(everything(leader))
    indexes = [
        [log.segments[0].index.lookup(offset) for offset in range(4)] + [log.segments[0].time_index.last]
        for log in (leader, follower)
    ]
    assert indexes[0] == indexes[1]
    assert indexes[0][1].position == ONE
    for log in (leader, follower):
        append(log, timestamp=NOW_MS + 61_000)
    assert base_offsets(leader) == base_offsets(follower) == [0, 4]  # by the time of the first batch (rule B6.10)


@kafka("ULT-26")
def test_append_with_out_of_order_offsets_throws_exception() -> None:
    log = a_log()
    before = batch(base_offset=5, leader_epoch=0)
    for after in (5, 4, 0):
        with pytest.raises(ApiException, match=f"offset {after} follows 5") as refused:
            log.append_as_follower(before + batch(base_offset=after, leader_epoch=0))
        assert refused.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert log.log_end_offset == 0


@kafka("ULT-27")
def test_append_below_expected_offset_throws_exception() -> None:
    log = a_log()
    for _ in range(4):
        append(log)
    for offset in (0, 3):
        with pytest.raises(UnexpectedOffset) as refused:
            log.append_as_follower(batch(b"a", b"b", base_offset=offset, leader_epoch=0))
        assert (refused.value.first_offset, refused.value.last_offset) == (offset, offset + 1)


def test_batches_of_a_later_leader_are_left_out() -> None:  # rule B5.19
    """From the first of them on, whatever follows."""
    log = a_log()
    own, other = batch(b"a", leader_epoch=3), batch(b"b", base_offset=1, leader_epoch=4)
    more = batch(b"c", base_offset=2, leader_epoch=3)
    assert log.append_as_follower(own + other + more, 3).last_offset == 0
    assert log.append_as_follower(other, 3).last_offset == UNKNOWN_OFFSET
    assert (values(log), log.leader_epochs) == ([(0, b"a")], ((3, 0),))
    assert log.append_as_follower(other, 4).last_offset == 1


def test_snapshots_of_a_log_that_begins_anew_are_gone_at_once() -> None:  # rule B3.54
    """Not after the delay of its segments."""
    log = a_log(segment_bytes=100)
    for _ in range(4):
        append(log)
    later: list[str] = []
    log.context.delete_later = lambda paths, delay_ms: later.extend(paths)  # type: ignore[method-assign]
    assert log.producers.snapshots == (1, 2, 3)
    log.truncate_fully(9)
    assert later
    assert not [path for path in later if ".snapshot" in path]
    assert not [name for name in log.context.disk.files(log.folder) if ".snapshot" in name]


def test_batches_that_no_segment_can_hold_together() -> None:  # rule B6.10
    """None of them is written."""
    log = a_log(index_interval_bytes=0)
    append(log)
    both = batch(base_offset=1, leader_epoch=0) + batch(base_offset=2**31 + 1, leader_epoch=0)
    with pytest.raises(RecordListTooLarge, match="offset 2147483649 with others, in a segment from 1 on"):
        log.append_as_follower(both)
    assert (log.log_end_offset, base_offsets(log), log.segments.active.size) == (1, [0, 1], 0)
    assert log.append_as_follower(both[: len(both) // 2]).last_offset == 1
    assert log.append_as_follower(both[len(both) // 2 :]).last_offset == 2**31 + 1
    assert base_offsets(log) == [0, 1, 2**31 + 1]


@kafka("ULT-28")
def test_append_empty_log_below_log_start_offset_throws_exception() -> None:
    log = a_log(log_start_offset=7)
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)
    with pytest.raises(UnexpectedOffset) as refused:
        log.append_as_follower(batch(b"a", b"b", base_offset=4, leader_epoch=0))
    assert (refused.value.first_offset, refused.value.last_offset) == (4, 5)


@kafka("ULT-31")
def test_message_size_check_in_append_as_follower() -> None:
    log = a_log(max_message_bytes=100)
    log.append_as_follower(batch(b"x" * 500, leader_epoch=0))
    assert log.log_end_offset == 1


@kafka("ULT-34")
def test_duplicate_append_to_follower() -> None:
    log = a_log()
    for offset in range(2):
        log.append_as_follower(batch(base_offset=offset, leader_epoch=0, producer_id=1, base_sequence=0))
    assert log.log_end_offset == 2


# sizes


@kafka("ULT-29")
def test_message_set_size_check() -> None:
    log = a_log(segment_bytes=ONE - 1)
    with pytest.raises(RecordListTooLarge):
        append(log)


@kafka("ULT-30")
def test_message_size_check() -> None:
    log = a_log(max_message_bytes=ONE)
    append(log)
    with pytest.raises(MessageTooLarge):
        append(log, b"vv")


# idempotent producers


@kafka("ULT-33")
def test_duplicate_appends() -> None:
    log = a_log()
    for i in range(5):
        first = log.append_as_leader(produced(1, 3 * i, 3), 0)
        assert (first.first_offset, first.last_offset, first.is_duplicate) == (3 * i, 3 * i + 2, False)
    for i in range(5):
        again = log.append_as_leader(produced(1, 3 * i, 3), 0)
        assert (again.first_offset, again.last_offset, again.is_duplicate) == (3 * i, 3 * i + 2, True)
    log.append_as_leader(produced(1, 15, 3), 0)
    for sequence, count in ((0, 3), (3, 2), (19, 1), (12, 2)):
        with pytest.raises(OutOfOrderSequence):
            log.append_as_leader(produced(1, sequence, count), 0)
    assert log.log_end_offset == 18


@kafka("ULT-36")
def test_old_producer_epoch() -> None:
    log = a_log()
    log.append_as_leader(produced(1, 0, epoch=1), 0)
    with pytest.raises(ApiException, match="below 1"):
        log.append_as_leader(produced(1, 0, epoch=0), 0)


@kafka("ULT-40")
def test_producer_id_map_truncate_to() -> None:
    log = a_log(segment_bytes=100)
    for i in range(3):
        log.append_as_leader(produced(1, i), 0)
    log.truncate_to(2)
    assert (log.producers.map_end_offset, log.producers.producers[1].last_sequence) == (2, 1)
    log.truncate_to(1)
    assert log.producers.producers[1].last_sequence == 0
    log.truncate_to(0)
    assert log.producers.producers == {}


@kafka("ULT-42")
def test_log_start_offset_movement_deletes_snapshots() -> None:
    log = a_log(segment_bytes=100, file_delete_delay_ms=0)
    for i in range(3):
        log.append_as_leader(produced(1, i), 0)
    log.set_high_watermark(3)
    log.increment_log_start_offset(2)
    log.delete_old_segments()
    assert log.producers.snapshots == (2,)
    assert 1 in log.producers.producers


def test_a_refused_batch_changes_nothing_but_may_roll() -> None:
    """Rule B3.19."""
    log = a_log(segment_bytes=ONE)
    log.append_as_leader(produced(1, 0), 0)
    with pytest.raises(OutOfOrderSequence):
        log.append_as_leader(produced(1, 7), 3)
    assert base_offsets(log) == [0, 1]
    assert log.leader_epochs == ((0, 0), (3, 1))
    assert (log.log_end_offset, log.producers.producers[1].last_sequence) == (1, 0)


# truncation


@kafka("ULT-9")
def test_truncate_to() -> None:
    log = a_log(segment_bytes=10 * ONE)
    for i in range(25):
        append(log, epoch=i // 10)
    log.set_high_watermark(20)
    before = everything(log)
    for offset in (25, 30):
        assert not log.truncate_to(offset)
        assert everything(log) == before
    assert log.truncate_to(15)
    assert (log.log_end_offset, log.high_watermark, log.leader_epochs) == (15, 15, ((0, 0), (1, 10)))
    assert everything(log) == before[: 15 * ONE]
    assert log.truncate_to(10)
    assert (base_offsets(log), log.leader_epochs) == ([0, 10], ((0, 0),))
    assert log.truncate_to(0)
    assert (log.size, log.log_end_offset, base_offsets(log)) == (0, 0, [0])
    for _ in range(5):
        append(log, epoch=5)
    assert (log.log_end_offset, log.leader_epochs) == (5, ((5, 0),))


@kafka("ULT-8")
def test_truncate_fully_and_start() -> None:
    log = a_log(segment_bytes=3 * ONE)
    for _ in range(10):
        append(log)
    log.truncate_fully(20)
    assert (log.log_start_offset, log.log_end_offset, log.size, base_offsets(log)) == (20, 20, 0, [20])
    append(log)
    assert values(log) == [(20, b"v")]
    log.truncate_fully(5)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    log.truncate_to(1)
    assert (log.log_start_offset, log.log_end_offset) == (1, 1)


@kafka("ULT-10")
def test_truncate_to_end_offset_clears_epoch_cache() -> None:
    log = a_log()
    append(log, b"a", b"b", epoch=5)
    for epoch, offset in ((5, 0), (6, 1), (7, 2)):
        log._epochs.assign(epoch, offset)
    assert log.latest_epoch == 7
    log.truncate_to(2)
    assert log.latest_epoch == 6


def test_a_log_cut_within_a_segment_finds_its_largest_timestamp_again() -> None:
    log = a_log(index_interval_bytes=0)
    for i in (1, 5, 3, 9, 2):
        append(log, timestamp=NOW_MS + i)
    assert log.segments[0].max_timestamp == (NOW_MS + 9, 3)
    log.truncate_to(3)
    assert log.segments[0].max_timestamp == (NOW_MS + 5, 1)
    append(log, timestamp=NOW_MS)
    assert [offset for offset, _ in values(log)] == [0, 1, 2, 3]


def test_a_replicated_transaction_stays_replicated_when_the_log_is_cut_behind_it() -> None:  # rule B3.65
    log = a_log()
    log.append_as_leader(produced(1, 0, transactional=True), 0)
    log.append_as_leader(marker(1, committed=True), 0, origin=Origin.COORDINATOR)
    log.set_high_watermark(2)
    append(log)
    append(log)
    log.truncate_to(3)
    assert log.last_stable_offset == 2


# retention


@kafka("ULT-45")
def test_should_delete_size_based_segments() -> None:
    log = a_log(segment_bytes=5 * ONE, retention_bytes=10 * ONE)
    for _ in range(15):
        append(log)
    log.set_high_watermark(15)
    assert log.delete_old_segments() == 1
    assert (base_offsets(log), log.log_start_offset) == ([5, 10], 5)


@kafka("ULT-46")
def test_should_not_delete_size_based_segments_when_under_retention_size() -> None:
    log = a_log(segment_bytes=5 * ONE, retention_bytes=15 * ONE + 1)
    for _ in range(15):
        append(log)
    log.set_high_watermark(15)
    assert log.delete_old_segments() == 0
    assert len(log.segments) == 3


@kafka("ULT-47")
def test_should_delete_time_based_segments_ready_to_be_deleted() -> None:
    log = a_log(segment_bytes=5 * ONE, retention_ms=10_000)
    for _ in range(15):
        append(log, timestamp=10)
    log.set_high_watermark(15)
    assert log.delete_old_segments() == 3
    assert (base_offsets(log), log.log_start_offset, log.size) == ([15], 15, 0)
    assert log.delete_old_segments() == 0  # an empty segment stays (rule B6.16)


@kafka("ULT-48")
def test_should_not_delete_time_based_segments_when_none_ready_to_be_deleted() -> None:
    log = a_log(segment_bytes=5 * ONE, retention_ms=10_000_000)
    for _ in range(15):
        append(log, timestamp=NOW_MS - 10_000_000)
    log.set_high_watermark(15)
    assert log.delete_old_segments() == 0


@kafka("ULT-49")
def test_should_not_delete_segments_when_policy_does_not_include_delete() -> None:
    log = a_log(segment_bytes=5 * ONE, retention_ms=1, cleanup_policy="compact")
    for _ in range(15):
        append(log, timestamp=10, key=b"k")
    log.set_high_watermark(15)
    before = len(log.segments)
    assert log.delete_old_segments() == 0
    assert len(log.segments) == before > 1


@kafka("ULT-50")
def test_should_delete_start_offset_breached_segments_when_policy_does_not_include_delete() -> None:
    log = a_log(segment_bytes=100, cleanup_policy="compact")
    for _ in range(6):
        append(log, key=b"k")
    log.set_high_watermark(6)
    log.increment_log_start_offset(3)
    assert log.delete_old_segments() == 3
    assert base_offsets(log) == [3, 4, 5]


@kafka("ULT-43")
def test_delete_old_segments() -> None:
    context = Context()
    log = a_log(context, segment_bytes=5 * ONE, retention_ms=999)
    for _ in range(100):
        append(log, timestamp=NOW_MS - 1000, epoch=1)
    assert log.delete_old_segments() == 0  # nothing is replicated yet
    log.set_high_watermark(100)
    assert log.delete_old_segments() == 20
    assert (base_offsets(log), log.leader_epochs) == ([100], ((1, 100),))
    assert [name for name in context.disk.files(FOLDER) if name.endswith(".log")] == ["00000000000000000100.log"]
    append(log)
    assert values(log) == [(100, b"v")]


@kafka("ULT-51")
def test_cannot_delete_segments_at_or_above_high_watermark() -> None:
    for high_watermark in range(16):
        log = a_log(segment_bytes=5 * ONE, retention_ms=1)
        for _ in range(15):
            append(log, timestamp=10)
        log.set_high_watermark(high_watermark)
        log.delete_old_segments()
        assert log.log_start_offset == high_watermark - high_watermark % 5
        assert log.log_start_offset <= log.high_watermark <= log.log_end_offset


@kafka("ULT-52")
def test_cannot_increment_log_start_offset_past_high_watermark() -> None:
    log = a_log()
    append(log, b"a", b"b", b"c")
    log.set_high_watermark(2)
    with pytest.raises(OffsetOutOfRange):
        log.increment_log_start_offset(3)
    assert log.increment_log_start_offset(2)
    assert not log.increment_log_start_offset(1)
    assert log.log_start_offset == 2


@kafka("ULT-55")
def test_should_truncate_leader_epochs_when_deleting_segments() -> None:
    log = a_log(segment_bytes=5 * ONE, retention_bytes=10 * ONE)
    for _ in range(15):
        append(log, epoch=2)
    log._epochs.clear()
    for epoch, offset in ((0, 0), (1, 5), (2, 10)):
        log._epochs.assign(epoch, offset)
    log.set_high_watermark(15)
    log.delete_old_segments()
    assert log.leader_epochs == ((1, 5), (2, 10))


@kafka("ULT-57")
def test_leader_epoch_cache_cleared_after_downgrade_in_appended_messages() -> None:
    log = a_log()
    append(log, epoch=5)
    assert log.latest_epoch == 5
    log.append_as_follower(batch(base_offset=1, magic=1))
    assert log.latest_epoch is None


# the topic's id


@kafka("ULT-60")
def test_log_recovers_topic_id() -> None:
    context, topic_id = Context(), uuid.UUID(int=5)
    log = a_log(context)
    assert log.topic_id is None
    log.assign_topic_id(topic_id)
    log.close()
    assert a_log(context).topic_id == topic_id


@kafka("ULT-61")
def test_log_fails_when_inconsistent_topic_id_set() -> None:
    log = a_log()
    log.assign_topic_id(uuid.UUID(int=5))
    log.assign_topic_id(uuid.UUID(int=5))
    with pytest.raises(InconsistentTopicId):
        log.assign_topic_id(uuid.UUID(int=6))


# storage


def test_flush_makes_durable_what_is_flushed() -> None:
    context = Context()
    assert isinstance(context.disk, MemoryDisk)
    log = a_log(context, flush_messages=3)
    append(log, b"a", b"b")
    assert log.recovery_point == 0
    append(log, b"c")
    assert log.recovery_point == 3
    append(log, b"d")
    context.disk.crash()
    log = a_log(context, clean=False)
    assert values(log) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_a_disk_that_fails_is_the_end_of_the_directory() -> None:
    """Rule B3.20."""

    class Full(MemoryDisk):
        is_full = False

        def before(self, path: str, size: int) -> None:
            if self.is_full and size:
                raise OSError(28, "No space left on device")

    disk = Full()
    context = Context(disk)
    log = a_log(context)
    append(log, b"a")
    disk.is_full = True
    with pytest.raises(KafkaStorageError, match="No space left"):
        append(log, b"b")
    assert [error.errno for error in context.failures] == [28]
    assert log.log_end_offset == 1
    disk.is_full = False
    assert values(log) == [(0, b"a")]


def test_a_log_moves_with_its_folder() -> None:
    context = Context()
    log = a_log(context, segment_bytes=2 * ONE)
    context.disk.make_folder("/elsewhere")
    for _ in range(5):
        append(log)
    log.move("/elsewhere/a-0")
    append(log, b"w", epoch=4)
    assert [value for _, value in values(log)] == [b"v"] * 5 + [b"w"]
    log.close()
    context.path = "/elsewhere"
    moved = a_log(context, segment_bytes=2 * ONE)
    assert (moved.log_end_offset, moved.leader_epochs) == (6, ((0, 0), (4, 5)))


def test_reads_are_the_same_however_large_they_are() -> None:
    """Random batches of all sizes in segments of all sizes."""
    chance = Random(5)
    for _ in range(20):
        log = a_log(segment_bytes=chance.randrange(800, 5000), index_interval_bytes=chance.choice([0, 100, 4096]))
        for _ in range(chance.randrange(1, 60)):
            append(log, *[chance.randbytes(chance.randrange(200)) for _ in range(chance.randrange(1, 4))])
        expected = dict(values(log))
        assert list(expected) == list(range(log.log_end_offset))
        for _ in range(30):
            offset = chance.randrange(log.log_end_offset)
            found = log.read(offset, chance.randrange(1, 6000), Isolation.LOG_END, at_least_one=True).records
            headers = [header for _, header in read_headers(found)]
            assert headers[0].base_offset <= offset <= headers[0].last_offset


def test_settings() -> None:
    """A topic's own, else its broker's in its unit, else Kafka's default."""
    found = config(retention_ms=-1, compression_type="zstd", cleanup_policy="compact,delete")
    assert (found.retention_ms, found.retention_bytes, found.compression_type) == (None, None, Codec.ZSTD)
    assert (found.is_compact, found.is_delete, found.segment_bytes) == (True, True, 2**30)
    assert type(found).of({}, {"log.retention.hours": "2", "log.roll.ms": "5"}).retention_ms == 7_200_000
    assert type(found).of({}, {"log.roll.ms": "5"}).segment_ms == 5


def test_what_a_flush_needs_of_a_log() -> None:  # rule B6.13
    """The segments before the offset, with what of them has files, and the folder."""

    class Lazy(Context):
        def flush_later(self, log: FlushableLog, end_offset: int) -> None:
            """Never."""

    log = a_log(Lazy(), segment_bytes=ONE)
    for _ in range(3):
        append(log)
    assert log.to_flush(0) == []
    one, two = (f"{FOLDER}/{offset:020}" for offset in (0, 1))
    assert log.to_flush(1) == [f"{one}.log", f"{one}.index", f"{one}.timeindex", FOLDER]
    log.flushed(1)
    assert log.to_flush(1) == []
    assert log.to_flush(2) == [f"{two}.log", f"{two}.index", f"{two}.timeindex", FOLDER]
    log.flushed(9)
    assert log.recovery_point == 3


def test_a_loaded_segment_rolls_by_the_time_of_its_first_batch() -> None:  # rule B6.11
    context = Context()
    log = a_log(context, segment_ms=1000)
    append(log, timestamp=NOW_MS)
    append(log, timestamp=NOW_MS + 900)
    log.close()
    again = a_log(context, segment_ms=1000)
    append(again, timestamp=NOW_MS + 1000)
    assert base_offsets(again) == [0]
    append(again, timestamp=NOW_MS + 1001)
    assert base_offsets(again) == [0, 3]


def test_a_moved_start_needs_no_snapshot() -> None:
    log = a_log()
    for _ in range(3):
        append(log)
    log.set_high_watermark(3)
    log.increment_log_start_offset(3)
    assert log.producers.map_end_offset == 3
    assert log.producers.take_snapshot() is None


def test_entries_of_indexes_are_an_interval_apart() -> None:
    log = a_log(index_interval_bytes=2 * ONE)
    for _ in range(9):
        append(log)
    (segment,) = log.segments
    positions = [segment.index.lookup(offset).position // ONE for offset in range(9)]
    assert positions == [0, 0, 0, 3, 3, 3, 6, 6, 6]
    log.flush()
    stored = log.context.disk.read(f"{FOLDER}/{0:020}.index")
    assert stored == struct.pack(">4i", 3, 3 * ONE, 6, 6 * ONE)


def test_an_empty_segment_stays_however_old_it_is() -> None:  # rule B6.16
    context = Context()
    log = a_log(context, segment_bytes=5 * ONE, retention_ms=10_000)
    append(log)
    log.set_high_watermark(1)
    context.time_ms += 10**6
    assert log.delete_old_segments() == 1
    context.time_ms += 10**6
    assert log.delete_old_segments() == 0
    assert base_offsets(log) == [1]


def test_a_high_watermark_moves_to_a_later_segment_at_the_same_offset() -> None:
    log = a_log(segment_bytes=ONE)
    append(log)
    append(log)
    before, after = OffsetMetadata(1, 0, ONE), OffsetMetadata(1, 1, 0)
    assert [log.maybe_increment_high_watermark(new) for new in (before, before, after, before)] == [
        True, False, True, False,
    ]  # fmt: skip
    assert log.located_high_watermark() == after


@pytest.mark.parametrize(
    ("timestamp", "most", "expected"),
    [
        (EARLIEST, 9, [0]),
        (LATEST, 9, [4, 2, 0]),
        (LATEST, 2, [4, 2]),
        (LATEST, 0, []),
        (NOW_MS + 999, 9, []),
        (NOW_MS + 1000, 9, [0]),
        (NOW_MS + 1999, 9, [0]),
        (NOW_MS + 2000, 9, [2, 0]),
        (NOW_MS + 5000, 9, [4, 2, 0]),
    ],
)
def test_offsets_before_a_time(timestamp: int, most: int, expected: list[int]) -> None:  # rule B7.20
    context = Context()
    log = a_log(context, segment_bytes=2 * ONE)
    for second in (1, 2):
        context.time_ms = NOW_MS + 1000 * second
        append(log)
        append(log)
    context.time_ms = NOW_MS + 5000
    assert offsets_before(log, timestamp, most) == expected


def test_a_segment_that_is_cut_is_as_old_as_before_unless_it_is_empty() -> None:
    context = Context()
    context.disk.make_folder(FOLDER)
    segment = Segment.create(context.disk, FOLDER, 0, config(), now_ms=5)
    for offset, timestamp in ((0, 70), (1, 80)):
        data = batch(b"x", base_offset=offset, timestamp=timestamp)
        segment.append(offset, timestamp, offset, (data,))
    for cut, left, created_ms, first, most in ((1, 1, 5, 70, (70, 0)), (0, 0, 9, -1, (-1, 0))):
        segment.truncate_to(cut, now_ms=9)
        assert segment.size == left * len(data)
        assert (segment.created_ms, segment.first_batch_timestamp()) == (created_ms, first)
        assert tuple(segment.max_timestamp) == most


def test_an_offset_that_the_log_does_not_have_is_nowhere() -> None:
    log = a_log()
    log.truncate_fully(10)
    for value in (b"a", b"b"):
        append(log, value)
    assert [log.locate(offset) for offset in (9, 13)] == [OffsetMetadata(9), OffsetMetadata(13)]
    assert [log.locate(offset).position for offset in (10, 11, 12)] == [0, ONE, 2 * ONE]
