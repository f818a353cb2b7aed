"""Segments in a row: what an append answers, what a read takes of them, and how they are rolled and cut."""

from __future__ import annotations

import pytest

from kce.broker_stub.disk import Buffer
from kce.broker_stub.errors import OffsetOutOfRange, RecordListTooLarge
from kce.broker_stub.log import Appended, Isolation, Log, OffsetMetadata
from kce.broker_stub.log.log import UNKNOWN_OFFSET
from kce.broker_stub.log.segment import Segment
from kce.broker_stub.log.segments import MAX_RECENT_BYTES, FetchedRecords
from kce.harness.world.memory_disk import MemoryDisk, MemoryFile
from kce.wire.vocabulary import TopicPartition
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
    produced,
)

SIZE = len(batch(b"0"))


def three_segments(high_watermark: int = 6, context: Context | None = None, **settings: object) -> Log:
    """Offsets 0 to 5, a batch each, two in a segment."""
    made = a_log(context, **{"segment_bytes": 2 * SIZE, **settings})
    for i in range(6):
        append(made, b"%d" % i)
    made.set_high_watermark(high_watermark)
    assert base_offsets(made) == [0, 2, 4]
    return made


def read(
    log: Log, offset: int, isolation: Isolation, size: int = 1000, *, at_least_one: bool = False
) -> FetchedRecords:
    found = log.read(offset, size, isolation, at_least_one=at_least_one)
    return found._replace(records=bytes(found.records))


def batches(*offsets: int) -> bytes:
    return b"".join(batch(b"%d" % offset, base_offset=offset, leader_epoch=0) for offset in offsets)


def test_what_a_read_takes() -> None:  # rules B4.12, B4.14, B4.15
    log, end, hw = three_segments(3), Isolation.LOG_END, Isolation.HIGH_WATERMARK
    limit = OffsetMetadata(3, 2, SIZE)
    assert log.located_high_watermark() == limit
    assert read(log, 0, hw) == FetchedRecords(OffsetMetadata(0, 0, 0), batches(0, 1))
    assert read(log, 1, hw) == FetchedRecords(OffsetMetadata(1, 0, SIZE), batches(1))
    assert read(log, 2, hw) == FetchedRecords(OffsetMetadata(2, 2, 0), batches(2))
    assert read(log, 3, hw) == FetchedRecords(limit)
    assert read(log, 5, hw) == FetchedRecords(OffsetMetadata(5, 4, SIZE))
    assert read(log, 2, end) == FetchedRecords(OffsetMetadata(2, 2, 0), batches(2, 3))
    assert read(log, 6, end) == FetchedRecords(OffsetMetadata(6, 4, 2 * SIZE))
    for offset in (7, -1):
        with pytest.raises(OffsetOutOfRange):
            read(log, offset, end)


@pytest.mark.parametrize(
    ("size", "at_least_one", "length", "is_incomplete"),
    [
        (SIZE - 1, True, SIZE, False), (SIZE - 1, False, SIZE - 1, True), (SIZE, False, SIZE, False),
        (SIZE + 1, True, SIZE + 1, False), (0, False, 0, True), (0, True, SIZE, False),
        (3 * SIZE, True, 2 * SIZE, False),
    ],
)  # fmt: skip
def test_how_much_a_read_takes(size: int, at_least_one: bool, length: int, is_incomplete: bool) -> None:
    found = read(three_segments(), 2, Isolation.LOG_END, size, at_least_one=at_least_one)
    assert found == FetchedRecords(OffsetMetadata(2, 2, 0), batches(2, 3)[:length], is_incomplete)


def test_what_was_appended_last_is_read_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    log, end, last = three_segments(), Isolation.LOG_END, OffsetMetadata(5, 4, SIZE)
    assert read(log, 5, end, SIZE - 1) == FetchedRecords(last, batches(5)[:-1], is_incomplete=True)
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "find", None)
        assert read(log, 5, end) == FetchedRecords(last, batches(5))
    log.truncate_to(5)
    assert read(log, 5, end) == FetchedRecords(last)
    append(log, b"x")
    log.roll()
    append(log, b"6")
    log.set_high_watermark(7)
    assert read(log, 5, end).records == batch(b"x", base_offset=5, leader_epoch=0)
    assert read(log, 6, Isolation.HIGH_WATERMARK) == FetchedRecords(OffsetMetadata(6, 6, 0), batches(6))


