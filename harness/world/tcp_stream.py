"""A TCP connection that gives up its turn only to wait: `trio.SocketStream` does so after every call.

A server that answers many requests on one wake-up pays for one pass of the event loop then, not for three. Who reads
without end must yield by itself, as the reactor does (`broker_stub.reactor.turns`).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial

import outcome
import trio

from kce.broker_stub.ports import InTurns
from kce.harness.world.input_poller import IS_AVAILABLE, InputPoller, Waiter, input_poller
from kce.harness.world.port import PartsStream
from kce.harness.world.real_disk import RealSlice
from kce.wire.payload import Part

DEFAULT_RECEIVE_BYTES = 65536
#: of a file in one system call: a quick reader must not keep the others waiting
SENDFILE_BYTES = 1 << 20
#: holds back a packet that is not full; Linux only
_CORK: int | None = getattr(socket, "TCP_CORK", None)


class TcpStream(PartsStream):
    """Owns ``sock``, which it makes non-blocking. One task may read while another writes."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._sending = False
        #: the last read got all that had come
        self._is_drained = False
        #: once it is used
        self._poller: InputPoller | None = None
        #: the task in ``wait_for_input``
        self._waiting: trio.lowlevel.Task | None = None

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while True:
            self._check_open()
            await trio.lowlevel.wait_readable(self.socket)
            if (data := self.receive_nowait(max_bytes or DEFAULT_RECEIVE_BYTES)) is not None:
                return data

    def receive_nowait(self, max_bytes: int) -> bytes | None:
        """See `PartsStream`."""
        try:
            data = self.socket.recv(max_bytes)
        except BlockingIOError:
            self._is_drained = True
            return None
        except OSError as e:
            raise self._error(e) from e
        self._is_drained = len(data) < max_bytes
        return data

    @property
    def has_ended(self) -> bool:
        """See `PartsStream`."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    async def wait_for_input(self, on_input: Callable[[], bool], turns: InTurns) -> None:
        """See `PartsStream`."""
        self._check_open()
        if not IS_AVAILABLE:
            return
        fd, poller = self.socket.fileno(), self._poller or input_poller()

        def serve() -> None:
            self._is_drained = False
            if self._waiting is None:
                return
            if on_input() and self._waiting is not None:
                poller.wait(fd, waiter, is_drained=self._is_drained)
            else:
                self.stop_waiting()

        waiter = Waiter(partial(turns.call, serve), turns.end_slice)

        def abort(_: object) -> trio.lowlevel.Abort:
            self._waiting = None
            poller.stop(fd)
            return trio.lowlevel.Abort.SUCCEEDED

        poller.wait(fd, waiter, is_drained=self._is_drained)
        self._poller, self._waiting = poller, trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)

    def stop_waiting(self) -> None:
        """See `PartsStream`."""
        self._end_wait(outcome.Value(None))

    def _end_wait(self, result: outcome.Outcome[None]) -> None:
        if self._waiting is not None:
            assert self._poller is not None
            self._poller.stop(self.socket.fileno())
            trio.lowlevel.reschedule(self._waiting, result)
            self._waiting = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._begin_sending()
        try:
            sent = self._send(data)
            if sent < len(data):
                await self._send_rest(memoryview(data)[sent:])
        finally:
            self._sending = False

    def send_nowait(self, data: bytes) -> int:
        """See `PartsStream`."""
        return 0 if self._sending else self._send(data)

    async def send_parts(self, parts: Sequence[Part]) -> None:
        """See `PartsStream`. The parts share packets."""
        self._begin_sending()
        try:
            self._cork(True)
            for part in parts:
                if isinstance(part, bytes):
                    sent = self._send(part)
                    if sent < len(part):
                        await self._send_rest(memoryview(part)[sent:])
                else:
                    assert isinstance(part, RealSlice), "stored in another world"
                    await self._send_slice(part)
            self._cork(False)
        finally:
            self._sending = False

    def _cork(self, is_corked: bool) -> None:
        if _CORK is not None:
            try:
                self.socket.setsockopt(socket.IPPROTO_TCP, _CORK, is_corked)
            except OSError as e:
                raise self._error(e) from e

    def _begin_sending(self) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._sending = True

    async def _send_rest(self, data: memoryview) -> None:
        while data:
            await self._writable()
            data = data[self._send(data) :]

    async def _send_slice(self, part: RealSlice) -> None:
        sent = self._send_file(part, 0)
        while sent < len(part):
            await self._writable()
            sent += self._send_file(part, sent)

    def _send_file(self, part: RealSlice, begin: int) -> int:
        try:
            return part.send(self.socket.fileno(), begin, SENDFILE_BYTES)
        except BlockingIOError:
            return 0
        except OSError as e:
            raise self._error(e) from e

    async def _writable(self) -> None:
        self._check_open()
        await trio.lowlevel.wait_writable(self.socket)

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
        await self._writable()

    def close(self) -> None:
        if self.socket.fileno() != -1:
            self._end_wait(outcome.Error(trio.ClosedResourceError("this socket was closed")))
            if self._poller is not None:
                self._poller.forget(self.socket.fileno())
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()
