"""The disk that a broker keeps its files on, as Protocols. Paths are strings with slashes. Every method raises OSError.

What was not flushed may be lost in a crash of the machine, not in the death of the process. Content and name of a file
are flushed separately: ``File.flush`` flushes the content, ``Disk.flush_folder`` the names, ``Disk.flush`` both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeAlias

from kce.wire.payload import Stored

#: bytes to write or that were read; immutable by convention
Buffer: TypeAlias = bytes | memoryview
#: bytes that are only sent on: they may stay on the disk
Slice: TypeAlias = Buffer | Stored


class File(Protocol):
    """A file that grows at its end and is read anywhere."""

    __slots__ = ()

    @property
    def size(self) -> int: ...

    def append(self, *parts: Buffer) -> None:
        """All parts, or none if it raises."""

    def read(self, position: int, size: int) -> Buffer:
        """At most ``size`` bytes; fewer only at the end of the file."""

    def slice(self, position: int, size: int) -> Slice:
        """``read``, or what reads the same bytes later, whatever becomes of the file: unless some are cut off."""

    def truncate(self, size: int) -> None:
        """Cut off what is beyond ``size``."""

    def flush(self) -> None: ...

    def close(self) -> None:
        """Give back what the machine holds for an open file; the next use opens it again."""


class Disk(Protocol):
    """Files by path."""

    def open(self, path: str) -> File:
        """Create the file if there is none; its folder must exist."""

    def read(self, path: str) -> bytes | None:
        """The content; None if there is no such file."""

    def write(self, path: str, content: bytes) -> None:
        """Create or replace a file, parent folders included."""

    def flush(self, path: str) -> None:
        """Make content and name of a file durable (fsync)."""

    async def flush_all(self, paths: Iterable[str]) -> None:
        """Make files and the names in folders durable while other tasks run; what is gone is left out."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing ``new`` atomically, or a folder. A crash may undo it until the names are flushed."""

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all it has. Does nothing if there is none."""

    def exists(self, path: str) -> bool: ...

    def modified_ms(self, path: str) -> int:
        """When a file was written last: milliseconds since 1970."""
        ...

    def set_modified_ms(self, path: str, time_ms: int) -> None: ...

    def make_folder(self, path: str) -> None:
        """Parents included; may exist."""

    def files(self, folder: str) -> list[str]:
        """Names of the files in a folder, in alphabetical order."""
        ...

    def folders(self, folder: str) -> list[str]:
        """Names of the folders in a folder, in alphabetical order."""
        ...

    def flush_folder(self, path: str) -> None:
        """Make the names in a folder durable."""

    def space(self, path: str) -> tuple[int, int]:
        """Total and usable bytes of the volume with that folder; -1 if they are not known."""
        ...

    def lock(self, path: str) -> bool:
        """Take the lock of a file, which is created if need be. False if another process has it, or this one."""
        ...

    def unlock(self, path: str) -> None: ...


def content(data: Slice) -> Buffer:
    """The bytes of a slice. Raises OSError."""
    return data.read() if isinstance(data, Stored) else data


def replace(disk: Disk, path: str, content: bytes) -> None:
    """Write a file atomically and durably: a reader finds the old content or the new one, also after a crash."""
    part = f"{path}.tmp"
    disk.write(part, content)
    disk.open(part).flush()  # only the content: the name need not survive
    disk.rename(part, path)
    disk.flush_folder(path.rpartition("/")[0])
