"""Rules: faults in the frames that pass the links of a cluster.

    async with cluster.faults(Rule(api="LeaderAndIsr", to=2, nth=3, delay=5)) as fault:
        ...
    assert fault.fired == 1

A rule selects frames (see `Selection`), counts those that match, and acts on the ones that ``nth``, ``every`` and
``probability`` choose. Several rules apply in their order. They act where a frame is observed: where its connection is
accepted, or where it is dialled if the other end is not a node of the cluster.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

import trio

from kce import wire
from kce.broker_stub.handlers.kafka_apis import HANDLERS
from kce.broker_stub.reactor import RequestContext
from kce.harness import named_parts
from kce.harness.errors import HarnessError
from kce.harness.history import History
from kce.harness.links import CLOSE, Ending, FrameEvent, Passage, Selection
from kce.wire import ErrorCode
from kce.wire.registry import CONTROL_REQUESTS, Direction, message_class

log = logging.getLogger(__name__)

_HANDLERS = {handler.api_key: handler for handler in HANDLERS}
#: epochs of a request, compared with the newest that the links have seen
CONTROLLER = "controller"
_RELATIONS = ("older", "equal", "newer")
#: by ``is_request``
_DIRECTIONS: dict[bool | None, tuple[Direction, ...]] = {
    True: ("request",), False: ("response",), None: ("request", "response")
}  # fmt: skip

#: the types that JSON may give the fields of a rule: a wrong one would match nothing, or end a node
_NUMBERS = "source to version partition nth every seed truncate corrupt segments close_after"
_FLAGS = "is_request drop hold duplicate reorder reset half_open"
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(_NUMBERS.split(), (int,)),
    **dict.fromkeys(_FLAGS.split(), (bool,)),
    **dict.fromkeys(("listener", "client_id", "topic"), (str,)),
    **dict.fromkeys(("probability", "delay", "jitter", "bandwidth", "slow_close"), (int, float)),
    **dict.fromkeys(("controller_epoch", "broker_epoch", "error"), (int, str)),
    "api": (str, list),
    "change": (dict,),
}


@dataclass(kw_only=True, eq=False)
class Rule(Selection):
    """It selects frames by the fields of `Selection` and by:

    version                 API version in the request's header
    client_id               client id in the request's header
    controller_epoch        controller epoch in the message: a number, or "older", "equal" or "newer" than the newest
                            one seen
    broker_epoch            broker epoch in the message, likewise; compared with the newest one seen by that broker
    topic                   a topic that the message names, or whose topic id it has; of a fetch session, requests name
                            only partitions that are new or have moved on
    partition               a partition that the message names; with `topic`, a partition of it
    where                   a function of the decoded message that says whether it matches

    It acts on all matching frames, or on those that these choose:

    nth                     only the nth matching frame, from 1
    every                   every nth matching frame
    probability             each matching frame with this probability, 0 to 1
    seed                    seed of the random numbers; by default that of the run in memory

    What it does to them:

    drop                    lose the frame
    delay                   forward the frame after so many seconds; later frames of its connection wait
    jitter                  add a random time of up to so many seconds to the delay
    bandwidth               forward the frame at so many bytes a second
    hold                    keep the frame until the rule is released or removed
    duplicate               forward the frame twice
    reorder                 forward the frame after the next one of its connection
    error                   answer the request with this error, such as NOT_CONTROLLER; the other end never sees it.
                            Where brokers have no error response, as for Produce with acks=0, break the connection.
                            With `topic` or `partition`, only those get the error: the other end sees the request
                            without them, and what it answers goes back with the errors; where a response has only one
                            error for all, as of UpdateMetadata, the whole request gets it
    change                  replace fields of the message: {"controller_epoch": 1}, or a function of the message
    truncate                forward only so many bytes, as a whole frame
    corrupt                 change so many random bytes after the header
    segments                send the frame in pieces of so many bytes; only frames that this end sends
    reset                   break the connection instead of forwarding the frame
    close_after             break the connection once so many bytes of matching frames have passed
    half_open               keep the connection open, and let nothing pass on it any more
    slow_close              when the sender closes the connection, tell the other end so many seconds later; of a
                            node's own end, on responses, only through `kce.Proxy`
    """

    version: int | None = None
    client_id: str | None = None
    controller_epoch: int | str | None = None
    broker_epoch: int | str | None = None
    topic: str | None = None
    partition: int | None = None
    where: Callable[[wire.Message], bool] | None = None

    nth: int | None = None
    every: int | None = None
    probability: float | None = None
    seed: int | None = None

    drop: bool = False
    delay: float = 0
    jitter: float = 0
    bandwidth: float | None = None
    hold: bool = False
    duplicate: bool = False
    reorder: bool = False
    error: ErrorCode | None = None
    change: Mapping[str, Any] | Callable[[Any], wire.Message] | None = None
    truncate: int | None = None
    corrupt: int | None = None
    segments: int | None = None
    reset: bool = False
    close_after: int | None = None
    half_open: bool = False
    slow_close: float = 0

    #: how many frames matched, and on how many it acted
    matched: int = field(default=0, init=False)
    fired: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Raises HarnessError for values that cannot be."""
        super().__post_init__()
        for name in ("nth", "every", "segments", "bandwidth"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise HarnessError(f"Rule({name}={value}): must be above 0")
        for name in ("partition", "delay", "jitter", "truncate", "corrupt", "close_after", "slow_close"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise HarnessError(f"Rule({name}={value}): must not be below 0")
        for name in ("bandwidth", "delay", "jitter", "slow_close"):
            if not math.isfinite(getattr(self, name) or 0):
                raise HarnessError(f"Rule({name}={getattr(self, name)}): must be finite")
        for name in ("controller_epoch", "broker_epoch"):
            value = getattr(self, name)
            if isinstance(value, str) and value not in _RELATIONS:
                raise HarnessError(f"Rule({name}={value!r}): must be a number or one of {', '.join(_RELATIONS)}")
        if self.probability is not None and not 0 <= self.probability <= 1:
            raise HarnessError(f"Rule(probability={self.probability}): must be from 0 to 1")
        if self.error is not None and self.is_request is not True:
            raise HarnessError("Rule(error=...) answers requests: leave is_request at True")
        if isinstance(self.change, Mapping):
            self._check_change(self.change)
        self._random = Random(self.seed or 0)
        self._released = trio.Event()
        self._bytes = 0
        #: the newest controller epoch, and the newest broker epoch by destination, with which epochs are compared
        self.newest: dict[str, int] = {}

    def _check_change(self, change: Mapping[str, Any]) -> None:
        """Raises HarnessError for what would break the connection of the first frame: fields that a message of ``api``
        does not have (without it, that none has), and values that they cannot have."""
        selected: list[Any] = [
            cls for known in wire.API_KEYS if not self._apis or known.name in self._apis
            for direction in _DIRECTIONS[self.is_request] if (cls := message_class(known.key, direction)) is not None
        ]  # fmt: skip
        lacking = [cls for cls in selected if not change.keys() <= {f.name for f in dataclasses.fields(cls)}]
        if lacking and self._apis:
            raise _no_such_fields(change, lacking[0])
        if len(lacking) == len(selected):
            raise HarnessError(f"Rule(change={dict(change)}): no message has these fields; `kce schema` lists them")
        for cls in selected if self._apis else ():
            message, version = dataclasses.replace(cls(), **change), wire.api(cls.__api_key__).versions.last
            try:
                if cls.__direction__ == "request":
                    wire.encode_request(message, api_version=version, correlation_id=0, client_id=None)
                else:
                    wire.encode_response(message, api_version=version, correlation_id=0)
            except wire.EncodeError as e:
                raise HarnessError(f"Rule(change={dict(change)}): {e}") from None

    def use_seed_of_run(self, seed: str) -> None:
        """Random numbers from this seed, unless the rule has its own."""
        if self.seed is None:
            self._random = Random(seed)

    @property
    def needs_message(self) -> bool:
        """Whether matching takes the decoded message."""
        wanted = (self.controller_epoch, self.broker_epoch, self.topic, self.partition, self.where)
        return any(value is not None for value in wanted)

    def matches(self, event: FrameEvent) -> bool:
        header = event.header
        if not super().matches(event) or (
            (self.version is not None and self.version != header.api_version)
            or (self.client_id is not None and self.client_id != header.client_id)
            or not self._has_fields(event)
        ):
            return False
        if not self.needs_message:
            return True
        try:
            message = event.message()
        except wire.DecodeError:
            return False
        return (
            self._epoch_matches(self.controller_epoch, getattr(message, "controller_epoch", None), CONTROLLER)
            and self._epoch_matches(self.broker_epoch, getattr(message, "broker_epoch", None), str(event.destination))
            and ((self.topic is None and self.partition is None) or named_parts.is_named(message, self._names(event)))
            and (self.where is None or self.where(message))
        )

    def _has_fields(self, event: FrameEvent) -> bool:
        """Whether the message has the fields that are changed; without ``api``, others do not match."""
        if self._apis or not isinstance(self.change, Mapping):
            return True
        cls: Any = message_class(event.header.api_key, "request" if event.is_request else "response")
        return cls is not None and self.change.keys() <= {f.name for f in dataclasses.fields(cls)}

    def _epoch_matches(self, wanted: int | str | None, epoch: int | None, whose: str) -> bool:
        if wanted is None:
            return True
        if epoch is None:
            return False
        if isinstance(wanted, int):
            return epoch == wanted
        newest = self.newest.get(whose, epoch)
        self.newest[whose] = max(newest, epoch)
        return wanted == ("older" if epoch < newest else "newer" if epoch > newest else "equal")

    def _names(self, event: FrameEvent) -> named_parts.Names:
        return named_parts.Names(self.topic, self.partition, event.topic_name)

    async def apply(self, event: FrameEvent, passage: Passage) -> None:
        self.matched += 1
        if not self._is_chosen():
            return
        self.fired += 1
        if self.hold:
            await self._released.wait()
        size = sum(map(len, passage.frames))
        seconds = self.delay + self.jitter * self._random.random() + (size / self.bandwidth if self.bandwidth else 0)
        if seconds:
            await trio.sleep(seconds)
        if self.error is not None:
            self._refuse(event, passage, self.error)
        if self.drop:
            passage.frames.clear()
        passage.frames = [self._changed(event, frame) for frame in passage.frames]
        if self.duplicate:
            passage.frames *= 2
        passage.after_next |= self.reorder
        passage.segments = self.segments or passage.segments
        passage.slow_close = max(passage.slow_close, self.slow_close)
        if self.reset:
            passage.ending, passage.cut = CLOSE, 0
        elif self.close_after is not None and self._bytes + size >= self.close_after:
            passage.ending, passage.cut = CLOSE, self.close_after - self._bytes
        elif self.half_open:
            passage.ending = Ending.HALF_OPEN
        self._bytes += size

    def _is_chosen(self) -> bool:
        if self.nth is not None:
            return self.matched == self.nth
        if self.every is not None:
            return self.matched % self.every == 0
        return self.probability is None or self._random.random() < self.probability

    def release(self) -> None:
        """Forward the frames that the rule holds, and hold none from now on."""
        self._released.set()

    def _changed(self, event: FrameEvent, frame: bytes) -> bytes:
        if self.change is not None:  # of what earlier rules have made of it
            event = event if frame is event.frame else dataclasses.replace(event, frame=frame)
            try:
                frame = event.encode(self._new_message(event))
            except wire.WireError as e:  # truncated or corrupted, or this version cannot have the values
                log.warning("a rule cannot change a frame of %s %d: %s", event.api, event.header.api_version, e)
        if self.corrupt:
            body = range(8 if event.is_request else 4, len(frame))  # empty if an earlier rule has truncated it
            changed = bytearray(frame)
            for at in self._random.sample(body, min(self.corrupt, len(body))):
                changed[at] ^= self._random.randrange(1, 256)
            frame = bytes(changed)
        return frame if self.truncate is None else frame[: self.truncate]

    def _new_message(self, event: FrameEvent) -> wire.Message:
        message: Any = event.message()
        if callable(self.change):
            return self.change(message)
        assert self.change is not None
        changed: wire.Message = dataclasses.replace(message, **self.change)
        return changed

    def _refuse(self, event: FrameEvent, passage: Passage, error: ErrorCode) -> None:
        """Answer the request, or only what it names; the rest of it is forwarded, and its response completed."""
        rest: Any = None
        refused: Any = None
        try:
            if passage.frames:  # of what earlier rules have made of it
                event = dataclasses.replace(event, frame=passage.frames[0])
            message: Any = event.message()
            handler = _HANDLERS.get(event.header.api_key)
            context = RequestContext(event.header, None)  # type: ignore[arg-type]  # only the header is needed
            refused = None if handler is None else handler.error_response(message, context, error)
            if handler is not None and refused is not None and (self.topic is not None or self.partition is not None):
                fine: Any = handler.error_response(message, context, ErrorCode.NONE)
                names = self._names(event)
                part = named_parts.refusal(message, fine, names, error, event.header.api_version)
                if part is not None:
                    rest, refused = named_parts.without(message, names), part
        except wire.DecodeError:
            pass
        if refused is None:  # as a broker does, where an error cannot be told
            passage.ending, passage.cut = CLOSE, 0
        elif rest is None:
            for complete in passage.completions:
                refused = complete(refused)
            passage.completions.clear()
            header = event.header
            passage.reply = wire.encode_response(
                refused, api_version=header.api_version, correlation_id=header.correlation_id
            )
        else:
            passage.frames[:] = [event.encode(rest)]
            passage.completions.append(lambda response: _completed(response, refused))
            return
        passage.frames.clear()

    # as JSON, for nodes in processes of their own and for `kce fault`

    def to_json(self) -> dict[str, Any]:
        """The fields that are not at their default. Raises HarnessError for a function."""
        fields = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if not f.init or value == f.default:
                continue
            if callable(value):
                raise HarnessError(f"Rule({f.name}=<function>) works only for nodes in this process")
            fields[f.name] = sorted(value) if isinstance(value, (set, frozenset)) else value
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Rule:
        """Raises HarnessError for fields that a rule does not have, and for values that they cannot have."""
        known = {f.name: f.default for f in dataclasses.fields(cls) if f.init}
        if unknown := sorted(fields.keys() - known):
            raise HarnessError(f"a rule has no {', '.join(unknown)}; it has {', '.join(sorted(known))}")
        for name, value in fields.items():
            if value is not None or not (known[name] is None or name == "is_request"):
                _check_type(name, value)
        values = dict(fields)
        if (error := values.get("error")) is not None:
            try:
                values["error"] = ErrorCode[error] if isinstance(error, str) else ErrorCode(error)
            except (KeyError, ValueError):
                raise HarnessError(f"Rule(error={error}): Kafka has no such error") from None
        try:
            return cls(**values)
        except TypeError as e:
            raise HarnessError(f"a rule has no such values: {values} ({e})") from None


def _completed(response: Any, refused: Any) -> Any:
    response = named_parts.merged(response, refused)
    if isinstance(response, wire.FetchResponse):  # the broker's session lacks partitions: the client begins a new one
        response = dataclasses.replace(response, session_id=0)
    return response


def _no_such_fields(change: Mapping[str, Any], cls: Any) -> HarnessError:
    known = ", ".join(f.name for f in dataclasses.fields(cls))
    return HarnessError(f"Rule(change={dict(change)}): {cls.__name__} has the fields {known}")


def _check_type(name: str, value: Any) -> None:
    """Raises HarnessError."""
    if name not in _TYPES:
        raise HarnessError(f"Rule({name}={value!r}): a function works only for nodes in this process")
    types = _TYPES[name]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise HarnessError(f"Rule({name}={value!r}): must be of type {' or '.join(t.__name__ for t in types)}")


class TakesRules(Protocol):
    """A cluster, or a proxy."""

    @property
    def history(self) -> History: ...

    async def add_rule(self, rule: Rule) -> None: ...
    async def remove_rule(self, rule: Rule) -> None: ...


@asynccontextmanager
async def applied(target: TakesRules, rules: Sequence[Rule], *, must_fire: bool) -> AsyncIterator[Rule]:
    """Apply rules during the block; yields the first. A rule that has not fired at the end is an AssertionError that
    shows what came instead, unless ``must_fire`` is False."""
    added = []
    try:
        for each in rules:
            await target.add_rule(each)
            added.append(each)
        yield rules[0]
    finally:
        with trio.CancelScope(shield=True):
            for each in added:
                await target.remove_rule(each)
    for each in rules:
        if must_fire and not each.fired:
            raise AssertionError(
                f"the rule for {each.describe()} did not fire, of {each.matched} frames that matched; "
                f"{target.history.last_frames()}"
            )


def hold_control_requests(source: int) -> Rule:
    """Holds what the node ``source`` sends as controller."""
    return Rule(api=sorted(wire.api(key).name for key in CONTROL_REQUESTS), source=source, hold=True)
