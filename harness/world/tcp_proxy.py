"""A TCP proxy that can be cut: between a node and ZooKeeper it is the network partition that expires a session."""

from __future__ import annotations

from collections.abc import Callable

import trio


class TcpProxy:
    """A proxy on loopback. ``cut`` breaks its connections and refuses new ones until ``heal``; what clients send takes
    ``delay_s`` longer until then."""

    def __init__(self, target_host: str, target_port: int) -> None:
        self._target = (target_host, target_port)
        self._cut = False
        self.delay_s = 0.0
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

    def heal(self) -> None:
        self._cut = False
        self.delay_s = 0.0

    @property
    def is_cut(self) -> bool:
        return self._cut

    async def _serve(self, client: trio.SocketStream) -> None:
        with trio.CancelScope() as scope:
            self._connections.add(scope)
            try:
                async with client:
                    if not self._cut:
                        await self._forward(client)
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                return
            finally:
                self._connections.discard(scope)

    async def _forward(self, client: trio.SocketStream) -> None:
        async with await trio.open_tcp_stream(*self._target) as server, trio.open_nursery() as nursery:
            nursery.start_soon(_pump, client, server, nursery.cancel_scope, lambda: self.delay_s)
            nursery.start_soon(_pump, server, client, nursery.cancel_scope, lambda: 0.0)


async def _pump(
    source: trio.SocketStream, sink: trio.SocketStream, both: trio.CancelScope, delay_s: Callable[[], float]
) -> None:
    """One direction; its end is the end of both."""
    try:
        async for data in source:
            if delay := delay_s():
                await trio.sleep(delay)
            await sink.send_all(data)
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    both.cancel()
