"""What of a log may be compacted, which log is next, and which segments become one (rule B6.22).

Covers: broker_stub/log/cleaner.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from kce.broker_stub.log import Log
from kce.broker_stub.log.cleaner import Cleanable, Cleaner, _Changed, _Pass, cleanable, groups
from kce.broker_stub.log.compaction import NO_OFFSET
from kce.wire.record import Record, RecordBatch
from kce.wire.records import write_records
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.log.support import NOW_MS, PARTITION, Context, a_log, append, batch, config

COMPACT = {"cleanup_policy": "compact", "segment_bytes": "150", "min_cleanable_dirty_ratio": "0.5"}


def a_compacted_log(**more: object) -> Log:
    """Segments of one or two records, a second apart."""
    made = a_log(Context(), **{**COMPACT, **more})
    for i in range(8):
        append(made, b"%d" % i, key=b"k", timestamp=NOW_MS + 1000 * i)
    made.set_high_watermark(8)
    return made


@pytest.mark.parametrize(("dirty", "is_due", "is_worthwhile"), [
    (50, False, False), (51, False, True), (50, True, True), (1, True, True), (0, True, False),
])  # fmt: skip
def test_what_is_worthwhile(dirty: int, is_due: bool, is_worthwhile: bool) -> None:
    one = Cleanable(a_compacted_log(), 0, 8, 100 - dirty, dirty, is_due)
    assert (one.dirty_ratio, one.is_worthwhile) == (dirty / 100, is_worthwhile)


def test_nothing_has_no_dirty_share() -> None:
    assert Cleanable(a_compacted_log(), 0, 0, 0, 0, is_due=True).dirty_ratio == 0


def test_what_was_compacted_is_clean() -> None:
    log = a_compacted_log()
    bases = [segment.base_offset for segment in log.segments]
    sizes = [segment.size for segment in log.segments]
    assert len(bases) == 4
    log.increment_log_start_offset(1)

    def found(last_clean: int | None) -> tuple[int, int, int, int]:
        one = cleanable(log, last_clean, NOW_MS)
        assert one.log is log
        return one.first_dirty, one.end, one.clean_bytes, one.dirty_bytes

    everything = (1, bases[3], sizes[0], sum(sizes[:3]))
    assert found(None) == everything
    assert found(0) == everything  # before the log starts
    assert found(9) == everything  # beyond its end
    assert found(bases[1]) == (bases[1], bases[3], sizes[0], sizes[1] + sizes[2])
    assert found(8) == (bases[3], bases[3], sum(sizes[:3]), 0)


def test_what_waits_for_too_long_is_due() -> None:
    log = a_compacted_log(max_compaction_lag_ms="60000")
    assert not cleanable(log, None, NOW_MS + 60_000).is_due
    assert cleanable(log, None, NOW_MS + 60_001).is_due
    second = log.segments[1].base_offset
    assert not cleanable(log, second, NOW_MS + 60_001).is_due
    assert not cleanable(log, 8, NOW_MS + 10**9).is_due


@pytest.mark.parametrize(("timestamp", "is_due"), [(1, True), (0, False), (-1, False)])
def test_a_segment_that_began_at_time_0_is_never_due(timestamp: int, is_due: bool) -> None:
    log = a_log(Context(), **COMPACT, max_compaction_lag_ms="60000")
    for _ in range(3):
        append(log, key=b"k", timestamp=timestamp)
    log.set_high_watermark(3)
    assert cleanable(log, None, NOW_MS).is_due is is_due


def test_what_must_stay_may_be_what_waits_for_too_long() -> None:
    log = a_log(Context(), **COMPACT, max_compaction_lag_ms="60000")
    for timestamp in (NOW_MS + 10**7, NOW_MS + 10**7, NOW_MS, NOW_MS, NOW_MS, NOW_MS):
        append(log, key=b"k", timestamp=timestamp)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) == 3
    log.set_high_watermark(3)
    found = cleanable(log, None, NOW_MS + 60_001)
    assert (found.end, found.is_due) == (bases[1], True)
    assert not cleanable(log, None, NOW_MS + 60_000).is_due


def test_what_is_young_stays() -> None:
    log = a_compacted_log(min_compaction_lag_ms="1")
    bases = [segment.base_offset for segment in log.segments]
    oldest = log.segments[0].largest_timestamp_ms
    assert cleanable(log, None, oldest).end == 0
    assert cleanable(log, None, oldest + 1).end == bases[1]
    assert cleanable(log, bases[1], oldest + 1).end == bases[1]
    assert cleanable(log, None, NOW_MS + 10**6).end == bases[3]


def test_which_segments_become_one() -> None:
    def segment(size: int, entries: int, base_offset: int, times: int = 0) -> Any:
        return SimpleNamespace(
            size=size, index=range(entries), time_index=range(times), base_offset=base_offset,
            can_hold=lambda offset: offset - base_offset <= 1000,
        )  # fmt: skip

    settings = config(segment_bytes="100", segment_index_bytes="24")
    cases = [
        ([(60, 0, 5), (40, 0, 6), (1, 0, 7)], [2, 1]),
        ([(0, 2, 5), (0, 1, 6), (0, 1, 7)], [2, 1]),
        ([(0, 0, 5, 1), (0, 0, 6, 1), (0, 0, 7, 1)], [2, 1]),
        ([(1, 0, 0), (1, 0, 5), (1, 0, 9), (1, 0, 1002)], [2, 1, 1]),  # as if the third had an offset of 1001
        ([(1, 0, 2000), (1, 0, 2999)], [1, 1]),
        ([(1, 0, 2000), (0, 0, 2999)], [2]),
        ([(500, 0, 5), (500, 0, 6)], [1, 1]),
        ([], []),
    ]
    for segments, sizes in cases:
        found = groups([segment(*one) for one in segments], settings, 3002)
        assert [len(group) for group in found] == sizes


# which log is next


def cleaned(cleaner: Cleaner) -> list[Log]:
    async def run() -> list[Log]:
        found: list[Log] = []
        while (one := await cleaner.clean_next()) is not None:
            assert len(found) < 10
            found.append(one)
        return found

    return trio.run(run)


def a_cleaner(logs: dict[TopicPartition, Log], **more: Any) -> Cleaner:
    return Cleaner(logs, lambda: NOW_MS + 10_000, 1 << 20, **more)


def test_only_compacted_logs_with_files_are_looked_at() -> None:
    empty = Log(Context(), PARTITION, config(**COMPACT), is_new=True)
    others = {PARTITION: empty}
    assert cleaned(a_cleaner(others)) == []
    deleted = {PARTITION: a_compacted_log(cleanup_policy="delete")}
    assert cleaned(a_cleaner(deleted)) == []
    moving = {PARTITION: a_compacted_log()}
    assert cleaned(a_cleaner(moving, moving={PARTITION})) == []


def test_a_log_that_is_forgotten_is_compacted_anew() -> None:
    logs = {PARTITION: a_compacted_log()}
    cleaner = a_cleaner(logs)
    assert cleaned(cleaner) == [logs[PARTITION]]
    end = logs[PARTITION].segments.active.base_offset
    assert cleaner.ends == {PARTITION: end}
    cleaner.forget(PARTITION)
    cleaner.forget(PARTITION)
    assert cleaner.ends == {}
    other = a_compacted_log()
    logs[PARTITION] = other
    assert cleaned(cleaner) == [other]


def test_what_was_compacted_before_a_truncation_is_not_clean() -> None:
    logs = {PARTITION: a_compacted_log()}
    cleaner = a_cleaner(logs)
    log = logs[PARTITION]
    cleaned(cleaner)
    end, before = log.segments.active.base_offset, log.segments[-2].base_offset
    assert cleaner.end_of_last_pass(log) == end
    append(log, b"v", key=b"new")
    append(log, b"v", key=b"new")
    log.truncate_to(log.log_end_offset - 1)  # in the active segment
    assert cleaner.end_of_last_pass(log) == end
    cleaner.ends[PARTITION] = end + 9  # an end that is none does not become one
    log.truncate_to(log.log_end_offset - 1)
    assert cleaner.end_of_last_pass(log) == end + 9
    cleaner.ends[PARTITION] = end
    log.truncate_to(end - 1)
    assert cleaner.end_of_last_pass(log) == before
    assert cleaner.ends == {PARTITION: end}
    append(log, b"v", key=b"other")
    log.roll()
    log.set_high_watermark(log.log_end_offset)
    assert cleaned(cleaner) == [log]
    assert cleaner.end_of_last_pass(log) == log.segments.active.base_offset
    log.truncate_fully(2)
    assert cleaner.end_of_last_pass(log) == 2


def test_an_uncleanable_log_is_tried_once() -> None:
    """There is no room for a key."""
    log = a_log(Context(), **COMPACT)
    keys = tuple(Record(offset=i, timestamp=NOW_MS, key=b"%d" % i, value=b"v") for i in range(8))
    for _ in range(8):
        log.append_as_leader(write_records(RecordBatch.of(*keys)), 0)
    log.set_high_watermark(log.log_end_offset)
    logs = {PARTITION: log}
    cleaner = Cleaner(logs, lambda: NOW_MS + 10_000, 24)
    assert cleaned(cleaner) == [log]
    assert cleaner.ends == {}
    cleaner.forget(PARTITION)
    assert cleaned(cleaner) == [log]


def test_others_run_after_a_hundred_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[TopicPartition] = []
    pauses: list[int] = []
    idle = a_compacted_log(cleanup_policy="delete")
    logs = {TopicPartition("a", i): idle for i in range(201)}

    class Seen:
        @property
        def is_compact(self) -> bool:
            looked_at.append(PARTITION)
            return False

    idle.config = Seen()  # type: ignore[assignment]

    async def checkpoint() -> None:
        pauses.append(len(looked_at))

    async def run() -> None:
        monkeypatch.setattr(trio.lowlevel, "checkpoint", checkpoint)
        assert await a_cleaner(logs).clean_next() is None
        monkeypatch.undo()

    trio.run(run)
    assert pauses == [0, 100, 200]


@pytest.mark.parametrize(("buffer_bytes", "capacity"), [(240, 9), (1 << 20, 39321)])
def test_how_many_keys_have_room(buffer_bytes: int, capacity: int) -> None:
    assert Cleaner({}, lambda: 0, buffer_bytes)._capacity == capacity


def test_a_pass_ends_when_one_of_its_segments_is_gone() -> None:
    log = a_compacted_log()
    pass_, segments = _Pass(log, {PARTITION: log}, ()), list(log.segments)
    pass_._check(segments)
    log.segments.remove_first(1)
    pass_._check(segments[1:])
    with pytest.raises(_Changed):
        pass_._check(segments)


async def test_how_far_the_keys_were_read() -> None:
    log = a_log(Context(), **COMPACT)
    for i in range(8):
        append(log, b"v", key=b"%d" % i)
    log.set_high_watermark(8)
    one = cleanable(log, None, NOW_MS)
    assert one.end == log.segments.active.base_offset
    pass_ = _Pass(log, {PARTITION: log}, ())
    for capacity, end in ((2, 2), (3, 3), (99, one.end)):
        keys, found = await pass_.read_keys(one, capacity)
        assert (found, keys.latest, len(keys)) == (end, end - 1, min(capacity, one.end))


def test_the_end_of_the_last_pass() -> None:  # rule B6.22
    log = a_compacted_log()
    cleaner = Cleaner({PARTITION: log}, log.context.now_ms, 1 << 20)
    assert cleaner.end_of_last_pass(log) is None
    cleaner.ends[PARTITION] = 4  # of the checkpoint
    assert cleaner.end_of_last_pass(log) == 4
    log.truncate_to(1)
    assert cleaner.end_of_last_pass(log) == log.segments.active.base_offset < 4


@pytest.mark.parametrize("end", [0, 9])
def test_an_end_outside_of_the_log_is_forgotten(end: int) -> None:
    """Rule B6.22: a log that was cut by a recovery, and has grown again, has more that was never compacted."""
    log = a_compacted_log(min_compaction_lag_ms="1000000000")
    log.increment_log_start_offset(1)
    cleaner = a_cleaner({PARTITION: log})
    cleaner.ends[PARTITION] = end
    assert cleaned(cleaner) == []
    assert cleaner.ends == {PARTITION: 1}


async def test_a_gap_before_the_end_counts_as_read() -> None:
    log = a_log(Context(), **COMPACT)
    append(log, b"v", key=b"k")
    log.roll(9)
    log.append_as_follower(batch(b"v", key=b"k", base_offset=9, leader_epoch=0))
    log.set_high_watermark(log.log_end_offset)
    one = cleanable(log, None, NOW_MS)
    keys, end = await _Pass(log, {PARTITION: log}, ()).read_keys(one, 9)
    assert (one.end, end, keys.latest, keys.get(b"k")) == (log.segments.active.base_offset, one.end, one.end - 1, 0)


async def test_a_gap_between_segments_counts_as_read() -> None:  # rule B6.22
    """Also in a pass that ends in the segment behind it, because the keys there have no room."""
    log = a_log(Context(), **COMPACT)
    append(log, b"v", key=b"k")
    log.roll(9)
    log.append_as_follower(batch(b"v", key=b"other", base_offset=9, leader_epoch=0))
    log.roll()
    log.set_high_watermark(log.log_end_offset)
    one = cleanable(log, None, NOW_MS)
    keys, end = await _Pass(log, {PARTITION: log}, ()).read_keys(one, 1)
    assert (one.end, end, keys.latest, keys.get(b"other")) == (10, 9, 8, NO_OFFSET)
