"""Every request and response of a cluster, in the order in which they passed its links."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import trio

from kce import wire
from kce.harness.errors import HarnessError
from kce.harness.links import FrameEvent, Links, Selection

#: older events are dropped, and counted
MAX_EVENTS = 100_000
#: of their frames together: those of producers and consumers may be large
MAX_BYTES = 512 << 20
#: events that an error message shows
_SHOWN = 20
WAIT_TIMEOUT_S = 60.0
_NOT_KEPT = "no history is kept: with history=True it is, also of nodes in processes"


class History:
    """Collects the frames that pass ``links`` while ``recording`` runs.

    A selection is given as the fields of a `Selection`: ``history.events(api="LeaderAndIsr", to=2)``. Without
    ``is_request`` these are requests; ``is_request=None`` selects both directions.
    """

    def __init__(self, links: Links, *, is_kept: bool = True) -> None:
        """Unless it ``is_kept``, it has no frames, and who selects some gets a HarnessError."""
        self.is_kept = is_kept
        self._links = links
        self._events: deque[FrameEvent] = deque()
        self._bytes = 0
        self._changed = trio.Event()
        #: how many frames have passed, including those that were dropped here
        self.count = 0

    def record(self, event: FrameEvent) -> None:
        self._events.append(event)
        self._bytes += len(event.frame)
        while len(self._events) > MAX_EVENTS or (self._bytes > MAX_BYTES and len(self._events) > 1):
            self._bytes -= len(self._events.popleft().frame)
        self.count += 1
        self._changed.set()

    @property
    def dropped(self) -> int:
        return self.count - len(self._events)

    def __iter__(self) -> Iterator[FrameEvent]:
        return iter(tuple(self._events))

    def __len__(self) -> int:
        return len(self._events)

    def clear(self) -> None:
        self._events.clear()
        self._bytes = self.count = 0

    def events(self, where: Callable[[wire.Message], bool] | None = None, **selection: Any) -> list[FrameEvent]:
        """The selected events. ``where`` gets the decoded message."""
        wanted = Selection(**selection)
        self._check_kept()
        return [e for e in self if wanted.matches(e) and (where is None or where(e.message()))]

    def messages(self, where: Callable[[wire.Message], bool] | None = None, **selection: Any) -> list[wire.Message]:
        return [event.message() for event in self.events(where, **selection)]

    async def wait_for(
        self,
        where: Callable[[wire.Message], bool] | None = None,
        *,
        count: int = 1,
        timeout_s: float = WAIT_TIMEOUT_S,
        **selection: Any,
    ) -> list[FrameEvent]:
        """Wait until the history has ``count`` selected events; events of the past count too.

        Raises HarnessError that shows what came instead.
        """
        wanted = Selection(**selection)
        self._check_kept()
        found: list[FrameEvent] = []
        seen = 0
        with trio.move_on_after(timeout_s):
            while True:
                new, seen = self.count - seen, self.count
                latest = tuple(self._events)[-new:] if new else ()
                found += [e for e in latest if wanted.matches(e) and (where is None or where(e.message()))]
                if len(found) >= count:
                    return found
                self._changed = trio.Event()
                await self._changed.wait()
        raise HarnessError(
            f"timed out after {timeout_s:g} s waiting for {count} of {wanted.describe()}, found {len(found)}; "
            f"{self.last_frames()}"
        )

    def assert_count(
        self, count: int, where: Callable[[wire.Message], bool] | None = None, **selection: Any
    ) -> list[FrameEvent]:
        """The selected events, exactly ``count``. Raises AssertionError that shows what came instead."""
        found = self.events(where, **selection)
        if len(found) != count:
            raise AssertionError(
                f"expected {count} of {Selection(**selection).describe()}, found {len(found)}; {self.last_frames()}"
            )
        return found

    def assert_none(self, where: Callable[[wire.Message], bool] | None = None, **selection: Any) -> None:
        """Raises AssertionError that shows the events that should not be there."""
        found = self.events(where, **selection)
        if found:
            lines = "\n  ".join(line(event) for event in found[:_SHOWN])
            raise AssertionError(f"expected no {Selection(**selection).describe()}, found {len(found)}:\n  {lines}")

    def last_frames(self) -> str:
        """The last frames that passed, as text."""
        if not self._events:
            return "no frame has passed" if self.is_kept else _NOT_KEPT
        last = tuple(self._events)[-_SHOWN:]
        lines = "\n  ".join(line(event) for event in last)
        return f"the last {len(last)} of {self.count} frames:\n  {lines}"

    def _check_kept(self) -> None:
        if not self.is_kept:
            raise HarnessError(_NOT_KEPT)

    def trace(self, *, times: bool = True) -> Iterator[str]:
        """A line of JSON for each event. Without ``times`` two runs of the same seed give the same lines."""
        for event in self:
            yield json.dumps(as_dict(event, times=times), ensure_ascii=False, separators=(",", ":"))

    def write(self, path: Path | str, *, times: bool = True) -> None:
        """Write the trace to a file, which tools like diff and jq can read."""
        with Path(path).open("w", encoding="utf-8") as file:
            file.writelines(f"{text}\n" for text in self.trace(times=times))


def as_dict(event: FrameEvent, *, times: bool = True) -> dict[str, Any]:
    """An event as JSON values. ``from`` and ``to`` are node ids, null for a client."""
    header = event.header
    fields: dict[str, Any] = {"time": event.time_ns / 1e9} if times else {}
    fields |= {
        "kind": "request" if event.is_request else "response",
        "from": event.source,
        "to": event.destination,
        "listener": event.listener,
        "api": event.api,
        "version": header.api_version,
        "correlation_id": header.correlation_id,
        "client_id": header.client_id,
    }
    try:
        fields["body"] = wire.as_dict(event.message(), header.api_version)
    except wire.DecodeError as e:
        fields["error"] = str(e)
    return fields


def line(event: FrameEvent) -> str:
    """An event as a line of text."""

    def name(node: int | None) -> str:
        return "client" if node is None else f"node {node}"

    try:
        message: object = event.message()
    except wire.DecodeError as e:
        message = f"not decoded: {e}"
    arrow = "->" if event.is_request else "=>"
    text = str(message)
    shown = text if len(text) <= _LINE_CHARACTERS else f"{text[:_LINE_CHARACTERS]}..."
    return f"{name(event.source)} {arrow} {name(event.destination)} {event.api} v{event.header.api_version} {shown}"


_LINE_CHARACTERS = 200
