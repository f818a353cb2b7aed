"""A recorded broker for live controllers and clients: each request gets the recorded answer to the one it is like.

    broker = Impersonator(step for step in recording.steps if step.broker_id == 2)
    await nursery.start(partial(trio.serve_tcp, broker.serve, 0, host="127.0.0.1"))

Like a live request is, of those recorded with its API that were not used yet, the first that is equal but for epochs;
else the one that speaks of most of the same partitions, the first of several; when all were used, the last again. What
the live cluster calls otherwise, topics by their ids, is called so in the answer. A request of an API of which no
answer was recorded is told, and its connection closed, as there is nothing to say.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import trio

from kce import wire
from kce.captures.replay.recording import Step
from kce.captures.replay.rewrite import named_anew

_CHUNK_BYTES = 65536

#: What differs between a recorded and a live request that are the same.
_EPOCHS = frozenset({
    "controller_id", "controller_epoch", "broker_epoch", "leader_epoch", "partition_epoch", "zk_version", "topic_id",
    "port", "host", "current_leader_epoch", "session_id", "session_epoch",
})  # fmt: skip


@dataclass(slots=True)
class Answered:
    """A live request, and the recorded one whose answer it got; ``alike`` if they were equal but for epochs.

    ``again``: how many more got the same answer since, there being no other left.
    """

    api_name: str
    version: int
    correlation_id: int
    step: Step | None
    alike: bool
    why: str = ""
    again: int = 0

    def __str__(self) -> str:
        what = f"{self.api_name} v{self.version} #{self.correlation_id}"
        if self.step is None:
            return f"{what}: {self.why}"
        like = "as" if self.alike else "not alike, but as"
        more = f", and {self.again} more" if self.again else ""
        return f"{what}: answered {like} packet {self.step.request.place.packet}{more}"


class Impersonator:
    """Has all recorded answers of one broker; ``serve`` one connection. ``answered`` tells what was asked, in order.

    It takes as long to answer as it was recorded, divided by ``speed``; no time with ``speed`` None.
    """

    def __init__(self, steps: Iterable[Step], speed: float | None = None) -> None:
        self.answered: list[Answered] = []
        self._speed = speed
        self._left: dict[int, list[_Recorded]] = {}
        self._last: dict[int, Step] = {}
        self._told: dict[int, Answered] = {}
        for step in sorted(steps, key=lambda step: step.request.place):
            if step.response is not None and step.response.body is not None and step.request.body is not None:
                plain = wire.as_dict(step.request.body, step.request.version)
                recorded = _Recorded(step, _without_epochs(plain), _partitions(plain))
                self._left.setdefault(step.request.api_key, []).append(recorded)

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Until the peer closes, or asks what there is no answer to."""
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
        """The answer, and after how many nanoseconds it came."""
        try:
            header, body = wire.decode_request(frame)
        except wire.DecodeError as e:
            self.answered.append(Answered("unknown", -1, -1, None, False, f"could not be decoded ({e})"))
            return None, 0
        name = wire.api(header.api_key).name
        plain = wire.as_dict(body, header.api_version)
        left = bool(self._left.get(header.api_key))
        step, alike = self._match(header.api_key, plain)
        told = Answered(name, header.api_version, header.correlation_id, step, alike)
        if step is None or step.response is None or step.response.body is None or step.request.body is None:
            told.step, told.why = None, "no answer to such a request was recorded"
            self.answered.append(told)
            return None, 0
        then, now = _topic_ids(wire.as_dict(step.request.body, step.request.version)), _topic_ids(plain)
        ids = {then[topic]: now[topic] for topic in then.keys() & now.keys()}
        try:
            answer = wire.encode_response(
                named_anew(step.response.body, ids),
                api_version=header.api_version, correlation_id=header.correlation_id,
            )  # fmt: skip
        except wire.EncodeError as e:
            told.step = None
            told.why = f"the recorded answer, of version {step.response.version}, has no form in this one ({e})"
            self.answered.append(told)
            return None, 0
        if left:
            self._told[header.api_key] = told
            self.answered.append(told)
        else:
            self._told[header.api_key].again += 1
        return answer, step.response.latency_ns

    def _match(self, api_key: int, plain: Any) -> tuple[Step | None, bool]:
        left = self._left.get(api_key, [])
        if not left:
            return self._last.get(api_key), False
        essence, partitions = _without_epochs(plain), _partitions(plain)

        def likeness(at: int) -> tuple[bool, int, int]:
            recorded = left[at]
            return (
                recorded.essence == essence,
                len(recorded.partitions & partitions),
                -len(recorded.partitions ^ partitions),
            )

        best = max(range(len(left)), key=likeness)  # the first of those that are alike to the same degree
        alike, *_ = likeness(best)
        self._last[api_key] = left.pop(best).step
        return self._last[api_key], alike


@dataclass(frozen=True, slots=True)
class _Recorded:
    step: Step
    essence: Any
    partitions: frozenset[tuple[str, int]]


def _partitions(value: Any, topic: str = "") -> frozenset[tuple[str, int]]:
    """The partitions (topic, index) that a request speaks of, whatever its API."""
    if isinstance(value, Mapping):
        topic = next((value[key] for key in ("topic_name", "name", "topic") if isinstance(value.get(key), str)), topic)
        index = value.get("partition_index", value.get("partition"))
        here = frozenset({(topic, index)} if isinstance(index, int) else ())
        return here.union(*(_partitions(inner, topic) for inner in value.values()))
    if isinstance(value, list):
        return frozenset().union(*(_partitions(inner, topic) for inner in value))
    return frozenset()


def _topic_ids(plain: Any) -> dict[str, uuid.UUID]:
    """By name, as a control request tells them."""
    return {
        topic["topic_name"]: uuid.UUID(topic["topic_id"])
        for topic in plain.get("topic_states", ())
        if "topic_id" in topic
    }


def _without_epochs(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_epochs(inner) for name, inner in value.items() if name not in _EPOCHS}
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return sorted((_without_epochs(inner) for inner in value), key=repr)  # topics come in any order
    return value
