"""One listener: its socket, and the task that accepts and dispatches connections (rules B1.11-B1.15)."""

from __future__ import annotations

import errno
import logging
import math

import trio

from kce.broker_stub.ports import Bind, Link, ListeningSocket
from kce.broker_stub.reactor.memory_pool import MemoryPool
from kce.broker_stub.reactor.metrics import RequestMetrics
from kce.broker_stub.reactor.processor import Processor
from kce.broker_stub.reactor.quotas import ConnectionQuotas
from kce.wire.vocabulary import Endpoint

log = logging.getLogger(__name__)

#: pause after a failed accept, for example without free file descriptors
ACCEPT_RETRY_SECONDS = 0.1


class BindError(OSError):
    """A listener cannot bind its port. The text is one line: listener, host, port, reason."""


class ThrottledLinks:
    """Connections that are closed unserved after a delay; all of them when the latest is due (rule B1.51)."""

    def __init__(self) -> None:
        self._links: list[Link] = []
        self._due = -math.inf
        self._more = trio.Event()

    def close_after(self, link: Link, seconds: float) -> None:
        self._links.append(link)
        self._due = max(self._due, trio.current_time() + seconds)
        self._more.set()

    async def run(self) -> None:
        """Close them until cancelled, and then the rest."""
        try:
            while True:
                await self._more.wait()
                due = self._due
                await trio.sleep_until(due)
                if due == self._due:  # no later one has come
                    self._more = trio.Event()
                    await self._close()
        finally:
            with trio.CancelScope(shield=True):
                await self._close()

    async def _close(self) -> None:
        links, self._links = self._links, []
        for link in links:
            await link.aclose()


class Acceptor:
    """Owns the server socket of one listener and assigns connections to its processors.

    Kafka 3.9 opens a fixed port only when request processing is enabled (rule B1.11). Here it is bound at startup and
    listens when processing is enabled: clients are refused until then, too, but a port in use is detected before the
    broker registers. Port 0 listens from the start, so early connections wait in the backlog.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        processors: list[Processor],
        *,
        bind: Bind,
        backlog: int,
        max_frame_bytes: int,
        memory: MemoryPool | None,
        quotas: ConnectionQuotas,
        metrics: RequestMetrics,
    ) -> None:
        self.endpoint = endpoint
        self.processors = processors
        self._bind = bind
        self._backlog = backlog
        self._max_frame_bytes = max_frame_bytes
        self._memory = memory
        self._quotas = quotas
        self._metrics = metrics
        self._socket: ListeningSocket | None = None
        self._next_processor = 0
        self._throttled = ThrottledLinks()
        self._scope = trio.CancelScope()

    @property
    def bound(self) -> Endpoint:
        """The endpoint with its bound port."""
        if self._socket is None:
            raise RuntimeError(f"{self.endpoint} is not bound")
        return self.endpoint._replace(port=self._socket.address[1])

    async def bind(self) -> None:
        """Raises BindError; call ``close`` nevertheless."""
        host, port = self.endpoint.host, self.endpoint.port
        try:
            self._socket = await self._bind(
                host,
                port,
                listener=self.endpoint.listener,
                max_frame_bytes=self._max_frame_bytes,
                memory=self._memory,
            )
            if port == 0:
                self._socket.listen(self._backlog)
        except OSError as e:
            raise self._bind_error(e) from None

    def listen(self) -> None:
        """Accept connections. Raises BindError, because some systems detect a port in use only now."""
        assert self._socket is not None
        try:
            self._socket.listen(self._backlog)
        except OSError as e:
            raise self._bind_error(e) from None

    @property
    def is_bound(self) -> bool:
        return self._socket is not None

    def close(self) -> None:
        """Refuse clients from now on; ``run`` returns."""
        self._scope.cancel()
        if self._socket is not None:
            self._socket.close()

    def _bind_error(self, e: OSError) -> BindError:
        what = f"listener {self.endpoint.listener} cannot bind {self.endpoint.host}:{self.endpoint.port}"
        if e.errno == errno.EADDRINUSE:
            return BindError(f"{what}: the port is in use")
        return BindError(f"{what}: {e.strerror or e}")

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept until ``close``. The nursery closes throttled connections."""
        assert self._socket is not None
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._throttled.run)
                task_status.started()
                await self._accept(self._socket)

    async def _accept(self, listening: ListeningSocket) -> None:
        while True:
            try:
                link = await listening.accept()
            except OSError as e:
                if e.errno in (errno.ECONNABORTED, errno.EPROTO):  # the client has closed already
                    continue
                log.warning("listener %s cannot accept: %s", self.endpoint.listener, e)
                await trio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            await self._dispatch(link)

    async def _dispatch(self, link: Link) -> None:
        host, port = link.remote
        listener = self.endpoint.listener
        try:
            await self._quotas.wait_for_slot(listener)
        except trio.Cancelled:
            await link.aclose()
            raise
        if delay := self._quotas.ip_delay(listener, host):
            log.info("listener %s throttles %s:%d: connection_creation_rate", listener, host, port)
            self._throttled.close_after(link, delay)
            return
        if not self._quotas.acquire(listener, host):  # rule B1.46: closed without a response
            log.warning("listener %s refuses %s:%d: max.connections.per.ip", listener, host, port)
            self._metrics.connections_refused += 1
            await link.aclose()
            return
        self._metrics.connections_accepted += 1
        try:
            await self._assign(link)
        except trio.Cancelled:
            self._quotas.release(listener, host)
            await link.aclose()
            raise

    async def _assign(self, link: Link) -> None:
        """Round robin over the processors. Skips full hand-off queues, but waits for the last one (rule B1.15)."""
        for attempts_left in reversed(range(len(self.processors))):
            processor = self.processors[self._next_processor % len(self.processors)]
            self._next_processor += 1
            try:
                processor.accept_nowait(link)
            except trio.WouldBlock:
                if not attempts_left:
                    await self._wait_for(processor, link)
            else:
                return

    async def _wait_for(self, processor: Processor, link: Link) -> None:
        try:
            await processor.accept(link)
        except trio.ClosedResourceError:  # there are fewer now
            await self._assign(link)
