"""Recorded requests sent again, to brokers that are alive, and their answers compared with the recorded ones.

    recording = Recording.read(CaptureFile("incident.pcapng"))
    steps = recording.of_controllers()                       # or .of_connection(12)
    outcomes = await Replay(steps, {None: ("127.0.0.1", 9093)}, dial=trio.open_tcp_stream).run()

Each recorded connection becomes a new one, with correlation ids of its own. Requests go out in the order in which they
were recorded, each at its time (divided by ``speed``; ``speed`` None does not wait), and not before the answers that
came before it in the recording have come now, too: what caused a request still causes it. An answer is waited for at
most ``answer_seconds``.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

import wire
from captures.cluster import Cluster
from captures.decode import Decoder, Source
from captures.errors import CaptureError
from captures.exchanges import Peers, Request, Response
from captures.pcap import CaptureFile
from captures.rewrite import VOLATILE, differences
from captures.segments import endpoint_text

#: How long an answer is waited for: Kafka's own `request.timeout.ms`.
ANSWER_SECONDS = 30.0

_CONTROL = frozenset({"LeaderAndIsr", "StopReplica", "UpdateMetadata"})
_CHUNK_BYTES = 65536

Target = tuple[str, int]
"""Host and port."""

Dial = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Opens a connection; raises OSError. What wraps the stream may record it."""


@dataclass(slots=True, eq=False)
class Step:
    """One recorded request and its recorded answer, if there was one, with the id of the broker it went to."""

    request: Request
    broker_id: int | None
    response: Response | None = None


class Recording(NamedTuple):
    """What a capture holds to be replayed: ``left_out`` are requests whose body is not there or is not understood."""

    steps: list[Step]
    left_out: list[Request]
    cluster: Cluster

    @classmethod
    def read(cls, source: CaptureFile | Source) -> Recording:
        decoder = Decoder(source)
        steps: dict[Request, Step] = {}
        left_out: list[Request] = []
        for message in decoder.messages():
            if isinstance(message, Response):
                if message.request in steps:
                    steps[message.request].response = message
            elif message.body is None or message.left_over:
                left_out.append(message)
            else:
                steps[message] = Step(message, None)
        for step in steps.values():  # listeners may be announced after the first request to them
            listener = decoder.cluster.listener_at(step.request.peers.server)
            step.broker_id = None if listener is None else listener.broker_id
        return cls(list(steps.values()), left_out, decoder.cluster)

    def of_controllers(self) -> list[Step]:
        """What controllers told brokers."""
        return [step for step in self.steps if step.request.api_name in _CONTROL]

    def of_connection(self, number: int) -> list[Step]:
        return [step for step in self.steps if step.request.peers.connection == number]

    def connections(self) -> dict[Peers, int]:
        """Who spoke with whom, and with how many requests."""
        counts: dict[Peers, int] = {}
        for step in self.steps:
            counts[step.request.peers] = counts.get(step.request.peers, 0) + 1
        return counts


class Verdict(enum.Enum):
    SAME = "same"
    DIFFERENT = "different"
    MISSING = "missing"
    UNRECORDED = "no answer recorded"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a replayed request was answered: ``fields`` are the differences, or why nothing was answered."""

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
    """Where a request goes: ``targets`` are by broker id, that of None is for all others. Raises CaptureError."""
    target = targets.get(step.broker_id, targets.get(None))
    if target is None:
        broker = "an unknown broker" if step.broker_id is None else f"broker {step.broker_id}"
        raise CaptureError(f"packet {step.request.place.packet} went to {broker}, for which there is no --to")
    return target


class Replay:
    """One run. ``rewrite`` gives the body to send; ``dial`` opens connections; ``volatile`` fields are not compared.

    ``run`` raises CaptureError where nobody can be reached; what goes wrong after that is in the outcomes.
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
    ) -> None:
        self._steps = sorted(steps, key=lambda step: step.request.place)
        self._targets = {step: target_of(step, targets) for step in self._steps}
        self._bodies = {step: rewrite(step.request) for step in self._steps}
        self._dial = dial
        self._speed = speed
        self._answer_seconds = answer_seconds
        self._volatile = volatile
        self._connections: dict[tuple[int, Target], _Connection] = {}  # by the number of the recorded one

    async def run(self) -> list[Outcome]:
        """The outcomes, in the order of the recorded requests."""
        if not self._steps:
            return []
        asked: dict[Step, _Asked] = {}
        failure: CaptureError | None = None
        async with trio.open_nursery() as nursery:
            try:
                await self._walk(asked, nursery)
            except CaptureError as e:
                failure = e
            nursery.cancel_scope.cancel()
        for connection in self._connections.values():
            with trio.CancelScope(shield=True):
                await connection.stream.aclose()
        if failure is not None:
            raise failure
        return [_compared(step, asked[step], self._volatile) for step in self._steps]

    async def _walk(self, asked: dict[Step, _Asked], nursery: trio.Nursery) -> None:
        """Through what was recorded, in its order: send what was sent, wait for what came."""
        events = [(step.request.place, 0, step) for step in self._steps]
        events += [(step.response.place, 1, step) for step in self._steps if step.response is not None]
        events.sort(key=lambda event: event[:2])
        began, began_ns = trio.current_time(), self._steps[0].request.place.time_ns
        for place, is_answer, step in events:
            if is_answer:
                await asked[step].wait(self._answer_seconds)
                continue
            if self._speed is not None:
                await trio.sleep_until(began + (place.time_ns - began_ns) / 1e9 / self._speed)
            asked[step] = await self._ask(step, nursery)
        with trio.move_on_after(self._answer_seconds):  # answers that did not come while recording may come now
            for waiting in asked.values():
                await waiting.wait(self._answer_seconds)

    async def _ask(self, step: Step, nursery: trio.Nursery) -> _Asked:
        key = step.request.peers.connection, self._targets[step]
        connection = self._connections.get(key)
        if connection is None:
            host, port = self._targets[step]
            try:
                stream = await self._dial(host, port)
            except OSError as e:
                raise CaptureError(f"nobody can be reached at {host}:{port} ({e.strerror or e})") from None
            connection = self._connections[key] = _Connection(stream)
            nursery.start_soon(connection.read)
        return await connection.ask(step.request, self._bodies[step])


