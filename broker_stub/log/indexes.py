"""The indexes of a segment: from offsets and timestamps to places in its file (rule B6.4); its aborted transactions.

An index is loaded on first use and is on disk as far as it was flushed. For every segment
that was not flushed, recovery rebuilds them from the segment.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kce.broker_stub.disk import Disk
from kce.wire.record import NO_TIMESTAMP

MAX_RELATIVE_OFFSET: Final = 2**31 - 1

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
_TXN_ENTRY: Final = struct.Struct(">hqqqq")
_TXN_VERSION: Final = 0


class CorruptIndex(Exception):
    """An index is corrupt and must be rebuilt."""


class OffsetPosition(NamedTuple):
    offset: int
    position: int


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int


class AbortedTransaction(NamedTuple):
    """``last_stable_offset`` is that of the log when the transaction was aborted."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class _IndexFile:
    """The file of an index: entries of one size."""

    __slots__ = ("disk", "entry", "flushed", "path")

    def __init__(self, disk: Disk, path: Callable[[], str], entry: struct.Struct) -> None:
        self.disk = disk
        self.path = path
        self.entry = entry
        #: so many entries are in the file
        self.flushed = 0

    def load(self) -> bytes:
        """Raises OSError, CorruptIndex."""
        content = self.disk.read(self.path()) or b""
        if len(content) % self.entry.size:
            raise CorruptIndex(f"{self.path()} has {len(content)} bytes, no multiple of {self.entry.size}")
        self.flushed = len(content) // self.entry.size
        return content

    def store(self, entries: Iterator[tuple[int, ...]], count: int) -> None:
        """Append the entries that are not in the file yet. Raises OSError."""
        if count > self.flushed:
            file = self.disk.open(self.path())
            file.truncate(self.flushed * self.entry.size)
            file.append(b"".join(self.entry.pack(*entry) for entry in entries))
            file.close()
            self.flushed = count

    def cut(self, count: int) -> None:
        """Raises OSError."""
        if count < self.flushed:
            file = self.disk.open(self.path())
            file.truncate(count * self.entry.size)
            file.close()
            self.flushed = count


class OffsetIndex:
    """Offset -> position of the batch with it as last offset, for some of the batches."""

    __slots__ = ("_base_offset", "_file", "_offsets", "_positions")

    def __init__(self, disk: Disk, path: Callable[[], str], base_offset: int, *, new: bool) -> None:
        """``new``: there is no file yet, or an empty one. Raises OSError, CorruptIndex."""
        self._base_offset = base_offset
        self._file = _IndexFile(disk, path, _OFFSET_ENTRY)
        content = b"" if new else self._file.load()
        values = array("i", content)
        if sys.byteorder == "little":
            values.byteswap()
        self._offsets, self._positions = values[0::2], values[1::2]
        for values in (self._offsets, self._positions):
            if any(values[i] >= values[i + 1] for i in range(len(values) - 1)) or (values and values[0] < 0):
                raise CorruptIndex(f"{path()} does not ascend")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def last_offset(self) -> int:
        return self._base_offset + self._offsets[-1] if self._offsets else self._base_offset

    def append(self, offset: int, position: int) -> None:
        self._offsets.append(offset - self._base_offset)
        self._positions.append(position)

    def lookup(self, offset: int) -> OffsetPosition:
        """The last entry at or below an offset; the start of the segment if there is none."""
        slot = bisect_right(self._offsets, offset - self._base_offset) - 1
        if slot < 0:
            return OffsetPosition(self._base_offset, 0)
        return OffsetPosition(self._base_offset + self._offsets[slot], self._positions[slot])

    def offset_beyond(self, position: int) -> int | None:
        """The offset of the first entry at that position or beyond; the first entry of all only beyond, as in Kafka."""
        slot = bisect_left(self._positions, position)
        if self._positions and position == self._positions[0]:
            slot = 1
        return self._base_offset + self._offsets[slot] if slot < len(self._positions) else None

    def truncate_to(self, offset: int) -> None:
        """Remove the entries from an offset on."""
        count = bisect_left(self._offsets, offset - self._base_offset)
        del self._offsets[count:], self._positions[count:]
        self._file.cut(count)

    def store(self) -> None:
        """Write the entries that are in memory only. Raises OSError."""
        flushed = self._file.flushed
        self._file.store(zip(self._offsets[flushed:], self._positions[flushed:], strict=True), len(self))


