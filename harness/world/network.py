"""A network in memory: listeners by address, and connections whose ends have addresses. No packet is lost or late."""

from __future__ import annotations

import errno
import itertools
import math
import os

import trio

from kce.broker_stub.ports import Address
from kce.harness.world.port import Connected, Listener

#: bytes on their way in one direction; a sender waits for room, as for the buffers of a kernel
BUFFER_BYTES = 256 * 1024
#: hosts that are this one
LOCAL_HOSTS = ("127.0.0.1", "localhost", "0.0.0.0", "")  # noqa: S104 - listened on in memory only
_LOOPBACK = "127.0.0.1"
_FIRST_EPHEMERAL_PORT = 32768


class Stall:
    """A node that stands still for a while: what it sends and receives waits."""

    __slots__ = ("_changed", "until")

    def __init__(self) -> None:
        self.until = 0.0
        self._changed = trio.Event()

    def add(self, seconds: float) -> None:
        """Stand still that much longer."""
        self.until = max(self.until, trio.current_time()) + seconds

    def pause(self) -> None:
        """Stand still until `resume`."""
        self.until = math.inf

    def resume(self) -> None:
        self.until = 0.0
        self._changed.set()
        self._changed = trio.Event()

    async def over(self) -> None:
        while trio.current_time() < self.until:
            with trio.move_on_at(self.until):
                await self._changed.wait()


class _Pipe:
    """One direction of a connection."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_closed = False  # by either end
        self.changed = trio.Event()

    def change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def close(self) -> None:
        self.is_closed = True
        self.change()


class MemoryStream(trio.abc.Stream):
    """One end of a connection, that of a node which may stall."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe, stall: Stall) -> None:
        self._incoming = incoming
        self._stall = stall
        self._outgoing = outgoing
        self._closed = False
        self._sending = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._sending = True
        try:
            await trio.lowlevel.checkpoint()
            if self._stall.until:
                await self._stall.over()
            view, pipe = memoryview(data), self._outgoing
            while view:
                if self._closed:
                    raise trio.ClosedResourceError
                if pipe.is_closed:
                    raise trio.BrokenResourceError("the peer closed the connection")
                if room := BUFFER_BYTES - len(pipe.data):
                    pipe.data += view[:room]
                    view = view[room:]
                    pipe.change()
                else:
                    await pipe.changed.wait()
        finally:
            self._sending = False

    async def wait_send_all_might_not_block(self) -> None:
        while len(self._outgoing.data) >= BUFFER_BYTES and not self._outgoing.is_closed:
            await self._outgoing.changed.wait()
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if self._stall.until:
            await self._stall.over()
        pipe = self._incoming
        while not pipe.data:
            if self._closed:
                raise trio.ClosedResourceError
            if pipe.is_closed:
                return b""
            await pipe.changed.wait()
        taken = bytes(pipe.data[:max_bytes])
        del pipe.data[: len(taken)]
        pipe.change()
        return taken

    def close(self) -> None:
        self._closed = True
        self._incoming.data.clear()
        self._incoming.close()
        self._outgoing.close()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


class MemoryListener(Listener):
    def __init__(self, network: MemoryNetwork, address: Address, stall: Stall) -> None:
        self._network = network
        self.stall = stall
        self._address = address
        self._clients: trio.MemorySendChannel[Connected] | None = None
        self._accepted: trio.MemoryReceiveChannel[Connected] | None = None

    @property
    def address(self) -> Address:
        return self._address

    def listen(self, backlog: int) -> None:
        if self._clients is None:
            self._clients, self._accepted = trio.open_memory_channel(backlog)

    async def accept(self) -> Connected:
        assert self._accepted is not None, "listen first"
        return await self._accepted.receive()

    async def connected(self, client: Connected) -> None:
        """Raises ConnectionRefusedError."""
        if self._clients is None:
            raise _refused(self._address)
        try:
            await self._clients.send(client)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise _refused(self._address) from None

    def close(self) -> None:
        self._network.forget(self)
        if self._clients is None or self._accepted is None:
            return
        while True:
            try:
                waiting = self._accepted.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
                break
            assert isinstance(waiting.stream, MemoryStream)
            waiting.stream.close()
        self._clients.close()
        self._accepted.close()


class MemoryNetwork:
    """Owns the listeners. Ephemeral ports count up, so that they are the same in every run."""

    def __init__(self) -> None:
        self._listeners: dict[int, MemoryListener] = {}
        self._ephemeral = itertools.count(_FIRST_EPHEMERAL_PORT)

    def bind(self, host: str, port: int, stall: Stall | None = None) -> MemoryListener:
        """Raises OSError."""
        if host not in LOCAL_HOSTS:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        if port in self._listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        chosen = port or self._ephemeral_port()
        made = self._listeners[chosen] = MemoryListener(self, (_LOOPBACK, chosen), stall or Stall())
        return made

    async def connect(self, host: str, port: int, stall: Stall | None = None) -> Connected:
        """Raises ConnectionRefusedError."""
        await trio.lowlevel.checkpoint()
        remote = (_LOOPBACK, port)
        listener = self._listeners.get(port)
        if host not in LOCAL_HOSTS or listener is None:
            raise _refused((host, port))
        local = (_LOOPBACK, self._ephemeral_port())
        there, back = _Pipe(), _Pipe()
        await listener.connected(Connected(MemoryStream(there, back, listener.stall), remote, local))
        return Connected(MemoryStream(back, there, stall or Stall()), local, remote)

    def forget(self, listener: MemoryListener) -> None:
        if self._listeners.get(listener.address[1]) is listener:
            del self._listeners[listener.address[1]]

    def _ephemeral_port(self) -> int:
        return next(port for port in self._ephemeral if port not in self._listeners)


def _refused(address: Address) -> ConnectionRefusedError:
    return ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {address[0]}:{address[1]}")
