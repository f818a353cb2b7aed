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
from collections.abc import Iterable
from dataclasses import dataclass, field

import trio

from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.ports import Bind
from kce.broker_stub.reactor.acceptor import Acceptor, BindError
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


def _protected(config: BrokerConfig) -> str | None:
    """The listener that broker-wide limits of connections do not concern (rule B1.48)."""
    return config.inter_broker_listener_name if len(config.listeners) > 1 else None


class SocketServer:
    """Owns every server socket, connection, processor and handler of one broker."""

    def __init__(self, config: BrokerConfig, apis: Apis, bind: Bind, sasl: SaslServices | None = None) -> None:
        """``sasl`` is needed with a listener that has SASL."""
        self._sasl = sasl
        self.metrics = RequestMetrics()
        self._config = config
        self._apis = apis
        self._bind = bind
        self.quotas = ConnectionQuotas(config.connection_limits, _protected(config))
        self.quotas.on_excess = self._close_excess
        self._processor_ids = itertools.count()
        self.planes = self._planes()
        self._enabled = trio.Event()
        self._stopping = trio.Event()
        self._stopped = trio.Event()
        self._drain_seconds = 0.0
        self._running = False
        self._opening = trio.Lock()
        #: of what runs; None while it does not
        self._processors: trio.Nursery | None = None
        self._accepting: trio.Nursery | None = None

    def _planes(self) -> list[Plane]:
        channel = self._channel(self._config.queued_max_requests, self._config.num_io_threads)
        limit = self._config.queued_max_request_bytes
        memory = None if limit is None else MemoryPool(limit)
        control_turns = Turns()
        data = Plane(DATA_PLANE, channel, Turns(SLICE_SECONDS, precedence=control_turns), memory)
        planes = [data]
        for endpoint in self._config.listeners:
            if endpoint.listener == self._config.control_plane_listener_name:
                channel = self._channel(CONTROL_PLANE_QUEUE_SIZE, CONTROL_PLANE_THREADS)
                control = Plane(CONTROL_PLANE, channel, control_turns, None)
                control.acceptors.append(self._acceptor(endpoint, control, CONTROL_PLANE_THREADS))
                planes.insert(0, control)
            else:
                threads = self._config.num_network_threads[endpoint.listener]
                data.acceptors.append(self._acceptor(endpoint, data, threads))
        return planes

    @property
    def data_plane(self) -> Plane:
        return self.planes[-1]

    def reconfigure(self, config: BrokerConfig) -> None:
        """These are the listeners from now on, their threads and limits (rules B1.10, B1.52, B1.57).

        ``open`` the new ones. One that is still there keeps its port and its protocol.
        """
        if self._stopping.is_set():  # rule B1.58
            return
        self._config = config
        self.quotas.limits, self.quotas.protected = config.connection_limits, _protected(config)
        data = self.data_plane
        data.channel.resize(config.num_io_threads)
        wanted = {e.listener: e for e in config.listeners if e.listener != config.control_plane_listener_name}
        for acceptor in list(data.acceptors):
            name = acceptor.endpoint.listener
            if wanted.pop(name, None) is not None:
                self._resize(data, acceptor, config.num_network_threads[name])
            else:
                log.info("listener %s is removed", name)
                data.acceptors.remove(acceptor)
                acceptor.close()
                self._resize(data, acceptor, 0)
        for endpoint in wanted.values():
            data.acceptors.append(self._acceptor(endpoint, data, config.num_network_threads[endpoint.listener]))

    async def open(self) -> None:
        """Serve the listeners that are new. One whose port cannot be bound is left out until the next change."""
        async with self._opening:
            data = self.data_plane
            for acceptor in [acceptor for acceptor in data.acceptors if not acceptor.is_bound]:
                try:
                    await acceptor.bind()
                    if self._enabled.is_set():
                        acceptor.listen()
                except BindError as e:
                    log.error("%s", e)
                    acceptor.close()
                    if acceptor in data.acceptors:
                        data.acceptors.remove(acceptor)
                    continue
                if acceptor not in data.acceptors or self._stopping.is_set():
                    acceptor.close()
                else:
                    self._start_processors(data, acceptor, acceptor.processors)
                    self._start_accepting(data, acceptor)

    def _resize(self, plane: Plane, acceptor: Acceptor, threads: int) -> None:
        """The last processors go, with all their connections."""
        rest, surplus = acceptor.processors[:threads], acceptor.processors[threads:]
        added = [self._processor(acceptor.endpoint, plane) for _ in range(threads - len(rest))]
        acceptor.processors = rest + added
        if self._processors is not None:
            for processor in surplus:
                self._processors.start_soon(processor.close)
        if acceptor.is_bound:
            self._start_processors(plane, acceptor, added)

    def _channel(self, capacity: int, handlers: int) -> RequestChannel:
        return RequestChannel(capacity, handlers, self._apis, self.metrics)

    def _acceptor(self, endpoint: Endpoint, plane: Plane, threads: int) -> Acceptor:
        return Acceptor(
            endpoint,
            [self._processor(endpoint, plane) for _ in range(threads)],
            bind=self._bind,
            backlog=self._config.socket_listen_backlog_size,
            max_frame_bytes=self._config.socket_request_max_bytes,
            memory=plane.memory,
            quotas=self.quotas,
            metrics=self.metrics,
        )

    def _processor(self, endpoint: Endpoint, plane: Plane) -> Processor:
        idle_ms = self._config.connections_max_idle_ms
        return Processor(
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
        """The listeners in the order of the configuration, with their bound ports, but for those that have none."""
        bound = {acceptor.endpoint.listener: acceptor.bound for acceptor in self.acceptors if acceptor.is_bound}
        return tuple(bound[endpoint.listener] for endpoint in self._config.listeners if endpoint.listener in bound)

    def enable_request_processing(self) -> None:
        """Let clients connect. Raises BindError; RuntimeError after the server has stopped (rule B1.58)."""
        if self._stopping.is_set():
            raise RuntimeError("a stopped socket server cannot be enabled")
        for acceptor in self.acceptors:
            if acceptor.is_bound:
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
                self._processors = processors
                for plane in self.planes:
                    processors.start_soon(plane.turns.run)
                    for acceptor in plane.acceptors:
                        self._start_processors(plane, acceptor, acceptor.processors)
                task_status.started()
                await self._accept_until_stopping()
                await self._drain(trio.current_time() + self._drain_seconds)
                processors.cancel_scope.cancel()
        finally:
            self._processors = None
            self._close_listeners()
            self._stopping.set()
            self._stopped.set()

    def _start_processors(self, plane: Plane, acceptor: Acceptor, processors: Iterable[Processor]) -> None:
        if self._processors is not None:
            for processor in processors:
                self._processors.start_soon(processor.run, name=self._thread_name(plane, acceptor.endpoint, processor))

    def _thread_name(self, plane: Plane, endpoint: Endpoint, processor: Processor) -> str:  # rule B1.9
        where = f"{self._config.broker_id}-{endpoint.listener}-{endpoint.security_protocol}"
        return f"{plane.name}-kafka-network-thread-{where}-{processor.processor_id}"

    async def _accept_until_stopping(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._accept, nursery)
            await self._stopping.wait()
            self._accepting = None
            nursery.cancel_scope.cancel()
        self._close_listeners()

    async def _accept(self, nursery: trio.Nursery) -> None:
        await self._enabled.wait()
        self._accepting = nursery
        for plane in self.planes:
            for acceptor in plane.acceptors:
                if acceptor.is_bound:
                    self._start_accepting(plane, acceptor)

    def _start_accepting(self, plane: Plane, acceptor: Acceptor) -> None:
        if self._accepting is not None:
            end = acceptor.bound
            name = f"{plane.name}-kafka-socket-acceptor-{end.listener}-{end.security_protocol}-{end.port}"
            self._accepting.start_soon(acceptor.run, name=name)

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
