"""The leader epochs of a log: which epoch wrote from which offset on (rules B5.21 to B5.23, B5.28, B5.29)."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from kce.broker_stub.disk import Disk
from kce.broker_stub.log.checkpoints import BadCheckpoint, read_leader_epochs, write_leader_epochs
from kce.broker_stub.log.names import LEADER_EPOCH_CHECKPOINT

#: an unknown epoch or offset
UNDEFINED: Final = -1


#: (epoch, start offset), both strictly increasing
Entries: TypeAlias = tuple[tuple[int, int], ...]


class EpochEnd(NamedTuple):
    """The end of ``epoch``: the requested epoch, or else the last one before it."""

    epoch: int
    end_offset: int


UNDEFINED_END: Final = EpochEnd(UNDEFINED, UNDEFINED)


@lru_cache(256)
def _first_entry(epoch: int, start_offset: int) -> tuple[tuple[int, int]]:
    """Entries that many logs have, once for all."""
    return ((epoch, start_offset),)


class LeaderEpochCache:
    """Changes are written to the file at once. Reading raises BadCheckpoint, changes raise OSError."""

    __slots__ = ("_disk", "_folder", "entries")

    def __init__(self, disk: Disk | None = None, folder: str = "", entries: Entries | None = None) -> None:
        """Without a disk it is only in memory. ``entries``: those of the file, if they are known."""
        self._disk = disk
        self._folder = folder
        self.entries: Entries = entries or ()
        if disk is not None and entries is None:
            for epoch, offset in read_leader_epochs(disk, self._path):
                try:
                    self._assign(epoch, offset)
                except ValueError as e:
                    raise BadCheckpoint(f"{self._path}: {e}") from None

    @property
    def _path(self) -> str:
        return f"{self._folder}/{LEADER_EPOCH_CHECKPOINT}"

    def moved(self, folder: str) -> None:
        """The log's folder has another name."""
        self._folder = folder

    @property
    def latest(self) -> int | None:
        return self.entries[-1][0] if self.entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """An epoch writes from that offset on. The first offset of an epoch stays (rule B5.21)."""
        entries = self.entries
        if entries and entries[-1][0] == epoch and entries[-1][1] <= start_offset:  # as most often
            return
        if self._assign(epoch, start_offset):
            self._write()

    def _assign(self, epoch: int, start_offset: int) -> bool:
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {epoch} from offset {start_offset} on")
        kept = self.entries
        if kept and kept[-1][0] == epoch and start_offset >= kept[-1][1]:
            return False
        while kept and (kept[-1][0] >= epoch or kept[-1][1] >= start_offset):
            kept = kept[:-1]
        self.entries = (*kept, (epoch, start_offset)) if kept else _first_entry(epoch, start_offset)
        return True

    def end_offset(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Rule B5.23."""
        if epoch == UNDEFINED:
            return UNDEFINED_END
        if epoch == self.latest:
            return EpochEnd(epoch, log_end_offset)
        above = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        if above == len(self.entries):
            return UNDEFINED_END
        found = self.entries[above - 1][0] if above else epoch
        return EpochEnd(found, self.entries[above][1])

    def epoch_at(self, offset: int) -> int | None:
        """The epoch that wrote the record at that offset; None if it is before every entry."""
        above = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[above - 1][0] if above else None

    def truncate_from_end(self, end_offset: int) -> None:
        """The log ends there now (rule B5.27)."""
        kept = tuple(entry for entry in self.entries if entry[1] < end_offset)
        if end_offset >= 0 and len(kept) < len(self.entries):
            self.entries = kept
            self._write()

    def truncate_from_start(self, start_offset: int) -> None:
        """The log starts there now; the epoch at that offset stays (rule B5.28)."""
        below = bisect_right(self.entries, start_offset, key=lambda entry: entry[1])
        if not below:
            return
        kept = ((self.entries[below - 1][0], start_offset), *self.entries[below:])
        if kept != self.entries:
            self.entries = kept
            self._write()

    def replace(self, entries: Entries) -> None:
        if entries != self.entries:
            self.entries = entries
            self._write()

    def clear(self) -> None:
        if self.entries:
            self.entries = ()
            self._write()

    def _write(self) -> None:
        if self._disk is not None:
            write_leader_epochs(self._disk, self._path, self.entries)
