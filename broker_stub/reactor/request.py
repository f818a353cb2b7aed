"""One request from its frame to its response, as handlers see it.

A handler answers a ``Request`` exactly once, with ``respond``, ``no_response``, ``close_connection`` or ``fail``,
before it returns or later. Until then only the request's connection is blocked (rule B1.60).
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import trio

from kce import wire
from kce.broker_stub.reactor.metrics import OF_KINDS, RequestMetrics
from kce.broker_stub.reactor.turns import Turns
from kce.broker_stub.security import ANONYMOUS, KafkaPrincipal
from kce.pauses import Paced
from kce.wire.long_messages import SHORT, encoded_in_steps, freed, is_long
from kce.wire.steps import Steps, finish

T = TypeVar("T")

_CORRELATION_ID = struct.Struct(">i")


_NO_ERRORS: Final[dict[int, int]] = {}


class ConnectionContext(NamedTuple):
    """The properties shared by all requests of a connection."""

    connection_id: str  # <localHost>:<localPort>-<remoteHost>:<remotePort>-<index>, rule B1.16
    listener: str
    client_host: str
    principal: KafkaPrincipal = ANONYMOUS
    #: by a delegation token of the principal
    token_authenticated: bool = False


class RequestContext(NamedTuple):
    """A request's header and connection."""

    header: wire.Header
    connection: ConnectionContext
    #: of the request's plane
    turns: Turns | None = None

    @property
    def api_version(self) -> int:
        return self.header.api_version

    @property
    def listener(self) -> str:
        return self.connection.listener

    @property
    def principal(self) -> KafkaPrincipal:
        return self.connection.principal

    @property
    def client_host(self) -> str:
        return self.connection.client_host

    def paced(self, items: Iterable[T]) -> Paced[T]:
        """To iterate over very many, in turns with other requests."""
        return Paced(items) if self.turns is None else Paced(items, self.turns.pause)

    async def in_turns(self, steps: Steps[T]) -> T:
        """The result of ``steps``, in turns with other requests if they take long."""
        return finish(steps) if self.turns is None else await self.turns.take(steps)


class Requester(Protocol):
    """The connection of a request."""

    #: from the client's ApiVersions request (rule B1.38)
    client_software_name: str
    client_software_version: str

    @property
    def context(self) -> ConnectionContext: ...

    @property
    def turns(self) -> Turns:
        """The turns of the request's plane."""

    def throttle(self, seconds: float) -> None:
        """Stop reading for that time. Call before the response is delivered (rule B1.27)."""

    def deliver(self, request: Request) -> None:
        """The request in progress is answered."""


class RequestQuota(Protocol):
    """Charges clients for the time that their requests take (rule B8.5)."""

    def charge(self, request: Request, seconds: float) -> int:
        """For how many ms the client is to be throttled."""

    def charge_network(self, request: Request, seconds: float) -> None:
        """The response took so long to encode."""

    def charge_exempt(self, seconds: float) -> None:
        """A request took so long for which no client is charged."""

    def is_exempt(self, request: Request, error: int) -> bool:
        """Whether no client is charged for it (rule B8.8). ``error`` is that of the whole response."""

    def is_failure_exempt(self, request: Request, error: Exception) -> bool:
        """Whether no client is charged for it, because it failed with ``error`` (rule B1.41)."""

    def throttled(self, request: Request, ms: int) -> None:
        """Its connection is not read for so long, because of the time that requests took."""


class Sharing(NamedTuple):
    """How those requests of an API share work that a client has sent at once: they are in progress together."""

    #: in what they are handled; each is then parked until the end, or answered before
    together: Callable[[], AbstractContextManager[None]]
    #: one more is among them as long as they have fewer bytes: they are handled within a slice of time
    most_bytes: int
    #: whether a request may be among them; it does not wait in its handler then
    may: Callable[[Any], bool]


class Apis(Protocol):
    """The APIs behind the reactor, which is independent of them."""

    #: None while no client has a limit
    request_quota: RequestQuota | None

    #: by API whose requests share work
    sharing: Mapping[int, Sharing]

    def decode(self, frame: bytes, max_elements: int) -> tuple[wire.Header, wire.Message]:
        """Raises wire.DecodeError, also for unserved APIs and versions, whose bodies are not parsed.

        Raises wire.TooManyElements: the request needs ``decode_in_steps``.
        """

    def decode_in_steps(self, frame: bytes) -> Steps[tuple[wire.Header, wire.Message]]:
        """``decode`` with pauses."""

    def handle(self, request: Request) -> Awaitable[None] | None:
        """Answer the request, or park it to answer later; an exception becomes the API's generic error response.

        A request that must wait in its handler, which it then occupies, gets an awaitable that does the rest.
        """

    def error_response(self, request: Request, error: Exception) -> wire.Message | None:
        """The generic error response (rule 9.4). None if there is none for this request: the connection closes."""

    def error_response_in_steps(self, request: Request, error: Exception) -> Steps[wire.Message | None]:
        """``error_response`` with pauses."""


