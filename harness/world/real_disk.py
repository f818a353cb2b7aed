"""The machine's file system."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import time
from collections import OrderedDict
from collections.abc import Iterable
from weakref import WeakSet

import trio

from kce.broker_stub.disk import Buffer, Disk, File, Slice
from kce.harness.world.machine import Machine
from kce.wire.payload import Stored

#: of the descriptors that a process may have, the part for files; the rest is for connections
_PART_FOR_FILES = 2
_MAX_OPEN_FILES = 8192
#: and the part for slices, each of which has its own
_PART_FOR_SLICES = 8
#: what is smaller costs less CPU to read and copy than the kernel needs to send it page by page from the file; the
#: memory for larger copies comes from the kernel each time
MIN_SLICE_BYTES = 512 * 1024
#: parts that one system call takes (IOV_MAX)
_MAX_PARTS = 1024
#: of a file that grows while it is read
_READ_BYTES = 64 * 1024
_REPLACE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class RealSlice(Stored):
    """Keeps its file by a descriptor of its own, which is closed when nobody has the slice any more."""

    __slots__ = ("__weakref__", "_descriptor", "_is_cut", "_position", "_size")

    def __init__(self, descriptor: int, position: int, size: int) -> None:
        """Raises OSError."""
        self._descriptor = os.dup(descriptor)
        self._position = position
        self._size = size
        self._is_cut = False

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def __len__(self) -> int:
        return self._size

    def file_was_cut(self, file: os.stat_result, size: int) -> None:
        """That file has only ``size`` bytes now, to which others may be appended."""
        if size < self._position + self._size and os.path.samestat(file, os.fstat(self._descriptor)):
            self._is_cut = True

    def _require(self, *, there: bool) -> None:
        if self._is_cut or not there:
            raise OSError(errno.ENODATA, f"the file was cut before byte {self._position + self._size}")

    def read(self) -> bytes:
        data = os.pread(self._descriptor, self._size, self._position)
        self._require(there=len(data) == self._size)
        return data

    def send(self, sock: int, begin: int, size: int) -> int:
        """Let the kernel send at most ``size`` bytes from ``begin`` on; how many it took. Raises OSError."""
        self._require(there=True)
        sent = os.sendfile(sock, self._descriptor, self._position + begin, min(size, self._size - begin))
        self._require(there=sent > 0)
        return sent


class RealFile(File):
    """Holds a descriptor only while it is among the most recently used files of its disk."""

    __slots__ = ("_disk", "_path", "_size")

    def __init__(self, disk: RealDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._size = os.fstat(disk.descriptor(path)).st_size

    @property
    def size(self) -> int:
        return self._size

    def append(self, *parts: Buffer) -> None:
        descriptor = self._disk.descriptor(self._path)
        size = sum(map(len, parts))
        self._disk.machine.use_disk(size)
        written = os.pwritev(descriptor, parts[:_MAX_PARTS], self._size) if size else 0
        if written < size:
            self._append_rest(descriptor, parts, written)
        self._size += size  # what a failed call has written is beyond the end, and is overwritten

    def _append_rest(self, descriptor: int, parts: tuple[Buffer, ...], written: int) -> None:
        """Write what the first call has left."""
        at, rest = self._size + written, [memoryview(part) for part in parts if len(part)]
        while True:
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if not rest:
                return
            rest[0] = rest[0][written:]
            written = os.pwritev(descriptor, rest[:_MAX_PARTS], at)
            at += written

    def read(self, position: int, size: int) -> bytes:
        self._disk.machine.use_disk()
        return os.pread(self._disk.descriptor(self._path), max(0, min(size, self._size - position)), position)

    def slice(self, position: int, size: int) -> Slice:
        size = min(size, self._size - position)
        found = self._disk.slice(self._path, position, size) if size >= MIN_SLICE_BYTES else None
        return self.read(position, size) if found is None else found

    def truncate(self, size: int) -> None:
        if size < self._size:
            descriptor = self._disk.descriptor(self._path)
            os.ftruncate(descriptor, size)
            self._size = size
            self._disk.file_was_cut(descriptor, size)

    def flush(self) -> None:
        self._disk.machine.use_disk()
        os.fsync(self._disk.descriptor(self._path))

    def close(self) -> None:
        self._disk.close(self._path)


class RealDisk(Disk):
    """The file system. ``machine`` may let it be full, or slow."""

    def __init__(self, machine: Machine | None = None) -> None:
        self.machine = machine or Machine(time.sleep)
        self._descriptors: OrderedDict[str, int] = OrderedDict()  # the least recently used first
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_descriptors = min(_MAX_OPEN_FILES, limit // _PART_FOR_FILES)
        self._locks: dict[str, int] = {}
        #: those that somebody has
        self._slices: WeakSet[RealSlice] = WeakSet()
        self._max_slices = self._max_descriptors * _PART_FOR_FILES // _PART_FOR_SLICES

    def descriptor(self, path: str) -> int:
        """Opens the file if need be; the least recently used one is closed for it."""
        descriptor = self._descriptors.get(path)
        if descriptor is not None:
            self._descriptors.move_to_end(path)
            return descriptor
        descriptor = self._descriptors[path] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        while len(self._descriptors) > self._max_descriptors:
            os.close(self._descriptors.popitem(last=False)[1])
        return descriptor

    def close(self, path: str) -> None:
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def slice(self, path: str, position: int, size: int) -> RealSlice | None:
        """None if there are too many already. Raises OSError."""
        if len(self._slices) >= self._max_slices:
            return None
        descriptor = self.descriptor(path)
        try:
            made = RealSlice(descriptor, position, size)
        except OSError:  # the process has no more descriptors
            return None
        self.machine.use_disk()
        self._slices.add(made)
        return made

    def file_was_cut(self, descriptor: int, size: int) -> None:
        """A file has only ``size`` bytes now: slices must not have what comes after them."""
        if self._slices:
            file = os.fstat(descriptor)
            for each in self._slices:
                each.file_was_cut(file, size)

    def open(self, path: str) -> RealFile:
        return RealFile(self, path)

    def read(self, path: str) -> bytes | None:
        self.machine.use_disk()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            parts = [os.read(descriptor, os.fstat(descriptor).st_size + 1)]
            while parts[-1]:
                parts.append(os.read(descriptor, _READ_BYTES))
        finally:
            os.close(descriptor)
        return b"".join(parts)

    def write(self, path: str, content: bytes) -> None:
        self.machine.use_disk(len(content))
        try:
            descriptor = os.open(path, _REPLACE, 0o644)
        except FileNotFoundError:
            self.make_folder(os.path.dirname(path))
            descriptor = os.open(path, _REPLACE, 0o644)
        with open(descriptor, "wb", buffering=0) as file:
            rest = memoryview(content)
            while len(rest):
                rest = rest[file.write(rest) :]

    def flush(self, path: str) -> None:
        self.machine.use_disk()
        _fsync(path)
        _fsync(os.path.dirname(path))

    async def flush_all(self, paths: Iterable[str]) -> None:
        if self.machine.disk_delay_s:
            await trio.sleep(self.machine.disk_delay_s)
        await trio.to_thread.run_sync(_fsync_all, list(paths))

    def rename(self, old: str, new: str) -> None:
        for path in (old, new):
            self._close_below(path)
        os.replace(old, new)

    def delete(self, path: str) -> None:
        self._close_below(path)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):  # as systems differ in what they say of a folder
            shutil.rmtree(path)

    def _close_below(self, path: str) -> None:
        """Close a file, or the files in a folder."""
        if path in self._descriptors:
            self.close(path)
        elif os.path.isdir(path):
            for name in os.listdir(path):
                self.close(f"{path}/{name}")

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        os.utime(path, ns=(time_ms * 1_000_000,) * 2)

    def make_folder(self, path: str) -> None:
        if not os.path.isdir(path):
            os.makedirs(path, exist_ok=True)

    def files(self, folder: str) -> list[str]:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_file())

    def folders(self, folder: str) -> list[str]:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def flush_folder(self, path: str) -> None:
        _fsync(path)

    def space(self, path: str) -> tuple[int, int]:
        found = shutil.disk_usage(path)
        return found.total, found.free

    def lock(self, path: str) -> bool:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as Java's FileLock does
        except OSError:
            os.close(descriptor)
            return False
        self._locks[path] = descriptor
        return True

    def unlock(self, path: str) -> None:
        os.close(self._locks.pop(path))


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync_all(paths: list[str]) -> None:
    for path in paths:
        try:
            _fsync(path)
        except FileNotFoundError:
            continue
