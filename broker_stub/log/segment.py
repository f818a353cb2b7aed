"""A segment: a file of batches back to back, from a base offset on, and its indexes (rules B6.3, B6.4, B6.10).

Only the headers of batches are parsed. Files are opened and indexes read on first use, so an idle log costs little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from kce.broker_stub.disk import Buffer, Disk, File, Slice
from kce.broker_stub.log.config import LogConfig
from kce.broker_stub.log.indexes import (
    MAX_RELATIVE_OFFSET,
    CorruptIndex,
    OffsetIndex,
    TimeIndex,
    TimestampOffset,
    TransactionIndex,
)
from kce.broker_stub.log.names import DELETED, INDEX, LOG, SEGMENT_FILES, TIME_INDEX, TXN_INDEX, offset_name
from kce.wire.batch_header import BATCH_HEADER_BYTES, BatchHeader, check_crc, read_header
from kce.wire.errors import CorruptRecord
from kce.wire.record import NO_TIMESTAMP

#: bytes per read when scanning headers: more than between two entries of an index
_SCAN_BYTES: Final = 64 * 1024
#: as long as a segment is no larger, its index has no entries, with Kafka's default interval
_UNINDEXED_BYTES: Final = 4096
#: entries of the two indexes are 8 and 12 bytes
OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12


class Place(NamedTuple):
    """Where a batch begins in a segment."""

    position: int
    header: BatchHeader


def scan(file: File, name: object, size: int, position: int = 0) -> Iterator[Place]:
    """The complete batches of a file, of which ``size`` bytes are valid. Raises CorruptRecord, OSError (rule B6.34).

    ``name``: of the file, for errors.
    """
    data: Buffer = b""
    start = position
    while True:
        if position + BATCH_HEADER_BYTES > start + len(data) < size:
            data, start = file.read(position, min(_SCAN_BYTES, size - position)), position
        try:
            header = read_header(data, position - start, is_stored=True)
        except CorruptRecord as e:
            raise CorruptRecord(f"{name}, from byte {start} on: {e}") from None
        if header is None or position + header.size > size:
            return
        yield Place(position, header)
        position += header.size


class Segment:
    """``size``: bytes of batches. Raises OSError wherever it reads or writes."""

    __slots__ = (
        "_config", "_disk", "_file", "_first_timestamp", "_folder", "_index", "_index_room", "_max", "_suffix",
        "_time_index", "_txn_index", "base_offset", "bytes_since_index_entry", "created_ms", "is_new", "jitter_ms",
        "size",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        folder: str,
        base_offset: int,
        config: LogConfig,
        *,
        now_ms: int,
        jitter_ms: int = 0,
        suffix: str = "",
    ) -> None:
        """Open the segment of that base offset, or make one.

        ``config``: its indexes keep to it, also when the log's changes (rule B6.10). ``jitter_ms``: so much earlier it
        is rolled by time. ``suffix``: of its files, while it is being compacted.
        """
        self._config = config
        self._disk = disk
        self._folder = folder
        self._suffix = suffix
        self.base_offset = base_offset
        self.created_ms = now_ms
        self.jitter_ms = jitter_ms
        self._file: File = disk.open(self.path(LOG))
        self.size = self._file.size
        #: the log file is empty, and so are its indexes
        self.is_new = not self.size
        self._index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TransactionIndex | None = None
        #: the greatest timestamp and the last offset of the first batch with it; None until it is known
        self._max: TimestampOffset | None = None
        self._first_timestamp: int | None = None
        #: so many entries fit into both indexes for certain; with 0 it must be found out
        self._index_room = 0
        self.bytes_since_index_entry = 0

    def resume(self, max_timestamp: TimestampOffset, bytes_since_index_entry: int) -> None:
        """Take what another object knew of the same files."""
        self._max = max_timestamp
        self.bytes_since_index_entry = bytes_since_index_entry

    @classmethod
    def create(
        cls,
        disk: Disk,
        folder: str,
        base_offset: int,
        config: LogConfig,
        *,
        now_ms: int,
        jitter_ms: int = 0,
        suffix: str = "",
    ) -> Segment:
        """Create a segment without batches; delete existing files of its name."""
        for kind in SEGMENT_FILES:
            disk.delete(f"{folder}/{offset_name(base_offset, kind)}{suffix}")
        segment = cls(disk, folder, base_offset, config, now_ms=now_ms, jitter_ms=jitter_ms, suffix=suffix)
        for kind in (INDEX, TIME_INDEX):
            disk.write(segment.path(kind), b"")
        return segment

    def __repr__(self) -> str:
        return f"<segment {self.base_offset}, {self.size} bytes>"

    def path(self, suffix: str) -> str:
        return f"{self._folder}/{offset_name(self.base_offset, suffix)}{self._suffix}"

    def moved(self, folder: str) -> None:
        """The log's folder has another name."""
        self._folder = folder
        self._file = self._disk.open(self.path(LOG))

    def rename(self, suffix: str) -> None:
        """Give its files another suffix."""
        self._file.close()
        old = [(kind, path) for kind in SEGMENT_FILES if self._disk.exists(path := self.path(kind))]
        self._suffix = suffix
        for kind, path in old:
            self._disk.rename(path, self.path(kind))
        self._file = self._disk.open(self.path(LOG))

    # indexes

    @property
    def index(self) -> OffsetIndex:
        if self._index is None:
            self._load_indexes()
        assert self._index is not None
        return self._index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._load_indexes()
        assert self._time_index is not None
        return self._time_index

    @property
    def txn_index(self) -> TransactionIndex:
        if self._txn_index is None:
            self._txn_index = TransactionIndex(self._disk, self._path_of(TXN_INDEX), self.base_offset)
        return self._txn_index

    def _path_of(self, suffix: str) -> Callable[[], str]:
        return lambda: self.path(suffix)

    def _load_indexes(self) -> None:
        """Read the indexes; rebuild them if they are corrupt or missing."""
        new = self.is_new
        try:
            if not new and not all(self._disk.exists(self.path(suffix)) for suffix in (INDEX, TIME_INDEX)):
                raise CorruptIndex("missing")  # noqa: TRY301 - both are handled alike
            index = OffsetIndex(self._disk, self._path_of(INDEX), self.base_offset, new=new)
            time_index = TimeIndex(self._disk, self._path_of(TIME_INDEX), self.base_offset, new=new)
        except CorruptIndex:
            self._make_indexes(self.scan(0), _SCAN_BYTES)
        else:
            self._index, self._time_index = index, time_index

    @property
    def max_timestamp(self) -> TimestampOffset:
        """The greatest timestamp, and the last offset of the first batch with it; -1 if there is none."""
        if self._max is None:
            self._max = self.time_index.last if self.size else TimestampOffset(NO_TIMESTAMP, self.base_offset)
        return self._max

    @property
    def largest_timestamp_ms(self) -> int:
        """The timestamp for retention: the file's modification time if no record has one (rule B6.15)."""
        timestamp = self.max_timestamp.timestamp
        return timestamp if timestamp >= 0 else self._disk.modified_ms(self.path(LOG))

    @property
    def modified_ms(self) -> int:
        return self._disk.modified_ms(self.path(LOG))

    @modified_ms.setter
    def modified_ms(self, time_ms: int) -> None:
        self._disk.set_modified_ms(self.path(LOG), time_ms)

    # writing

    def can_hold(self, offset: int) -> bool:
        """Whether an offset fits into 31 bits relative to the base offset."""
        return 0 <= offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def should_roll(
        self,
        incoming_bytes: int,
        last_offset: int,
        max_timestamp: int,
        *,
        now_ms: int,
        segment_bytes: int,
        segment_ms: int,
    ) -> bool:
        """Whether the next segment takes the batches that come (rules B6.10, B6.11)."""
        if self.size + incoming_bytes > segment_bytes or not 0 <= last_offset - self.base_offset <= MAX_RELATIVE_OFFSET:
            return True
        if not self.size:
            return False
        first = self._first_timestamp
        if first is None:
            first = self.first_batch_timestamp()
        waited = max_timestamp - first if first >= 0 else now_ms - self.created_ms
        is_full = self._index_room <= 0 and self._find_index_room() <= 0
        return is_full or waited > segment_ms - self.jitter_ms

    def _find_index_room(self) -> int:
        index_bytes = self._config.segment_index_bytes
        self._index_room = min(
            index_bytes // OFFSET_ENTRY_BYTES - len(self.index),
            index_bytes // TIME_ENTRY_BYTES - 1 - len(self.time_index),
        )
        return self._index_room

    def first_batch_timestamp(self) -> int:
        """The greatest timestamp of the first batch; -1 if there is none."""
        if self._first_timestamp is None:
            first = next(self.scan(0), None)
            self._first_timestamp = NO_TIMESTAMP if first is None else first.header.max_timestamp
        return self._first_timestamp

    def append(
        self,
        last_offset: int,
        max_timestamp: int,
        offset_of_max_timestamp: int,
        parts: tuple[Buffer, ...],
    ) -> None:
        """Append a batch, which may come in parts."""
        self._file.append(*parts)
        self._appended(last_offset, max_timestamp, offset_of_max_timestamp, sum(map(len, parts)))

    def append_all(self, batches: Iterable[BatchHeader], data: Buffer) -> None:
        """Append ``data``, which is these batches."""
        self._file.append(data)
        for header in batches:
            self._appended(header.last_offset, header.max_timestamp, header.last_offset, header.size)

    def _appended(self, last_offset: int, max_timestamp: int, offset_of_max_timestamp: int, size: int) -> None:
        latest, position = self._max or self.max_timestamp, self.size
        self.size += size
        if position == 0:
            self._first_timestamp = max_timestamp
        if max_timestamp > latest.timestamp:
            latest = self._max = TimestampOffset(max_timestamp, offset_of_max_timestamp)
        if self.bytes_since_index_entry > self._config.index_interval_bytes:
            self.index.append(last_offset, position)
            self.time_index.maybe_append(*latest)
            self._index_room -= 1
            self.bytes_since_index_entry = 0
        self.bytes_since_index_entry += size

    def truncate_to(self, offset: int, *, now_ms: int) -> None:
        """Remove the batch with that offset and all after it."""
        place = self.find(offset)
        self._index_room = 0
        self.index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        if place is not None:
            self._file.truncate(place.position)
            self.size = place.position
        if not self.size:
            self.created_ms = now_ms
            self._first_timestamp = None
        self.bytes_since_index_entry = 0
        self._max = self._find_max_timestamp()

    def _find_max_timestamp(self) -> TimestampOffset:
        found = self.time_index.last
        for place in self.scan(self.index.lookup(found.offset).position):
            if place.header.max_timestamp > found.timestamp:
                found = TimestampOffset(place.header.max_timestamp, place.header.last_offset)
        return found

    def recover(self, each: Callable[[BatchHeader, memoryview], None]) -> int:
        """Check every batch and rebuild the indexes; cut the segment at the first bad batch (rule B6.27).

        ``each`` gets every good batch. Returns how many bytes were cut off.
        """
        self._disk.delete(self.path(TXN_INDEX))  # it may be corrupt, and ``each`` makes it anew
        self._txn_index = None
        valid = self._make_indexes(self._checked(each), self._config.index_interval_bytes)
        cut = self._file.size - valid
        self._file.truncate(valid)
        self.size = valid
        return cut

    def _checked(self, each: Callable[[BatchHeader, memoryview], None]) -> Iterator[Place]:
        """The batches before the first bad one."""
        last_offset = self.base_offset - 1
        try:
            for place in self.scan(0):
                header = place.header
                if header.magic >= 2 and header.size < BATCH_HEADER_BYTES:
                    return
                batch = memoryview(self._file.read(place.position, header.size))
                check_crc(batch, header)
                if header.last_offset <= last_offset or not self.can_hold(header.last_offset):
                    return
                last_offset = header.last_offset
                each(header, batch)
                yield place
        except CorruptRecord:
            return

    def _make_indexes(self, places: Iterable[Place], index_interval_bytes: int) -> int:
        """Rebuild both indexes; return where the last of ``places`` ends."""
        for suffix in (INDEX, TIME_INDEX):
            self._disk.write(self.path(suffix), b"")
        index = self._index = OffsetIndex(self._disk, self._path_of(INDEX), self.base_offset, new=True)
        time_index = self._time_index = TimeIndex(self._disk, self._path_of(TIME_INDEX), self.base_offset, new=True)
        self._max = TimestampOffset(NO_TIMESTAMP, self.base_offset)
        self._first_timestamp = None
        end = last_entry = 0
        for position, header in places:
            if header.max_timestamp > self._max.timestamp:
                self._max = TimestampOffset(header.max_timestamp, header.last_offset)
            if position - last_entry > index_interval_bytes:
                index.append(header.last_offset, position)
                time_index.maybe_append(*self._max)
                last_entry = position
            end = position + header.size
        time_index.maybe_append(*self._max)
        self.store_indexes()  # before the recovery point nothing else does: the next start would find them empty
        return end

    def to_flush(self) -> list[str]:
        """The files to be flushed, once what the indexes have in memory only is written."""
        self.store_indexes()
        paths = [self.path(LOG)]
        if self._index is not None:
            paths += [self.path(INDEX), self.path(TIME_INDEX)]
        if self._txn_index is not None and self._txn_index.transactions:
            paths.append(self.path(TXN_INDEX))
        return paths

    def store_indexes(self) -> None:
        """Write what they have in memory only."""
        if self._index is not None and self._time_index is not None:
            self._index.store()
            self._time_index.store()

    def release(self) -> None:
        """Write the indexes and close the file, so that a new object can ``resume``."""
        self.store_indexes()
        self._file.close()

    def complete(self) -> None:
        """No batch will follow: the time index ends with the greatest timestamp."""
        if self.size:
            self.time_index.maybe_append(*self.max_timestamp)
        self.store_indexes()

    def close(self) -> None:
        self.complete()
        self._file.close()

    def delete_later(self) -> list[str]:
        """Mark the files as to be removed (rule B6.17); their new paths."""
        self._file.close()
        paths = [self.path(suffix) for suffix in SEGMENT_FILES]
        marked = [(path, path + DELETED) for path in paths if self._disk.exists(path)]
        for path, new in marked:
            self._disk.rename(path, new)
        return [new for _, new in marked]

    # reading

    def read(self, position: int, size: int) -> Buffer:
        return self._file.read(position, min(size, self.size - position))

    def slice(self, position: int, size: int) -> Slice:
        """``read`` for what is only sent on."""
        return self._file.slice(position, min(size, self.size - position))

    def scan(self, position: int) -> Iterator[Place]:
        """The complete batches from a position on, at which one begins. Raises CorruptRecord."""
        return scan(self._file, self, self.size, position)

    def find(self, offset: int, position: int = 0) -> Place | None:
        """Find the first batch whose last offset is at least ``offset``; start at or after ``position``."""
        if self.size:
            is_small = self._index is None and self.size <= _UNINDEXED_BYTES  # of many logs, indexes are much memory
            for place in self.scan(position if is_small else max(position, self.index.lookup(offset).position)):
                if place.header.last_offset >= offset:
                    return place
        return None

    def next_offset(self) -> int:
        """The offset after the last batch."""
        found = self.base_offset
        if self.size:
            is_small = self._index is None and self.size <= _SCAN_BYTES  # one read: the index would cost more
            for place in self.scan(0 if is_small else self.index.lookup(self.index.last_offset).position):
                found = place.header.last_offset + 1
        return found

    def find_timestamp(self, timestamp: int, start_offset: int) -> Iterator[Place]:
        """Batches that may have the first record of that timestamp or a later one, at ``start_offset`` or beyond."""
        before = self.time_index.lookup(timestamp).offset
        for place in self.scan(self.index.lookup(max(before, start_offset)).position):
            if place.header.max_timestamp >= timestamp and place.header.last_offset >= start_offset:
                yield place
