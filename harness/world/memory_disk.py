"""A disk in memory that forgets on a crash what was not flushed.

Every name and every content exists twice: as it is, and as a crash would leave it. A flush makes them the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from random import Random

import trio

from kce.broker_stub.disk import Buffer, Disk, File
from kce.harness.world.machine import Machine


def _no_time() -> int:
    return 0


class _Content:
    """The bytes of a file: what was appended, in pieces, so that a read is a slice of one of them."""

    __slots__ = ("durable", "durable_size", "modified_ms", "pieces", "size", "starts")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.starts: list[int] = []
        self.size = 0
        #: the durable prefix, unchanged since the flush unless ``durable`` is set
        self.durable_size = 0
        #: durable content that the file no longer has
        self.durable: bytes | None = None
        self.modified_ms = 0

    def append(self, parts: Iterable[Buffer]) -> None:
        piece = b"".join(parts)
        if piece:
            self.starts.append(self.size)
            self.pieces.append(piece)
            self.size += len(piece)

    def read(self, position: int, size: int) -> Buffer:
        end = min(position + size, self.size)
        if position >= end:
            return b""
        first = bisect_right(self.starts, position) - 1
        last = bisect_right(self.starts, end - 1) - 1
        if first == last:
            piece, start = self.pieces[first], self.starts[first]
            return piece if end - position == len(piece) else memoryview(piece)[position - start : end - start]
        joined = b"".join(self.pieces[first : last + 1])
        start = self.starts[first]
        return memoryview(joined)[position - start : end - start]

    def truncate(self, size: int) -> None:
        if size >= self.size:
            return
        if size < self.durable_size and self.durable is None:
            self.durable = bytes(self.read(0, self.durable_size))
        keep = bisect_right(self.starts, size - 1) if size else 0
        del self.pieces[keep:], self.starts[keep:]
        if keep:
            self.pieces[-1] = self.pieces[-1][: size - self.starts[-1]]
        self.size = size

    def flush(self) -> None:
        self.durable, self.durable_size = None, self.size

    def crash(self, torn: Random | None) -> None:
        kept = self.durable
        if kept is None:
            unflushed = 0 if torn is None else torn.randint(0, self.size - self.durable_size)
            kept = bytes(self.read(0, self.durable_size + unflushed))
        self.pieces, self.starts, self.size = [], [], 0
        self.append((kept,))
        self.flush()


class _Folder:
    """``names`` as they are, ``durable`` as a crash would leave them, ``changed``: where the two may differ."""

    __slots__ = ("changed", "durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, _Folder | _Content] = {}
        self.durable: dict[str, _Folder | _Content] = {}
        self.changed: set[str] = set()

    def set(self, name: str, entry: _Folder | _Content | None) -> None:
        self.changed.add(name)
        if entry is None:
            self.names.pop(name, None)
        else:
            self.names[name] = entry

    def flush(self, name: str) -> None:
        if name in self.names:
            self.durable[name] = self.names[name]
        else:
            self.durable.pop(name, None)

    def crash(self, torn: Random | None) -> None:
        self.names = dict(self.durable)
        self.changed.clear()
        for entry in self.names.values():
            entry.crash(torn)


class MemoryFile(File):
    __slots__ = ("_content", "_disk", "_path")

    def __init__(self, disk: MemoryDisk, path: str, content: _Content) -> None:
        self._disk = disk
        self._path = path
        self._content = content

    @property
    def size(self) -> int:
        return self._content.size

    def append(self, *parts: Buffer) -> None:
        size = sum(map(len, parts))
        self._disk.machine.use_disk(size)
        self._disk.before(self._path, size)
        self._content.append(parts)
        self._content.modified_ms = self._disk.now_ms()

    def read(self, position: int, size: int) -> Buffer:
        self._disk.machine.use_disk()
        self._disk.before(self._path, 0)
        return self._content.read(position, size)

    def slice(self, position: int, size: int) -> Buffer:
        return self.read(position, size)

    def truncate(self, size: int) -> None:
        self._disk.before(self._path, 0)
        self._content.truncate(size)

    def flush(self) -> None:
        self._disk.machine.use_disk()
        self._disk.before(self._path, 0)
        self._content.flush()

    def close(self) -> None:
        """Do nothing: a memory file holds no resources."""


class MemoryDisk(Disk):
    """A disk in memory that outlives the node that uses it. Paths are absolute.

    ``machine`` may let it be full, or slow.
    """

    def __init__(self, now_ms: Callable[[], int] = _no_time, machine: Machine | None = None) -> None:
        self.now_ms = now_ms
        self.machine = machine or Machine(lambda seconds: None)
        self._root = _Folder()
        self._locks: set[str] = set()

    def before(self, path: str, size: int) -> None:
        """Called before each use of a path, with the number of bytes to write: a test may raise OSError here."""

    def crash(self, torn: Random | None = None) -> None:
        """The power fails. ``torn`` keeps a part of what was appended to each file and not flushed, by chance."""
        self._root.crash(torn)
        self._locks.clear()

    def _entry(self, path: str) -> _Folder | _Content | None:
        entry: _Folder | _Content | None = self._root
        for name in path.split("/"):
            if name:
                entry = entry.names.get(name) if isinstance(entry, _Folder) else None
        return entry

    def _parent(self, path: str) -> tuple[_Folder, str]:
        """The folder of a path, and the name in it. Raises FileNotFoundError."""
        parent, _, name = path.rstrip("/").rpartition("/")
        return self._folder(parent), name

    def _folder(self, path: str) -> _Folder:
        self.before(path, 0)
        entry = self._entry(path)
        if not isinstance(entry, _Folder):
            raise FileNotFoundError(path)
        return entry

    def _content(self, path: str) -> _Content:
        self.before(path, 0)
        entry = self._entry(path)
        if not isinstance(entry, _Content):
            raise FileNotFoundError(path)
        return entry

    def _create(self, path: str) -> _Content:
        folder, name = self._parent(path)
        content = _Content()
        content.modified_ms = self.now_ms()
        folder.set(name, content)
        return content

    def open(self, path: str) -> MemoryFile:
        self.before(path, 0)
        entry = self._entry(path)
        return MemoryFile(self, path, entry if isinstance(entry, _Content) else self._create(path))

    def read(self, path: str) -> bytes | None:
        self.machine.use_disk()
        self.before(path, 0)
        entry = self._entry(path)
        return bytes(entry.read(0, entry.size)) if isinstance(entry, _Content) else None

    def write(self, path: str, content: bytes) -> None:
        self.make_folder(path.rpartition("/")[0])
        self.machine.use_disk(len(content))
        self.before(path, len(content))
        self._create(path).append((content,))

    def flush(self, path: str) -> None:
        self.machine.use_disk()
        self._content(path).flush()
        self.flush_folder(path.rpartition("/")[0])

    async def flush_all(self, paths: Iterable[str]) -> None:
        await trio.sleep(self.machine.disk_delay_s)
        for path in paths:
            self.before(path, 0)
            entry = self._entry(path)
            if isinstance(entry, _Content):
                entry.flush()
            elif entry is not None:
                self.flush_folder(path)

    def rename(self, old: str, new: str) -> None:
        self.before(old, 0)
        self.before(new, 0)
        entry = self._entry(old)
        if entry is None:
            raise FileNotFoundError(old)
        (old_folder, old_name), (new_folder, new_name) = self._parent(old), self._parent(new)
        old_folder.set(old_name, None)
        new_folder.set(new_name, entry)

    def delete(self, path: str) -> None:
        self.before(path, 0)
        if self._entry(path) is not None:
            folder, name = self._parent(path)
            folder.set(name, None)

    def exists(self, path: str) -> bool:
        self.before(path, 0)
        return self._entry(path) is not None

    def modified_ms(self, path: str) -> int:
        return self._content(path).modified_ms

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        self._content(path).modified_ms = time_ms

    def make_folder(self, path: str) -> None:
        at = self._root
        for name in path.split("/"):
            if not name:
                continue
            entry = at.names.get(name)
            if entry is None:
                self.before(path, 0)
                entry = _Folder()
                at.set(name, entry)
            if not isinstance(entry, _Folder):
                raise FileExistsError(path)
            at = entry

    def files(self, folder: str) -> list[str]:
        return sorted(name for name, entry in self._folder(folder).names.items() if isinstance(entry, _Content))

    def folders(self, folder: str) -> list[str]:
        return sorted(name for name, entry in self._folder(folder).names.items() if isinstance(entry, _Folder))

    def flush_folder(self, path: str) -> None:
        """The folder's own name too, and those of the folders above it, as journals of file systems do."""
        folder = self._folder(path)
        for name in folder.changed:
            folder.flush(name)
        folder.changed.clear()
        above = self._root
        for name in path.split("/"):
            if name:
                above.flush(name)
                entry = above.names[name]
                assert isinstance(entry, _Folder)
                above = entry

    def space(self, path: str) -> tuple[int, int]:
        self._folder(path)
        return -1, -1

    def lock(self, path: str) -> bool:
        self.open(path)
        if path in self._locks:
            return False
        self._locks.add(path)
        return True

    def unlock(self, path: str) -> None:
        self._locks.discard(path)

    def release_locks(self) -> None:
        """The process that held them is gone."""
        self._locks.clear()
