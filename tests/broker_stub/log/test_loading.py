"""How a log is read from its folder: after a clean end, after a crash at every point, with damage of every kind."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from kce.broker_stub.errors import CorruptMessage, KafkaStorageError
from kce.broker_stub.log import Isolation, Log, Origin
from kce.broker_stub.log.lookup import find_max_timestamp, find_timestamp
from kce.broker_stub.log.segment import Segment
from kce.broker_stub.log.snapshots import read_snapshot
from kce.harness.world.memory_disk import MemoryDisk
from kce.wire import Codec
from kce.wire.errors import CorruptRecord
from tests.broker_stub.log.support import (
    FOLDER,
    NOW_MS,
    Context,
    a_log,
    append,
    base_offsets,
    batch,
    config,
    marker,
    produced,
    values,
)

ONE = len(batch(b"v"))


def filled(context: Context, count: int = 12, **settings: object) -> Log:
    log = a_log(context, segment_bytes=5 * ONE, index_interval_bytes=0, **settings)
    for i in range(count):
        append(log, b"%x" % (i % 16), epoch=i // 4, timestamp=NOW_MS + i)
    return log


def reopened(context: Context, *, clean: bool = False, **more: int) -> Log:
    return a_log(context, clean=clean, segment_bytes=5 * ONE, index_interval_bytes=0, **more)


def files(context: Context) -> dict[str, bytes]:
    return {name: context.disk.read(f"{FOLDER}/{name}") or b"" for name in context.disk.files(FOLDER)}


def test_a_small_segment_is_searched_without_its_indexes() -> None:
    context = Context()
    log = a_log(context, index_interval_bytes=0)
    for i in range(3):
        append(log, b"%d" % i)
    log.close()
    log = a_log(context)
    assert [log.locate(offset).position for offset in range(3)] == [0, ONE, 2 * ONE]
    assert log.segments.active._index is None
    append(log, bytes(5000))  # too much to be read for a search
    log.close()
    log = a_log(context)
    assert log.locate(3).position == 3 * ONE
    assert log.segments.active._index is not None


def test_a_log_is_the_same_after_a_clean_end_and_after_recovery() -> None:
    context = Context()
    log = filled(context)
    log.append_as_leader(produced(7, 0, 2, transactional=True), 3)
    log.append_as_leader(marker(7, committed=False), 3, origin=Origin.COORDINATOR)
    log.append_as_leader(produced(8, 0, 2, transactional=True), 3)
    expected, epochs, producers = values(log), log.leader_epochs, dict(log.producers.producers)
    log.close()
    before = files(context)
    for clean in (True, False):
        log = reopened(context, clean=clean)
        assert (values(log), log.leader_epochs) == (expected, epochs)
        assert log.producers.producers.keys() == producers.keys() == {7, 8}
        assert log.producers.first_unstable_offset == 15
        assert log.recovery_point == (17 if clean else 0)
        log.set_high_watermark(17)
        assert [t.producer_id for t in log.read(12, 10**6, Isolation.COMMITTED).aborted] == [7]
        assert log.segments[0].max_timestamp == (NOW_MS + 4, 4)
        log.close()
        assert files(context) == before


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", [None, b"x", bytes(24), b"\xff" * 24])
def test_a_damaged_index_is_rebuilt(suffix: str, damage: bytes | None) -> None:
    context = Context()
    log = filled(context)
    log.close()
    for base in base_offsets(log):
        path = f"{FOLDER}/{base:020d}{suffix}"
        if damage is None:
            context.disk.delete(path)
        else:
            context.disk.write(path, damage)
    log = reopened(context, clean=True)
    assert [offset for offset, _ in values(log, 3)] == list(range(3, 12))
    assert [segment.max_timestamp.timestamp for segment in log.segments] == [NOW_MS + 4, NOW_MS + 9, NOW_MS + 11]
    assert log.log_end_offset == 12
    log.close()
    log = reopened(context)
    assert values(log)[-1] == (11, b"b")


def test_a_rebuilt_index_survives_a_crash() -> None:
    """Also that of a segment before the recovery point, which nothing flushes any more."""
    context = Context()
    log = filled(context)
    log.close()
    expected = files(context)
    for suffix in (".index", ".timeindex"):
        context.disk.delete(f"{FOLDER}/{0:020d}{suffix}")
    for _ in range(2):  # neither broker ends well
        log = reopened(context, recovery_point=10)
        assert log.segments[0].max_timestamp == (NOW_MS + 4, 4)
    assert files(context) == expected


@pytest.mark.parametrize("at", [1, 8, 17, 30, 58, 61, ONE - 1, ONE])
def test_a_damaged_batch_is_the_end_of_the_log(at: int) -> None:
    """Rule B6.27: the later segments go, too."""
    context = Context()
    filled(context).close()
    path = f"{FOLDER}/00000000000000000005.log"
    content = bytearray(context.disk.read(path) or b"")
    content[2 * ONE + at] ^= 0x40
    context.disk.write(path, bytes(content))
    log = reopened(context)
    end = 7 + (at >= ONE)
    assert (log.log_end_offset, base_offsets(log)) == (end, [0, 5])
    assert [offset for offset, _ in values(log)] == list(range(end))
    assert log.leader_epochs == ((0, 0), (1, 4))
    append(log, b"z", epoch=9)
    assert values(log)[-1] == (end, b"z")
    log.close()
    assert reopened(context, clean=True).log_end_offset == end + 1


@pytest.mark.parametrize("clean", [False, True])
def test_an_unknown_magic_is_passed_over(clean: bool) -> None:
    """Rule B6.34: the checksum does not cover it, and who reads it is told by it."""
    context = Context()
    filled(context).close()
    path = f"{FOLDER}/00000000000000000010.log"
    content = bytearray(context.disk.read(path) or b"")
    content[16] = 9
    context.disk.write(path, bytes(content))
    log = reopened(context, clean=clean)
    assert log.log_end_offset == 12
    assert log.locate(11).position == ONE


@pytest.mark.parametrize("clean", [False, True])
def test_a_size_that_only_the_smallest_format_has(clean: bool) -> None:
    """Rule B6.34: it is taken for what it says, until the log is recovered."""
    context = Context()
    filled(context, 10).close()
    path = f"{FOLDER}/00000000000000000005.log"
    content = bytearray(context.disk.read(path) or b"")
    del content[2 * ONE + 26 :]
    content[2 * ONE + 8 : 2 * ONE + 12] = (14).to_bytes(4)
    content += bytes(100)
    context.disk.write(path, bytes(content))
    if clean:
        with pytest.raises(CorruptRecord, match=f"byte {2 * ONE + 26}"):
            reopened(context, clean=True)
    assert reopened(context).log_end_offset == 7


@pytest.mark.parametrize("size", [0, 1, 60, ONE - 1, ONE + 1, 2 * ONE - 1])
def test_a_torn_tail_is_cut_off(size: int) -> None:
    context = Context()
    log = filled(context, 10)
    log.close()
    context.disk.open(f"{FOLDER}/00000000000000000005.log").truncate(3 * ONE + size)
    assert reopened(context, recovery_point=5).log_end_offset == 8 + size // ONE


def damaged() -> Context:
    """A closed log whose first segment is damaged at its end."""
    context = Context()
    filled(context).close()
    path = f"{FOLDER}/00000000000000000000.log"
    content = bytearray(context.disk.read(path) or b"")
    content[-1] ^= 1
    context.disk.write(path, bytes(content))
    return context


def test_segments_before_the_recovery_point_are_not_checked() -> None:
    context = damaged()
    assert reopened(context, recovery_point=5).log_end_offset == 12
    assert reopened(context, recovery_point=4).log_end_offset == 4


def test_a_time_index_that_is_missing_hides_no_damage() -> None:
    """Rule B6.27: to make it is not to recover the segment, after which nobody would see that some was cut off."""
    context = damaged()
    context.disk.delete(f"{FOLDER}/00000000000000000000.timeindex")
    log = reopened(context)
    assert (log.log_end_offset, base_offsets(log)) == (4, [0])
    assert log.segments[0].max_timestamp == (NOW_MS + 3, 3)


def test_the_log_start_is_flushed() -> None:  # rule B6.29
    context = Context()
    filled(context).close()
    assert reopened(context, log_start_offset=7).recovery_point == 7
    assert reopened(context, log_start_offset=7, recovery_point=9).recovery_point == 9


def test_after_a_recovery_the_next_entry_of_the_index_is_an_interval_away() -> None:  # rule B6.4
    context = Context()
    filled(context).close()
    log = a_log(context, clean=False, index_interval_bytes=2 * ONE)
    for _ in range(4):
        append(log)
    assert [log.segments.active.index.lookup(offset).offset for offset in range(12, 16)] == [10, 10, 10, 15]


@pytest.mark.parametrize("kept", [1, 2])
def test_batches_that_are_there_twice_are_cut_off(kept: int) -> None:
    """The first ones stay, and what is in later segments goes (rule B6.27)."""
    context = Context()
    filled(context).close()
    first = f"{FOLDER}/00000000000000000000.log"
    content = context.disk.read(first)
    assert content is not None
    context.disk.write(first, content + content[-kept * ONE :])
    log = reopened(context)
    assert (log.log_end_offset, base_offsets(log), log.segments[0].size) == (5, [0], 5 * ONE)


@pytest.mark.parametrize("size", [17, 18, 40])
def test_a_tail_of_zeros(size: int) -> None:
    """Rule B6.34: once a byte follows where the magic would be, it is a batch whose size is too small."""
    context = Context()
    filled(context).close()
    context.disk.open(f"{FOLDER}/00000000000000000010.log").append(bytes(size))
    if size > 17:
        with pytest.raises(CorruptRecord, match=f"batch at byte {2 * ONE}"):
            reopened(context, clean=True)
    assert reopened(context).log_end_offset == 12


def test_snapshots_that_a_recovery_makes() -> None:
    """Rule B3.54: for the last two segments of the whole log; those of segments that it deletes stay."""
    context = Context()
    log = filled(context, 18)
    for offset in log.producers.snapshots:
        log.producers._delete(offset)
    log.append_as_leader(produced(7, 0), 0)
    log.append_as_leader(produced(7, 1), 0)
    log.close()
    assert reopened(context, recovery_point=15).producers.snapshots == (10, 15, 20)
    context.disk.delete(f"{FOLDER}/{15:020}.snapshot")
    context.disk.open(f"{FOLDER}/{10:020}.log").append(b"x")
    log = reopened(context, recovery_point=10)
    assert (base_offsets(log), log.log_end_offset, log.producers.snapshots) == ([0, 5, 10], 15, (10, 15))
    assert context.disk.exists(f"{FOLDER}/{15:020}.snapshot")


def test_a_log_start_within_a_segment_and_beyond_the_end() -> None:
    """Rules B6.28, B6.29."""
    context = Context()
    filled(context).close()
    log = reopened(context, clean=True, log_start_offset=7)
    assert (log.log_start_offset, log.leader_epochs) == (7, ((1, 7), (2, 8)))
    log.close()
    log = reopened(context, log_start_offset=20)
    assert (log.log_start_offset, log.log_end_offset, base_offsets(log)) == (20, 20, [20])
    assert (log.leader_epochs, log.producers.producers) == ((), {})
    assert not any(name.endswith(".snapshot") for name in context.disk.files(FOLDER))
    append(log)
    assert values(log) == [(20, b"v")]


def test_temporary_files_are_removed() -> None:
    context = Context()
    filled(context).close()
    before = files(context)
    for name in (
        "00000000000000000000.log.deleted", "00000000000000000003.index.cleaned", "00000000000000000003.log.cleaned",
        "00000000000000000004.log.swap", "00000000000000000099.index", "00000000000000000098.txnindex",
    ):  # fmt: skip
        context.disk.write(f"{FOLDER}/{name}", b"")
    reopened(context, clean=True).close()
    assert files(context) == before


def test_a_compaction_that_was_swapped_is_completed() -> None:
    context = Context()
    filled(context).close()
    compacted = Context()
    log = a_log(compacted)
    for offset in (2, 7):
        log.append_as_follower(batch(b"kept", base_offset=offset, leader_epoch=offset // 4))
    log.close()
    for suffix in (".log", ".index", ".timeindex"):
        content = compacted.disk.read(f"{FOLDER}/00000000000000000000{suffix}") or b""
        context.disk.write(f"{FOLDER}/00000000000000000000{suffix}.swap", content)
    log = reopened(context, clean=True)
    assert values(log) == [(2, b"kept"), (7, b"kept"), (10, b"a"), (11, b"b")]
    assert base_offsets(log) == [0, 10]
    assert not [name for name in files(context) if name.endswith(".swap")]


def test_what_is_swapped_in_takes_the_place_of_snapshots() -> None:
    """Rule B6.26: like all files in the range of its offsets."""
    context = Context()
    log = filled(context)
    log.close()
    assert log.producers.snapshots == (5, 10, 12)
    for suffix in (".log", ".index", ".timeindex"):
        content = context.disk.read(f"{FOLDER}/{5:020}{suffix}") or b""
        context.disk.write(f"{FOLDER}/{5:020}{suffix}.swap", content)
    before = values(log)
    log = reopened(context, clean=True)
    assert (log.producers.snapshots, base_offsets(log), values(log)) == ((10, 12), [0, 5, 10], before)


class CrashingDisk(MemoryDisk):
    """Loses power before its operation number ``at``."""

    def __init__(self, at: int) -> None:
        super().__init__(lambda: NOW_MS)
        self.left = at

    def before(self, path: str, size: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError("no power")


def a_life(context: Context, log: Log, flushed: Callable[[list[tuple[int, bytes | None]]], None]) -> None:
    """Appends, rolls, flushes, truncations and deletions; ``flushed`` gets what is certain to survive."""
    for i in range(14):
        append(log, b"%x" % i, epoch=i // 5)
        if i % 4 == 3:
            log.flush()
            flushed(values(log))
    log.append_as_leader(produced(5, 0, transactional=True), 3)
    log.append_as_leader(marker(5, committed=False), 3, origin=Origin.COORDINATOR)
    flushed([])
    log.truncate_to(11)
    log.flush()
    flushed(values(log))
    append(log, b"n", epoch=4)
    log.set_high_watermark(8)
    log.increment_log_start_offset(6)
    flushed([])
    log.delete_old_segments()
    append(log, b"m", epoch=5)
    log.close()
    flushed(values(log))


@pytest.mark.parametrize("torn", [False, True])
def test_a_crash_at_every_point_of_its_life(torn: bool) -> None:
    """What was flushed is there; what is there was written, in one piece, and the log goes on."""
    at, done = 0, False
    while not done:
        disk = CrashingDisk(at)
        context = Context(disk)
        certain: list[tuple[int, bytes | None]] = []

        def flushed(found: list[tuple[int, bytes | None]], certain: list[tuple[int, bytes | None]] = certain) -> None:
            certain[:] = found

        try:
            log = a_log(context, segment_bytes=3 * ONE, index_interval_bytes=100)
            a_life(context, log, flushed)
            done = True
        except (OSError, KafkaStorageError):
            pass
        disk.left = 10**9
        disk.crash(Random(at) if torn else None)
        context = Context(disk)
        log = a_log(context, segment_bytes=3 * ONE, index_interval_bytes=100, clean=False)
        found = values(log)
        offsets = [offset for offset, _ in found]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))) if offsets else True
        assert certain == [entry for entry in found if entry in certain], (at, certain, found)
        for offset, value in found:
            assert value in (b"%x" % offset, b"n", b"m", b"0")
        assert [epoch for epoch, _ in log.leader_epochs] == sorted(epoch for epoch, _ in log.leader_epochs)
        end = log.log_end_offset
        append(log, b"after", epoch=9)
        assert values(log)[-1] == (end, b"after")
        log.close()
        assert values(reopened(context, clean=True))[-1] == (end, b"after")
        at += 1
    assert at > 150


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_rebuilt_index_has_nothing_of_the_old_one(suffix: str) -> None:
    context = Context()
    log = a_log(context)
    append(log)
    log.close()
    path = f"{FOLDER}/{0:020}{suffix}"
    expected = context.disk.read(path)
    context.disk.write(path, bytes.fromhex("0000000a00000064") * 3)
    reopened(context, clean=False).close()
    assert context.disk.read(path) == expected


def test_lost_leader_epochs_are_found_again_in_the_batches() -> None:  # rule B6.27
    context = Context()
    log = filled(context)
    epochs = log.leader_epochs
    log.close()
    context.disk.delete(f"{FOLDER}/leader-epoch-checkpoint")
    log = reopened(context)
    assert log.leader_epochs == epochs == ((0, 0), (1, 4), (2, 8))


def test_an_end_makes_the_last_snapshot_durable() -> None:  # rule B6.9
    context = Context()
    assert isinstance(context.disk, MemoryDisk)
    log = a_log(context)
    log.append_as_leader(produced(7, 0, 2), 0)
    log.close()
    context.disk.crash()
    assert read_snapshot(context.disk, f"{FOLDER}/{2:020}.snapshot").keys() == {7}


def test_a_segment_without_indexes_makes_them() -> None:
    context = Context()
    filled(context).close()
    for suffix in (".index", ".timeindex"):
        context.disk.delete(f"{FOLDER}/{0:020d}{suffix}")
    segment = Segment(context.disk, FOLDER, 0, config(), now_ms=NOW_MS)
    assert segment.max_timestamp == (NOW_MS + 4, 4)


def test_look_ups_check_no_checksum() -> None:
    """As Kafka's: a damaged value is the reader's affair."""
    context = Context()
    log = filled(context, 3)
    path = f"{FOLDER}/{0:020d}.log"
    content = bytearray(context.disk.read(path) or b"")
    content[ONE - 2] ^= 1  # the value of the first record
    context.disk.write(path, bytes(content))
    log = reopened(context, clean=True)
    assert find_timestamp(log, NOW_MS) == (NOW_MS, 0, 0)


def test_small_segments_are_loaded_without_their_indexes() -> None:
    context = Context()
    filled(context).close()
    log = reopened(context, clean=True)
    assert log.log_end_offset == 12
    assert [segment._index for segment in log.segments] == [None] * 3
    assert log.segments[2].max_timestamp == (NOW_MS + 11, 11)
    assert log.segments[2]._index is not None


def test_without_producers_a_cut_log_needs_no_batches() -> None:
    context = Context()
    log = filled(context)
    log.producers.truncate_fully(log.log_end_offset)
    assert log.truncate_to(7)
    assert (log.producers.snapshots, log.producers.map_end_offset) == ((7,), 7)


def test_a_damaged_index_of_transactions_is_rebuilt() -> None:
    context = Context()
    log = a_log(context)
    log.append_as_leader(produced(7, 0, transactional=True), 0)
    log.append_as_leader(marker(7, committed=False), 0, origin=Origin.COORDINATOR)
    append(log)
    log.close()
    path = f"{FOLDER}/{0:020d}.txnindex"
    content = context.disk.read(path)
    assert content
    context.disk.write(path, b"\0\1" + content[2:])
    log = a_log(context)
    assert context.disk.read(path) == content
    log.set_high_watermark(3)
    assert log.read(0, 1000, Isolation.COMMITTED).aborted == ((7, 0, 1, 2),)


def test_what_cannot_be_looked_up() -> None:  # rule B7.18
    context = Context()
    log = a_log(context)
    append(log, b"x" * 100, codec=Codec.GZIP)
    log.close()
    path = f"{FOLDER}/{0:020d}.log"
    content = bytearray(context.disk.read(path) or b"")
    content[70:78] = b"\xff" * 8
    context.disk.write(path, bytes(content))
    log = a_log(context)
    for look_up in (find_max_timestamp, lambda log: find_timestamp(log, NOW_MS)):
        with pytest.raises(CorruptMessage, match="segment 0"):
            look_up(log)


def test_a_cut_log_has_snapshots_where_its_last_segments_begin() -> None:  # rule B3.54
    context = Context()
    log = filled(context)
    log.append_as_leader(produced(7, 0), 3)
    for offset in log.producers.snapshots:
        log.producers._delete(offset)
    assert log.truncate_to(12)
    assert (log.producers.snapshots, log.producers.map_end_offset) == ((5, 10, 12), 12)


def test_a_log_that_ends_before_its_start_knows_nothing() -> None:  # rule B6.28
    context = Context()
    log = filled(context)
    log.append_as_leader(produced(7, 0), 3)
    log.close()
    log = reopened(context, clean=True, log_start_offset=50)
    assert (log.log_start_offset, log.log_end_offset, base_offsets(log), log.leader_epochs) == (50, 50, [50], ())
    assert (log.producers.producers, log.producers.snapshots, log.producers.map_end_offset) == ({}, (50,), 50)
    assert sorted(files(context)) == [f"{50:020}.{kind}" for kind in ("index", "log", "snapshot", "timeindex")] + [
        "leader-epoch-checkpoint"
    ]
