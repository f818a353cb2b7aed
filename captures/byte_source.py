"""Bytes of a file or a stream behind a cursor, read as they are needed and kept no longer.

What goes wrong while opening is a CaptureError; what goes wrong while reading ends the bytes, told in ``failure``.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from pathlib import Path
from typing import BinaryIO

from captures.errors import CaptureError

_CHUNK_BYTES = 1024 * 1024


class ByteSource:
    """A binary stream behind a cursor. Owns about one chunk beyond the largest request made of it."""

    def __init__(self, stream: BinaryIO | gzip.GzipFile) -> None:
        # read1 returns what a pipe holds now, so that a live capture is not kept waiting for a full chunk
        self._read = getattr(stream, "read1", stream.read)
        self.buffer = b""
        self.at = 0
        self.base = 0
        self.failure: str | None = None

    @property
    def offset(self) -> int:
        """Of the cursor, from the start of the (decompressed) stream."""
        return self.base + self.at

    def have(self, count: int) -> bool:
        """Whether ``count`` bytes stand at the cursor; reads on as far as needed."""
        while len(self.buffer) - self.at < count:
            chunk = self._next_chunk()
            if not chunk:
                return False
            self.base += self.at
            self.buffer = self.buffer[self.at :] + chunk
            self.at = 0
        return True

    def skip(self, count: int) -> bool:
        """Move the cursor by ``count`` without keeping what lies between. False if the stream ends before."""
        while count > (there := len(self.buffer) - self.at):
            count -= there
            self.base += len(self.buffer)
            self.at = 0
            self.buffer = self._next_chunk()
            if not self.buffer:
                return False
        self.at += count
        return True

    def _next_chunk(self) -> bytes:
        if self.failure is not None:
            return b""
        try:
            chunk: bytes = self._read(_CHUNK_BYTES)
        except EOFError:
            self.failure = "the gzip data is cut short"
        except (zlib.error, gzip.BadGzipFile) as e:
            self.failure = f"the gzip data is damaged ({e})"
        except OSError as e:
            self.failure = f"reading failed ({e.strerror or e})"
        else:
            return chunk
        return b""


class Rest(io.RawIOBase):
    """What a ByteSource has not handed out yet, as a file object for GzipFile."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        source = self._source
        if not source.have(1):
            if source.failure is not None:
                raise OSError(source.failure)
            return b""
        end = len(source.buffer) if size < 0 else source.at + size
        data = source.buffer[source.at : end]
        source.at += len(data)
        return data


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise CaptureError if there is no such file, or it is a directory. Does not open it."""
    try:
        mode = os.stat(path).st_mode
    except OSError as e:
        raise _cannot_open(os.fspath(path), e) from None
    if stat.S_ISDIR(mode):
        raise _cannot_open(os.fspath(path), IsADirectoryError())


def open_file(path: Path, name: str) -> BinaryIO:
    try:
        return path.open("rb", buffering=0)
    except OSError as e:
        raise _cannot_open(name, e) from None


def _cannot_open(name: str, e: OSError) -> CaptureError:
    match e:
        case FileNotFoundError():
            return CaptureError(f"{name}: there is no such file")
        case IsADirectoryError():
            return CaptureError(f"{name}: a directory, not a capture")
        case PermissionError():
            return CaptureError(f"{name}: permission to read it is denied")
        case _:
            return CaptureError(f"{name}: cannot be opened ({e.strerror or e})")
