"""ZooKeeper with a smaller jute.maxbuffer, as a proxy before a server."""

from __future__ import annotations

from contextlib import suppress

import trio


class PickyProxy:
    """A proxy before ZooKeeper that closes a connection on a request above ``limit`` bytes, as jute.maxbuffer does."""

    def __init__(self, zookeeper: str, limit: int) -> None:
        self.limit = limit
        self.refused = 0
        host, _, port = zookeeper.partition(":")
        self._server = host, int(port)

    async def run(self, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Reports its address, host:port."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(f"127.0.0.1:{listener.socket.getsockname()[1]}")
        await trio.serve_listeners(self._serve, [listener])

    async def _serve(self, client: trio.SocketStream) -> None:
        async with client, await trio.open_tcp_stream(*self._server) as server, trio.open_nursery() as nursery:

            async def answer() -> None:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    async for data in server:
                        await client.send_all(data)
                nursery.cancel_scope.cancel()

            nursery.start_soon(answer)
            pending = b""
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async for data in client:
                    pending += data
                    while len(pending) >= 4:
                        size = int.from_bytes(pending[:4], "big")
                        if size > self.limit:
                            self.refused += 1
                            nursery.cancel_scope.cancel()
                            return
                        if len(pending) < 4 + size:
                            break
                        await server.send_all(pending[: 4 + size])
                        pending = pending[4 + size :]
            nursery.cancel_scope.cancel()
