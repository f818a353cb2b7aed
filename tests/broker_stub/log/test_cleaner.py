"""Compaction: what a pass keeps, which log is next, and what a crash leaves (rules B6.22, B6.23).

Covers: broker_stub/log/compaction.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from kce.broker_stub.log import Isolation, Log
from kce.broker_stub.log.cleaner import Cleaner, cleanable, groups
from kce.broker_stub.log.compaction import Compaction, KeyOffsets, Transactions
from kce.broker_stub.log.producer_state import Origin
from kce.harness.world.memory_disk import MemoryDisk
from kce.wire import Codec, Record, RecordBatch, TimestampType
from kce.wire.records import read_records, write_records
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.log.support import NOW_MS, PARTITION, Context, a_log, batch, marker

DAY_MS = 86_400_000
COMPACT = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", "segment_bytes": "400"}


def put(log: Log, *pairs: tuple[bytes, bytes | None], **more: object) -> None:
    """A batch of keys and values, at the end of the log."""
    records = tuple(
        Record(offset=i, timestamp=log.context.now_ms(), key=key, value=value) for i, (key, value) in enumerate(pairs)
    )
    log.append_as_leader(write_records(dataclasses.replace(RecordBatch.of(*records), **more)), 0, origin=Origin.CLIENT)
    log.set_high_watermark(log.log_end_offset)


def batches(log: Log) -> list[RecordBatch]:
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, 10_000, Isolation.LOG_END, at_least_one=True)
        more = read_records(read.records).batches
        if not more:
            break
        found += more
        offset = more[-1].last_offset + 1
    return found


def contents(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for b in batches(log) if not b.is_control for r in b.records]


def clean(log: Log, buffer_bytes: int = 1 << 20, cleaner: Cleaner | None = None) -> Cleaner:
    """Passes until none is needed."""
    cleaner = cleaner or Cleaner({PARTITION: log}, log.context.now_ms, buffer_bytes)

    async def run() -> None:
        for _ in range(200):
            if await cleaner.clean_next() is None or log.context.failures:  # type: ignore[attr-defined]
                return
        raise AssertionError("it goes on for ever")

    trio.run(run)
    return cleaner


def compacted(disk: MemoryDisk | None = None, **more: object) -> Log:
    return a_log(Context(disk), **{**COMPACT, **more})


def test_the_last_value_of_each_key_stays() -> None:
    log = compacted()
    for i in range(40):
        put(log, (b"k%d" % (i % 4), b"v%d" % i), (b"once%d" % i, b"x"))
    before, size = contents(log), log.size
    active = log.segments.active.base_offset
    end = log.log_end_offset
    cleaner = clean(log)
    last = {key: offset for offset, key, _ in before if offset < active}
    expected = [(offset, key, value) for offset, key, value in before if offset >= active or last[key] == offset]
    assert contents(log) == expected
    assert len(expected) < len(before)
    assert log.size < size
    assert (log.log_end_offset, log.high_watermark, cleaner.ends) == (end, end, {PARTITION: active})
    assert not [name for name in log.context.disk.files(log.folder) if name.endswith((".cleaned", ".swap"))]
    # a fetch in a gap begins with the next batch (rule B6.25)
    gap = next(offset for offset, _, _ in before if offset < active and offset not in {o for o, _, _ in expected})
    found = read_records(log.read(gap, 10_000, Isolation.LOG_END, at_least_one=True).records).batches[0]
    assert found.base_offset <= gap <= found.last_offset or found.base_offset > gap


def test_a_second_pass_reads_only_what_is_new() -> None:
    log = compacted()
    for i in range(30):
        put(log, (b"k", b"%d" % i))
    cleaner = clean(log)
    first = cleanable(log, cleaner.ends[PARTITION], NOW_MS)
    assert first.dirty_bytes == 0
    for i in range(30):
        put(log, (b"k", b"new %d" % i))
    assert cleanable(log, cleaner.ends[PARTITION], NOW_MS).first_dirty == first.first_dirty
    clean(log, cleaner=cleaner)
    active = log.segments.active.base_offset
    assert [offset for offset, _, _ in contents(log) if offset < active] == [active - 1]


def test_what_must_stay() -> None:
    """The active segment, what is not replicated, and what is younger than min.compaction.lag.ms."""
    log = compacted()
    for i in range(30):
        put(log, (b"k", b"%d" % i))
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 4
    assert cleanable(log, None, NOW_MS).end == bases[-1]
    log.set_high_watermark(bases[2] + 1)
    assert cleanable(log, None, NOW_MS).end == bases[2]
    log.set_high_watermark(log.log_end_offset)
    log.config = dataclasses.replace(log.config, min_compaction_lag_ms=1000)
    assert cleanable(log, None, NOW_MS).end == bases[0]
    assert cleanable(log, None, NOW_MS + 1000).end == bases[-1]


def test_an_open_transaction_holds_the_pass_back() -> None:
    log = compacted()
    for i in range(20):
        put(log, (b"k", b"%d" % i))
    log.append_as_leader(
        batch(b"t", key=b"k", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True), 0
    )
    opened = log.log_end_offset - 1
    for i in range(20):
        put(log, (b"k", b"%d" % i))
    assert log.last_stable_offset == opened
    holding = max(segment.base_offset for segment in log.segments if segment.base_offset <= opened)
    assert cleanable(log, None, NOW_MS).end == holding


def test_the_dirtiest_log_is_next_and_a_clean_one_is_left_alone() -> None:
    log = compacted(min_cleanable_dirty_ratio="0.5")
    for i in range(20):
        put(log, (b"%d" % i, b"x"))
    one = cleanable(log, None, NOW_MS)
    assert (one.dirty_ratio, one.is_worthwhile) == (1.0, True)
    bases = [segment.base_offset for segment in log.segments]
    late = cleanable(log, bases[-2], NOW_MS)
    assert (0 < late.dirty_ratio < 0.5, late.is_worthwhile, late.is_due) == (True, False, False)
    log.config = dataclasses.replace(log.config, max_compaction_lag_ms=1000)
    assert not cleanable(log, bases[-2], NOW_MS + 1000).is_worthwhile
    assert cleanable(log, bases[-2], NOW_MS + 1001).is_worthwhile
    assert cleanable(log, log.log_end_offset + 1, NOW_MS).first_dirty == 0  # of another log


def test_tombstones_stay_for_delete_retention_ms() -> None:
    """KIP-534: the first pass that sees a tombstone gives its batch the horizon."""
    log = compacted(delete_retention_ms="1000")
    put(log, (b"k", b"old"))
    put(log, (b"k", None), (b"other", b"x"))
    for i in range(20):
        put(log, (b"filler", b"%d" % i))
    cleaner = clean(log)
    (kept,) = [b for b in batches(log) if any(r.value is None for r in b.records)]
    assert (kept.has_delete_horizon, kept.base_timestamp) == (True, NOW_MS + 1000)
    assert [r.timestamp for r in kept.records] == [NOW_MS, NOW_MS]
    context = log.context
    assert isinstance(context, Context)
    for passed, expected in ((999, True), (1, False)):
        context.time_ms += passed
        for i in range(20):
            put(log, (b"filler", b"%d" % i))
        clean(log, cleaner=cleaner)
        assert ((1, b"k", None) in contents(log)) is expected
        assert (2, b"other", b"x") in contents(log)


def test_the_last_batch_of_a_producer_stays_without_records() -> None:
    log = compacted()
    log.append_as_leader(batch(b"v", key=b"k", producer_id=7, producer_epoch=3, base_sequence=0), 0)
    log.append_as_leader(batch(b"v", key=b"k", producer_id=7, producer_epoch=3, base_sequence=1), 0)
    log.set_high_watermark(2)
    for i in range(20):
        put(log, (b"k", b"%d" % i))
    clean(log)
    (kept,) = [b for b in batches(log) if b.producer_id == 7]
    assert (kept.base_offset, kept.last_offset, kept.base_sequence, kept.records) == (1, 1, 1, ())
    duplicate = log.append_as_leader(batch(b"v", key=b"k", producer_id=7, producer_epoch=3, base_sequence=1), 0)
    assert duplicate.is_duplicate


def test_aborted_transactions_go_and_their_markers_follow() -> None:
    """A marker stays while a batch of its transaction does, the last of its producer."""
    context = Context(producer_id_expiration_ms=500)
    log = a_log(context, **COMPACT, delete_retention_ms="1000")
    put(log, (b"k", b"committed"))
    log.append_as_leader(
        batch(b"aborted", key=b"k", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True), 0
    )
    log.append_as_leader(marker(7, committed=False), 0, origin=Origin.COORDINATOR)
    log.append_as_leader(
        batch(b"committed", key=b"j", producer_id=8, producer_epoch=0, base_sequence=0, is_transactional=True), 0
    )
    log.append_as_leader(marker(8, committed=True), 0, origin=Origin.COORDINATOR)
    log.set_high_watermark(log.log_end_offset)
    for i in range(20):
        put(log, (b"filler", b"%d" % i))
    cleaner = clean(log)
    values = [value for _, _, value in contents(log)]
    assert b"aborted" not in values
    assert values[:2] == [b"committed", b"committed"]
    assert log.read(0, 10_000, Isolation.COMMITTED, at_least_one=True).aborted  # its data went, its marker is there
    for expected in ([7, 8], [7, 8], [8]):  # the batch of 7 goes; its marker gets a horizon; that is over
        assert [b.producer_id for b in batches(log) if b.is_control][:1] == [7]
        context.time_ms += 2000
        log.remove_expired_producers()
        for i in range(20):
            put(log, (b"filler", b"%d" % i))
        clean(log, cleaner=cleaner)
        assert [b.producer_id for b in batches(log) if b.is_control] == expected
    assert log.read(0, 10_000, Isolation.COMMITTED, at_least_one=True).aborted == ()
    assert (0, b"k", b"committed") in contents(log)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD, Codec.LZ4])
def test_a_batch_keeps_its_place_and_codec(codec: Codec) -> None:
    log = compacted(segment_bytes="2000")
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), codec=codec)
    for i in range(60):
        put(log, (b"b", b"%d" % i))
    clean(log)
    first = batches(log)[0]
    assert (first.base_offset, first.last_offset, first.codec) == (0, 2, codec)
    assert [(r.offset, r.value) for r in first.records] == [(2, b"2")]


def test_a_small_buffer_takes_several_passes() -> None:
    log = compacted()
    for i in range(60):
        put(log, (b"%d" % (i % 30), b"%d" % i))
    active = log.segments.active.base_offset
    before = contents(log)
    clean(log, buffer_bytes=24 * 12)
    last = {key: offset for offset, key, _ in before if offset < active}
    kept = contents(log)
    assert {offset for offset, _, _ in kept if offset < active} == set(last.values())


def test_a_batch_with_more_keys_than_the_buffer_takes_several_passes() -> None:
    log = compacted(segment_bytes="100000")
    for _ in range(2):
        put(log, *((b"%d" % i, b"x") for i in range(50)))
    log.roll()
    cleaner = clean(log, buffer_bytes=24 * 10)
    assert cleaner.ends == {PARTITION: 100}
    assert [offset for offset, _, _ in contents(log)] == list(range(50, 100))


def test_a_buffer_without_room_for_a_key(caplog: pytest.LogCaptureFixture) -> None:
    log = compacted()
    put(log, (b"k", b"1"), (b"k", b"2"))
    log.roll()
    before = contents(log)
    clean(log, buffer_bytes=24)
    assert contents(log) == before
    assert "log.cleaner.dedupe.buffer.size has no room for a key" in caplog.text


def test_a_buffer_is_filled_to_nine_tenths_of_its_slots() -> None:
    log = compacted(segment_bytes="100000")
    put(log, *((b"%d" % i, b"x") for i in range(50)))
    put(log, *((b"%d" % i, b"y") for i in range(50)))
    log.roll()
    cleaner = Cleaner({PARTITION: log}, log.context.now_ms, 24 * 11 + 23)
    assert trio.run(cleaner.clean_next) is log
    assert cleaner.ends == {PARTITION: 9}


def test_a_transaction_that_was_aborted_before_the_log_starts_is_like_others() -> None:
    """Rule B6.23: nobody reads it, and whether it was aborted is forgotten with it."""
    log = compacted(segment_bytes="100000")
    data = batch(b"x", key=b"a", producer_id=7, base_sequence=0, is_transactional=True)
    for _ in range(2):
        log.append_as_leader(data, 0)
        log.append_as_leader(marker(7, committed=False), 0, origin=Origin.COORDINATOR)
        data = batch(b"y", key=b"a", producer_id=7, base_sequence=1, is_transactional=True)
    log.set_high_watermark(4)
    log.increment_log_start_offset(2)
    log.roll()
    put(log, (b"b", b"1"))
    clean(log)
    segment = log.segments[0]
    assert [place.header.base_offset for place in segment.scan(0)] == [0, 1, 2, 3]
    assert [found.last_offset for found in segment.txn_index.transactions] == [3]


def test_neighbours_share_a_segment() -> None:
    log = compacted()
    for i in range(60):
        put(log, (b"k", b"%d" % i))
    cleaner = clean(log)
    assert len(log.segments) > 10  # grouped by their sizes before the pass
    assert {segment.size for segment in list(log.segments)[:-2]} == {0}
    put(log, (b"k", b"last"))
    log.roll()
    clean(log, cleaner=cleaner)
    assert len(log.segments) <= 4
    for i in range(60):
        put(log, (b"%d" % i, b"%d" % i))
    found = list(groups(list(log.segments)[:-1], log.config, log.segments.active.base_offset))
    assert [segment for group in found for segment in group] == list(log.segments)[:-1]
    assert all(sum(s.size for s in group) <= 400 for group in found)
    assert len(found) < len(log.segments) - 1


def test_a_damaged_batch_ends_compaction_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    log = compacted()
    for i in range(30):
        put(log, (b"k", b"%d" % i))
    file = log.context.disk.open(log.segments[1].path(".log"))
    data = bytearray(file.read(0, file.size))
    data[-1] ^= 1
    file.truncate(0)
    file.append(bytes(data))
    clean(log)
    assert "is not compacted any more" in caplog.text
    assert not [name for name in log.context.disk.files(log.folder) if ".cleaned" in name]
    assert len(log.segments) > 4


async def contents_after(change: Callable[[Log], object]) -> tuple[list[object], list[object]]:
    """What is in the log before and after a compaction in which that happens; it must leave nothing behind."""
    log = compacted()
    for i in range(30):
        put(log, (b"k", b"%d" % i))
    cleaner = Cleaner({PARTITION: log}, log.context.now_ms, 1 << 20)
    before = contents(log)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cleaner.clean_next)
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        change(log)
    assert cleaner.ends == {}
    assert not [name for name in log.context.disk.files(log.folder) if ".cleaned" in name]
    return [*before], [*contents(log)]


async def test_a_log_that_is_truncated_meanwhile_keeps_what_it_has() -> None:
    before, after = await contents_after(lambda log: log.truncate_to(10))
    assert after == before[:10]


async def test_a_log_that_is_not_to_be_compacted_any_more_keeps_what_it_has() -> None:  # rule B6.22
    def lose_compact(log: Log) -> None:
        log.update_config(dataclasses.replace(log.config, is_compact=False, is_delete=True))

    before, after = await contents_after(lose_compact)
    assert after == before


async def test_segments_that_retention_deletes_meanwhile_do_not_come_back() -> None:
    log = compacted()
    for i in range(30):
        put(log, (b"%d" % i, b"%d" % i))
    cleaner = Cleaner({PARTITION: log}, log.context.now_ms, 1 << 20)
    start = log.segments[2].base_offset
    before = [one for one in contents(log) if one[0] >= start]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cleaner.clean_next)
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        log.increment_log_start_offset(start)
        assert log.delete_old_segments() == 2
    assert (log.segments[0].base_offset, contents(log)) == (start, before)
    assert cleaner.ends == {}
    assert not [name for name in log.context.disk.files(log.folder) if ".cleaned" in name]


def test_a_crash_at_any_write_leaves_every_last_value() -> None:
    """The disk fails at every point of a pass in turn; the log that is loaded then has all that must be there."""
    point = 0
    while True:
        disk = MemoryDisk()
        log = compacted(disk)
        for i in range(24):
            put(log, (b"k%d" % (i % 3), b"%d" % i))
        log.flush()
        active = log.segments.active.base_offset
        last = {key: offset for offset, key, _ in contents(log) if offset < active}
        rest = [one for one in contents(log) if one[0] >= active]
        end = log.log_end_offset
        crash = CrashAt(disk, point)
        disk.before = crash  # type: ignore[method-assign]
        clean(log)
        disk.before = lambda path, size: None  # type: ignore[method-assign,misc]
        disk.crash()
        loaded = a_log(Context(disk), clean=False, recovery_point=end, **COMPACT)
        found = contents(loaded)
        assert [one for one in found if one[0] >= active] == rest, point
        assert set(last.values()) <= {offset for offset, _, _ in found}, point
        assert loaded.log_end_offset == end
        names = disk.files(loaded.folder)
        assert not [name for name in names if name.endswith((".cleaned", ".swap"))], point
        if not crash.happened:
            assert {offset for offset, _, _ in found if offset < active} == set(last.values())
            break
        point += 1
    assert point > 10


@pytest.mark.parametrize("fault", ["unreadable", "damaged"])
def test_what_cannot_be_read_when_a_log_is_chosen_ends_nothing(fault: str) -> None:
    """The first batches of segments are read then, after a restart; the other logs are compacted."""
    disk = MemoryDisk()
    log = compacted(disk)
    other = Log(Context(), TopicPartition("a", 1), log.config)
    for made in (log, other):
        for i in range(24):
            put(made, (b"k%d" % (i % 3), b"%d" % i))
    log.close()
    if fault == "damaged":
        path = log.segments[0].path(".log")
        disk.write(path, b"\xff" * len(disk.read(path) or b""))
    log = a_log(Context(disk), **COMPACT)
    log.set_high_watermark(log.log_end_offset)
    if fault == "unreadable":

        def before(path: str, size: int) -> None:
            raise OSError(5, "Input/output error")

        disk.before = before  # type: ignore[method-assign]
    cleaner = Cleaner({PARTITION: log, other.partition: other}, log.context.now_ms, 1 << 20)
    size = other.size
    trio.run(cleaner.clean_next)
    assert len(log.context.failures) == (fault == "unreadable")  # type: ignore[attr-defined]
    assert other.size < size


class CrashAt:
    """Fails the write number ``point`` and all after it."""

    def __init__(self, disk: MemoryDisk, point: int) -> None:
        self.left = point
        self.happened = False

    def __call__(self, path: str, size: int) -> None:
        self.left -= 1
        if self.left < 0:
            self.happened = True
            raise OSError(f"the machine is gone before it wrote {path}")


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32))
def test_readers_see_what_a_model_sees(seed: int) -> None:
    """Random batches, tombstones, transactions and passes: the last value of each key is always there, nothing else
    comes back, offsets and order stay."""
    random = Random(seed)
    log = compacted(segment_bytes=str(random.choice((300, 700))), delete_retention_ms="1000000000")
    cleaner = Cleaner({PARTITION: log}, log.context.now_ms, 24 * random.choice((8, 1000)))
    written: dict[int, tuple[bytes, bytes | None]] = {}
    latest: dict[bytes, int] = {}
    sequence = 0
    for _ in range(random.randrange(5, 60)):
        pairs = [
            (b"%d" % random.randrange(6), None if random.random() < 0.2 else b"%d" % random.randrange(99))
            for _ in range(random.randrange(1, 4))
        ]
        base = log.log_end_offset
        if random.random() < 0.3:
            committed = random.random() < 0.5
            records = tuple(
                Record(offset=i, timestamp=NOW_MS, key=key, value=value) for i, (key, value) in enumerate(pairs)
            )
            data = RecordBatch.of(
                *records, producer_id=5, producer_epoch=0, base_sequence=sequence, is_transactional=True
            )
            sequence += len(records)
            log.append_as_leader(write_records(data), 0)
            log.append_as_leader(marker(5, committed=committed), 0, origin=Origin.COORDINATOR)
            log.set_high_watermark(log.log_end_offset)
        else:
            committed = True
            put(log, *pairs)
        if committed:
            for i, pair in enumerate(pairs):
                written[base + i] = pair
                latest[pair[0]] = base + i
        if random.random() < 0.2:
            clean(log, cleaner=cleaner)
    clean(log, cleaner=cleaner)
    found = {offset: (key, value) for offset, key, value in contents(log)}
    active = log.segments.active.base_offset
    aborted = {offset for offset in found if offset not in written}
    assert all(offset >= active for offset in aborted)  # data of aborted transactions went
    assert {offset: pair for offset, pair in found.items() if offset in written}.items() <= written.items()
    assert {latest[key] for key in latest} <= set(found)
    superseded = {
        o for o, (key, _) in written.items() if any(written[p][0] == key for p in range(o + 1, active) if p in written)
    }
    assert not superseded & {offset for offset in found if offset < active}


def test_horizons_and_order_of_decisions() -> None:
    """A record without a key, and one beyond what was read."""
    keys = KeyOffsets(10)
    batch_ = RecordBatch.of(Record(offset=0, key=b"k", value=b"1"), Record(offset=1, value=b"no key"))
    later = RecordBatch.of(Record(offset=2, key=b"k", value=b"2"), Record(offset=3, value=b"no key"))
    assert keys.add(batch_, 0, counts=True)
    compaction = Compaction(keys, Transactions(), {}, NOW_MS, DAY_MS, 100)
    kept = compaction.filtered(batch_)
    assert kept is not None
    assert [record.offset for record in kept.records] == [0]
    assert compaction.filtered(later) is later


def test_the_last_batch_of_a_pass_stays() -> None:
    keys = KeyOffsets(10)
    old = RecordBatch.of(Record(offset=0, key=b"k", value=b"1"))
    new = RecordBatch.of(Record(offset=1, key=b"k", value=b"2"))
    for one in (old, new):
        keys.add(one, 0, counts=True)
    for end_offset, expected in ((1, ()), (2, None)):
        found = Compaction(keys, Transactions(), {}, NOW_MS, DAY_MS, end_offset).filtered(old)
        assert (None if found is None else found.records) == expected


def test_an_empty_segment_replaces_all_files_of_the_old_one() -> None:
    """A crash between the two renames of a compaction that has left nothing."""
    disk = MemoryDisk()
    log = a_log(Context(disk), segment_bytes="300")
    for i in range(12):
        put(log, (b"k", b"%d" % i))
    bases = [segment.base_offset for segment in log.segments]
    log.close()
    for kind in (".log", ".index", ".timeindex"):
        disk.write(f"{log.folder}/{bases[1]:020d}{kind}.swap", b"")
    disk.write(f"{log.folder}/{bases[1]:020d}.txnindex", b"\0" * 34)
    loaded = a_log(Context(disk), segment_bytes="300")
    assert [segment.size > 0 for segment in loaded.segments] == [base != bases[1] for base in bases]
    assert not disk.exists(f"{log.folder}/{bases[1]:020d}.txnindex")


def test_what_replaces_segments_is_durable() -> None:
    disk = MemoryDisk()
    log = compacted(disk)
    for i in range(40):
        log.context.time_ms += 1  # type: ignore[attr-defined]
        put(log, (b"k%d" % (i % 39), b"v%d" % i), timestamp_type=TimestampType.CREATE_TIME)
    clean(log)
    names = [name for name in disk.files(log.folder) if name.startswith(f"{0:020}.")]
    before = {name: disk.read(f"{log.folder}/{name}") for name in names}
    first = log.segments[0]
    assert first.time_index.last.timestamp == first.max_timestamp.timestamp
    disk.crash()
    assert {name: disk.read(f"{log.folder}/{name}") for name in names} == before
