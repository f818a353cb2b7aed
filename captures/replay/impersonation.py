"""Plays a recorded broker to live controllers and clients: each request gets the response of a matching recorded one.

    broker = Impersonator(step for step in recording.steps if step.broker_id == 2)
    await nursery.start(partial(trio.serve_tcp, broker.serve, 0, host="127.0.0.1"))

Answer a request with the first unused recorded request of the same API that matches it, ignoring epochs; else with the
one that shares most partitions; else, when all were used, with the last one again. Topic ids in the response are
replaced by those of the live cluster. A request of an API without a recorded response is reported and its connection
closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import trio

from kce import wire
from kce.captures.replay.identities import Identities, topic_names
from kce.captures.replay.recording import Step

_CHUNK_BYTES = 65536

#: Fields that are ignored when a live request is matched with a recorded one.
_EPOCHS = frozenset({
    "controller_id", "controller_epoch", "broker_epoch", "leader_epoch", "partition_epoch", "zk_version", "topic_id",
    "port", "host", "current_leader_epoch", "session_id", "session_epoch",
})  # fmt: skip


@dataclass(slots=True)
class AnsweredRequest:
    """A live request and the recorded one whose response it got; ``exact`` if they match, ignoring epochs.

    ``repeats`` counts further requests that got the same response because no other was unused, or that got none for the
    same reason.
    """

    api_name: str
    version: int
    correlation_id: int
    step: Step | None
    exact: bool
    why: str = ""
    repeats: int = 0

    def __str__(self) -> str:
        what = f"{self.api_name} v{self.version} #{self.correlation_id}"
        more = f", and {self.repeats} more" if self.repeats else ""
        if self.step is None:
            return f"{what}: {self.why}{more}"
        like = "as" if self.exact else "without an exact match, as"
        return f"{what}: answered {like} packet {self.step.request.place.packet}{more}"


class Impersonator:
    """Plays back one broker; ``serve`` handles one connection. ``answered`` lists the live requests in order.

    Responses take the recorded time divided by ``speed``; ``speed`` None does not wait.
    """

    def __init__(self, steps: Iterable[Step], speed: float | None = None) -> None:
        self.answered: list[AnsweredRequest] = []
        self._speed = speed
        self._unused: dict[int, list[_Recorded]] = {}
        self._last: dict[int, Step] = {}
        self._last_answered: dict[int, AnsweredRequest] = {}
        self._refused: dict[tuple[str, int, str], AnsweredRequest] = {}
        steps = sorted(steps, key=lambda step: step.request.place)
        self._identities = Identities(topic_names(step.request.body for step in steps))
        for step in steps:
            if step.response is not None and step.response.body is not None and step.request.body is not None:
                plain = wire.as_dict(step.request.body, step.request.version)
                recorded = _Recorded(step, _without_epochs(plain), _partitions(plain))
                self._unused.setdefault(step.request.api_key, []).append(recorded)

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve until the peer closes, or sends a request without a recorded response."""
        buffer = wire.FrameBuffer()
        async with stream:
            try:
                while data := await stream.receive_some(_CHUNK_BYTES):
                    buffer.receive_data(data)
                    while (frame := buffer.next_frame()) is not None:
                        answer, latency_ns = self._answer(frame)
                        if answer is None:
                            return
                        if self._speed is not None:
                            await trio.sleep(latency_ns / 1e9 / self._speed)
                        await stream.send_all(wire.frame(answer))
            except (trio.BrokenResourceError, trio.ClosedResourceError, wire.LimitExceeded):
                return

    def _answer(self, frame: bytes) -> tuple[bytes | None, int]:
        """The response frame and its recorded latency in nanoseconds; None to close the connection."""
        try:
            header, body = wire.decode_request(frame)
        except wire.DecodeError as e:
            self._unanswered(AnsweredRequest("unknown", -1, -1, None, False, f"could not be decoded ({e})"))
            return None, 0
        name = wire.api(header.api_key).name
        plain = wire.as_dict(body, header.api_version)
        unused = bool(self._unused.get(header.api_key))
        step, exact = self._match(header.api_key, plain)
        entry = AnsweredRequest(name, header.api_version, header.correlation_id, step, exact)
        if step is None or step.response is None or step.response.body is None or step.request.body is None:
            entry.step, entry.why = None, "no response to such a request was recorded"
            self._unanswered(entry)
            return None, 0
        self._identities.learn_topics(body)
        try:
            answer = wire.encode_response(
                self._identities.translated(step.response.body),
                api_version=header.api_version, correlation_id=header.correlation_id,
            )  # fmt: skip
        except wire.EncodeError:
            entry.step = None
            entry.why = (
                f"the recorded response is of version {step.response.version} and cannot be given in this one: let "
                "the controller have the inter.broker.protocol.version of the recorded"
            )
            self._unanswered(entry)
            return None, 0
        if unused:
            self._last_answered[header.api_key] = entry
            self.answered.append(entry)
        else:
            self._last_answered[header.api_key].repeats += 1
        return answer, step.response.latency_ns

    def _unanswered(self, entry: AnsweredRequest) -> None:
        """A peer that gets no answer asks again, and again: that is one entry."""
        same = self._refused.setdefault((entry.api_name, entry.version, entry.why), entry)
        if same is entry:
            self.answered.append(entry)
        else:
            same.repeats += 1

    def _match(self, api_key: int, plain: Any) -> tuple[Step | None, bool]:
        unused = self._unused.get(api_key, [])
        if not unused:
            return self._last.get(api_key), False
        essence, partitions = _without_epochs(plain), _partitions(plain)

        def similarity(at: int) -> tuple[bool, int, int]:
            recorded = unused[at]
            return (
                recorded.essence == essence,
                len(recorded.partitions & partitions),
                -len(recorded.partitions ^ partitions),
            )

        best = max(range(len(unused)), key=similarity)  # the first of the best matches
        exact, *_ = similarity(best)
        self._last[api_key] = unused.pop(best).step
        return self._last[api_key], exact


@dataclass(frozen=True, slots=True)
class _Recorded:
    step: Step
    essence: Any
    partitions: frozenset[tuple[str, int]]


def _partitions(value: Any, topic: str = "") -> frozenset[tuple[str, int]]:
    """The partitions (topic, index) that a request names, whatever its API."""
    if isinstance(value, Mapping):
        topic = next((value[key] for key in ("topic_name", "name", "topic") if isinstance(value.get(key), str)), topic)
        index = value.get("partition_index", value.get("partition"))
        here = frozenset({(topic, index)} if isinstance(index, int) else ())
        return here.union(*(_partitions(inner, topic) for inner in value.values()))
    if isinstance(value, list):
        return frozenset().union(*(_partitions(inner, topic) for inner in value))
    return frozenset()


def _without_epochs(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_epochs(inner) for name, inner in value.items() if name not in _EPOCHS}
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return sorted((_without_epochs(inner) for inner in value), key=repr)  # topics have no order
    return value
