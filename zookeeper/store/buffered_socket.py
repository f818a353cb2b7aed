"""A connection for kazoo that takes few system calls: read ahead, and written behind.

kazoo waits for the socket before every read and write, reads each answer by two, writes each request by one, and has a
socket pair wake it for each request: ten system calls an operation, most of its time. Here what waits is read at once,
requests that wait are written at once, and one wake-up stands for all requests that came since.

`wait` is the only place in which the connection thread sleeps; it writes what is left before it does.
"""

from __future__ import annotations

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
_READ_AHEAD_BYTES = 1 << 16
_WRITE_BEHIND_BYTES = 1 << 16
#: requests under way at which no more are sent, until this many are left
_WINDOW, _WINDOW_OPENS = 512, 256
#: requests under way from which answers are let gather: a server on this machine needs the core that each wake-up takes
_GATHER_FROM, _GATHER_S = 64, 0.0005

_READABLE, _WRITABLE = select.POLLIN | select.POLLPRI, select.POLLOUT
_BROKEN = select.POLLHUP | select.POLLERR | select.POLLNVAL


class BufferedSocket:
    """What kazoo uses of a socket, of TLS or not; non-blocking once it is connected, as kazoo sets it."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        #: what has been read, and how much of it was taken
        self._read, self._taken = b"", 0
        self._unwritten = bytearray()
        #: seconds for which a peer that takes nothing is waited for; as kazoo waits before each write
        self.patience_s: float | None = 10.0

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)

    def pending(self) -> int:
        """Bytes that can be had without waiting; kazoo asks, as it does of TLS sockets."""
        return len(self._read) - self._taken

    def recv(self, size: int) -> bytes:
        if not self.pending():
            self._read, self._taken = self._receive(max(size, _READ_AHEAD_BYTES)), 0
        begin, self._taken = self._taken, min(self._taken + size, len(self._read))
        return self._read[begin : self._taken]

    def _receive(self, size: int) -> bytes:
        """What was deciphered already would not wake a poll."""
        received = self._socket.recv(size)
        while isinstance(self._socket, ssl.SSLSocket) and (waiting := self._socket.pending()):
            received += self._socket.recv(waiting)
        return received

    def read_ahead(self) -> None:
        """Read what has come, unless the next frame is there. Raises OSError, also when the peer has closed."""
        if self._frame_bytes() is not None:
            return
        try:
            received = self._receive(max(_READ_AHEAD_BYTES, self.pending()))
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        if not received:
            raise ConnectionResetError(errno.ECONNRESET, "the server has closed the connection")
        self._read, self._taken = self._read[self._taken :] + received, 0

    def _frame_bytes(self) -> int | None:
        """Of the next frame without its length, if all of it has been read ahead. Raises OSError for no frame."""
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
        """The content of the next frame, without its length, if all of it has been read ahead; it is not taken."""
        size = self._frame_bytes()
        begin = self._taken + _LENGTH.size
        return None if size is None else self._read[begin : begin + size]

    def take_frame(self) -> None:
        """The one that ``frame`` has shown."""
        (size,) = _LENGTH.unpack_from(self._read, self._taken)
        self._taken += _LENGTH.size + size

    def send(self, data: bytes) -> int:
        """Takes all of it. Raises OSError, perhaps for what was given before."""
        self._unwritten += data
        if len(self._unwritten) >= _WRITE_BEHIND_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Write what is left. Raises OSError, TimeoutError when the peer takes nothing for too long."""
        while self._unwritten:
            try:
                sent = self._socket.send(self._unwritten)
            except (BlockingIOError, ssl.SSLWantWriteError):
                waiting = select.poll()
                waiting.register(self._socket, _WRITABLE)
                if not waiting.poll(None if self.patience_s is None else self.patience_s * 1000):
                    raise TimeoutError("the server takes nothing") from None
            else:
                del self._unwritten[:sent]

    def shutdown(self, how: int) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()


class WakeUp:
    """Both ends of what wakes the connection thread: ``send`` for any thread, ``recv`` for that one.

    A byte is in the socket pair as long as more was sent than was received.
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
        """Of either end; kazoo closes both."""
        with self._lock:
            self._reader.close()
            self._writer.close()


class Poller:
    """kazoo's select, by poll objects that are kept: they know descriptors, whatever is behind them by then."""

    def __init__(self) -> None:
        self._polls: dict[tuple[int, ...], Any] = {}
        #: how many requests have no answer yet
        self.under_way: Callable[[], int] = lambda: 0
        self._is_full = False

    def wait(
        self, readers: Sequence[Any], writers: Sequence[Any], timeout: float | None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Which of ``readers`` can be read, for ``timeout`` seconds; a writer can always be written. kazoo waits for
        the socket alone in the midst of an answer, else for it and the wake-up."""
        if writers:
            for writer in writers:
                writer.patience_s = timeout
            return [], list(writers), []
        under_way = self.under_way()
        self._is_full = under_way >= (_WINDOW_OPENS if self._is_full else _WINDOW)
        if self._is_full:
            readers = [reader for reader in readers if not isinstance(reader, WakeUp)]
        for reader in readers:
            if isinstance(reader, BufferedSocket):
                if reader.has_frame():
                    return [reader], [], []
            elif isinstance(reader, WakeUp) and reader.count:
                return [reader], [], []
        for reader in readers:
            if isinstance(reader, BufferedSocket):
                reader.flush()
        if under_way >= _GATHER_FROM:
            time.sleep(_GATHER_S)
        descriptors = tuple(reader.fileno() for reader in readers)
        if min(descriptors) < 0:
            raise OSError("closed")
        poll = self._polls.get(descriptors)
        if poll is None:
            poll = self._polls[descriptors] = select.poll()
            for descriptor in descriptors:
                poll.register(descriptor, _READABLE)
        ready = dict(poll.poll(None if timeout is None else max(0.0, timeout * 1000)))
        found = [r for r, fd in zip(readers, descriptors, strict=True) if ready.get(fd, 0) & (_READABLE | _BROKEN)]
        return found, [], []
