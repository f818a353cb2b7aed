"""A file or stream behind a cursor, read on demand. A read error ends the bytes and sets ``failure``."""

from __future__ import annotations

import functools
import gzip
import io
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

from kce.extras import require

_CHUNK_BYTES = 1024 * 1024

#: zstd data is decompressed in pieces of this size: damage costs less than one piece of what precedes it.
_ZSTD_STEP_BYTES = 1024


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class ByteSource:
    """A binary stream behind a cursor. Buffers about one chunk beyond the largest request."""

    def __init__(self, stream: BinaryIO | Readable) -> None:
        # read1 returns what a pipe holds now, so a live capture does not wait for a full chunk
        self._read = getattr(stream, "read1", stream.read)
        self.buffer = b""
        self.at = 0
        self.base = 0
        # in a file the rest of a chunk is read again with the next one, which is cheaper than joining them
        self._back = stream.back if isinstance(stream, Part) else _back(stream)
        self.failure: str | None = None
        self.chunk_bytes = _CHUNK_BYTES
        self._last_bytes = 0  # of the last chunk; the buffer may hold more

    @property
    def offset(self) -> int:
        """The cursor's offset in the (decompressed) stream."""
        return self.base + self.at

    def have(self, count: int) -> bool:
        """Read until ``count`` bytes are at the cursor. False if the stream ends before."""
        while len(self.buffer) - self.at < count:
            rest = len(self.buffer) - self.at
            back = self._back if rest <= self._last_bytes and max(count, 2 * rest) <= self.chunk_bytes else None
            if back is not None:
                back(rest)
            chunk = self._next_chunk()
            if len(chunk) <= (0 if back is None else rest):
                return False
            self.base += self.at
            self.buffer = self.buffer[self.at :] + chunk if back is None else chunk
            self.at = 0
        return True

    def skip(self, count: int) -> bool:
        """Skip ``count`` bytes. False if the stream ends before."""
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
            chunk: bytes = self._read(self.chunk_bytes)
        except ZstdError as e:
            self.failure = f"the zstd data is {e}"
        except EOFError:
            self.failure = "the gzip data is cut short"
        except (zlib.error, gzip.BadGzipFile) as e:
            self.failure = f"the gzip data is damaged ({e})"
        except OSError as e:
            self.failure = f"reading failed ({e.strerror or e})"
        else:
            self._last_bytes = len(chunk)
            return chunk
        return b""


class Rest(io.RawIOBase):
    """The rest of a ByteSource, as a file object for GzipFile and pyarrow."""

    def __init__(self, source: ByteSource) -> None:
        self.reads = 0
        self._source = source

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        source = self._source
        self.reads += 1
        if not source.have(1):
            if source.failure is not None:
                raise OSError(source.failure)
            return b""
        end = len(source.buffer) if size < 0 else source.at + size
        data = source.buffer[source.at : end]
        source.at += len(data)
        return data


class Part:
    """The next ``size`` bytes of a stream. ``back(count)`` seeks back; None if the stream cannot."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream = stream
        self._left = size
        back = _back(stream)
        self.back = None if back is None else functools.partial(self._go_back, back)

    def _go_back(self, back: Callable[[int], object], count: int) -> None:
        back(count)
        self._left += count

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(min(size, self._left))
        self._left -= len(data)
        return data


def _back(stream: object) -> Callable[[int], object] | None:
    """A function that seeks back in a file; None for other streams."""
    if not isinstance(stream, io.FileIO) or not stream.seekable():
        return None
    return lambda count: stream.seek(-count, io.SEEK_CUR)


class ZstdError(Exception):
    """``damaged ...`` or ``cut short``."""


class ZstdFile:
    """A decompressed zstd stream of one or more frames. Raises ZstdError after the last readable bytes."""

    def __init__(self, source: ByteSource) -> None:
        require("pyarrow", purpose="reading zstd")
        import pyarrow as pa  # imported late: slow to import, and few captures are zstd

        self._rest = Rest(source)
        self._stream: Any = pa.CompressedInputStream(pa.PythonFile(self._rest, "r"), "zstd")
        self._error: ZstdError | None = None

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes; returns early rather than wait for a pipe."""
        if self._error is not None:
            raise self._error
        pieces: list[bytes] = []
        there = 0
        reads = self._rest.reads
        while there < size and not (pieces and self._rest.reads != reads):
            try:
                piece: bytes = self._stream.read(min(_ZSTD_STEP_BYTES, size - there))
            except OSError as e:
                text = str(e)
                self._error = ZstdError("cut short" if "Truncated" in text else f"damaged ({text.splitlines()[0]})")
                if not pieces:
                    raise self._error from None
                break
            if not piece:
                break
            pieces.append(piece)
            there += len(piece)
        return b"".join(pieces)
