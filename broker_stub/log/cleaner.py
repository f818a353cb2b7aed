"""The log cleaner: compacts logs whose ``cleanup.policy`` has ``compact`` (section 6d).

Which log is next is decided by the share of bytes that are new since its last pass. A pass rewrites segments one group
after the other: `X.log.cleaned`, then `X.log.swap`, which replaces the old segments even if the process dies then
(`loading` completes it), then `X.log`. Other tasks run between batches.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

import trio

from kce.broker_stub.disk import Buffer
from kce.broker_stub.errors import KafkaStorageError
from kce.broker_stub.log.compaction import Compaction, KeyOffsets, Transactions
from kce.broker_stub.log.config import LogConfig
from kce.broker_stub.log.indexes import AbortedTransaction
from kce.broker_stub.log.log import UNCUT, Log
from kce.broker_stub.log.names import CLEANED
from kce.broker_stub.log.segment import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, Segment
from kce.wire import errors
from kce.wire.record import RecordBatch
from kce.wire.records import MAX_OPENED_ELEMENTS, read_records, write_records
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

#: of Kafka's offset map: the bytes of an entry
_ENTRY_BYTES: Final = 24
#: ``log.cleaner.io.buffer.load.factor``
_LOAD_FACTOR: Final = 0.9
#: after a look at so many logs, other tasks run
_LOGS_AT_ONCE: Final = 100


class Uncleanable(Exception):
    """The log cannot be compacted."""


class Cleanable(NamedTuple):
    """``log`` may be compacted: what is before ``first_dirty`` was, and what is at ``end`` or beyond must not be.

    ``is_due``: a record waits for longer than ``max.compaction.lag.ms``.
    """

    log: Log
    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    is_due: bool

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    @property
    def is_worthwhile(self) -> bool:
        return self.dirty_bytes > 0 and (self.is_due or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio)


def cleanable(found: Log, last_clean: int | None, now_ms: int) -> Cleanable:
    """What may be compacted (rule B6.22). ``last_clean``: the end of the last pass. Raises OSError, CorruptRecord."""
    config, segments = found.config, found.segments
    first_dirty = found.log_start_offset
    if last_clean is not None and first_dirty <= last_clean <= found.log_end_offset:
        first_dirty = last_clean
    limits = [found.last_stable_offset, segments.active.base_offset]
    if config.min_compaction_lag_ms > 0:
        youngest = now_ms - config.min_compaction_lag_ms
        limits += [s.base_offset for s in segments.from_offset(first_dirty) if s.largest_timestamp_ms > youngest][:1]
    waiting = segments.from_offset(first_dirty, segments.active.base_offset)  # what must stay, too
    timestamps = [timestamp for s in waiting if (timestamp := s.first_batch_timestamp()) > 0]
    end = segments.from_offset(min(limits))[0].base_offset  # the segment with what must stay is left alone
    first_dirty = min(first_dirty, end)
    dirty = segments.from_offset(first_dirty, end)
    return Cleanable(
        found,
        first_dirty,
        end,
        clean_bytes=sum(segment.size for segment in segments if segment.base_offset < first_dirty),
        dirty_bytes=sum(segment.size for segment in dirty),
        is_due=bool(timestamps) and min(timestamps) < now_ms - config.max_compaction_lag_ms,
    )


class Cleaner:
    """Compacts logs, one at a time. ``ends``: of each partition, the end of its last pass."""

    def __init__(
        self,
        logs: Mapping[TopicPartition, Log],
        now_ms: Callable[[], int],
        dedupe_buffer_bytes: int,
        moving: Container[TopicPartition] = (),
    ) -> None:
        """``moving``: these are copied to another log directory, and not compacted meanwhile."""
        self._logs = logs
        self._moving = moving
        self._now_ms = now_ms
        self.resize(dedupe_buffer_bytes)
        self.ends: dict[TopicPartition, int] = {}
        self._uncleanable: set[TopicPartition] = set()

    def resize(self, dedupe_buffer_bytes: int) -> None:
        """From the next pass on."""
        self._capacity = int(dedupe_buffer_bytes // _ENTRY_BYTES * _LOAD_FACTOR)

    def forget(self, partition: TopicPartition) -> None:
        """The log is deleted."""
        self.ends.pop(partition, None)
        self._uncleanable.discard(partition)

    async def clean_next(self) -> Log | None:
        """Compact the log that needs it most, and return it; None if no log needs it."""
        candidates = []
        for count, found in enumerate(list(self._logs.values())):
            if count % _LOGS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            if found.config.is_compact and found.has_files and self._may_clean(found):
                one = self._cleanable(found)
                if one is not None and one.is_worthwhile:
                    candidates.append(one)
        if not candidates:
            return None
        chosen = max(candidates, key=lambda one: one.dirty_ratio)
        try:
            await self._clean(chosen)
        except _Changed:
            log.info("%s has changed while it was compacted", chosen.log.partition)
        except (Uncleanable, errors.WireError) as e:
            log.warning("%s is not compacted any more: %s", chosen.log.partition, e)
            self._uncleanable.add(chosen.log.partition)
        except KafkaStorageError as e:
            log.warning("%s", e)
        except OSError as e:
            chosen.log.context.failed(e)
        return chosen.log

    def _cleanable(self, found: Log) -> Cleanable | None:
        """None if it cannot be read."""
        end = self.end_of_last_pass(found)
        if end is not None and not found.log_start_offset <= end <= found.log_end_offset:
            end = self.ends[found.partition] = found.log_start_offset  # for good: the log may grow beyond it again
        try:
            return cleanable(found, end, self._now_ms())
        except errors.CorruptRecord as e:
            log.warning("%s is not compacted any more: %s", found.partition, e)
            self._uncleanable.add(found.partition)
        except OSError as e:
            found.context.failed(e)
        return None

    def _may_clean(self, found: Log) -> bool:
        partition = found.partition
        is_held = partition in self._uncleanable or partition in self._moving
        return self._logs.get(partition) is found and not is_held

    def end_of_last_pass(self, found: Log) -> int | None:
        """Not beyond the segment that a truncation has cut since (rule B6.22)."""
        end = self.ends.get(found.partition)
        return None if end is None else min(end, found.cut_to)

    async def _clean(self, one: Cleanable) -> None:
        """Raises _Changed, Uncleanable, KafkaStorageError, OSError, wire.WireError."""
        found, pass_ = one.log, _Pass(one.log, self._logs, self._moving)
        keys, end = await pass_.read_keys(one, self._capacity)
        retention_ms = found.config.delete_retention_ms
        cleaned = [segment for segment in found.segments if segment.base_offset < one.first_dirty]
        compaction = Compaction(
            keys, Transactions(), found.known_producers(), self._now_ms(), retention_ms, one.end,
            old_delete_horizon_ms=cleaned[-1].modified_ms - retention_ms if cleaned else 0,
        )  # fmt: skip
        before = found.size
        first = found.segments[0].base_offset
        for group in groups(found.segments.from_offset(first, end), found.config, one.end):
            await pass_.rewrite(group, compaction)
        self.ends[found.partition] = end
        found.cut_to = UNCUT
        log.info("%s: compacted to offset %d, %d bytes of %d are left", found.partition, end, found.size, before)


def _with_ends(segments: Sequence[Segment], end_offset: int) -> Iterator[tuple[Segment, int]]:
    """Each with the offset at which the next one begins, the last one with ``end_offset``."""
    return zip(segments, [*(segment.base_offset for segment in segments[1:]), end_offset], strict=False)


def groups(segments: Sequence[Segment], config: LogConfig, end_offset: int) -> Iterator[list[Segment]]:
    """Neighbours that fit into one segment together. ``end_offset``: of what may be cleaned.

    A segment counts as if its batches went up to the next one, as in Kafka: that needs no read.
    """
    group: list[Segment] = []
    for segment, end in _with_ends(segments, end_offset):
        together = [*group, segment]
        fits = (
            sum(one.size for one in together) <= config.segment_bytes
            and sum(len(one.index) for one in together) <= config.segment_index_bytes // OFFSET_ENTRY_BYTES
            and sum(len(one.time_index) for one in together) <= config.segment_index_bytes // TIME_ENTRY_BYTES
            and (not segment.size or together[0].can_hold(end - 1))
        )
        if group and not fits:
            yield group
            group = []
        group.append(segment)
    if group:
        yield group


class _Changed(Exception):
    """The log was truncated or deleted, moves, has lost segments, or is not to be compacted any more."""


class _Pass:
    """One pass over a log, which may change between two batches."""

    def __init__(self, found: Log, logs: Mapping[TopicPartition, Log], moving: Container[TopicPartition]) -> None:
        self._log = found
        self._logs = logs
        self._moving = moving
        self._truncations = found.truncations

    def _check(self, segments: Iterable[Segment]) -> None:
        if (
            self._logs.get(self._log.partition) is not self._log
            or self._log.partition in self._moving
            or not self._log.config.is_compact
            or self._log.truncations != self._truncations
            or not all(segment in self._log.segments for segment in segments)
        ):
            raise _Changed

    async def _batches(self, segment: Segment) -> AsyncGenerator[tuple[Buffer, RecordBatch]]:
        """Each batch of a segment, encoded and decoded; other tasks run in between."""
        for place in segment.scan(0):
            data = segment.read(place.position, place.header.size)
            yield data, read_records(data, max_elements=MAX_OPENED_ELEMENTS).batches[0]
            await trio.lowlevel.checkpoint()
            self._check([segment])

    def _aborted(self, start: int, end: int) -> Iterator[AbortedTransaction]:
        """The aborted transactions of a range; those that ended before the log starts are forgotten, as in Kafka."""
        found = self._log
        return (one for one in found.segments.aborted(start, end) if one.last_offset >= found.log_start_offset)

    async def read_keys(self, one: Cleanable, capacity: int) -> tuple[KeyOffsets, int]:
        """The keys of what is dirty, and the offset up to which they had room."""
        keys, transactions = KeyOffsets(capacity), Transactions()
        dirty = self._log.segments.from_offset(one.first_dirty, one.end)
        transactions.expect(self._aborted(one.first_dirty, one.end))
        for segment, end in _with_ends(dirty, one.end):
            async with aclosing(self._batches(segment)) as batches:
                async for _, batch in batches:
                    counts = not transactions.is_discarded(batch) and not batch.is_control
                    if not keys.add(batch, one.first_dirty, counts=counts):
                        if keys.latest < one.first_dirty:
                            raise Uncleanable("log.cleaner.dedupe.buffer.size has no room for a key")
                        return keys, keys.latest + 1
            keys.latest = max(keys.latest, end - 1)  # a gap behind its last batch counts as read
        return keys, one.end

    async def rewrite(self, group: list[Segment], compaction: Compaction) -> None:
        """Replace neighbouring segments by one that has what is kept of them."""
        found = self._log
        self._check(group)
        new = Segment.create(
            found.context.disk,
            found.folder,
            group[0].base_offset,
            found.config,
            now_ms=found.context.now_ms(),
            suffix=CLEANED,
        )
        try:
            for segment in group:
                await self._copy(segment, new, compaction)
            new.complete()
            await found.context.disk.flush_all(new.to_flush())
            self._check(group)
            new.modified_ms = group[-1].modified_ms
        except (_Changed, Uncleanable, errors.WireError):
            found.context.delete_later(new.delete_later(), 0)
            raise
        found.replace_segments(group, new)

    async def _copy(self, segment: Segment, new: Segment, compaction: Compaction) -> None:
        """Append what is kept of a segment."""
        segments = self._log.segments
        following = segments.from_offset(segment.base_offset)[1]  # it is not the active one
        compaction.transactions.expect(self._aborted(segment.base_offset, following.base_offset))
        modified_ms = segment.modified_ms
        async with aclosing(self._batches(segment)) as batches:
            async for data, batch in batches:
                is_old = batch.magic < 2
                kept = compaction.filtered_old(batch, modified_ms) if is_old else compaction.filtered(batch)
                if kept is not None:
                    parts = (data if kept is batch else write_records(kept),)
                    new.append(kept.last_offset, kept.max_timestamp, kept.last_offset, parts)
        for transaction in compaction.transactions.take_kept():
            new.txn_index.append(transaction)