def test_the_last_append_is_not_read_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    context, end = Context(), Isolation.LOG_END
    log, other = a_log(context), Log(context, TopicPartition("b", 0), config())

    def expected(value: bytes, offset: int = 0) -> FetchedRecords:
        found = batch(value, base_offset=offset, leader_epoch=0)
        return FetchedRecords(OffsetMetadata(offset, 0, offset * len(found)), found)

    append(log, b"x")
    log.set_high_watermark(1)
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "slice", None)
        assert read(log, 0, end) == read(log, 0, Isolation.HIGH_WATERMARK) == expected(b"x")
    log.truncate_to(0)
    assert read(log, 0, end) == FetchedRecords(OffsetMetadata(0, 0, 0))
    append(log, b"y")
    append(log, b"z")
    assert read(log, 1, end) == expected(b"z", 1)
    append(other, b"o")  # of the same size, in the same place
    assert read(log, 1, end) == expected(b"z", 1)
    assert read(other, 0, end) == expected(b"o")
    size = MAX_RECENT_BYTES - len(batch(b"")) - 10
    for length, is_recent in ((size, True), (size + 20, False)):
        append(log, b"r" * length)
        assert bool(context.recent.parts) == is_recent
        with monkeypatch.context() as patch:
            patch.setattr(Segment, "slice", lambda *_: b"file")
            assert (read(log, log.log_end_offset - 1, end, 10**6).records == b"file") != is_recent


def test_where_offsets_are() -> None:
    log = three_segments()
    places = [OffsetMetadata(i, i - i % 2, i % 2 * SIZE) for i in range(6)]
    assert [log.locate(i) for i in range(8)] == [*places, log.end, OffsetMetadata(7)]
    assert log.end == OffsetMetadata(6, 4, 2 * SIZE)
    assert [one.is_located for one in (log.end, OffsetMetadata(7))] == [True, False]
    segments = log.segments
    ranges = {(0,): [0, 2, 4], (3,): [2, 4], (4,): [4], (9,): [4], (0, 4): [0, 2], (1, 5): [0, 2, 4]}
    assert {one: [s.base_offset for s in segments.from_offset(*one)] for one in ranges} == ranges
    assert [segments.active in segments, three_segments().segments[0] in segments] == [True, False]


def test_what_an_append_answers() -> None:
    log = a_log(Context())
    assert log.append_as_leader(b"", 0) == Appended(UNKNOWN_OFFSET, UNKNOWN_OFFSET, 0)
    two = batch(b"0", b"1")
    assert log.append_as_leader(two, 0) == Appended(0, 1, 0, -1, len(two))
    log.set_high_watermark(2)
    log.increment_log_start_offset(1)
    one = produced(5, 0, 2)
    assert log.append_as_leader(one, 0) == Appended(2, 3, 1, -1, len(one))
    assert log.append_as_leader(one, 0) == Appended(2, 3, 1, NOW_MS, is_duplicate=True)
    assert log.append_as_follower(b"") == Appended(UNKNOWN_OFFSET, UNKNOWN_OFFSET, 1)
    more = batches(4, 5)
    assert log.append_as_follower(more) == Appended(4, 5, 1, size=len(more))
    stamped = a_log(Context(), message_timestamp_type="LogAppendTime")
    assert stamped.append_as_leader(batch(b"0", timestamp=5), 0) == Appended(0, 0, 0, NOW_MS, SIZE)


def test_what_fits_into_a_segment() -> None:
    log = a_log(Context(), segment_bytes=2 * SIZE)
    with pytest.raises(RecordListTooLarge):
        log.append_as_follower(batches(0, 1, 2))
    assert log.log_end_offset == 0
    log.append_as_follower(batches(0, 1))
    assert base_offsets(log) == [0]
    log.append_as_follower(batches(2))
    assert base_offsets(log) == [0, 2]


def test_what_is_flushed_after_so_many_messages() -> None:
    log = a_log(Context(), flush_messages=3)
    append(log, b"0", b"1")
    assert log.recovery_point == 0
    append(log, b"2")
    assert log.recovery_point == 3
    append(log, b"3")
    assert log.recovery_point == 3


def test_the_high_watermark_follows_only_from_the_end() -> None:
    log = a_log(Context())
    log.append_as_follower(batches(0))
    assert log.high_watermark == 0
    log.set_high_watermark(9)
    assert log.high_watermark == 1
    log.increment_log_start_offset(1)
    log.append_as_follower(batches(1))
    assert log.set_high_watermark(0) == 1
    with pytest.raises(ValueError, match="beyond the end"):
        log.maybe_increment_high_watermark(OffsetMetadata(3))
    assert not log.maybe_increment_high_watermark(log.locate(1))
    assert log.maybe_increment_high_watermark(log.end)
    assert log.located_high_watermark() == log.end


def test_rolls() -> None:
    log = three_segments()
    assert log.roll().base_offset == 6
    assert log.roll().base_offset == 6  # instead of the empty one
    assert log.roll(9).base_offset == 9
    assert (base_offsets(log), log.end) == ([0, 2, 4, 6, 9], OffsetMetadata(6, 9, 0))
    assert (log.producers.map_end_offset, log.producers.snapshots) == (9, (2, 4, 6, 9))
    assert log.located_high_watermark() == log.end


