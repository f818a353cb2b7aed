"""Recorded requests sent again, to brokers that are alive, and their answers compared with the recorded ones.

    steps = Recording.read(CaptureFile("incident.pcapng")).of_controllers()
    outcomes = await Replay(steps, {None: ("127.0.0.1", 9093)}, dial=trio.open_tcp_stream).run()

Each recorded connection becomes a new one, with correlation ids of its own. Requests go out in the order in which they
were recorded, each at its time (divided by ``speed``; ``speed`` None does not wait), and not before the answers that
came before it in the recording have come now, too: what caused a request still causes it. An answer is waited for at
most ``answer_seconds``. Where a recorded broker had been restarted, ``restart`` may see to it that the new one is, too.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

import trio

from kce import wire
from kce.captures.errors import CaptureError
from kce.captures.exchanges.pairing import Request
from kce.captures.replay.recording import Step
from kce.captures.replay.restarts import Restart, needed
from kce.captures.replay.rewrite import VOLATILE, differences
from kce.captures.tcp.segments import Place, endpoint_text

#: How long an answer is waited for: Kafka's own `request.timeout.ms`.
ANSWER_SECONDS = 30.0

_CHUNK_BYTES = 65536

#: What is at one place in a recording happens in this order.
_RESTART, _QUESTION, _ANSWER = range(3)

Target = tuple[str, int]
"""Host and port."""

Dial = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Opens a connection; raises OSError. What wraps the stream may record it."""


class Verdict(enum.Enum):
    SAME = "same"
    DIFFERENT = "different"
    MISSING = "missing"
    UNRECORDED = "no answer recorded"
    UNSENT = "not sent"


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

    ``restart`` is told the id of each broker of ``restarts`` that was sent something before, when its time has come.
    ``run`` raises CaptureError where nobody can be reached at first, and what ``restart`` raises; what else goes wrong
    is in ``outcomes``, also of a run that was cancelled. As Kafka's client does, it gives a connection up on which one
    answer stays away for ``answer_seconds``, and an address at which that happens before anything was ever answered.
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
        self._asked: dict[Step, _Asked] = {}
        self._connections: dict[tuple[int, Target], _Connection] = {}  # by the number of the recorded one
        self._silent: set[Target] = set()

    async def run(self) -> list[Outcome]:
        """The outcomes, in the order of the recorded requests."""
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            try:
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
        """As far as they are known now."""
        return [
            _compared(step, self._asked[step], self._volatile) if step in self._asked else Outcome(step, Verdict.UNSENT)
            for step in self._steps
        ]

    async def _walk(self, nursery: trio.Nursery) -> None:
        """Through what was recorded, in its order: send what was sent, wait for what came."""
        events: list[tuple[Place, int, Step | Restart]] = [(each.place, _RESTART, each) for each in self._restarts]
        events += [(step.request.place, _QUESTION, step) for step in self._steps]
        events += [(step.response.place, _ANSWER, step) for step in self._steps if step.response is not None]
        events.sort(key=lambda event: event[:2])
        began, began_ns = trio.current_time(), self._steps[0].request.place.time_ns if self._steps else 0
        for place, kind, step in events:
            if isinstance(step, Restart):
                assert self._restart is not None
                await self._restart(step.broker_id)
            elif kind == _ANSWER:
                await self._answer_to(step)
            else:
                if self._speed is not None:
                    await trio.sleep_until(began + (place.time_ns - began_ns) / 1e9 / self._speed)
                self._asked[step] = await self._ask(step, nursery)
        for step in self._steps:  # answers that did not come while recording may come now
            await self._answer_to(step)

    async def _ask(self, step: Step, nursery: trio.Nursery) -> _Asked:
        key = step.request.peers.connection, self._targets[step]
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = _Connection()
            await self._open(connection, self._targets[step], nursery)
        return await connection.ask(step.request, self._rewrite(step.request), self._answer_seconds)

    async def _open(self, connection: _Connection, target: Target, nursery: trio.Nursery) -> None:
        host, port = target
        if target in self._silent:
            connection.end(f"given up: {host}:{port} answers nothing")
            return
        why = f"it did not answer within {self._answer_seconds:g} s"
        try:
            with trio.move_on_after(self._answer_seconds):
                connection.stream = await self._dial(host, port)
                nursery.start_soon(connection.read)
                return
            self._silent.add(target)
        except OSError as e:
            why = str(e.strerror or e)
        unreachable = f"nobody can be reached at {host}:{port} ({why})"
        if not self._asked:
            raise CaptureError(unreachable)
        connection.end(unreachable)

    async def _answer_to(self, step: Step) -> None:
        """Wait for it; whose answer does not come is not asked again."""
        asked = self._asked[step]
        if not asked.known.is_set():
            with trio.move_on_at(asked.deadline):
                await asked.known.wait()
        if not asked.known.is_set():
            asked.failed(f"nothing was answered within {self._answer_seconds:g} s")
            target = self._targets[step]
            connection = self._connections[step.request.peers.connection, target]
            connection.end(f"given up: the answer to the request of packet {step.request.place.packet} stayed away")
            if not any(each.has_answered for (_, at), each in self._connections.items() if at == target):
                self._silent.add(target)


