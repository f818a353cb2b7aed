"""One listener: its socket, and the task that accepts and only dispatches (rules B1.11-B1.15)."""

from __future__ import annotations

import errno
import logging
import socket

import trio

from broker_stub.reactor.metrics import RequestMetrics
from broker_stub.reactor.processor import Accepted, Processor
from broker_stub.reactor.quotas import ConnectionQuotas
from wire.vocabulary import Endpoint

logger = logging.getLogger("broker_stub.reactor")

#: pause after an accept that failed for want of something, such as file descriptors
ACCEPT_RETRY_SECONDS = 0.1


class BindError(OSError):
    """A listener cannot have its port. One line: listener, host, port, why."""


class Acceptor:
    """Owns the server socket of one listener and the order in which its processors get connections.

    Kafka 3.9 opens a fixed port only when request processing is enabled (rule B1.11). Here it is bound at once and
    listens only then: until then clients are refused just the same, but a port that is taken is found before the
    broker registers. A port 0 listens from the start, so early connections wait in the backlog.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        processors: list[Processor],
        *,
        backlog: int,
        quotas: ConnectionQuotas,
        metrics: RequestMetrics,
    ) -> None:
        self.endpoint = endpoint
        self.processors = processors
        self._backlog = backlog
        self._quotas = quotas
        self._metrics = metrics
        self._socket: trio.socket.SocketType | None = None
        self._next_processor = 0

    @property
    def bound(self) -> Endpoint:
        """The endpoint with the port that it really has."""
        if self._socket is None:
            raise RuntimeError(f"{self.endpoint} is not bound")
        return self.endpoint._replace(port=self._socket.getsockname()[1])

    async def bind(self) -> None:
        """Raises BindError; ``close`` is due even so."""
        try:
            found = await trio.socket.getaddrinfo(
                self.endpoint.host, self.endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, kind, protocol, _, address = found[0]
            self._socket = trio.socket.socket(family, kind, protocol)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await self._socket.bind(address)
            if self.endpoint.port == 0:
                self._socket.listen(self._backlog)
        except OSError as e:
            raise self._bind_error(e) from None

    def listen(self) -> None:
        """Let clients connect. Raises BindError, for some systems notice a taken port only now."""
        assert self._socket is not None
        try:
            self._socket.listen(self._backlog)
        except OSError as e:
            raise self._bind_error(e) from None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _bind_error(self, e: OSError) -> BindError:
        what = f"listener {self.endpoint.listener} cannot have {self.endpoint.host}:{self.endpoint.port}"
        if e.errno == errno.EADDRINUSE:
            return BindError(f"{what}: another process holds that port")
        return BindError(f"{what}: {e.strerror or e}")

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept until cancelled."""
        assert self._socket is not None
        task_status.started()
        while True:
            try:
                accepted_socket, _ = await self._socket.accept()
            except OSError as e:
                if e.errno in (errno.ECONNABORTED, errno.EPROTO):  # that client is gone again
                    continue
                logger.warning("listener %s cannot accept: %s", self.endpoint.listener, e)
                await trio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            await self._dispatch(accepted_socket)

    async def _dispatch(self, accepted_socket: trio.socket.SocketType) -> None:
        try:
            accepted_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # rule B1.14
            local, remote = accepted_socket.getsockname()[:2], accepted_socket.getpeername()[:2]
            stream = trio.SocketStream(accepted_socket)  # sets TCP_NODELAY
        except OSError as e:  # gone before it was served
            logger.debug("listener %s lost a connection: %s", self.endpoint.listener, e)
            accepted_socket.close()
            return
        if not self._quotas.acquire(remote[0]):  # rule B1.46: closed at once, without a byte
            logger.warning("listener %s refuses %s:%d: max.connections.per.ip", self.endpoint.listener, *remote)
            self._metrics.connections_refused += 1
            accepted_socket.close()
            return
        self._metrics.connections_accepted += 1
        accepted = Accepted(stream, local, remote)
        try:
            await self._assign(accepted)
        except trio.Cancelled:
            accepted_socket.close()
            self._quotas.release(remote[0])
            raise

    async def _assign(self, accepted: Accepted) -> None:
        """Round robin; a full hand-off queue is passed over, but the last one tried is waited for (rule B1.15)."""
        for attempts_left in reversed(range(len(self.processors))):
            processor = self.processors[self._next_processor % len(self.processors)]
            self._next_processor += 1
            try:
                processor.accept_nowait(accepted)
            except trio.WouldBlock:
                if not attempts_left:
                    await processor.accept(accepted)
            else:
                return
