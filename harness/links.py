"""The links of a cluster: every frame between its nodes, and between clients and nodes, passes here.

    Links            one cluster's: rules, subscribers
    FrameEvent       one frame that passed: from, to, listener, header, bytes
    Selection        matches frames; a rule (`kce.harness.faults`) is one that acts on them
    Passage          what becomes of a frame
    connections      (a module) the connections of a node, which pass frames to its links

A frame is observed at one end of its connection: where it is accepted, or where it is dialled if the other end is not
a node of this cluster (such as a real Kafka broker). The rules that match are applied first, then the frame is recorded
and published to subscribers. Without recorder, rules and subscribers a frame costs one test of a flag.
"""

from __future__ import annotations

import base64
import enum
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol

import trio

from kce import wire
from kce.broker_stub.ports import Address
from kce.harness.errors import HarnessError
from kce.wire.registry import BY_NAME

#: a slow subscriber's queue; the oldest events are dropped and counted
SUBSCRIBER_BACKLOG = 10_000
_API_NAMES = BY_NAME.keys()


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
    #: the name of a topic by its id, None if it is not known
    topic_name: Callable[[uuid.UUID], str | None] = field(default=lambda topic_id: None, compare=False, repr=False)

    @property
    def api(self) -> str:
        return wire.api(self.header.api_key).name

    def message(self) -> wire.Message:
        """Decode the body. Raises wire.DecodeError."""
        if self.is_request:
            return wire.decode_request(self.frame)[1]
        key, version = self.header.api_key, self.header.api_version
        return wire.decode_response(self.frame, api_key=key, api_version=version)[1]

    def encode(self, message: wire.Message) -> bytes:
        """The frame with another body. Raises wire.EncodeError."""
        version, correlation_id = self.header.api_version, self.header.correlation_id
        if self.is_request:
            return wire.encode_request(
                message, api_version=version, correlation_id=correlation_id, client_id=self.header.client_id
            )
        return wire.encode_response(message, api_version=version, correlation_id=correlation_id)

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
class Selection:
    """Matches frames by what is given; None matches all.

    api                     one name or several
    source                  the id of the node that sends the frame
    to                      the id of the node that receives it
    listener                the name of the listener of its connection
    is_request              True for requests, False for responses
    """

    api: str | Collection[str] | None = None
    source: int | None = None
    to: int | None = None
    listener: str | None = None
    is_request: bool | None = True
    _apis: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises HarnessError for an API that does not exist."""
        names = () if self.api is None else (self.api,) if isinstance(self.api, str) else tuple(self.api)
        if unknown := sorted(set(names) - _API_NAMES):
            raise HarnessError(f"api={', '.join(unknown)}: Kafka has no such API; names are like LeaderAndIsr")
        self._apis = frozenset(names)

    def describe(self) -> str:
        """Describe the selection, for messages."""
        given = ((f.name, getattr(self, f.name), f.default) for f in fields(self) if f.init and f.name != "is_request")
        kind = {True: "requests", False: "responses", None: "frames"}[self.is_request]
        return " ".join([kind, *(f"{name}={_said(value)}" for name, value, default in given if value != default)])

    def matches(self, event: FrameEvent) -> bool:
        return (
            (self.source is None or self.source == event.source)
            and (self.to is None or self.to == event.destination)
            and (self.listener is None or self.listener == event.listener)
            and (self.is_request is None or self.is_request == event.is_request)
            and (not self._apis or event.api in self._apis)
        )


def _said(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return value.name
    return ",".join(value) if isinstance(value, (list, tuple, set, frozenset)) else repr(value)


class Ending(enum.Enum):
    """The fate of a connection after a frame."""

    CLOSE = "close"
    HALF_OPEN = "half open"


CLOSE: Final = Ending.CLOSE


@dataclass(slots=True)
class Passage:
    """The fate of one frame; rules change it.

    ``frames`` are forwarded in its place, in ``segments`` of so many bytes, or after the next frame of the connection.
    ``reply`` is a response to the requester; ``completions`` add to the one that comes. ``cut`` is how many bytes still
    pass before the end. ``slow_close`` is how many seconds after its sender has closed the connection the other end
    learns of it.
    """

    frames: list[bytes]
    reply: bytes | None = None
    completions: list[Callable[[Any], wire.Message]] = field(default_factory=list)
    segments: int | None = None
    after_next: bool = False
    ending: Ending | None = None
    cut: int | None = None
    slow_close: float = 0


class Interceptor(Protocol):
    """A rule: `kce.harness.faults.Rule` is the one that there is."""

    def matches(self, event: FrameEvent) -> bool: ...

    async def apply(self, event: FrameEvent, passage: Passage) -> None:
        """Called for each frame that matches, before it is forwarded. The connection waits."""

    def release(self) -> None:
        """Forward what it holds; it is being removed."""


class Subscription:
    """Frames that pass, in order. ``dropped`` counts those that a slow subscriber missed."""

    def __init__(self, matching: Selection | None) -> None:
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
        #: topics by their ids, of each node that knows them: messages may name only ids
        self.topic_names: dict[int, Callable[[], Mapping[uuid.UUID, str]]] = {}
        self._rules: list[Interceptor] = []
        self._listeners: list[Callable[[FrameEvent], None]] = []

    @property
    def rules(self) -> tuple[Interceptor, ...]:
        return tuple(self._rules)

    @property
    def has_subscribers(self) -> bool:
        return bool(self._listeners)

    def add(self, rule: Interceptor) -> None:
        """Apply the rule to frames from now on, after the rules that were added earlier.

        Raises HarnessError for one that is among them: its counts would be those of both.
        """
        if rule in self._rules:
            raise HarnessError("this rule is applied already: make another one")
        self._rules.append(rule)
        self._changed()

    def remove(self, rule: Interceptor) -> None:
        """Frames that it holds go on. Raises ValueError for a rule that was not added."""
        self._rules.remove(rule)
        rule.release()
        self._changed()

    @contextmanager
    def subscribe(self, matching: Selection | None = None) -> Iterator[Subscription]:
        """Receive frames that pass during the block. ``matching`` selects frames; it does not act on them.

        with cluster.links.subscribe(Selection(api="LeaderAndIsr", to=2)) as frames:
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

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """The name of a topic, None if no node knows it."""
        found = (names().get(topic_id) for names in self.topic_names.values())
        return next((name for name in found if name is not None), None)

    def publish(self, event: FrameEvent) -> None:
        for callback in self._listeners:
            callback(event)

    async def apply_rules(self, event: FrameEvent) -> Passage | None:
        """Apply the rules to a frame; None if none matches."""
        passage: Passage | None = None
        for rule in self._rules.copy():
            if rule.matches(event):
                passage = passage or Passage([event.frame])
                await rule.apply(event, passage)
        return passage

    def _changed(self) -> None:
        self.observed = bool(self._rules or self._listeners)