@pytest.mark.parametrize(
    ("offset", "bases", "end"),
    [
        (5, [0, 2, 4], OffsetMetadata(5, 4, SIZE)),
        (4, [0, 2, 4], OffsetMetadata(4, 4, 0)),
        (3, [0, 2], OffsetMetadata(3, 2, SIZE)),
        (0, [0], OffsetMetadata(0, 0, 0)),
    ],
)
def test_what_a_truncation_leaves(offset: int, bases: list[int], end: OffsetMetadata) -> None:  # rule B5.27
    log = three_segments()
    log.recovery_point = 5
    assert not log.truncate_to(6)
    assert log.truncations == 0
    assert log.truncate_to(offset)
    assert (base_offsets(log), log.end, log.high_watermark, log.located_high_watermark()) == (bases, end, offset, end)
    assert (log.truncations, log.recovery_point, log.log_start_offset) == (1, offset, 0)


def test_a_truncation_beyond_the_high_watermark_leaves_it() -> None:
    log = three_segments(3)
    log.truncate_to(4)
    assert log.located_high_watermark() == OffsetMetadata(3, 2, SIZE)


def test_a_truncation_before_the_first_segment_leaves_nothing() -> None:
    log = three_segments()
    log.delete_old_segments()
    log.increment_log_start_offset(5)
    assert (log.delete_old_segments(), base_offsets(log)) == (2, [4])
    assert log.truncate_to(1)
    assert (base_offsets(log), log.log_start_offset, log.log_end_offset, log.recovery_point) == ([1], 1, 1, 1)
    log.truncate_fully(8)
    assert (base_offsets(log), log.log_start_offset, log.log_end_offset, log.recovery_point) == ([8], 8, 8, 1)
    assert log.end == OffsetMetadata(8, 8, 0)


def test_the_log_starts_later() -> None:  # rule B6.19
    log = three_segments(5)
    for i, epoch in enumerate((1, 2)):
        log.append_as_follower(batch(b"x", base_offset=6 + i, leader_epoch=epoch))
    log.recovery_point = 2
    assert [log.increment_log_start_offset(offset) for offset in (0, 3, 2, 3)] == [False, True, False, False]
    assert (log.log_start_offset, log.recovery_point, log.leader_epochs) == (3, 3, ((0, 3), (1, 6), (2, 7)))
    with pytest.raises(OffsetOutOfRange):
        log.increment_log_start_offset(6)
    log.recovery_point = 8
    assert log.increment_log_start_offset(5)
    assert log.recovery_point == 8
    with pytest.raises(OffsetOutOfRange):
        read(log, 4, Isolation.LOG_END)


def test_a_segment_that_was_compacted_takes_the_place_of_others() -> None:
    done: list[tuple[str, ...]] = []

    class Noting(MemoryDisk):
        def rename(self, old: str, new: str) -> None:
            done.append((old.removeprefix(f"{FOLDER}/"), new.removeprefix(f"{FOLDER}/")))
            super().rename(old, new)

        def flush_folder(self, path: str) -> None:
            done.append((path,))
            super().flush_folder(path)

    context = Context(Noting())
    log = three_segments(4, context)
    log._set_high_watermark(OffsetMetadata(4, 2, 2 * SIZE))
    new = Segment.create(context.disk, FOLDER, 0, config(), now_ms=NOW_MS, suffix=".cleaned")
    new.append(1, NOW_MS, 1, (batches(1),))
    done.clear()
    log.replace_segments(log.segments[:2], new)  # type: ignore[misc]
    names = {base: [f"{base:020}.{kind}" for kind in ("log", "index", "timeindex")] for base in (0, 2)}
    assert done == [
        *[(f"{name}.cleaned", f"{name}.swap") for name in names[0]],
        (FOLDER,),
        *[(name, f"{name}.deleted") for name in (*names[0], *names[2])],
        *[(f"{name}.swap", name) for name in names[0]],
        (f"{2:020}.snapshot", f"{2:020}.snapshot.deleted"),
    ]
    assert (base_offsets(log), log.high_watermark) == ([0, 4], 4)
    assert log.located_high_watermark() == OffsetMetadata(4, 4, 0)
    assert everything(log) == batches(1, 4, 5)


def test_a_look_up_begins_at_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log(Context(), index_interval_bytes=0)
    for i in range(10):
        append(log, b"%d" % i, timestamp=NOW_MS + i)
    (segment,) = log.segments
    positions: list[int] = []
    real = MemoryFile.read

    def read(file: MemoryFile, position: int, size: int) -> Buffer:
        positions.append(position)
        return real(file, position, size)

    monkeypatch.setattr(MemoryFile, "read", read)
    assert segment.find(7, 0) is not None
    assert next(segment.find_timestamp(NOW_MS + 6, 0)).position == 6 * SIZE
    assert segment.next_offset() == 10
    assert positions == [7 * SIZE, 6 * SIZE, 9 * SIZE]
    positions.clear()
    log.truncate_to(8)
    assert positions[:2] == [8 * SIZE, 7 * SIZE]
    assert segment.find(3, 5 * SIZE).position == 5 * SIZE  # type: ignore[union-attr]
