"""A network thread of Kafka's as one task: it starts connections, parses requests, routes answers (rules B1.16-B1.24).

Owns its hand-off queue, its response queue and its connections. Its loop is Kafka's: new connections, then answers,
then completed receives. Putting a request on a full request queue blocks the loop, and with it everything this
processor reads and every answer it has not yet handed over (rule B1.22); other processors go on.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import NamedTuple

import trio

import wire
from broker_stub.ports import Tap
from broker_stub.reactor.connection import Connection
from broker_stub.reactor.metrics import RequestMetrics
from broker_stub.reactor.quotas import ConnectionQuotas
from broker_stub.reactor.request_channel import (
    Apis,
    ConnectionContext,
    Request,
    RequestChannel,
    RequestContext,
    Response,
    describe,
)

logger = logging.getLogger("broker_stub.reactor")

#: accepted connections that wait for a processor; rule B1.15
HAND_OFF_QUEUE_SIZE = 20

_INDEX_LIMIT = 2**31


class Accepted(NamedTuple):
    """A connection on its way from the acceptor: counted, not yet served."""

    stream: trio.SocketStream
    local: tuple[str, int]
    remote: tuple[str, int]


class Processor:
    """One of a listener's ``num.network.threads``. ``processor_id`` is unique in its server (rule B1.8)."""

    def __init__(
        self,
        processor_id: int,
        listener: str,
        channel: RequestChannel,
        apis: Apis,
        *,
        tap: Tap,
        quotas: ConnectionQuotas,
        metrics: RequestMetrics,
        max_frame_bytes: int,
        max_idle_seconds: float,
    ) -> None:
        self.processor_id = processor_id
        self.listener = listener
        self.metrics = metrics
        self.connections: dict[str, Connection] = {}
        self._channel = channel
        self._apis = apis
        self._tap = tap
        self._quotas = quotas
        self._max_frame_bytes = max_frame_bytes
        self._max_idle_seconds = max_idle_seconds
        self._new_connections, self._accepted = trio.open_memory_channel[Accepted](HAND_OFF_QUEUE_SIZE)
        self._responses: deque[Response] = deque()
        self._received: deque[tuple[Connection, bytes]] = deque()
        self._wakeup = trio.Event()
        self._next_index = 0
        self._draining = False
        self._no_connections = trio.Event()

    @property
    def response_queue_size(self) -> int:
        return len(self._responses)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Its nursery holds the connections, one task each, and who expires the idle ones."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._expire_idle_connections)
                task_status.started()
                while True:
                    await self._wakeup.wait()
                    self._wakeup = trio.Event()
                    self._configure_new_connections(nursery)
                    self._process_new_responses()
                    await self._process_completed_receives()
        finally:
            self._discard_hand_off_queue()

    def accept_nowait(self, accepted: Accepted) -> None:
        """Take over a connection. Raises trio.WouldBlock while the hand-off queue is full."""
        self._new_connections.send_nowait(accepted)
        self._wakeup.set()

    async def accept(self, accepted: Accepted) -> None:
        """Like ``accept_nowait``, but waits for room."""
        await self._new_connections.send(accepted)
        self._wakeup.set()

    def send_response(self, response: Response) -> None:
        """Queue an answer. The queue has no bound of its own: there is at most one answer a connection."""
        self._responses.append(response)
        self._wakeup.set()

    def receive_completed(self, connection: Connection, frame: bytes) -> None:
        self._received.append((connection, frame))
        self._wakeup.set()

    async def drain(self) -> None:
        """Let each connection finish the request it has in progress, close it, and wait until none is left."""
        self._draining = True
        for connection in list(self.connections.values()):
            connection.finish()
        while self.connections:
            self._no_connections = trio.Event()
            await self._no_connections.wait()

    def _configure_new_connections(self, nursery: trio.Nursery) -> None:
        for _ in range(HAND_OFF_QUEUE_SIZE):
            try:
                accepted = self._accepted.receive_nowait()
            except trio.WouldBlock:
                return
            try:
                connection = self._new_connection(accepted)
            except Exception:
                logger.exception("a connection from %s:%d could not be set up", *accepted.remote)
                self._discard(accepted)
            else:
                nursery.start_soon(self._serve, connection, name=connection.context.connection_id)

    def _new_connection(self, accepted: Accepted) -> Connection:
        (local_host, local_port), (remote_host, remote_port) = accepted.local, accepted.remote
        connection_id = f"{local_host}:{local_port}-{remote_host}:{remote_port}-{self._next_index}"
        self._next_index = (self._next_index + 1) % _INDEX_LIMIT
        return Connection(
            ConnectionContext(connection_id, self.listener, remote_host),
            self._tap(accepted.stream),
            self,
            max_frame_bytes=self._max_frame_bytes,
        )

    def _discard(self, accepted: Accepted) -> None:
        accepted.stream.socket.close()
        self._quotas.release(accepted.remote[0])

    async def _expire_idle_connections(self) -> None:
        while True:
            now = trio.current_time()
            wake_at = now + self._max_idle_seconds  # those who come meanwhile have at least so long
            for connection in self.connections.values():
                wake_at = min(wake_at, connection.expire(now, self._max_idle_seconds))
            await trio.sleep_until(wake_at)

    def _discard_hand_off_queue(self) -> None:
        self._new_connections.close()
        while True:
            try:
                self._discard(self._accepted.receive_nowait())
            except trio.EndOfChannel:
                return

    async def _serve(self, connection: Connection) -> None:
        self.connections[connection.context.connection_id] = connection
        self.metrics.connections_open += 1
        if self._draining:
            connection.finish()
        try:
            await connection.serve()
        finally:
            del self.connections[connection.context.connection_id]
            self.metrics.connections_open -= 1
            self._quotas.release(connection.context.client_host)
            if not self.connections:
                self._no_connections.set()

    def _process_new_responses(self) -> None:
        while self._responses:
            response = self._responses.popleft()
            connection = response.request.connection
            if connection.context.connection_id in self.connections:
                connection.deliver(response)
            else:  # rule B1.24
                logger.warning("%s: the connection is gone, its answer is dropped", response.request)
                response.request.record(self.metrics, taken_at=trio.current_time())

    async def _process_completed_receives(self) -> None:
        while self._received:
            connection, frame = self._received.popleft()
            try:
                request = self._parse(connection, frame)
            except wire.DecodeError as e:
                connection.refuse(describe(e))
            except Exception:
                logger.exception("%s: closed after an unexpected error", connection.context.connection_id)
                connection.close()
            else:
                await self._channel.send_request(request)

    def _parse(self, connection: Connection, frame: bytes) -> Request:
        """Raises wire.DecodeError (rule B1.35)."""
        header, message = self._apis.decode(frame)
        return Request(
            RequestContext(header, connection.context),
            message,
            connection=connection,
            responder=self,
            apis=self._apis,
            now=trio.current_time(),
        )
