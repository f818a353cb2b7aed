"""A TCP proxy that can be cut: between a node and ZooKeeper it is the network partition that expires a session."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import trio

from kce.harness.world.tcp_stream import TcpStream


class TcpProxy:
    """A proxy on loopback. ``cut`` breaks its connections and refuses new ones until ``heal``; what clients send takes
    ``delay_s`` longer until then. After ``mute`` what servers send waits for it."""

    def __init__(self, target_host: str, target_port: int) -> None:
        self._target = (target_host, target_port)
        self._cut = False
        self.delay_s = 0.0
        self._heard = trio.Event()
        self._heard.set()
        self._connections: set[trio.CancelScope] = set()
        self.port = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Started when ``port`` is known."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        async with listener, trio.open_nursery() as nursery:
            task_status.started()
            await trio.serve_listeners(self._serve, [listener], handler_nursery=nursery)

    def cut(self) -> None:
        self._cut = True
        for scope in self._connections:
            scope.cancel()

    def mute(self) -> None:
        if self._heard.is_set():
            self._heard = trio.Event()

    def heal(self) -> None:
        self._cut = False
        self.delay_s = 0.0
        self._heard.set()

    @property
    def is_cut(self) -> bool:
        return self._cut

    async def _serve(self, accepted: trio.SocketStream) -> None:
        with trio.CancelScope() as scope:
            self._connections.add(scope)
            try:
                async with _quick(accepted) as client:
                    if not self._cut:
                        await self._forward(client)
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                return
            finally:
                self._connections.discard(scope)

    async def _forward(self, client: TcpStream) -> None:
        dialled = await trio.open_tcp_stream(*self._target)
        async with _quick(dialled) as server, trio.open_nursery() as nursery:
            nursery.start_soon(_pump, client, server, nursery.cancel_scope, self._slowed)
            nursery.start_soon(_pump, server, client, nursery.cancel_scope, self._muted)

    async def _slowed(self) -> None:
        if self.delay_s:
            await trio.sleep(self.delay_s)

    async def _muted(self) -> None:
        while not self._heard.is_set():  # it may be another event by then
            await self._heard.wait()


def _quick(stream: trio.SocketStream) -> TcpStream:
    """The same connection, of which each pass costs half the time."""
    return TcpStream(socket.socket(fileno=stream.socket.detach()))


async def _pump(
    source: TcpStream, sink: TcpStream, both: trio.CancelScope, before: Callable[[], Awaitable[None]]
) -> None:
    """One direction; its end is the end of both. ``before`` is awaited before what has come is sent on."""
    try:
        while data := await source.receive_some():
            await before()
            await sink.send_all(data)
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    both.cancel()
