"""All listeners of a broker with their planes, queues and handlers, from bind to drain.

    await server.bind()                        # server.bound_listeners()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        server.enable_request_processing()     # clients can connect
        ...
        await server.shutdown(seconds)         # answer requests in progress, then close everything

With `control.plane.listener.name` there are two planes that share nothing (rules B1.5, B1.6, 9.65): the control plane
with one processor, a queue of 20 and one handler, and the data plane with the rest. Both serve the same APIs.
"""

from __future__ import annotations

import itertools
import logging
import math
from dataclasses import dataclass, field

import trio

from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.ports import Bind
from kce.broker_stub.reactor.acceptor import Acceptor
from kce.broker_stub.reactor.memory_pool import MemoryPool
from kce.broker_stub.reactor.metrics import RequestMetrics
from kce.broker_stub.reactor.processor import Processor
from kce.broker_stub.reactor.quotas import ConnectionQuotas
from kce.broker_stub.reactor.request import Apis
from kce.broker_stub.reactor.request_channel import RequestChannel
from kce.broker_stub.reactor.turns import SLICE_SECONDS, Turns
from kce.broker_stub.security.sasl_authenticator import SaslServices
from kce.wire.vocabulary import Endpoint

log = logging.getLogger(__name__)

#: of the control plane, fixed by rule B1.5
CONTROL_PLANE_QUEUE_SIZE = 20
CONTROL_PLANE_THREADS = 1

DATA_PLANE = "data-plane"
CONTROL_PLANE = "control-plane"


@dataclass(slots=True)
class Plane:
    """Listeners that share a request queue, handlers, turns on the event loop, and memory for requests (None: no
    limit)."""

    name: str
    channel: RequestChannel
    turns: Turns
    memory: MemoryPool | None
    acceptors: list[Acceptor] = field(default_factory=list)


