"""The segments of one log in a row: where appends go, reads come from, and what is rolled, cut and deleted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Final, NamedTuple, Protocol

from kce.broker_stub.disk import Buffer, Disk, Slice
from kce.broker_stub.errors import OffsetOutOfRange
from kce.broker_stub.log.config import LogConfig
from kce.broker_stub.log.indexes import AbortedTransaction
from kce.broker_stub.log.segment import Segment
from kce.wire.batch_header import BatchHeader

UNKNOWN_POSITION: Final = -1
#: appends of that size are read from their file
MAX_RECENT_BYTES: Final = 32_768


class OffsetMetadata(NamedTuple):
    """An offset and where it is: in the segment of that base offset, at that position."""

    offset: int
    segment: int = UNKNOWN_POSITION
    position: int = UNKNOWN_POSITION

    @property
    def is_located(self) -> bool:
        return self.segment != UNKNOWN_POSITION


class FetchedRecords(NamedTuple):
    """``is_incomplete``: the first batch exceeds the requested size and is cut."""

    start: OffsetMetadata
    records: Slice = b""
    is_incomplete: bool = False
    aborted: tuple[AbortedTransaction, ...] = ()


class Recent(NamedTuple):
    """The last append, as long as nothing else happened to its log: what its followers read is in memory yet.

    ``end``: of the log, the very object.
    """

    end: OffsetMetadata
    parts: tuple[Buffer, ...] = ()


NOTHING_RECENT: Final = Recent(OffsetMetadata(UNKNOWN_POSITION))


class LogContext(Protocol):
    """What the logs of a log directory share."""

    #: of the directory
    path: str
    disk: Disk
    random: Random
    producer_id_expiration_ms: int
    #: in any of them
    recent: Recent

    def now_ms(self) -> int: ...

    def delete_later(self, paths: list[str], delay_ms: int) -> None:
        """Delete files after so many ms."""

    def flush_later(self, log: FlushableLog, end_offset: int) -> None:
        """Flush a log up to that offset, without blocking an append."""

    def was_cut(self) -> None:
        """A log was truncated: where it would be recovered from may lie before what the checkpoint says."""

    def woke(self, log: RestingLog) -> None:
        """A log has its segments in memory from now on."""

    def failed(self, error: OSError) -> None:
        """The log directory is offline from now on."""


class FlushableLog(Protocol):
    truncations: int

    def to_flush(self, end_offset: int) -> list[str]:
        """Files and folders that must be flushed so that everything before ``end_offset`` is durable."""
        ...

    def flushed(self, end_offset: int) -> None:
        """Record that everything before ``end_offset`` is flushed."""


class RestingLog(Protocol):
    def rest_if_unused(self) -> bool:
        """Give back the memory of its segments; whether it did."""
        ...


class Segments:
    """``end``: the next offset, and where the next batch goes. At least one segment. Raises OSError everywhere."""

    __slots__ = ("_context", "_folder", "_last_append", "_segments", "active", "end")

    def __init__(self, context: LogContext, folder: str, segments: Iterable[Segment], end_offset: int) -> None:
        self._context = context
        self._folder = folder
        self._segments = tuple(segments)
        #: the last one
        self.active = self._segments[-1]
        self._set_end(end_offset)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    def __contains__(self, segment: Segment) -> bool:
        """Whether this very segment is part of the log."""
        found = self._floor(segment.base_offset)
        return found >= 0 and self._segments[found] is segment

    def __getitem__(self, index: int) -> Segment:
        return self._segments[index]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments)

    def moved(self, folder: str) -> None:
        self._folder = folder
        for segment in self._segments:
            segment.moved(folder)

    def _floor(self, offset: int) -> int:
        """The index of the segment that has an offset; -1 if it is before all."""
        return bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1

    def from_offset(self, offset: int, end: int | None = None) -> list[Segment]:
        """The segments with offsets in a range."""
        return [
            segment
            for segment in self._segments[max(0, self._floor(offset)) :]
            if end is None or segment.base_offset < end
        ]

    # writing

    def append(self, last_offset: int, max_timestamp: int, offset_of_max: int, parts: tuple[Buffer, ...]) -> None:
        began = self.end
        self.active.append(last_offset, max_timestamp, offset_of_max, parts)
        self._appended(began, last_offset, parts)

    def append_all(self, batches: Sequence[BatchHeader], data: Buffer) -> None:
        """Append ``data``, which is these batches."""
        began = self.end
        self.active.append_all(batches, data)
        self._appended(began, batches[-1].last_offset, (data,))

    def _appended(self, began: OffsetMetadata, last_offset: int, parts: tuple[Buffer, ...]) -> None:
        active = self.active
        end = self.end = OffsetMetadata(last_offset + 1, active.base_offset, active.size)
        self._last_append = began
        is_small = end.position - began.position < MAX_RECENT_BYTES
        self._context.recent = Recent(end, parts) if is_small else NOTHING_RECENT

    def _set_end(self, offset: int) -> None:
        active = self.active
        #: what followers that are in sync read next, or the end of the log
        self._last_append = self.end = OffsetMetadata(offset, active.base_offset, active.size)

    def _create(self, base_offset: int, config: LogConfig) -> Segment:
        return Segment.create(
            self._context.disk,
            self._folder,
            base_offset,
            config,
            now_ms=self._context.now_ms(),
            jitter_ms=config.jitter_ms(self._context.random),
        )

    def roll(self, offset: int, config: LogConfig) -> Segment:
        """A new active segment from an offset on, or from the end of the log if that is later (rule B6.12)."""
        base_offset, kept = max(offset, self.end.offset), self._segments
        if self.active.base_offset == base_offset:
            kept = kept[:-1]  # an empty one: the log ends where it begins
        else:
            self.active.complete()
        self.active = self._create(base_offset, config)
        self._segments = (*kept, self.active)
        self._set_end(self.end.offset)
        return self.active

    def truncate_to(self, offset: int) -> tuple[Segment, ...]:
        """Remove what is at that offset and beyond; the segments that are no longer part of the log."""
        kept = max(1, self._floor(offset) + 1)
        removed, self._segments = self._segments[kept:], self._segments[:kept]
        self.active = self._segments[-1]
        self.active.truncate_to(offset, now_ms=self._context.now_ms())
        self._set_end(offset)
        return removed

    def start_at(self, offset: int, config: LogConfig) -> tuple[Segment, ...]:
        """Be empty, from that offset on; the segments that were removed, whose files are marked already."""
        removed = self._segments
        self.delete_files(removed, config)
        self.active = self._create(offset, config)
        self._segments = (self.active,)
        self._set_end(offset)
        return removed

    def remove_first(self, count: int) -> tuple[Segment, ...]:
        removed, self._segments = self._segments[:count], self._segments[count:]
        return removed

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """A segment takes the place of neighbours, none of which is the active one."""
        first = self._segments.index(old[0])
        self._segments = (*self._segments[:first], new, *self._segments[first + len(old) :])

    def delete_files(self, segments: Iterable[Segment], config: LogConfig) -> None:
        paths = [path for segment in segments for path in segment.delete_later()]
        if paths:
            self._context.delete_later(paths, config.file_delete_delay_ms)

    # reading

    def read(
        self, offset: int, max_bytes: int, limit: OffsetMetadata, *, at_least_one: bool, with_aborted: bool = False
    ) -> FetchedRecords:
        """Batches from the one with ``offset`` on, up to ``limit`` (rules B4.12, B4.14, B4.15).

        Raises OffsetOutOfRange.
        """
        start = self._last_append
        if offset == start.offset < limit.offset and limit.segment == start.segment and not with_aborted:
            size = limit.position - start.position
            if size <= max_bytes:
                known, parts = self._context.recent
                records = b"".join(parts) if known is limit else self.active.slice(start.position, size)
                return FetchedRecords(start, records)
        index = self._floor(offset)
        if offset > self.end.offset or index < 0:
            raise OffsetOutOfRange(f"offset {offset} is not in the log, which ends at {self.end.offset}")
        if offset == limit.offset:
            return FetchedRecords(limit)
        if offset > limit.offset:
            return FetchedRecords(self.locate(offset))
        for segment in self._segments[index:]:
            place = segment.find(offset)
            if place is None:
                continue
            start = OffsetMetadata(offset, segment.base_offset, place.position)
            most = max(max_bytes, place.header.size) if at_least_one else max_bytes
            if segment.base_offset < limit.segment:
                end = segment.size
            elif segment.base_offset == limit.segment:
                end = limit.position
            else:
                return FetchedRecords(start)
            size = min(end - place.position, most)
            records = segment.slice(place.position, size) if size > 0 else b""
            aborted = self._aborted(offset, segment, place.position, len(records)) if with_aborted else ()
            return FetchedRecords(start, records, most < place.header.size, aborted)
        return FetchedRecords(self.end)

    def locate(self, offset: int) -> OffsetMetadata:
        """Locate the batch with an offset; return the offset alone if the log has no such batch."""
        if offset == self.end.offset:
            return self.end
        index = self._floor(offset)
        if index >= 0 and offset < self.end.offset:
            for segment in self._segments[index:]:
                place = segment.find(offset)
                if place is not None:
                    return OffsetMetadata(offset, segment.base_offset, place.position)
        return OffsetMetadata(offset)

    def _aborted(self, offset: int, segment: Segment, position: int, size: int) -> tuple[AbortedTransaction, ...]:
        """Rule B4.17."""
        beyond = segment.index.offset_beyond(position + size)
        index = self._segments.index(segment)
        if beyond is None:
            later = self._segments[index + 1 :]
            beyond = later[0].base_offset if later else self.end.offset
        return self.aborted(offset, beyond)

    def aborted(self, offset: int, upper_bound: int) -> tuple[AbortedTransaction, ...]:
        found: list[AbortedTransaction] = []
        for segment in self._segments[max(0, self._floor(offset)) :]:
            transactions, is_complete = segment.txn_index.aborted(offset, upper_bound)
            found += transactions
            if is_complete:
                break
        return tuple(found)