class _NotAskedError(Exception):
    """An answer to no question."""


class _Asked:
    """A request on its way: ``answer`` (None where Kafka gives none) or ``failure``, once that is known."""

    def __init__(self) -> None:
        self.answer: wire.Message | None = None
        self.failure: str | None = None
        self._known = trio.Event()

    async def wait(self, seconds: float) -> None:
        with trio.move_on_after(seconds) as scope:
            await self._known.wait()
        if scope.cancelled_caught:
            self.failed(f"nothing was answered within {seconds:g} s")

    def answered(self, answer: wire.Message | None) -> None:
        self.answer = answer
        self._known.set()

    def failed(self, why: str) -> None:
        if not self._known.is_set():
            self.failure = why
            self._known.set()


@dataclass(eq=False)
class _Connection:
    """A new connection in place of a recorded one. One task sends, one reads."""

    stream: trio.abc.Stream
    waiting: dict[int, tuple[Request, _Asked]] = field(default_factory=dict)
    correlation_id: int = 0
    over: str | None = None

    async def ask(self, request: Request, body: wire.Message) -> _Asked:
        asked = _Asked()
        correlation_id = self.correlation_id
        self.correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        if request.answered:
            self.waiting[correlation_id] = request, asked
        payload = wire.encode_request(
            body, api_version=request.version, correlation_id=correlation_id, client_id=request.client_id
        )
        if self.over is None:
            try:
                await self.stream.send_all(wire.frame(payload))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._end("the connection broke")
        if self.over is not None:
            asked.failed(self.over)
        elif not request.answered:
            asked.answered(None)
        return asked

    async def read(self) -> None:
        buffer = wire.FrameBuffer()
        try:
            while data := await self.stream.receive_some(_CHUNK_BYTES):
                buffer.receive_data(data)
                while (frame := buffer.next_frame()) is not None:
                    self._answered(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._end("the connection broke")
        except (wire.WireError, _NotAskedError) as e:
            self._end(f"what came is no answer ({e})")
        else:
            self._end("the connection was closed")

    def _answered(self, frame: bytes) -> None:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        request, asked = self.waiting.pop(correlation_id, (None, None))
        if request is None or asked is None:
            raise _NotAskedError(f"correlation id {correlation_id} was not asked")
        _, answer = wire.decode_response(frame, api_key=request.api_key, api_version=request.version)
        asked.answered(answer)

    def _end(self, why: str) -> None:
        self.over = why
        for _, asked in self.waiting.values():
            asked.failed(why)


def _body(request: Request) -> wire.Message:
    assert request.body is not None, "what was not decoded is not replayed"
    return request.body


def _compared(step: Step, asked: _Asked, volatile: frozenset[str]) -> Outcome:
    recorded = step.response
    if not step.request.answered and asked.failure is None:
        return Outcome(step, Verdict.SAME)
    if recorded is None or recorded.body is None:
        return Outcome(step, Verdict.UNRECORDED, (), asked.answer)
    if asked.answer is None:
        return Outcome(step, Verdict.MISSING, (asked.failure or "",))
    fields = differences(
        wire.as_dict(recorded.body, recorded.version),
        wire.as_dict(asked.answer, step.request.version),
        volatile=volatile,
    )
    return Outcome(step, Verdict.DIFFERENT if fields else Verdict.SAME, tuple(fields), asked.answer)
