"""A connection for kazoo that takes few system calls: read ahead, and written behind.

kazoo waits for the socket before every read and write, reads each answer by two, writes each request by one, and has a
socket pair wake it for each request: ten system calls an operation, most of its time. Here what waits is read at once,
requests that wait are written at once, and one wake-up stands for all requests that came since.

`wait` is the only place in which the connection thread sleeps; it writes what is left before it does.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct(">i")
_READ_AHEAD_BYTES = 1 << 16
_WRITE_BEHIND_BYTES = 1 << 16
#: requests that are taken before answers are looked for again
_MOST_UNPOLLED = 64

_READABLE, _WRITABLE = select.POLLIN | select.POLLPRI, select.POLLOUT
_BROKEN = select.POLLHUP | select.POLLERR | select.POLLNVAL


class BufferedSocket:
    """What kazoo uses of a socket, of TLS or not; non-blocking once it is connected, as kazoo sets it."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._read = memoryview(b"")
        self._unwritten = bytearray()
        #: seconds for which a peer that takes nothing is waited for; as kazoo waits before each write
        self.patience_s: float | None = 10.0

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)

    def pending(self) -> int:
        """Bytes that can be had without waiting; kazoo asks, as it does of TLS sockets."""
        return len(self._read)

    def recv(self, size: int) -> bytes:
        if not self._read:
            self._read = memoryview(self._receive(max(size, _READ_AHEAD_BYTES)))
        taken, self._read = self._read[:size], self._read[size:]
        return bytes(taken)

    def _receive(self, size: int) -> bytes:
        """What was deciphered already would not wake a poll."""
        received = self._socket.recv(size)
        while isinstance(self._socket, ssl.SSLSocket) and (waiting := self._socket.pending()):
            received += self._socket.recv(waiting)
        return received

    def frame(self) -> bytes | None:
        """The content of the next frame, without its length, if all of it has been read ahead; it is not taken."""
        begin = _LENGTH.size
        if len(self._read) < begin:
            return None
        (size,) = _LENGTH.unpack_from(self._read)
        return bytes(self._read[begin : begin + size]) if 0 <= size <= len(self._read) - begin else None

    def take_frame(self) -> None:
        """The one that ``frame`` has shown."""
        (size,) = _LENGTH.unpack_from(self._read)
        self._read = self._read[_LENGTH.size + size :]

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
        self.unpolled = 0

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

    def wait(
        self, readers: Sequence[Any], writers: Sequence[Any], timeout: float | None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Which of ``readers`` can be read, for ``timeout`` seconds; a writer can always be written."""
        if writers:
            for writer in writers:
                writer.patience_s = timeout
            return [], list(writers), []
        for reader in readers:
            if isinstance(reader, BufferedSocket):
                if reader.pending():
                    return [reader], [], []
            elif isinstance(reader, WakeUp):
                if reader.count and reader.unpolled < _MOST_UNPOLLED:
                    reader.unpolled += 1
                    return [reader], [], []
                reader.unpolled = 0
        for reader in readers:
            if isinstance(reader, BufferedSocket):
                reader.flush()
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
