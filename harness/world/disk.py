"""Disks: the machine's, and one in memory that forgets on a crash what was not flushed."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from kce.broker_stub.ports import Disk


class RealDisk(Disk):
    """The machine's file system."""

    def read(self, path: str) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)

    def flush(self, path: str) -> None:
        for name in (path, Path(path).parent):  # the folder holds the file's name
            descriptor = os.open(name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        Path(old).replace(new)


class MemoryDisk(Disk):
    """Content by path. ``crash`` undoes what was not flushed; a rename changes both names.

    It outlives the node that uses it.
    """

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._durable: dict[str, bytes] = {}

    def crash(self) -> None:
        """The power fails."""
        self._files = dict(self._durable)

    def read(self, path: str) -> bytes | None:
        return self._files.get(_normal(path))

    def write(self, path: str, content: bytes) -> None:
        self._files[_normal(path)] = bytes(content)

    def flush(self, path: str) -> None:
        """Raises FileNotFoundError."""
        name = _normal(path)
        if name not in self._files:
            raise FileNotFoundError(path)
        self._durable[name] = self._files[name]
        for gone in self._durable.keys() - self._files.keys():  # the folder's names are durable from now on
            if PurePosixPath(gone).parent == PurePosixPath(name).parent:
                del self._durable[gone]

    def rename(self, old: str, new: str) -> None:
        """Raises FileNotFoundError."""
        try:
            self._files[_normal(new)] = self._files.pop(_normal(old))
        except KeyError:
            raise FileNotFoundError(old) from None


def _normal(path: str) -> str:
    return os.path.normpath(path)
