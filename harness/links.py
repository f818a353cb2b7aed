"""The links of a cluster: every frame between its nodes, and between clients and nodes, passes here.

    Links            one cluster's: rules, subscribers
    FrameEvent       one frame that passed: from, to, listener, header, bytes
    Rule, Hold       act on frames that match
    connections      (a module) the connections of a node, which pass frames to its links

A frame is observed at one end of its connection: where it is accepted, or where it is dialled if the other end is not
a node of this cluster (such as a real Kafka broker). The rules that match are applied first, then the frame is recorded
and published to subscribers. Without recorder, rules and subscribers a frame costs one test of a flag.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import trio

from kce import wire
from kce.broker_stub.ports import Address
from kce.wire.registry import CONTROL_REQUESTS

#: a slow subscriber's queue; the oldest events are dropped and counted
SUBSCRIBER_BACKLOG = 10_000


@dataclass(frozen=True, slots=True)
class FrameEvent:
    """One frame. ``source`` and ``destination`` are node ids, None for a client.

    ``header`` is the request's header, also for a response. ``frame`` is without the length prefix.
    """

    time_ns: int
    source: int | None
    destination: int | None
    listener: str
    is_request: bool
    header: wire.Header
    frame: bytes

    @property
    def api(self) -> str:
        return wire.api(self.header.api_key).name

    def message(self) -> wire.Message:
        """Decode the body. Raises wire.DecodeError."""
        if self.is_request:
            return wire.decode_request(self.frame)[1]
        key, version = self.header.api_key, self.header.api_version
        return wire.decode_response(self.frame, api_key=key, api_version=version)[1]

    def to_json(self) -> dict[str, Any]:
        """The event as JSON values, for ``from_json``."""
        fields = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        return {**fields, "header": self.header._asdict(), "frame": base64.b64encode(self.frame).decode()}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> FrameEvent:
        plain = {name: fields[name] for name in _PLAIN_FIELDS}
        return cls(**plain, header=wire.Header(**fields["header"]), frame=base64.b64decode(fields["frame"]))


_PLAIN_FIELDS = ("time_ns", "source", "destination", "listener", "is_request")


@dataclass(kw_only=True, eq=False)
class Rule:
    """Matches frames by what is given; None matches all. ``api`` is one name or several, ``source`` and ``to`` are
    node ids."""

    api: str | Collection[str] | None = None
    source: int | None = None
    to: int | None = None
    listener: str | None = None
    is_request: bool | None = True

    def describe(self) -> str:
        """What it matches, for messages."""
        given = ((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "is_request")
        kind = {True: "requests", False: "responses", None: "frames"}[self.is_request]
        return " ".join([kind, *(f"{name}={value!r}" for name, value in given if value is not None)])

    def matches(self, event: FrameEvent) -> bool:
        return (
            (self.source is None or self.source == event.source)
            and (self.to is None or self.to == event.destination)
            and (self.listener is None or self.listener == event.listener)
            and (self.is_request is None or self.is_request == event.is_request)
            and (self.api is None or event.api in ((self.api,) if isinstance(self.api, str) else self.api))
        )

    async def apply(self, event: FrameEvent) -> None:
        """Called for each frame that matches, before it is forwarded. The connection waits."""


@dataclass(kw_only=True, eq=False)
class Hold(Rule):
    """Holds frames until ``release``.

    Hold the requests of a controller until another is elected, then release them: the brokers see a zombie.
    """

    def __post_init__(self) -> None:
        self._released = trio.Event()

    async def apply(self, event: FrameEvent) -> None:
        await self._released.wait()

    def release(self) -> None:
        self._released.set()


def hold_control_requests(source: int) -> Hold:
    """Holds the control requests of the node ``source``."""
    return Hold(api=frozenset(wire.api(key).name for key in CONTROL_REQUESTS), source=source)


class Subscription:
    """Frames that pass, in order. ``dropped`` counts those that a slow subscriber missed."""

    def __init__(self, matching: Rule | None) -> None:
        self.matching = matching
        self.dropped = 0
        self._events: deque[FrameEvent] = deque()
        self._more = trio.Event()

    def publish(self, event: FrameEvent) -> None:
        if self.matching is not None and not self.matching.matches(event):
            return
        if len(self._events) >= SUBSCRIBER_BACKLOG:
            self._events.popleft()
            self.dropped += 1
        self._events.append(event)
        self._more.set()

    def __aiter__(self) -> AsyncIterator[FrameEvent]:
        return self

    async def __anext__(self) -> FrameEvent:
        await trio.lowlevel.checkpoint()
        while not self._events:
            self._more = trio.Event()
            await self._more.wait()
        return self._events.popleft()


class Links:
    """The shared state of all links of a process. ``members`` are the ids of the cluster's nodes."""

    def __init__(self, members: Collection[int] = ()) -> None:
        self.members = set(members)
        #: whether there are rules or subscribers
        self.observed = False
        #: called with True for the first subscriber, with False after the last
        self.on_subscribers: Callable[[bool], None] = lambda any_left: None
        #: node ids by the local address of the connections that they dialled in this process
        self.dialled: dict[Address, int] = {}
        self._rules: list[Rule] = []
        self._listeners: list[Callable[[FrameEvent], None]] = []

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(self._rules)

    @property
    def has_subscribers(self) -> bool:
        return bool(self._listeners)

    def add(self, rule: Rule) -> None:
        """Apply the rule to frames from now on, after the rules that were added earlier."""
        self._rules.append(rule)
        self._changed()

    def remove(self, rule: Rule) -> None:
        """Raises ValueError for a rule that was not added."""
        self._rules.remove(rule)
        self._changed()

    @contextmanager
    def subscribe(self, matching: Rule | None = None) -> Iterator[Subscription]:
        """Receive frames that pass during the block. ``matching`` selects frames; it does not act on them.

        with cluster.links.subscribe(Rule(api="LeaderAndIsr", to=2)) as frames:
            async for event in frames: ...
        """
        subscription = Subscription(matching)
        with self.listen(subscription.publish):
            yield subscription

    @contextmanager
    def listen(self, callback: Callable[[FrameEvent], None]) -> Iterator[None]:
        """Call ``callback`` with every frame that passes during the block. It must not block."""
        self._listeners.append(callback)
        self._changed()
        if len(self._listeners) == 1:
            self.on_subscribers(True)
        try:
            yield
        finally:
            self._listeners.remove(callback)
            self._changed()
            if not self._listeners:
                self.on_subscribers(False)

    def publish(self, event: FrameEvent) -> None:
        for callback in self._listeners:
            callback(event)

    async def apply_rules(self, event: FrameEvent) -> None:
        for rule in self._rules.copy():
            if rule.matches(event):
                await rule.apply(event)

    def _changed(self) -> None:
        self.observed = bool(self._rules or self._listeners)