class TimeIndex:
    """Timestamp -> offset: up to that offset, no record has a greater timestamp."""

    __slots__ = ("_base_offset", "_file", "_offsets", "_timestamps")

    def __init__(self, disk: Disk, path: Callable[[], str], base_offset: int, *, new: bool) -> None:
        """Same arguments as `OffsetIndex`."""
        self._base_offset = base_offset
        self._file = _IndexFile(disk, path, _TIME_ENTRY)
        self._timestamps, self._offsets = array("q"), array("i")
        for timestamp, relative in _TIME_ENTRY.iter_unpack(b"" if new else self._file.load()):
            if (self._timestamps and timestamp <= self._timestamps[-1]) or relative < 0:
                raise CorruptIndex(f"{path()} does not ascend")
            self._timestamps.append(timestamp)
            self._offsets.append(relative)

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def last(self) -> TimestampOffset:
        if not self._offsets:
            return TimestampOffset(NO_TIMESTAMP, self._base_offset)
        return TimestampOffset(self._timestamps[-1], self._base_offset + self._offsets[-1])

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Unless the timestamp is known already."""
        if timestamp > self.last.timestamp:
            self._timestamps.append(timestamp)
            self._offsets.append(offset - self._base_offset)

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The last entry at or below a timestamp; that of the segment's start if there is none."""
        slot = bisect_right(self._timestamps, timestamp) - 1
        if slot < 0:
            return TimestampOffset(NO_TIMESTAMP, self._base_offset)
        return TimestampOffset(self._timestamps[slot], self._base_offset + self._offsets[slot])

    def truncate_to(self, offset: int) -> None:
        count = bisect_left(self._offsets, offset - self._base_offset)
        del self._timestamps[count:], self._offsets[count:]
        self._file.cut(count)

    def store(self) -> None:
        """Write the entries that are in memory only. Raises OSError."""
        flushed = self._file.flushed
        self._file.store(zip(self._timestamps[flushed:], self._offsets[flushed:], strict=True), len(self))


class TransactionIndex:
    """The aborted transactions that end in the segment; without any there is no file (rule B6.3)."""

    __slots__ = ("_disk", "_path", "transactions")

    def __init__(self, disk: Disk, path: Callable[[], str], base_offset: int) -> None:
        """Raises OSError, CorruptIndex."""
        self._disk = disk
        self._path = path
        content = disk.read(path()) or b""
        whole = len(content) - len(content) % _TXN_ENTRY.size
        self.transactions: list[AbortedTransaction] = []
        for version, *fields in _TXN_ENTRY.iter_unpack(content[:whole]):
            transaction = AbortedTransaction(*fields)
            if version > _TXN_VERSION or transaction.last_offset < base_offset:
                raise CorruptIndex(f"{path()} has version {version} and {transaction}")
            self.transactions.append(transaction)

    def append(self, transaction: AbortedTransaction) -> None:
        """Raises ValueError unless it ends after those before (rule T12.9), OSError."""
        if self.transactions and transaction.last_offset <= self.transactions[-1].last_offset:
            raise ValueError(f"{transaction} does not follow {self.transactions[-1]} in {self._path()}")
        file = self._disk.open(self._path())
        file.truncate(len(self.transactions) * _TXN_ENTRY.size)
        file.append(_TXN_ENTRY.pack(_TXN_VERSION, *transaction))
        self.transactions.append(transaction)

    def truncate_to(self, offset: int) -> None:
        """Raises OSError."""
        kept = [transaction for transaction in self.transactions if transaction.last_offset < offset]
        if len(kept) < len(self.transactions):
            self._disk.open(self._path()).truncate(len(kept) * _TXN_ENTRY.size)
            self.transactions = kept

    def aborted(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTransaction], bool]:
        """The transactions that overlap the range, and whether no later segment can have more."""
        found = []
        for transaction in self.transactions:
            if transaction.last_offset >= fetch_offset and transaction.first_offset < upper_bound:
                found.append(transaction)
            if transaction.last_stable_offset >= upper_bound:
                return found, True
        return found, False
