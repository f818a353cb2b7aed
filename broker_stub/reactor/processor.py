"""One network thread of Kafka: it starts connections, parses requests and routes responses (rules B1.16-B1.24).

Owns its hand-off queue, its response queue and its connections, which are tasks. While the plane's request queue is
full, a processor with one more request is blocked: it takes no connections, reads no requests, and its responses
stay in its queue (rule B1.22); other processors continue.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from ipaddress import IPv6Address
from typing import Final

import trio

from kce.broker_stub.ports import Link
from kce.broker_stub.reactor.connection import Connection
from kce.broker_stub.reactor.memory_pool import MemoryPool
from kce.broker_stub.reactor.metrics import RequestMetrics
from kce.broker_stub.reactor.quotas import ConnectionQuotas
from kce.broker_stub.reactor.request import Apis, ConnectionContext, Request, RequestContext
from kce.broker_stub.reactor.request_channel import RequestChannel
from kce.broker_stub.reactor.turns import Turns
from kce.broker_stub.security.config import PLAINTEXT, ListenerSecurity
from kce.broker_stub.security.sasl_authenticator import SaslServices
from kce.wire.primitives import UNLIMITED

log = logging.getLogger(__name__)

#: makes a NamedTuple in half the time
_new: Final = tuple.__new__

#: capacity for accepted connections that wait for a processor (rule B1.15)
HAND_OFF_QUEUE_SIZE = 20

#: a request of the data plane with more elements is decoded in turns with others
LONG_REQUEST_ELEMENTS = 1000

_INDEX_LIMIT = 2**31


def as_in_java(host: str) -> str:
    """As Java writes an address, and ACLs, members of groups and ids of connections have it: ::1 is 0:0:0:0:0:0:0:1."""
    if ":" not in host:
        return host
    address, percent, zone = host.partition("%")
    groups = [f"{int(group, 16):x}" for group in IPv6Address(address).exploded.split(":")]
    return ":".join(groups) + percent + zone


class Processor:
    """One of a listener's ``num.network.threads``. ``processor_id`` is unique in the server (rule B1.8)."""

    def __init__(
        self,
        processor_id: int,
        listener: str,
        channel: RequestChannel,
        apis: Apis,
        *,
        quotas: ConnectionQuotas,
        metrics: RequestMetrics,
        max_idle_seconds: float,
        turns: Turns,
        memory: MemoryPool | None,
        security: ListenerSecurity = PLAINTEXT,
        sasl: SaslServices | None = None,
    ) -> None:
        """``sasl`` is needed on a listener with SASL."""
        self.processor_id = processor_id
        self.listener = listener
        self.metrics = metrics
        self.connections: dict[str, Connection] = {}
        self.channel = channel
        self.turns = turns
        self.memory = memory
        self.security = security
        self.sasl = sasl
        self.apis = apis
        self._max_elements = UNLIMITED if turns.slice_seconds == math.inf else LONG_REQUEST_ELEMENTS
        self._quotas = quotas
        self._max_idle_seconds = max_idle_seconds
        self._new_connections, self._accepted = trio.open_memory_channel[Link](HAND_OFF_QUEUE_SIZE)
        self._responses: deque[Request] = deque()
        self.is_blocked = False
        #: of the processor that is blocked
        self._unblocked = trio.Event()
        self._next_index = 0
        self._draining = False
        self._no_connections = trio.Event()
        self._scope = trio.CancelScope()
        #: of the connections, while it runs
        self._nursery: trio.Nursery | None = None

    @property
    def response_queue_size(self) -> int:
        return len(self._responses)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until ``close``. The nursery has a task for each connection, and one that expires idle connections."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._expire_idle_connections)
                    self._nursery = nursery
                    task_status.started()
                    try:
                        while True:
                            await self.unblocked()
                            self._start(await self._accepted.receive(), nursery)
                            self._start_others(nursery)
                    finally:
                        self._nursery = None  # it may be closed before anybody runs after it
        finally:
            with trio.CancelScope(shield=True):
                await self._discard_hand_off_queue()

    def accept_nowait(self, link: Link) -> None:
        """Take over a connection that the quotas have counted. Raises trio.WouldBlock if the hand-off queue is full."""
        if self._nursery is not None and not self.is_blocked:
            self._start(link, self._nursery)
        else:
            self._new_connections.send_nowait(link)

    async def accept(self, link: Link) -> None:
        """Like ``accept_nowait``, but waits while the queue is full."""
        await self._new_connections.send(link)

    def send_response(self, request: Request) -> None:
        """Deliver a response. It is queued while the processor is blocked."""
        if self.is_blocked:
            self._responses.append(request)
            return
        connection = request.connection
        if connection.context.connection_id in self.connections:
            connection.deliver(request)
            return
        log.warning("%s: dropping the response, the connection is closed", request)  # rule B1.24
        now = trio.current_time()
        request.record(self.metrics, now, now)

    def block(self) -> None:
        assert not self.is_blocked, "a blocked processor handles no other request"
        self.is_blocked = True
        self._unblocked = trio.Event()

    def unblock(self) -> None:
        self.is_blocked = False
        self._unblocked.set()
        while self._responses and not self.is_blocked:
            self.send_response(self._responses.popleft())

    async def unblocked(self) -> None:
        while self.is_blocked:
            await self._unblocked.wait()

    def parse(self, connection: Connection, frame: bytes, now: float) -> Request:
        header, message = self.apis.decode(frame, self._max_elements)
        context = _new(RequestContext, (header, connection.context, self.turns))
        return Request(context, message, connection, self, self.apis, now, len(frame), connection.clock)

    async def parse_in_turns(self, connection: Connection, frame: bytes, now: float) -> Request:
        header, message = await self.turns.take(self.apis.decode_in_steps(frame))
        context = RequestContext(header, connection.context, self.turns)
        return Request(context, message, connection, self, self.apis, now, len(frame), connection.clock)

    async def drain(self) -> None:
        """Close each connection after its request in progress, and wait until all are closed."""
        self._draining = True
        for connection in list(self.connections.values()):
            connection.finish()
        await self._until_unconnected()

    async def close(self) -> None:
        """Close each connection, and end; but a handler that works on a request finishes it (rules B1.10, B1.59)."""
        self._draining = True
        for connection in list(self.connections.values()):
            connection.close()
        await self._until_unconnected()
        self._scope.cancel()

    async def _until_unconnected(self) -> None:
        while self.connections:
            self._no_connections = trio.Event()
            await self._no_connections.wait()

    def _start(self, link: Link, nursery: trio.Nursery) -> None:
        connection = self._new_connection(link)
        nursery.start_soon(self._serve, connection, name=connection.context.connection_id)

    def _start_others(self, nursery: trio.Nursery) -> None:
        """Up to a queue of connections in one go (rule B1.16)."""
        for _ in range(HAND_OFF_QUEUE_SIZE - 1):
            try:
                self._start(self._accepted.receive_nowait(), nursery)
            except trio.WouldBlock:
                return

    def _new_connection(self, link: Link) -> Connection:
        (local_host, local_port), (remote_host, remote_port) = link.local, link.remote
        local_host, remote_host = as_in_java(local_host), as_in_java(remote_host)
        connection_id = f"{local_host}:{local_port}-{remote_host}:{remote_port}-{self._next_index}"
        self._next_index = (self._next_index + 1) % _INDEX_LIMIT
        return Connection(ConnectionContext(connection_id, self.listener, remote_host), link, self)

    async def _expire_idle_connections(self) -> None:
        while True:
            now = trio.current_time()
            wake_at = now + self._max_idle_seconds  # new connections live at least that long
            for connection in self.connections.values():
                wake_at = min(wake_at, connection.expire(now, self._max_idle_seconds))
            await trio.sleep_until(wake_at)

    async def _discard_hand_off_queue(self) -> None:
        self._new_connections.close()
        while True:
            try:
                link = self._accepted.receive_nowait()
            except trio.EndOfChannel:
                return
            self._quotas.release(self.listener, link.remote[0])
            await link.aclose()

    async def _serve(self, connection: Connection) -> None:
        if connection.context.connection_id in self.connections:  # the index began again: the older one stays
            log.error("%s: closed, there is already a connection of this id", connection.context.connection_id)
            connection.close()
            await connection.serve()
            self._quotas.release(self.listener, connection.remote_host)
            return
        self.connections[connection.context.connection_id] = connection
        self.metrics.connections_open += 1
        if self._draining:
            connection.finish()
        try:
            await connection.serve()
        finally:
            del self.connections[connection.context.connection_id]
            self.metrics.connections_open -= 1
            self._quotas.release(self.listener, connection.remote_host)
            if not self.connections:
                self._no_connections.set()
