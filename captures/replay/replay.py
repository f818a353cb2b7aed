"""Replay: sends recorded requests to live brokers and compares the responses with the recorded ones.

    steps = Recording.read(CaptureFile("incident.pcapng")).of_controllers()
    outcomes = await Replay(steps, {None: ("127.0.0.1", 9093)}, dial=trio.open_tcp_stream).run()

Each recorded connection becomes a new one with its own correlation ids. Requests are sent in the recorded order and
with the recorded timing (divided by ``speed``; ``speed`` None does not wait). A request is not sent before the
responses that precede it in the recording have arrived, so causes stay before effects. A response may take up to
``answer_seconds``. Where a recorded broker was restarted, ``restart`` can restart the live one.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from uuid import UUID

import trio

from kce import wire
from kce.captures.errors import CaptureError
from kce.captures.exchanges.pairing import Request
from kce.captures.replay.asking import CHUNK_BYTES, Dial, Target, ask
from kce.captures.replay.identities import Identities
from kce.captures.replay.recording import Step
from kce.captures.replay.restarts import Restart, needed
from kce.captures.replay.rewrite import VOLATILE, differences
from kce.captures.tcp.segments import Place, endpoint_text

#: Timeout of a response: Kafka's own `request.timeout.ms`.
ANSWER_SECONDS = 30.0

#: The first version of Metadata that has the ids of topics (KIP-516).
_METADATA = 10

#: Order of events that have the same place in the recording.
_RESTART, _REQUEST, _RESPONSE = range(3)


class Verdict(enum.Enum):
    SAME = "same"
    DIFFERENT = "different"
    MISSING = "missing"
    UNRECORDED = "no response recorded"
    UNSENT = "not sent"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one replayed request. ``fields`` lists the differences, or the reason why there is no response."""

    step: Step
    verdict: Verdict
    fields: tuple[str, ...] = ()
    answer: wire.Message | None = None

    def __str__(self) -> str:
        request = self.step.request
        what = f"packet {request.place.packet} {request.api_name} v{request.version} #{request.correlation_id}"
        where = f"to {endpoint_text(*request.peers.server)}"
        return f"{what} {where}: {self.verdict.value}" + "".join(f"\n    {line}" for line in self.fields)


def target_of(step: Step, targets: Mapping[int | None, Target]) -> Target:
    """The target of a request. ``targets`` maps broker ids; None is the default. Raises CaptureError."""
    target = targets.get(step.broker_id, targets.get(None))
    if target is None:
        broker = "an unknown broker" if step.broker_id is None else f"broker {step.broker_id}"
        raise CaptureError(f"packet {step.request.place.packet} went to {broker}, for which there is no --to")
    return target


