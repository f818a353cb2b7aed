"""A buffered socket for kazoo, which saves system calls.

kazoo polls the socket before every read and write, reads each response with two calls, writes each request with one,
and wakes its thread through a socket pair for each request: ten system calls per operation, which is most of its time.
This module reads and writes all that is pending at once, and one wake-up serves all requests since the last.

The connection thread sleeps only in `Poller.wait`, which flushes the write buffer first.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

_LENGTH = struct.Struct(">i")
_READ_AHEAD_BYTES, _READ_AHEAD_MOST = 1 << 16, 1 << 20
_WRITE_BEHIND_BYTES = 1 << 16
#: stop sending at so many requests in flight, until so many are left
_WINDOW, _WINDOW_OPENS = 512, 256
#: from so many requests in flight, wait so long for more responses: each wake-up takes CPU from a local server
_GATHER_FROM, _GATHER_S = 64, 0.0005

_READABLE, _WRITABLE = select.POLLIN | select.POLLPRI, select.POLLOUT
_BROKEN = select.POLLHUP | select.POLLERR | select.POLLNVAL


class BufferedSocket:
    """The part of a socket's interface that kazoo uses, with or without TLS. kazoo makes it non-blocking."""

    def __init__(self, connected: socket.socket, lock: threading.RLock) -> None:
        """``lock`` is held while the socket is read or written."""
        self._socket = connected
        self._lock = lock
        #: the read buffer, and how much of it was consumed
        self._read, self._taken = b"", 0
        #: the size of the next read: more while reads are full
        self._ahead = _READ_AHEAD_BYTES
        self._unwritten = bytearray()
        #: timeout of a write in seconds, kazoo's timeout before each write
        self.patience_s: float | None = 10.0

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)

    @property
    def is_encrypted(self) -> bool:
        return isinstance(self._socket, ssl.SSLSocket)

    def duplicate(self) -> socket.socket:
        """The same connection, to wait for. Raises OSError if it is closed."""
        return self._socket.dup()

    def pending(self) -> int:
        """Bytes that can be read without waiting; kazoo calls it on TLS sockets."""
        return len(self._read) - self._taken

    def recv(self, size: int) -> bytes:
        if not self.pending():
            self._read, self._taken = self._receive(max(size, _READ_AHEAD_BYTES)), 0
        begin, self._taken = self._taken, min(self._taken + size, len(self._read))
        return self._read[begin : self._taken]

    def _receive(self, size: int) -> bytes:
        """Include bytes that TLS has decrypted already: they do not wake a poll."""
        received = self._socket.recv(size)
        while isinstance(self._socket, ssl.SSLSocket) and (waiting := self._socket.pending()):
            received += self._socket.recv(waiting)
        return received

    def read_ahead(self) -> None:
        """Read available bytes, unless the next frame is complete. Raises OSError, also if the peer has closed."""
        if self._frame_bytes() is not None:
            return
        try:
            received = self._receive(self._ahead)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        if not received:
            raise ConnectionResetError(errno.ECONNRESET, "the server has closed the connection")
        # each read may wait for another thread's turn
        self._ahead = min(2 * self._ahead, _READ_AHEAD_MOST) if len(received) >= self._ahead else _READ_AHEAD_BYTES
        self._read, self._taken = self._read[self._taken :] + received, 0

    def _frame_bytes(self) -> int | None:
        """The next frame's size without the length field, if it is complete. Raises OSError for a negative size."""
        waiting = self.pending() - _LENGTH.size
        if waiting < 0:
            return None
        (size,) = _LENGTH.unpack_from(self._read, self._taken)
        if size < 0:
            raise OSError(errno.EPROTO, f"a frame of {size} bytes")
        return size if size <= waiting else None

    def has_frame(self) -> bool:
        return self._frame_bytes() is not None

    def frame(self) -> bytes | None:
        """The next frame without its length field, if it is complete; does not consume it."""
        size = self._frame_bytes()
        begin = self._taken + _LENGTH.size
        return None if size is None else self._read[begin : begin + size]

    def take_frame(self) -> None:
        """Consume the frame that ``frame`` returned."""
        (size,) = _LENGTH.unpack_from(self._read, self._taken)
        self._taken += _LENGTH.size + size

    def send(self, data: bytes) -> int:
        """Buffer all of it. Raises OSError, perhaps for earlier data."""
        with self._lock:
            self._unwritten += data
            if len(self._unwritten) >= _WRITE_BEHIND_BYTES:
                self.flush()
        return len(data)

    def can_send_now(self) -> bool:
        """Whether nothing is buffered. Never with TLS, whose objects serve one thread."""
        return not self._unwritten and not self.is_encrypted

    def send_now(self, data: bytes) -> bool:
        """Write what the socket takes without waiting, and buffer the rest; whether there is none. Any thread may call
        it while it holds the lock, if ``can_send_now``. Who reads notices a broken connection."""
        try:
            sent = self._socket.send(data) if data else 0
        except OSError:
            sent = 0
        self._unwritten += data[sent:]
        return not self._unwritten

    def flush(self) -> None:
        """Write the buffer. Raises OSError, TimeoutError if the peer does not read for too long."""
        with self._lock:
            while self._unwritten:
                try:
                    sent = self._socket.send(self._unwritten)
                except (BlockingIOError, ssl.SSLWantWriteError):
                    waiting = select.poll()
                    waiting.register(self._socket, _WRITABLE)
                    if not waiting.poll(None if self.patience_s is None else self.patience_s * 1000):
                        raise TimeoutError("the server does not read") from None
                else:
                    del self._unwritten[:sent]

    def shutdown(self, how: int) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # also of a duplicate
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class WakeUp:
    """Both ends of the socket pair that wakes the connection thread: any thread calls ``send``, that one ``recv``.

    The pair holds one byte while more was sent than received.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._lock = threading.Lock()
        self.count = 0

    def fileno(self) -> int:
        return self._reader.fileno()

    def send(self, data: bytes) -> int:
        with self._lock:
            if self._writer.fileno() < 0:
                raise OSError("closed")
            if not self.count:
                self._writer.send(b"\0")
            self.count += 1
        return len(data)

    def recv(self, size: int) -> bytes:
        with self._lock:
            if self.count:
                self.count -= 1
                if not self.count:
                    self._reader.recv(1)
        return b"\0"

    def close(self) -> None:
        """kazoo calls it for both ends."""
        with self._lock:
            self._reader.close()
            self._writer.close()


class Poller:
    """kazoo's select, with cached poll objects, keyed by descriptors."""

    def __init__(self) -> None:
        self._polls: dict[tuple[int, ...], Any] = {}
        #: the number of requests in flight
        self.under_way: Callable[[], int] = lambda: 0
        #: whether another thread reads the socket until the wake-up
        self.is_read_elsewhere: Callable[[], bool] = lambda: False
        self._is_full = False

    def wait(
        self, readers: Sequence[Any], writers: Sequence[Any], timeout: float | None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait until some of ``readers`` can be read; writers are always ready. kazoo waits for the socket alone within
        a response, else for the socket and the wake-up."""
        if writers:
            for writer in writers:
                writer.patience_s = timeout
            return [], list(writers), []
        woken = [reader for reader in readers if isinstance(reader, WakeUp)]
        if woken and self.is_read_elsewhere():
            self._flush(readers)
            # after the timeout, who reads elsewhere is late
            return self._ready(woken, timeout) or self._ready(readers, 0), [], []
        under_way = self.under_way()
        self._is_full = under_way >= (_WINDOW_OPENS if self._is_full else _WINDOW)
        if self._is_full:
            readers = [reader for reader in readers if not isinstance(reader, WakeUp)]
        for reader in readers:
            if isinstance(reader, BufferedSocket) and reader.has_frame():
                return [reader], [], []
        if not any(isinstance(reader, WakeUp) and reader.count for reader in readers):
            self._flush(readers)
            if under_way >= _GATHER_FROM:
                time.sleep(_GATHER_S)
        return self._ready(readers, timeout), [], []

    def _flush(self, readers: Sequence[Any]) -> None:
        for reader in readers:
            if isinstance(reader, BufferedSocket):
                reader.flush()

    def _ready(self, readers: Sequence[Any], timeout: float | None) -> list[Any]:
        for reader in readers:
            if isinstance(reader, WakeUp) and reader.count:
                return [reader]
        descriptors = tuple(reader.fileno() for reader in readers)
        if min(descriptors) < 0:
            raise OSError("closed")
        poll = self._polls.get(descriptors)
        if poll is None:
            poll = self._polls[descriptors] = select.poll()
            for descriptor in descriptors:
                poll.register(descriptor, _READABLE)
        ready = dict(poll.poll(None if timeout is None else max(0.0, timeout * 1000)))
        return [r for r, fd in zip(readers, descriptors, strict=True) if ready.get(fd, 0) & (_READABLE | _BROKEN)]
