"""Between processors and handlers: requests one way through a bounded queue, answers the other way.

A ``Request`` is what a handler holds. It answers exactly once, by ``respond``, ``no_response``, ``close_connection``
or ``fail``, before it returns or long after: until then only the connection that asked is held up (rule B1.60).
"""

from __future__ import annotations

import enum
import logging
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import trio

import wire
from broker_stub.reactor.metrics import RequestMetrics

if TYPE_CHECKING:
    from broker_stub.reactor.connection import Connection

logger = logging.getLogger("broker_stub.reactor")

_CORRELATION_ID_BYTES = 4


class ConnectionContext(NamedTuple):
    """What stays the same for all requests of a connection."""

    connection_id: str  # <localHost>:<localPort>-<remoteHost>:<remotePort>-<index>, rule B1.16
    listener: str
    client_host: str


class RequestContext(NamedTuple):
    """Where a request came from and under what header."""

    header: wire.Header
    connection: ConnectionContext

    @property
    def api_version(self) -> int:
        return self.header.api_version

    @property
    def listener(self) -> str:
        return self.connection.listener


class Apis(Protocol):
    """What the reactor serves: it knows no API itself."""

    def decode(self, frame: bytes) -> tuple[wire.Header, wire.Message]:
        """Raises wire.DecodeError, also for what is not served: no body of that is parsed."""

    async def handle(self, request: Request) -> None:
        """Answer it, or keep it and answer later. What it raises is answered by the API's generic error form."""

    def error_response(self, request: Request, error: Exception) -> wire.Message | None:
        """The generic error form (rule 9.4); None if the API has none for this request, then the connection closes."""


class Action(enum.Enum):
    """What a processor does with an answer (rule B1.23)."""

    SEND = enum.auto()
    NO_OP = enum.auto()  # nothing is written, the next request is let in
    CLOSE_CONNECTION = enum.auto()


class Response(NamedTuple):
    """An answer on its way to the processor that read the request."""

    request: Request
    action: Action
    frame: bytes = b""


class Responder(Protocol):
    """Whoever read a request and takes its answer: a processor."""

    def send_response(self, response: Response) -> None: ...


class Request:
    """One request in progress. Owns its answer: a second one is a bug of the caller's and raises RuntimeError."""

    __slots__ = (
        "_answered", "_answered_at", "_apis", "_arrived_at", "_dequeued_at", "_errors", "_handled_at", "_responder",
        "connection", "context", "message",
    )  # fmt: skip

    def __init__(
        self,
        context: RequestContext,
        message: wire.Message,
        *,
        connection: Connection,
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
        """Raises wire.EncodeError, and is then still unanswered.

        The answer is sent at once; for as long as it says that its requester is throttled, the connection is read no
        further (rules B8.1, B8.4).
        """
        header = self.context.header
        payload = wire.encode_response(message, api_version=header.api_version, correlation_id=header.correlation_id)
        self._errors = wire.error_counts(message)
        self.connection.throttle(getattr(message, "throttle_time_ms", 0) / 1000)
        self._answer(Action.SEND, wire.frame(payload))

    def respond_encoded(self, encoded: bytes, error_code: int) -> None:
        """Answer with a response that was encoded before, for whichever request: only the correlation id changes."""
        correlation_id = self.context.header.correlation_id.to_bytes(_CORRELATION_ID_BYTES, "big", signed=True)
        self._errors = Counter({error_code: 1})
        self._answer(Action.SEND, wire.frame(correlation_id + encoded[_CORRELATION_ID_BYTES:]))

    def no_response(self) -> None:
        """Nothing is written; the connection's next request is let in."""
        self._answer(Action.NO_OP)

    def close_connection(self) -> None:
        self._answer(Action.CLOSE_CONNECTION)

    def fail(self, error: Exception) -> None:
        """Answer with the API's generic error form (rules B1.31, B1.41). If it is answered already, nothing happens."""
        if self._answered:
            return
        message = self._apis.error_response(self, error)
        if message is None:
            self.close_connection()
        else:
            self.respond(message)

    def _answer(self, action: Action, frame: bytes = b"") -> None:
        if self._answered:
            raise RuntimeError(f"{self!r} is answered already")
        self._answered = True
        self._answered_at = trio.current_time()
        self._responder.send_response(Response(self, action, frame))

    def dequeued(self) -> None:
        """A handler has taken it."""
        self._dequeued_at = trio.current_time()

    def handled(self) -> None:
        """The handler has returned, whether or not it answered."""
        self._handled_at = trio.current_time()

    def record(self, of_all: RequestMetrics, *, taken_at: float) -> None:
        """It is over: its answer left the response queue at ``taken_at``, and has been written now, or dropped."""
        metrics = of_all.of(wire.api(self.context.header.api_key).name)
        # an answer that was given before the handler returned has spent no time waiting elsewhere
        handled_at = self._answered_at if self._handled_at is None else min(self._handled_at, self._answered_at)
        metrics.requests += 1
        metrics.request_queue_time += self._dequeued_at - self._arrived_at
        metrics.local_time += handled_at - self._dequeued_at
        metrics.remote_time += self._answered_at - handled_at
        metrics.response_queue_time += taken_at - self._answered_at
        metrics.response_send_time += trio.current_time() - taken_at
        metrics.errors.update(self._errors)


class RequestChannel:
    """The request queue of one plane: bounded, first in first out, shared by all its processors (rules B1.4, B1.5)."""

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
        """For handlers: ends when the channel has been shut down."""
        return self._receive

    def shut_down(self) -> None:
        """Requests that no handler has taken are dropped without an answer (rule B1.56); handlers end."""
        self._send.close()
        while True:
            try:
                self._receive.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                return


def describe(error: wire.DecodeError) -> str:
    """A refusal in one line: the API where it is known, and why."""
    try:
        name = wire.api(error.api_key).name if error.api_key is not None else "request"
    except wire.UnknownApiKey:
        name = f"API {error.api_key}"
    version: Any = "" if error.api_version is None else f" {error.api_version}"
    return f"{name}{version}: {error}"
