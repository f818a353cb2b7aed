"""A log beside a model of it, a list of batches, through random appends, cuts, deletions, ends and crashes.

After each step everything that can be asked of the log is asked, and worked out from the list. One that rests whenever
it can has the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from kce.broker_stub.log import Isolation, Log, Origin
from kce.broker_stub.log.leader_epochs import UNDEFINED, EpochEnd
from kce.broker_stub.log.lookup import FoundOffset, find_max_timestamp, find_timestamp
from kce.broker_stub.log.segments import OffsetMetadata
from kce.broker_stub.log.snapshots import read_snapshot
from kce.harness.world.memory_disk import MemoryDisk
from kce.wire.batch_header import BatchHeader, read_headers
from tests.broker_stub.log.support import (
    FOLDER,
    NOW_MS,
    Context,
    a_log,
    batch,
    marker,
    produced,
)

SEGMENT_BYTES = 420


@dataclass(frozen=True)
class Batch:
    """``ends``: whether the transaction commits, None of data."""

    base: int
    last: int
    timestamp: int
    epoch: int
    size: int
    producer: int = -1
    sequence: int = -1
    transactional: bool = False
    ends: bool | None = None


@dataclass
class Segment:
    base: int
    batches: list[Batch] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(one.size for one in self.batches)


class Modelled:
    """The log, and what it should be."""

    def __init__(self, seed: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.chance = Random(seed)
        self.segment_bytes = segment_bytes
        self.settings = {
            "segment_bytes": segment_bytes, "index_interval_bytes": self.chance.choice([0, 100, 250]),
            "retention_ms": -1, "file_delete_delay_ms": 0,
        }  # fmt: skip
        self.context = Context(MemoryDisk(lambda: NOW_MS))
        self.log = a_log(self.context, **self.settings)
        self.segments = [Segment(0)]
        #: batches of deleted segments
        self.deleted: list[Batch] = []
        self.start = self.end = self.high_watermark = self.epoch = 0
        self.epochs: list[tuple[int, int]] = []
        self.sequences: dict[int, int] = {}
        #: what transactions before it did may be forgotten
        self.forgotten = 0
        #: whether transactions that have ended beyond the high watermark are remembered
        self.knows_unreplicated = True

    @property
    def batches(self) -> list[Batch]:
        return [one for segment in self.segments for one in segment.batches]

    # steps

    def _append(self, one: Batch) -> None:
        self._make_room(one.size)
        self.segments[-1].batches.append(one)
        if not self.epochs or self.epochs[-1][0] < one.epoch:
            self.epochs.append((one.epoch, one.base))
        self.end = one.last + 1
        if one.producer >= 0 and one.ends is None:
            self.sequences[one.producer] = one.sequence + one.last - one.base + 1

    def _make_room(self, size: int, base: int = 0) -> None:
        if self.segments[-1].size + size > self.segment_bytes:
            self._roll(base)

    def _roll(self, base: int = 0) -> None:
        """A new segment at that offset, or at the end if that is later."""
        if not self.segments[-1].batches and self.segments[-1].base == max(base, self.end):
            self.segments.pop()
        self.segments.append(Segment(max(base, self.end)))

    def append(self) -> None:
        count, stamp = self.chance.randrange(1, 4), NOW_MS + self.chance.randrange(-50, 50)
        self.epoch += self.chance.random() < 0.2
        data = batch(*[self.chance.randbytes(self.chance.randrange(30)) for _ in range(count)], timestamp=stamp)
        found = self.log.append_as_leader(data, self.epoch)
        assert (found.first_offset, found.last_offset) == (self.end, self.end + count - 1)
        self._append(Batch(self.end, self.end + count - 1, stamp, self.epoch, len(data)))

    def produce(self) -> None:
        """Twice, as a producer does that got no response. Producer 1 has no transactions."""
        producer, count = self.chance.randrange(1, 4), self.chance.randrange(1, 3)
        transactional = producer > 1
        sequence = self.sequences.get(producer, 0)
        data = produced(producer, sequence, count, transactional=transactional)
        found = self.log.append_as_leader(data, self.epoch)
        assert (found.first_offset, found.is_duplicate) == (self.end, False)
        again = self.log.append_as_leader(data, self.epoch)
        assert (again.first_offset, again.last_offset, again.is_duplicate) == (self.end, self.end + count - 1, True)
        self._append(
            Batch(self.end, self.end + count - 1, NOW_MS, self.epoch, len(data), producer, sequence, transactional)
        )
        self._make_room(len(data))  # a batch that is refused may roll (rule B3.19)

    def end_transaction(self) -> None:
        if opened := sorted(self.open()):
            producer, commits = self.chance.choice(opened), self.chance.random() < 0.5
            data = marker(producer, committed=commits)
            self.log.append_as_leader(data, self.epoch, origin=Origin.COORDINATOR)
            self._append(
                Batch(self.end, self.end, NOW_MS, self.epoch, len(data), producer, transactional=True, ends=commits)
            )

    def replicate(self) -> None:
        """As a follower: two batches at once, with holes in the offsets, as of a compacted log."""
        made, data, base = [], b"", self.end + self.chance.choice([0, 0, 3])
        for _ in range(2):
            stamp = NOW_MS + self.chance.randrange(-50, 50)
            one = batch(b"r", timestamp=stamp, base_offset=base, leader_epoch=self.epoch)
            made.append(Batch(base, base, stamp, self.epoch, len(one)))
            data, base = data + one, base + self.chance.choice([1, 1, 2])
        found = self.log.append_as_follower(data)
        assert (found.first_offset, found.last_offset) == (made[0].base, made[-1].last)
        self._make_room(len(data), made[0].base)
        for one in made:
            self.segments[-1].batches.append(one)
        if not self.epochs or self.epochs[-1][0] < self.epoch:
            self.epochs.append((self.epoch, made[0].base))
        self.end = made[-1].last + 1

    def replicated(self) -> None:
        """The high watermark moves, forwards only."""
        self.high_watermark = self.chance.choice([self.end, self.chance.randint(self.high_watermark, self.end)])
        self.log.maybe_increment_high_watermark(OffsetMetadata(self.high_watermark))
        if self.high_watermark == self.end:
            self.knows_unreplicated = True

    def start_later(self) -> None:
        self.start = self.chance.randint(self.start, self.high_watermark)
        self.log.increment_log_start_offset(self.start)
        self.forgotten = self.start
        below = [entry for entry in self.epochs if entry[1] <= self.start]
        if below:
            self.epochs = [(below[-1][0], self.start), *self.epochs[len(below) :]]

    def delete_old(self) -> None:
        count = sum(after.base <= self.start for after in self.segments[1:])
        assert self.log.delete_old_segments() == count
        self.deleted += [one for segment in self.segments[:count] for one in segment.batches]
        del self.segments[:count]

    def roll(self) -> None:
        self.log.roll()
        self._roll()

    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.end

    def truncate(self) -> None:
        offset = self.chance.randint(max(self.start, self.end - 12), self.end)
        is_cut = self.log.truncate_to(offset)
        assert is_cut == (offset < self.end)
        if not is_cut:
            self.epochs = [entry for entry in self.epochs if entry[1] < self.end]
            return
        self.knows_unreplicated = False
        self.end = offset
        while self.segments[-1].base > offset and len(self.segments) > 1:
            self.segments.pop()
        kept = [one for one in self.segments[-1].batches if one.last < offset]
        self.segments[-1].batches = kept
        self.epochs = [entry for entry in self.epochs if entry[1] < offset]
        self.high_watermark = min(self.high_watermark, offset)
        self._sequences_again()

    def truncate_fully(self) -> None:
        offset = self.end + self.chance.randrange(-3, 4)
        if offset >= 0 and self.chance.random() < 0.6:
            self.log.truncate_fully(offset)
            self.segments, self.deleted, self.epochs, self.sequences = [Segment(offset)], [], [], {}
            self.start = self.end = self.high_watermark = self.forgotten = offset
            self.knows_unreplicated = True

    def end_and_begin(self) -> None:
        self.log.close()
        self._begin(clean=True)
        assert self.log.recovery_point == self.end

    def crash_and_begin(self) -> None:
        """Everything was written, and nothing says so but what was flushed."""
        point = self.chance.choice([0, self.log.recovery_point])
        self.log.flush()
        for name in self.context.disk.files(FOLDER):
            if name.endswith((".index", ".timeindex")) and self.chance.random() < 0.3:
                self.context.disk.delete(f"{FOLDER}/{name}")
        self._begin(clean=False, recovery_point=point)

    def _begin(self, **how: object) -> None:
        again = a_log(self.context, log_start_offset=self.start, **how, **self.settings)  # type: ignore[arg-type]
        assert again.high_watermark == max(self.start, 0)
        again.set_high_watermark(self.high_watermark)
        self.log = again
        kept = self.segments[-1]
        self.end = kept.batches[-1].last + 1 if kept.batches else kept.base
        if self.end < self.start:  # rule B6.28
            self.segments, self.deleted, self.epochs, self.end = [Segment(self.start)], [], [], self.start
        self.epochs = [entry for entry in self.epochs if entry[1] < self.end]
        self.high_watermark = min(self.high_watermark, self.end)
        self.knows_unreplicated = False
        self._sequences_again()

    def _sequences_again(self) -> None:
        self.sequences = {producer: state.last_sequence + 1 for producer, state in self.log.producers.producers.items()}

    # the answers

    def open(self) -> dict[int, int]:
        """Producer -> the first offset of its open transaction."""
        found: dict[int, int] = {}
        for one in (*self.deleted, *self.batches):
            if one.ends is not None:
                found.pop(one.producer, None)
            elif one.transactional:
                found.setdefault(one.producer, one.base)
        return found

    def transactions(self) -> list[tuple[int, int, int, bool]]:
        """(producer, first offset, last offset, whether it was committed) of those that have ended."""
        found, opened = [], {}
        for one in (*self.deleted, *self.batches):
            if one.ends is not None and one.producer in opened:
                found.append((one.producer, opened.pop(one.producer), one.base, one.ends))
            elif one.transactional and one.ends is None:
                opened.setdefault(one.producer, one.base)
        return found

    def place(self, offset: int) -> OffsetMetadata:
        if offset == self.end:
            return OffsetMetadata(offset, self.segments[-1].base, self.segments[-1].size)
        for segment in self.segments:
            position = 0
            for one in segment.batches:
                if one.last >= offset:
                    return OffsetMetadata(offset, segment.base, position)
                position += one.size
        return OffsetMetadata(offset)


STEPS: tuple[tuple[Callable[[Modelled], None], int], ...] = (
    (Modelled.append, 6), (Modelled.produce, 6), (Modelled.end_transaction, 4), (Modelled.replicate, 3),
    (Modelled.replicated, 5), (Modelled.start_later, 1), (Modelled.delete_old, 2), (Modelled.roll, 1),
    (Modelled.flush, 1), (Modelled.truncate, 2), (Modelled.truncate_fully, 1), (Modelled.end_and_begin, 2),
    (Modelled.crash_and_begin, 2),
)  # fmt: skip


def headers(log: Log) -> Iterator[BatchHeader]:
    """Of everything that can be read."""
    offset = log.log_start_offset
    while found := log.read(offset, 2**20, Isolation.LOG_END, at_least_one=True).records:
        for _, header in read_headers(found):
            yield header
            offset = header.last_offset + 1


def check_offsets_and_reads(m: Modelled) -> None:
    log, chance = m.log, m.chance
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (m.start, m.end, m.high_watermark)
    assert [(one.base_offset, one.size) for one in log.segments] == [(one.base, one.size) for one in m.segments]
    wanted = [one for one in m.batches if one.last >= m.start]
    found = list(headers(log))
    assert [(h.base_offset, h.last_offset, h.max_timestamp, h.partition_leader_epoch) for h in found] == [
        (one.base, one.last, one.timestamp, one.epoch) for one in wanted
    ]
    for offset in range(m.start, m.end + 1):
        assert log.locate(offset) == m.place(offset)
    for isolation, end in (
        (Isolation.LOG_END, m.end), (Isolation.HIGH_WATERMARK, m.high_watermark),
        (Isolation.COMMITTED, log.last_stable_offset),
    ):  # fmt: skip
        offset, size = chance.randint(m.start, m.end), chance.randrange(1, 600)
        read = log.read(offset, size, isolation, at_least_one=True)
        whole = m.place(end)
        at = m.place(offset)
        if offset >= end:
            assert read.records == b""
        elif at.is_located and whole.is_located and at[1:] < whole[1:]:  # neither is in a hole
            segment = next(one for one in m.segments if one.base == at.segment)
            limit = segment.size if segment.base < whole.segment else whole.position
            first = next(one for one in segment.batches if one.last >= offset)
            assert len(read.records) == min(limit - at.position, max(size, first.size))
            assert (read.start, read.is_incomplete) == (at, False)


def check_epochs(m: Modelled) -> None:
    log = m.log
    assert log.leader_epochs == tuple(m.epochs)
    for epoch in range(m.epoch + 2):
        below = [known for known, _ in m.epochs if known <= epoch]
        above = [offset for known, offset in m.epochs if known > epoch]
        if m.epochs and epoch == m.epochs[-1][0]:
            expected = EpochEnd(epoch, m.end)
        elif not above:
            expected = EpochEnd(UNDEFINED, UNDEFINED)
        else:
            expected = EpochEnd(below[-1] if below else epoch, above[0])
        assert log.end_offset_of(epoch) == expected
    for offset in range(m.start, m.end):
        assert log.epoch_at(offset) == max([known for known, start in m.epochs if start <= offset], default=-1)


def check_times(m: Modelled) -> None:
    for segment, expected in zip(m.log.segments, m.segments, strict=True):
        most = max([one.timestamp for one in expected.batches], default=-1)
        assert segment.max_timestamp.timestamp == most
        if most >= 0:
            assert segment.max_timestamp.offset in [one.last for one in expected.batches if one.timestamp == most]
    for timestamp in (NOW_MS - 40, NOW_MS, NOW_MS + 1 + m.chance.randrange(60)):
        later = [[one for one in segment.batches if one.timestamp >= timestamp] for segment in m.segments]
        candidates = next(filter(None, later), [])  # of one segment only (rule B7.18)
        at_first = next((one for one in candidates if one.last >= m.start), None)
        expected_place = at_first and FoundOffset(at_first.timestamp, max(at_first.base, m.start), at_first.epoch)
        assert find_timestamp(m.log, timestamp) == expected_place
    latest = find_max_timestamp(m.log)
    most = max([one.timestamp for one in m.batches], default=None)
    assert (latest and latest.timestamp) == most


def check_producers(m: Modelled) -> None:
    log, opened = m.log, m.open()
    for producer, state in log.producers.producers.items():
        written = [one for one in m.batches if one.producer == producer and one.base >= m.forgotten]
        data = [one for one in written if one.ends is None]
        if data:
            assert (state.last_sequence, state.batches[-1].last_offset) == (
                data[-1].sequence + data[-1].last - data[-1].base,
                data[-1].last,
            )
        if opened.get(producer, -1) >= m.forgotten or (written and producer not in opened):
            assert state.transaction == opened.get(producer)
    assert {one.producer for one in m.batches if one.producer >= 0 and one.base >= m.forgotten} <= (
        log.producers.producers.keys()
    )
    for offset in log.producers.snapshots:
        assert offset <= m.end
        for producer, entry in read_snapshot(m.context.disk, f"{FOLDER}/{offset:020}.snapshot").items():
            data = [
                one
                for one in m.batches
                if one.producer == producer and m.forgotten <= one.base < offset and one.ends is None
            ]
            if data:
                assert (entry.last_offset, entry.offset_delta) == (data[-1].last, data[-1].last - data[-1].base)
                assert entry.last_sequence == data[-1].sequence + entry.offset_delta
    unreplicated = [first for _, first, last, _ in m.transactions() if last >= m.high_watermark]
    is_known = all(first >= m.forgotten for first in (*opened.values(), *unreplicated))
    if is_known and (m.knows_unreplicated or not unreplicated):
        assert log.last_stable_offset == min([*opened.values(), *unreplicated, m.high_watermark])
        assert log.located_last_stable().offset == log.last_stable_offset
    for _ in range(3):
        first, end = sorted(m.chance.choices(range(m.start, m.end + 1), k=2))
        aborted = {(a.producer_id, a.first_offset, a.last_offset) for a in log.segments.aborted(first, end)}
        ended = [(p, a, b) for p, a, b, commits in m.transactions() if not commits and b >= first and a < end]
        begun_earlier = {(p, b) for p, a, b, _ in m.transactions() if a < m.forgotten}
        assert {one for one in aborted if (one[0], one[2]) not in begun_earlier} == {
            one for one in ended if one[1] >= m.forgotten
        }


def check(m: Modelled) -> None:
    check_offsets_and_reads(m)
    check_epochs(m)
    check_times(m)
    check_producers(m)


@pytest.mark.parametrize("seed", range(16))
def test_a_log_is_what_its_model_is(seed: int) -> None:
    m = Modelled(seed)
    steps = m.chance.choices([step for step, _ in STEPS], [weight for _, weight in STEPS], k=70)
    for step in steps:
        step(m)
        check(m)


WITHOUT_PRODUCERS = [
    (step, weight) for step, weight in STEPS if step not in (Modelled.produce, Modelled.end_transaction)
]


@pytest.mark.parametrize("seed", range(16))
def test_a_log_that_rests_is_what_its_model_is(seed: int) -> None:
    m = Modelled(seed, segment_bytes=4 * SEGMENT_BYTES)
    steps = m.chance.choices([step for step, _ in WITHOUT_PRODUCERS], [w for _, w in WITHOUT_PRODUCERS], k=70)
    rested = 0
    for step in steps:
        step(m)
        can_rest = len(m.segments) == 1 and m.segments[0].batches != []
        assert m.log.rest() == can_rest
        rested += can_rest
        assert (m.log.end, m.log.size) == (m.place(m.end), sum(segment.size for segment in m.segments))
        assert (m.log.high_watermark, m.log.last_stable_offset) == (m.high_watermark, m.high_watermark)
        assert (m.log.leader_epochs, m.log.has_files) == (tuple(m.epochs), True)
        if m.chance.random() < 0.7:  # else the next step finds it at rest
            check(m)
    assert rested > 10
