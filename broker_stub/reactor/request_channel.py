"""The bounded queue of requests from processors to handlers, and the way of responses back.

A handler answers a ``Request`` exactly once, with ``respond``, ``no_response``, ``close_connection`` or ``fail``,
before it returns or later. Until then only the request's connection is blocked (rule B1.60).
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, Protocol

import trio

from kce import wire
from kce.broker_stub.reactor.metrics import RequestMetrics

_CORRELATION_ID_BYTES = 4


class ConnectionContext(NamedTuple):
    """The properties shared by all requests of a connection."""

    connection_id: str  # <localHost>:<localPort>-<remoteHost>:<remotePort>-<index>, rule B1.16
    listener: str
    client_host: str


class RequestContext(NamedTuple):
    """A request's header and connection."""

    header: wire.Header
    connection: ConnectionContext

    @property
    def api_version(self) -> int:
        return self.header.api_version

    @property
    def listener(self) -> str:
        return self.connection.listener


class Requester(Protocol):
    """The connection of a request."""

    #: from the client's ApiVersions request (rule B1.38)
    client_software_name: str
    client_software_version: str

    @property
    def context(self) -> ConnectionContext: ...

    def throttle(self, seconds: float) -> None:
        """Stop reading for that time. Call before the response is delivered (rule B1.27)."""

    def deliver(self, response: Response) -> None:
        """The response to the request in progress."""


class Apis(Protocol):
    """The APIs behind the reactor, which is independent of them."""

    def decode(self, frame: bytes) -> tuple[wire.Header, wire.Message]:
        """Raises wire.DecodeError, also for unserved APIs and versions, whose bodies are not parsed."""

    async def handle(self, request: Request) -> None:
        """Answer the request, or park it and answer later. An exception becomes the API's generic error response."""

    def error_response(self, request: Request, error: Exception) -> wire.Message | None:
        """The generic error response (rule 9.4). None if there is none for this request: the connection closes."""


class Action(enum.Enum):
    """How a processor completes a request (rule B1.23)."""

    SEND = enum.auto()
    NO_OP = enum.auto()  # write nothing and read the next request
    CLOSE_CONNECTION = enum.auto()


class Response(NamedTuple):
    """A response on its way to the processor that read the request."""

    request: Request
    action: Action
    payload: bytes = b""  #: encoded, without its length prefix


class Responder(Protocol):
    """The processor that read a request and takes its response."""

    def send_response(self, response: Response) -> None: ...


class Request:
    """One request in progress. A second response is a bug of the caller and raises RuntimeError."""

    __slots__ = (
        "_answered", "_answered_at", "_apis", "_arrived_at", "_dequeued_at", "_errors", "_handled_at", "_responder",
        "connection", "context", "message",
    )  # fmt: skip

    def __init__(
        self,
        context: RequestContext,
        message: wire.Message,
        *,
        connection: Requester,
        responder: Responder,
        apis: Apis,
        now: float,
    ) -> None:
        self.context = context
        self.message = message
        self.connection = connection
        self._responder = responder
        self._apis = apis
        self._answered = False
        self._errors: Counter[int] = Counter()
        self._arrived_at = self._dequeued_at = self._answered_at = now
        self._handled_at: float | None = None

    def __repr__(self) -> str:
        header = self.context.header
        name = wire.api(header.api_key).name
        return f"<{name} {header.api_version}, correlation id {header.correlation_id}, {self.context.connection[0]}>"

    @property
    def answered(self) -> bool:
        return self._answered

    def respond(self, message: wire.Message) -> None:
        """Send a response. Raises wire.EncodeError; the request is then still unanswered.

        The response is sent at once. The connection is muted for its throttle time (rules B8.1, B8.4).
        """
        header = self.context.header
        payload = wire.encode_response(message, api_version=header.api_version, correlation_id=header.correlation_id)
        self._errors = wire.error_counts(message)
        self.connection.throttle(getattr(message, "throttle_time_ms", 0) / 1000)
        self._answer(Action.SEND, payload)

    def respond_encoded(self, encoded: bytes, error_code: int) -> None:
        """Send a response that is encoded already; only the correlation id changes."""
        correlation_id = self.context.header.correlation_id.to_bytes(_CORRELATION_ID_BYTES, "big", signed=True)
        self._errors = Counter({error_code: 1})
        self._answer(Action.SEND, correlation_id + encoded[_CORRELATION_ID_BYTES:])

    def no_response(self) -> None:
        """Complete the request without a response."""
        self._answer(Action.NO_OP)

    def close_connection(self) -> None:
        self._answer(Action.CLOSE_CONNECTION)

    def fail(self, error: Exception) -> None:
        """Send the API's generic error response (rules B1.31, B1.41), unless the request is answered already."""
        if self._answered:
            return
        message = self._apis.error_response(self, error)
        if message is None:
            self.close_connection()
        else:
            self.respond(message)

    def _answer(self, action: Action, payload: bytes = b"") -> None:
        if self._answered:
            raise RuntimeError(f"{self!r} is answered already")
        self._answered = True
        self._answered_at = trio.current_time()
        self._responder.send_response(Response(self, action, payload))

    def dequeued(self) -> None:
        """A handler task took the request."""
        self._dequeued_at = trio.current_time()

    def handled(self) -> None:
        """The handler returned, with or without a response."""
        self._handled_at = trio.current_time()

    def record(self, all_metrics: RequestMetrics, *, dequeued_at: float) -> None:
        """Count the finished request, whose response left the response queue at ``dequeued_at``."""
        metrics = all_metrics.of(wire.api(self.context.header.api_key).name)
        # a response from within the handler has no remote time
        handled_at = self._answered_at if self._handled_at is None else min(self._handled_at, self._answered_at)
        metrics.requests += 1
        metrics.request_queue_time += self._dequeued_at - self._arrived_at
        metrics.local_time += handled_at - self._dequeued_at
        metrics.remote_time += self._answered_at - handled_at
        metrics.response_queue_time += dequeued_at - self._answered_at
        metrics.response_send_time += trio.current_time() - dequeued_at
        metrics.errors.update(self._errors)


class RequestChannel:
    """The bounded FIFO request queue of one plane, shared by its processors (rules B1.4, B1.5)."""

    def __init__(self, capacity: int) -> None:
        self._send, self._receive = trio.open_memory_channel[Request](capacity)

    @property
    def request_queue_size(self) -> int:
        return self._send.statistics().current_buffer_used

    async def send_request(self, request: Request) -> None:
        """Blocks while the queue is full (rule B1.22)."""
        try:
            self._send.send_nowait(request)
        except trio.WouldBlock:
            await self._send.send(request)

    def requests(self) -> AsyncIterator[Request]:
        """For handlers; ends when the channel is shut down."""
        return self._receive

    def shut_down(self) -> None:
        """Drop queued requests without a response (rule B1.56), and end the handlers."""
        self._send.close()
        while True:
            try:
                self._receive.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                return


def describe(error: wire.DecodeError) -> str:
    """The error in one line, with the API if known."""
    try:
        name = wire.api(error.api_key).name if error.api_key is not None else "request"
    except wire.UnknownApiKey:
        name = f"API {error.api_key}"
    version: Any = "" if error.api_version is None else f" {error.api_version}"
    return f"{name}{version}: {error}"
