"""What can be made to go wrong: requests held back on their way out, and a TCP connection cut in the middle."""

from __future__ import annotations

import trio


class Hold:
    """A gate in front of a node's outgoing control requests: while held, none leaves; on release all do, unchanged.

    So a controller is made into one whose requests were under way for very long: a zombie, if it lost the role since.
    """

    def __init__(self) -> None:
        self._open = trio.Event()
        self._open.set()

    @property
    def is_held(self) -> bool:
        return not self._open.is_set()

    def hold(self) -> None:
        if self._open.is_set():
            self._open = trio.Event()

    def release(self) -> None:
        self._open.set()

    async def __call__(self, host: str, port: int) -> None:
        await self._open.wait()


class TcpProxy:
    """A proxy on loopback that can be cut: bytes stop, connections break, new ones are refused; until it is healed.

    Put between a node and ZooKeeper it is the network partition that makes a session expire.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self._target = (target_host, target_port)
        self._cut = False
        self._connections: set[trio.CancelScope] = set()
        self.port = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; ``port`` is known once this has started."""
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
            for source, sink in ((client, server), (server, client)):
                nursery.start_soon(_pump, source, sink, nursery.cancel_scope)


async def _pump(source: trio.SocketStream, sink: trio.SocketStream, both: trio.CancelScope) -> None:
    """One direction; its end is the end of both."""
    try:
        async for data in source:
            await sink.send_all(data)
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    both.cancel()