class SocketServer:
    """Owns every server socket, connection, processor and handler of one broker."""

    def __init__(self, config: BrokerConfig, apis: Apis, bind: Bind, sasl: SaslServices | None = None) -> None:
        """``sasl`` is needed with a listener that has SASL."""
        self._sasl = sasl
        self.metrics = RequestMetrics()
        self._config = config
        self._apis = apis
        self._bind = bind
        protected = config.inter_broker_listener_name if len(config.listeners) > 1 else None
        self.quotas = ConnectionQuotas(config.connection_limits, protected)
        self.quotas.on_excess = self._close_excess
        self._processor_ids = itertools.count()
        self.planes = self._planes()
        self._enabled = trio.Event()
        self._stopping = trio.Event()
        self._stopped = trio.Event()
        self._drain_seconds = 0.0
        self._running = False

    def _planes(self) -> list[Plane]:
        channel = self._channel(self._config.queued_max_requests, self._config.num_io_threads)
        limit = self._config.queued_max_request_bytes
        memory = None if limit is None else MemoryPool(limit)
        data = Plane(DATA_PLANE, channel, Turns(SLICE_SECONDS), memory)
        planes = [data]
        for endpoint in self._config.listeners:
            if endpoint.listener == self._config.control_plane_listener_name:
                channel = self._channel(CONTROL_PLANE_QUEUE_SIZE, CONTROL_PLANE_THREADS)
                control = Plane(CONTROL_PLANE, channel, Turns(), None)
                control.acceptors.append(self._acceptor(endpoint, control, CONTROL_PLANE_THREADS))
                planes.insert(0, control)
            else:
                threads = self._config.num_network_threads[endpoint.listener]
                data.acceptors.append(self._acceptor(endpoint, data, threads))
        return planes

    def resize_handlers(self, handlers: int) -> None:
        """`num.io.threads` is this from now on (rule B1.10)."""
        self.planes[-1].channel.resize(handlers)

    def _channel(self, capacity: int, handlers: int) -> RequestChannel:
        return RequestChannel(capacity, handlers, self._apis, self.metrics)

    def _acceptor(self, endpoint: Endpoint, plane: Plane, threads: int) -> Acceptor:
        idle_ms = self._config.connections_max_idle_ms
        processors = [
            Processor(
                next(self._processor_ids),
                endpoint.listener,
                plane.channel,
                self._apis,
                quotas=self.quotas,
                metrics=self.metrics,
                max_idle_seconds=math.inf if idle_ms is None else idle_ms / 1000,
                turns=plane.turns,
                memory=plane.memory,
                security=self._config.security[endpoint.listener],
                sasl=self._sasl,
            )
            for _ in range(threads)
        ]
        return Acceptor(
            endpoint,
            processors,
            bind=self._bind,
            backlog=self._config.socket_listen_backlog_size,
            max_frame_bytes=self._config.socket_request_max_bytes,
            memory=plane.memory,
            quotas=self.quotas,
            metrics=self.metrics,
        )

    @property
    def acceptors(self) -> list[Acceptor]:
        return [acceptor for plane in self.planes for acceptor in plane.acceptors]

    def _close_excess(self) -> None:
        """Close connections of listeners that are not protected, the least recently used first (rule B1.49)."""
        ordinary = [
            connection
            for acceptor in self.acceptors
            if not self.quotas.is_protected(acceptor.endpoint.listener)
            for processor in acceptor.processors
            for connection in processor.connections.values()
        ]
        excess = self.quotas.total - self.quotas.limits.total
        ordinary.sort(key=lambda connection: (not connection.is_closing, connection.last_used))
        for connection in ordinary[:excess]:
            if not connection.is_closing:
                log.info("%s: closed, max.connections is exceeded", connection.context.connection_id)
                connection.close()

    def bound_listeners(self) -> tuple[Endpoint, ...]:
        """The listeners in the order of the configuration, with their bound ports."""
        bound = {acceptor.endpoint.listener: acceptor.bound for acceptor in self.acceptors}
        return tuple(bound[endpoint.listener] for endpoint in self._config.listeners)

    def enable_request_processing(self) -> None:
        """Let clients connect. Raises BindError; RuntimeError after the server has stopped (rule B1.58)."""
        if self._stopping.is_set():
            raise RuntimeError("a stopped socket server cannot be enabled")
        for acceptor in self.acceptors:
            acceptor.listen()
        self._enabled.set()

    async def bind(self) -> None:
        """Bind all listeners or none. Raises BindError."""
        try:
            for acceptor in self.acceptors:
                await acceptor.bind()
        except BaseException:
            self._close_listeners()
            raise

    def _close_listeners(self) -> None:
        for acceptor in self.acceptors:
            acceptor.close()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve from ``enable_request_processing`` until ``shutdown``. The listeners must be bound.

        Two nested nurseries end one after the other: acceptors, then processors with their connections, in whose
        tasks requests are handled. Requests that still wait for a handler are dropped (rule B1.56).
        """
        self._running = True
        try:
            async with trio.open_nursery() as processors:
                self._start_processors(processors)
                task_status.started()
                await self._accept_until_stopping()
                await self._drain(trio.current_time() + self._drain_seconds)
                processors.cancel_scope.cancel()
        finally:
            self._close_listeners()
            self._stopping.set()
            self._stopped.set()

    def _start_processors(self, nursery: trio.Nursery) -> None:
        for plane in self.planes:
            nursery.start_soon(plane.turns.run)
            for acceptor in plane.acceptors:
                for processor in acceptor.processors:
                    nursery.start_soon(processor.run, name=self._thread_name(plane, acceptor.endpoint, processor))

    def _thread_name(self, plane: Plane, endpoint: Endpoint, processor: Processor) -> str:  # rule B1.9
        where = f"{self._config.broker_id}-{endpoint.listener}-{endpoint.security_protocol}"
        return f"{plane.name}-kafka-network-thread-{where}-{processor.processor_id}"

    async def _accept_until_stopping(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._accept, nursery)
            await self._stopping.wait()
            nursery.cancel_scope.cancel()
        self._close_listeners()

    async def _accept(self, nursery: trio.Nursery) -> None:
        await self._enabled.wait()
        for plane in self.planes:
            for acceptor in plane.acceptors:
                end = acceptor.bound
                name = f"{plane.name}-kafka-socket-acceptor-{end.listener}-{end.security_protocol}-{end.port}"
                nursery.start_soon(acceptor.run, name=name)

    async def _drain(self, deadline: float) -> None:
        with trio.move_on_at(deadline) as scope:
            async with trio.open_nursery() as nursery:
                for acceptor in self.acceptors:
                    for processor in acceptor.processors:
                        nursery.start_soon(processor.drain)
        if scope.cancelled_caught:
            log.warning("closing %d connections with a request in progress", self.metrics.connections_open)

    async def shutdown(self, drain_seconds: float) -> None:
        """Stop accepting, wait that long for requests in progress, then close the rest.

        A second shutdown waits for the first. Returns at once if ``run`` has ended or was never started.
        """
        self._drain_seconds = drain_seconds
        self._stopping.set()
        if self._running:
            await self._stopped.wait()