class Replay:
    """One run. ``rewrite`` returns the body to send; ``dial`` opens connections; ``volatile`` fields are not compared.

    Differences name topics by ``topic_names``, where a response has only their ids. With ``translate_ids`` requests
    have the ids that the target assigns where the recorded ones had those of their cluster, and responses are compared
    after the same; the target is asked for the ids of topics first, if requests have any.

    ``restart`` is called with the broker id of each of ``restarts`` that is needed, at its place in the recording.
    ``run`` raises CaptureError if the first target is unreachable, and whatever ``restart`` raises. Other failures are
    in ``outcomes``, also after cancellation. Like Kafka's client it closes a connection when a response times out; it
    gives up a target if that happens before the target has answered anything.
    """

    def __init__(
        self,
        steps: Iterable[Step],
        targets: Mapping[int | None, Target],
        *,
        dial: Dial,
        rewrite: Callable[[Request], wire.Message] = lambda request: _body(request),
        speed: float | None = 1.0,
        answer_seconds: float = ANSWER_SECONDS,
        volatile: frozenset[str] = VOLATILE,
        topic_names: Mapping[UUID, str] = MappingProxyType({}),
        translate_ids: bool = False,
        restarts: Iterable[Restart] = (),
        restart: Callable[[int], Awaitable[object]] | None = None,
    ) -> None:
        self._steps = sorted(steps, key=lambda step: step.request.place)
        self._targets = {step: target_of(step, targets) for step in self._steps}
        self._rewrite = rewrite
        self._restarts = needed(restarts, self._steps) if restart is not None else []
        self._restart = restart
        self._dial = dial
        self._speed = speed
        self._answer_seconds = answer_seconds
        self._volatile = volatile
        self._identities = Identities(topic_names)
        self._translates = translate_ids
        self._in_flight: dict[Step, _InFlight] = {}
        self._connections: dict[tuple[int, Target], _Connection] = {}  # by the number of the recorded one
        self._silent: set[Target] = set()

    async def run(self) -> list[Outcome]:
        """The outcomes, in the order of the recorded requests."""
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            try:
                if self._translates:
                    await self._ask_topic_ids()
                await self._walk(nursery)
            except Exception as e:  # noqa: BLE001 - raised again, and not in a group
                failure = e
            finally:
                with trio.CancelScope(shield=True):
                    for connection in self._connections.values():
                        await connection.aclose()
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return self.outcomes()

    def outcomes(self) -> list[Outcome]:
        """Known so far."""
        compare = partial(
            _compared, volatile=self._volatile, ids=self._identities, names=self._identities.topic_names()
        )
        return [
            compare(step, self._in_flight[step]) if step in self._in_flight else Outcome(step, Verdict.UNSENT)
            for step in self._steps
        ]

    async def _walk(self, nursery: trio.Nursery) -> None:
        """Go through the recording in order: send each request, wait for each response."""
        events: list[tuple[Place, int, Step | Restart]] = [(each.place, _RESTART, each) for each in self._restarts]
        events += [(step.request.place, _REQUEST, step) for step in self._steps]
        events += [(step.response.place, _RESPONSE, step) for step in self._steps if step.response is not None]
        events.sort(key=lambda event: event[:2])
        began, began_ns = trio.current_time(), self._steps[0].request.place.time_ns if self._steps else 0
        for place, kind, step in events:
            if isinstance(step, Restart):
                assert self._restart is not None
                await self._restart(step.broker_id)
            elif kind == _RESPONSE:
                await self._await_response(step)
            else:
                if self._speed is not None:
                    await trio.sleep_until(began + (place.time_ns - began_ns) / 1e9 / self._speed)
                self._in_flight[step] = await self._send(step, nursery)
        for step in self._steps:  # requests without a recorded response may get one now
            await self._await_response(step)

    async def _ask_topic_ids(self) -> None:
        """Ask the first target for the ids of the topics that requests refer to by id. If it fails, so will they."""
        names = {name for step in self._steps for name in self._identities.topics_of(_body(step.request))}
        if not names:
            return
        topics = tuple(wire.MetadataRequestTopic(name=name) for name in sorted(names))
        request = wire.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        with contextlib.suppress(CaptureError):
            answer = await ask(self._dial, self._targets[self._steps[0]], request, _METADATA, self._answer_seconds)
            self._identities.learn_topics(answer)

    async def _send(self, step: Step, nursery: trio.Nursery) -> _InFlight:
        key = step.request.peers.connection, self._targets[step]
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = _Connection()
            await self._open(connection, self._targets[step], nursery)
        body = self._rewrite(step.request)
        if self._translates:
            body = self._identities.translated(body)
        return await connection.send(step.request, body, self._answer_seconds)

    async def _open(self, connection: _Connection, target: Target, nursery: trio.Nursery) -> None:
        host, port = target
        if target in self._silent:
            connection.end(f"given up: {host}:{port} does not answer")
            return
        why = f"no connection within {self._answer_seconds:g} s"
        try:
            with trio.move_on_after(self._answer_seconds):
                connection.stream = await self._dial(host, port)
                nursery.start_soon(connection.read)
                return
            self._silent.add(target)
        except OSError as e:
            why = str(e.strerror or e)
        unreachable = f"cannot connect to {host}:{port} ({why})"
        if not self._in_flight:
            raise CaptureError(unreachable)
        connection.end(unreachable)

    async def _await_response(self, step: Step) -> None:
        """Wait for the response. On a timeout, close the connection."""
        in_flight = self._in_flight[step]
        if not in_flight.known.is_set():
            with trio.move_on_at(in_flight.deadline):
                await in_flight.known.wait()
        if not in_flight.known.is_set():
            in_flight.failed(f"no response within {self._answer_seconds:g} s")
            target = self._targets[step]
            connection = self._connections[step.request.peers.connection, target]
            connection.end(f"closed: no response to the request of packet {step.request.place.packet}")
            if not any(each.has_answered for (_, at), each in self._connections.items() if at == target):
                self._silent.add(target)
        recorded = step.response and step.response.body
        if self._translates and recorded and in_flight.answer:
            self._identities.learn(_body(step.request), recorded, in_flight.answer)


