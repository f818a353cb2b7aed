"""A TCP connection that gives up its turn only to wait: `trio.SocketStream` does so after every call.

A server that answers many requests on one wake-up pays for one pass of the event loop then, not for three. Who reads
without end must yield by itself, as the reactor does (`broker_stub.reactor.turns`).
"""

from __future__ import annotations

import socket

import trio

DEFAULT_RECEIVE_BYTES = 65536


class TcpStream(trio.abc.Stream):
    """Owns ``sock``, which it makes non-blocking. One task may read while another writes."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._sending = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while True:
            self._check_open()
            await trio.lowlevel.wait_readable(self.socket)
            try:
                return self.socket.recv(max_bytes or DEFAULT_RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError as e:
                raise self._error(e) from e

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._sending = True
        try:
            sent = self._send(data)
            if sent < len(data):
                await self._send_rest(memoryview(data)[sent:])
        finally:
            self._sending = False

    async def _send_rest(self, data: memoryview) -> None:
        while data:
            self._check_open()
            await trio.lowlevel.wait_writable(self.socket)
            data = data[self._send(data) :]

    def _send(self, data: bytes | bytearray | memoryview) -> int:
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as e:
            raise self._error(e) from e

    def _check_open(self) -> None:
        """Trio takes a closed socket for file descriptor -1 and fails with ValueError."""
        if self.socket.fileno() == -1:
            raise trio.ClosedResourceError("this socket was closed")

    def _error(self, e: OSError) -> Exception:
        if self.socket.fileno() == -1:
            return trio.ClosedResourceError("this socket was closed")
        return trio.BrokenResourceError(f"socket connection broken: {e}")

    async def wait_send_all_might_not_block(self) -> None:
        self._check_open()
        await trio.lowlevel.wait_writable(self.socket)

    def close(self) -> None:
        if self.socket.fileno() != -1:
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()
