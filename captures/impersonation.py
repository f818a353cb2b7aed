"""A recorded broker for live controllers and clients: each request gets the recorded answer to the one it is like.

    broker = Impersonator(step for step in recording.steps if step.broker_id == 2)
    await nursery.start(partial(trio.serve_tcp, broker.serve, 0, host="127.0.0.1"))

Like a live request is, of those recorded with its API that were not used yet, the first that is equal but for epochs;
else the first; when all were used, the last again. A request of an API of which no answer was recorded is told, and its
connection closed, as there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import trio

import wire
from captures.replay import Step

_CHUNK_BYTES = 65536

#: What differs between a recorded and a live request that are the same.
_EPOCHS = frozenset({
    "controller_id", "controller_epoch", "broker_epoch", "leader_epoch", "partition_epoch", "zk_version", "topic_id",
    "port", "host", "current_leader_epoch", "session_id", "session_epoch",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answered:
    """A live request, and the recorded one whose answer it got; ``alike`` if they were equal but for epochs."""

    api_name: str
    version: int
    correlation_id: int
    step: Step | None
    alike: bool
    why: str = ""

    def __str__(self) -> str:
        what = f"{self.api_name} v{self.version} #{self.correlation_id}"
        if self.step is None:
            return f"{what}: {self.why}"
        like = "as" if self.alike else "not alike, but as"
        return f"{what}: answered {like} packet {self.step.request.place.packet}"


class Impersonator:
    """Has all recorded answers of one broker; ``serve`` one connection. ``answered`` tells what was asked, in order."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self.answered: list[Answered] = []
        self._left: dict[int, list[tuple[Any, Step]]] = {}
        self._last: dict[int, Step] = {}
        for step in sorted(steps, key=lambda step: step.request.place):
            if step.response is not None and step.response.body is not None and step.request.body is not None:
                essence = _essence(step.request.body, step.request.version)
                self._left.setdefault(step.request.api_key, []).append((essence, step))

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Until the peer closes, or asks what there is no answer to."""
        buffer = wire.FrameBuffer()
        async with stream:
            try:
                while data := await stream.receive_some(_CHUNK_BYTES):
                    buffer.receive_data(data)
                    while (frame := buffer.next_frame()) is not None:
                        answer = self._answer(frame)
                        if answer is None:
                            return
                        await stream.send_all(wire.frame(answer))
            except (trio.BrokenResourceError, trio.ClosedResourceError, wire.LimitExceeded):
                return

    def _answer(self, frame: bytes) -> bytes | None:
        try:
            header, body = wire.decode_request(frame)
        except wire.DecodeError as e:
            self.answered.append(Answered("unknown", -1, -1, None, False, f"could not be decoded ({e})"))
            return None
        name = wire.api(header.api_key).name
        step, alike = self._match(header.api_key, _essence(body, header.api_version))
        why = "no answer to such a request was recorded"
        answer = None
        if step is not None and step.response is not None and step.response.body is not None:
            try:
                answer = wire.encode_response(
                    step.response.body, api_version=header.api_version, correlation_id=header.correlation_id
                )
            except wire.EncodeError as e:
                why = f"the recorded answer, of version {step.response.version}, has no form in this one ({e})"
        found = step if answer is not None else None
        self.answered.append(Answered(name, header.api_version, header.correlation_id, found, alike, why))
        return answer

    def _match(self, api_key: int, essence: Any) -> tuple[Step | None, bool]:
        left = self._left.get(api_key, [])
        for at, (recorded, step) in enumerate(left):
            if recorded == essence:
                del left[at]
                self._last[api_key] = step
                return step, True
        if left:
            self._last[api_key] = left.pop(0)[1]
        return self._last.get(api_key), False


def _essence(body: wire.Message, version: int) -> Any:
    return _without_epochs(wire.as_dict(body, version))


def _without_epochs(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_epochs(inner) for name, inner in value.items() if name not in _EPOCHS}
    if isinstance(value, (list, tuple)):
        return [_without_epochs(inner) for inner in value]
    return value