class _UnknownCorrelationIdError(Exception):
    """A response with an unknown correlation id."""


class _InFlight:
    """A request in flight. ``known`` is set with ``answer`` (None if Kafka sends none) or ``failure``."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.answer: wire.Message | None = None
        self.failure: str | None = None
        self.known = trio.Event()

    def answered(self, answer: wire.Message | None) -> None:
        self.answer = answer
        self.known.set()

    def failed(self, why: str) -> None:
        if not self.known.is_set():
            self.failure = why
            self.known.set()


@dataclass(eq=False)
class _Connection:
    """The live connection that replaces a recorded one. One task sends, one reads."""

    stream: trio.abc.Stream | None = None
    waiting: dict[int, tuple[Request, _InFlight]] = field(default_factory=dict)
    correlation_id: int = 0
    has_answered: bool = False
    over: str | None = None

    async def send(self, request: Request, body: wire.Message, seconds: float) -> _InFlight:
        """Send a request; sending and response share one timeout."""
        in_flight = _InFlight(trio.current_time() + seconds)
        correlation_id = self.correlation_id
        self.correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        if request.answered:
            self.waiting[correlation_id] = request, in_flight
        payload = wire.encode_request(
            body, api_version=request.version, correlation_id=correlation_id, client_id=request.client_id
        )
        if self.over is None and self.stream is not None:
            try:
                with trio.move_on_at(in_flight.deadline) as scope:
                    await self.stream.send_all(wire.frame(payload))
                if scope.cancelled_caught:
                    self.end(f"given up: a request could not be sent within {seconds:g} s")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.end("the connection broke")
        if self.over is not None:
            in_flight.failed(self.over)
        elif not request.answered:
            in_flight.answered(None)
        return in_flight

    async def read(self) -> None:
        assert self.stream is not None
        buffer = wire.FrameBuffer()
        try:
            while data := await self.stream.receive_some(CHUNK_BYTES):
                buffer.receive_data(data)
                while (frame := buffer.next_frame()) is not None:
                    self._answered(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.end("the connection broke")
        except (wire.WireError, _UnknownCorrelationIdError) as e:
            self.end(f"received something that is no response ({e})")
        else:
            self.end("the connection was closed" + (" in the middle of a response" if len(buffer) else ""))

    def _answered(self, frame: bytes) -> None:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        request, in_flight = self.waiting.pop(correlation_id, (None, None))
        if request is None or in_flight is None:
            raise _UnknownCorrelationIdError(f"unknown correlation id {correlation_id}")
        self.has_answered = True
        try:
            in_flight.answered(wire.decode_response(frame, api_key=request.api_key, api_version=request.version)[1])
        except wire.WireError as e:
            in_flight.failed(f"the response cannot be decoded ({e})")

    def end(self, why: str) -> None:
        """The first reason is kept."""
        self.over = self.over or why
        for _, in_flight in self.waiting.values():
            in_flight.failed(self.over)

    async def aclose(self) -> None:
        if self.stream is not None:
            await self.stream.aclose()


def _body(request: Request) -> wire.Message:
    assert request.body is not None, "what was not decoded is not replayed"
    return request.body


def _compared(
    step: Step, in_flight: _InFlight, *, volatile: frozenset[str], ids: Identities, names: Mapping[str, str]
) -> Outcome:
    recorded = step.response
    if not in_flight.known.is_set():
        in_flight.failed("no response before the end")
    if not step.request.answered and in_flight.failure is None:
        return Outcome(step, Verdict.SAME)
    if recorded is None or recorded.body is None:
        return Outcome(step, Verdict.UNRECORDED, (), in_flight.answer)
    if in_flight.answer is None:
        return Outcome(step, Verdict.MISSING, (in_flight.failure or "",))
    expected = ids.translated(recorded.body, getattr(step.request.body, "group_id", None))
    fields = differences(
        wire.as_dict(expected, recorded.version),
        wire.as_dict(in_flight.answer, step.request.version),
        volatile=volatile,
        names=names,
    )
    return Outcome(step, Verdict.DIFFERENT if fields else Verdict.SAME, tuple(fields), in_flight.answer)