class _NotAskedError(Exception):
    """An answer to no question."""


class _Asked:
    """A request on its way: ``answer`` (None where Kafka gives none) or ``failure``, once that is ``known``."""

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
    """A new connection in place of a recorded one. One task sends, one reads."""

    stream: trio.abc.Stream | None = None
    waiting: dict[int, tuple[Request, _Asked]] = field(default_factory=dict)
    correlation_id: int = 0
    has_answered: bool = False
    over: str | None = None

    async def ask(self, request: Request, body: wire.Message, seconds: float) -> _Asked:
        """Send it within ``seconds``, the time that its answer has, too."""
        asked = _Asked(trio.current_time() + seconds)
        correlation_id = self.correlation_id
        self.correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        if request.answered:
            self.waiting[correlation_id] = request, asked
        payload = wire.encode_request(
            body, api_version=request.version, correlation_id=correlation_id, client_id=request.client_id
        )
        if self.over is None and self.stream is not None:
            try:
                with trio.move_on_at(asked.deadline) as scope:
                    await self.stream.send_all(wire.frame(payload))
                if scope.cancelled_caught:
                    self.end(f"given up: a request was not taken within {seconds:g} s")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.end("the connection broke")
        if self.over is not None:
            asked.failed(self.over)
        elif not request.answered:
            asked.answered(None)
        return asked

    async def read(self) -> None:
        assert self.stream is not None
        buffer = wire.FrameBuffer()
        try:
            while data := await self.stream.receive_some(_CHUNK_BYTES):
                buffer.receive_data(data)
                while (frame := buffer.next_frame()) is not None:
                    self._answered(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.end("the connection broke")
        except (wire.WireError, _NotAskedError) as e:
            self.end(f"what came is no answer ({e})")
        else:
            self.end("the connection was closed" + (" in the middle of an answer" if len(buffer) else ""))

    def _answered(self, frame: bytes) -> None:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        request, asked = self.waiting.pop(correlation_id, (None, None))
        if request is None or asked is None:
            raise _NotAskedError(f"correlation id {correlation_id} was not asked")
        self.has_answered = True
        try:
            asked.answered(wire.decode_response(frame, api_key=request.api_key, api_version=request.version)[1])
        except wire.WireError as e:
            asked.failed(f"the answer cannot be decoded ({e})")

    def end(self, why: str) -> None:
        """The first reason counts."""
        self.over = self.over or why
        for _, asked in self.waiting.values():
            asked.failed(self.over)

    async def aclose(self) -> None:
        if self.stream is not None:
            await self.stream.aclose()


def _body(request: Request) -> wire.Message:
    assert request.body is not None, "what was not decoded is not replayed"
    return request.body


def _compared(step: Step, asked: _Asked, volatile: frozenset[str]) -> Outcome:
    recorded = step.response
    if not asked.known.is_set():
        asked.failed("not answered before the end")
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