class Action(enum.Enum):
    """How a processor completes a request (rule B1.23)."""

    SEND = enum.auto()
    NO_OP = enum.auto()  # write nothing and read the next request
    CLOSE_CONNECTION = enum.auto()


#: to read a member of an enum's class takes ten times as long in Python 3.11
SEND: Final = Action.SEND
CLOSE_CONNECTION: Final = Action.CLOSE_CONNECTION


class Responder(Protocol):
    """The processor that read a request and takes its response."""

    def send_response(self, request: Request) -> None:
        """The request is answered."""


class Request:
    """One request in progress. A second response is a bug of the caller and raises RuntimeError."""

    __slots__ = (
        "_answered_at", "_apis", "_arrived_at", "_charged", "_dequeued_at", "_errors", "_responder", "action", "clock",
        "connection", "context", "handled_at", "is_exempt", "message", "payload", "size", "throttle_ms", "waits",
    )  # fmt: skip

    def __init__(
        self,
        context: RequestContext,
        message: wire.Message,
        connection: Requester,
        responder: Responder,
        apis: Apis,
        now: float,
        size: int = 0,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        """``size``: of its frame, in bytes. ``clock``: trio.current_time or what it calls."""
        self.context = context
        self.message = message
        self.size = size
        #: no client is charged for its time (rule B8.8)
        self.is_exempt = False
        #: for how long its connection is not read
        self.throttle_ms = 0
        self._charged: int | None = None
        self.connection = connection
        #: what the answer is: None as long as there is none; and of a response that is not sent yet, without its length
        self.action: Action | None = None
        self.payload: wire.Payload = b""
        #: the rest of a request that waits in its handler
        self.waits: Awaitable[None] | None = None
        self._responder = responder
        self._apis = apis
        self._errors: Mapping[int, int] = _NO_ERRORS
        self._arrived_at = self._dequeued_at = self._answered_at = now
        self.clock = clock
        #: when the handler returned, with or without a response
        self.handled_at = math.inf

    def __repr__(self) -> str:
        header = self.context.header
        name = wire.api(header.api_key).name
        return f"<{name} {header.api_version}, correlation id {header.correlation_id}, {self.context.connection[0]}>"

    @property
    def answered(self) -> bool:
        return self.action is not None

    def respond(self, message: wire.Message, errors: Mapping[int, int] | None = None) -> None:
        """Send a response. Raises wire.EncodeError; the request is then still unanswered.

        The response is sent at once. The connection is muted for its throttle time, or for that of the quota of
        request time if it is longer (rules B8.1, B8.5). ``errors`` are the error codes that it holds, if they cannot be
        counted in it.
        """
        header = self.context.header
        quota = self._apis.request_quota
        throttle_ms = getattr(message, "throttle_time_ms", 0)
        if quota is not None:
            throttle_ms, message = self._throttled(quota, throttle_ms, message)
            began = trio.current_time()
        payload = wire.encode_payload(message, api_version=header.api_version, correlation_id=header.correlation_id)
        if quota is not None:
            quota.charge_network(self, trio.current_time() - began)
        self._errors = wire.error_counts(message) if errors is None else errors
        if throttle_ms:
            self.throttle(throttle_ms)
        self._answer(SEND, payload)

    async def respond_in_turns(self, message: wire.Message, errors: Mapping[int, int] | None = None) -> None:
        """``respond`` to a request that may have a long answer. Raises wire.EncodeError."""
        whole: list[wire.Message] = []
        if errors is None and is_long(message):
            whole.append(message)
            message, errors = await self.in_turns(encoded_in_steps(message, api_version=self.context.api_version))
        self.respond(message, errors)
        del message
        if whole:
            await self.in_turns(freed(whole.pop()))

    def _throttled(self, quota: RequestQuota, throttle_ms: int, message: Any) -> tuple[int, wire.Message]:
        """For how long, and the response that says so."""
        if quota.is_exempt(self, getattr(message, "error_code", 0)):
            self.exempt()
        charged = self.charge()
        if charged and charged >= throttle_ms:
            quota.throttled(self, charged)
            if charged > throttle_ms and hasattr(message, "throttle_time_ms"):
                message = replace(message, throttle_time_ms=charged)
        return max(charged, throttle_ms), message

    def charge(self) -> int:
        """Charge the client for the time that the request took, once. For how many ms it is to be throttled."""
        if self._charged is None:
            quota = self._apis.request_quota
            if quota is None:
                return 0
            self._charged = quota.charge(self, self._seconds())
        return self._charged

    def exempt(self) -> None:
        """Charge no client for the request, unless that is done already (rule B8.8)."""
        quota = self._apis.request_quota
        if quota is not None and self._charged is None:
            self.is_exempt = True
            self._charged = 0
            quota.charge_exempt(self._seconds())

    def _seconds(self) -> float:
        """How long it has been handled."""
        return min(self.handled_at, trio.current_time()) - self._dequeued_at

    def throttle(self, ms: int) -> None:
        """Read the connection no more for so long. Call before the answer (rule B1.27)."""
        self.throttle_ms = ms
        self.connection.throttle(ms / 1000)

    @property
    def is_timed(self) -> bool:
        """Whether clients are charged for the time that requests take."""
        return self._apis.request_quota is not None

    def respond_encoded(self, encoded: bytes, errors: Mapping[int, int]) -> None:
        """Send a response that is encoded already; only the correlation id changes. It does not throttle."""
        self.respond_payload(_CORRELATION_ID.pack(self.context.header.correlation_id) + encoded[4:], errors)

    def respond_payload(self, payload: wire.Payload, errors: Mapping[int, int]) -> None:
        """Send a response that is encoded already. It does not throttle."""
        self._errors = errors
        self._answer(SEND, payload)

    @property
    def error_codes(self) -> Mapping[int, int]:
        """How often each is in the response that was given."""
        return self._errors

    async def in_turns(self, steps: Steps[T]) -> T:
        """The result of ``steps``. Others have their turns in its pauses (see ``turns``)."""
        return await self.connection.turns.take(steps)

    async def pause(self, began: float) -> float:
        """Between pieces of work that may wait: see ``Turns.pause``."""
        return await self.connection.turns.pause(began)

    def no_response(self) -> None:
        """Complete the request without a response."""
        self.exempt()
        self._answer(Action.NO_OP)

    def close_connection(self) -> None:
        self._answer(CLOSE_CONNECTION)

    def fail(self, error: Exception) -> None:
        """Send the API's generic error response (rules B1.31, B1.41), unless the request is answered already."""
        if self.answered:
            return
        message = self._apis.error_response(self, error)
        if message is None:
            self.close_connection()
            return
        self._charge_failure(error)
        self.respond(message)

    @property
    def is_long(self) -> bool:
        """Whether its error response is to be made in turns with other requests."""
        if 0 < self.size <= SHORT:  # an element has a byte
            return False
        return isinstance(self.message, wire.Message) and is_long(self.message)

    async def fail_in_turns(self, error: Exception) -> None:
        """``fail`` for a request that may be long."""
        if self.answered or not self.is_long:
            self.fail(error)
            return
        message = await self.in_turns(self._apis.error_response_in_steps(self, error))
        if message is None:
            self.close_connection()
            return
        self._charge_failure(error)
        await self.respond_in_turns(message)

    def _charge_failure(self, error: Exception) -> None:
        quota = self._apis.request_quota
        if quota is not None and quota.is_failure_exempt(self, error):
            self.exempt()
        self.charge()

    def _answer(self, action: Action, payload: wire.Payload = b"") -> None:
        if self.action is not None:
            raise RuntimeError(f"{self!r} is answered already")
        self.action, self.payload = action, payload
        self._answered_at = self.clock()
        self._responder.send_response(self)

    def release(self) -> None:
        """No handler will work on it from now on."""
        if isinstance(self.waits, Coroutine):
            self.waits.close()

    def drop_message(self) -> Steps[None]:
        """Free the message of a handled request with pauses: to free a million objects takes a tenth of a second."""
        message: Any = self.message
        arrays = {f.name: value for f in message.__fields__ if isinstance(value := getattr(message, f.name), tuple)}
        self.message = replace(message, **dict.fromkeys(arrays, ()))
        rest = freed(message)
        del message, arrays, self.waits
        self.waits = None
        yield from rest

    def dequeued(self) -> None:
        """A handler took the request out of the queue."""
        self._dequeued_at = trio.current_time()

    def record(self, all_metrics: RequestMetrics, dequeued_at: float, sent_at: float) -> None:
        """Count the finished request, whose response left the response queue at ``dequeued_at``, and drop that."""
        self.payload = b""
        key, version, _, _ = self.context.header
        finished = (
            version, self._errors, self._arrived_at, self._dequeued_at, self.handled_at, self._answered_at, dequeued_at,
            sent_at, self.throttle_ms,
        )  # fmt: skip
        if key in OF_KINDS:
            all_metrics.add(key, finished, self.connection, self.message)
        else:
            all_metrics.count(key, key, finished, self.connection)


def describe(error: wire.DecodeError) -> str:
    """The error in one line, with the API if known."""
    try:
        name = wire.api(error.api_key).name if error.api_key is not None else "request"
    except wire.UnknownApiKey:
        name = f"API {error.api_key}"
    version: Any = "" if error.api_version is None else f" {error.api_version}"
    return f"{name}{version}: {error}"
