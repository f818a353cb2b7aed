"""The trace of a controller, and the differences between two. Pure.

A trace is made comparable by `Normaliser`: what no two clusters can have in common is replaced by a name that says when
it appeared first. What Kafka itself orders or counts by chance is in `NOT_DETERMINISTIC`, each with its reason.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Plain = dict[str, Any]

#: (api, field) -> why Kafka's order of the list is chance; compared as a set
NOT_DETERMINISTIC: Mapping[tuple[str, str], str] = dict.fromkeys(
    (("UpdateMetadata", "live_brokers"), ("LeaderAndIsr", "live_leaders")),
    "Kafka keeps them in a hash set of Broker objects, and the hash of a Broker contains that of an enum, "
    "SecurityProtocol, which differs from one JVM to the next",
)

_TOPIC_ID = re.compile(r'"topic_id":"([\w-]{22})"')
_TIMESTAMP = re.compile(r'"timestamp":"(\d{12,14})"')
_ADDRESS = re.compile(r"127\.0\.0\.1:(\d+)")
_PORT = re.compile(r'"port":(\d+)')
_CLUSTER_ID = re.compile(r'"id":"([\w-]{22})"')
_IDS = frozenset(("topic_id",))
_EPOCHS = frozenset(("broker_epoch",))
_NO_ID = "00000000-0000-0000-0000-000000000000"
#: of responses: texts are each implementation's own, but whether there is one is compared
_TEXTS = frozenset(("error_message",))
_IGNORED = frozenset(("throttle_time_ms",))


class Normaliser:
    """Names what differs between clusters. ``ports``: those of the nodes, by number."""

    def __init__(self, ports: Mapping[int, str]) -> None:
        self._ports = ports
        self._names: dict[tuple[str, Any], str] = {}
        self._counts: Counter[str] = Counter()

    def name(self, kind: str, value: object) -> str:
        """``kind`` with the number of its first appearance."""
        known = self._names.get((kind, value))
        if known is None:
            self._counts[kind] += 1
            known = self._names[kind, value] = f"<{kind} {self._counts[kind]}>"
        return known

    def port(self, number: int) -> str:
        return self._ports.get(number) or f"<port {number}>"

    def answer(self, value: Plain) -> Plain:
        """Of a response, the comparable form: its results are sorted, because a client finds them by name."""
        sorted_: Plain = _sorted(self.message(value))
        return sorted_

    def message(self, value: Any, key: str = "") -> Any:
        """Of plain data, the comparable form."""
        if isinstance(value, dict):
            return {name: self.message(inner, name) for name, inner in value.items() if name not in _IGNORED}
        if isinstance(value, list):
            return [self.message(inner, key) for inner in value]
        if key in _IDS and value != _NO_ID:
            return self.name("topic id", value)
        if key in _EPOCHS and value != -1:
            return self.name("broker epoch", value)
        if key == "port":
            return self.port(value)
        if key in _TEXTS and value:
            return "<text>"
        return value

    def znode(self, path: str, data: bytes) -> Any:
        """Of the data of a znode, the comparable form: the value of its JSON, in which objects have no order, else its
        text."""
        text = data.decode(errors="backslashreplace")
        text = _TOPIC_ID.sub(lambda found: f'"topic_id":"{self.name("znode topic id", found[1])}"', text)
        text = _TIMESTAMP.sub('"timestamp":"<timestamp>"', text)
        text = _ADDRESS.sub(lambda found: f"127.0.0.1:{self.port(int(found[1]))}", text)
        text = _PORT.sub(lambda found: f'"port":"{self.port(int(found[1]))}"', text)
        if path == "/cluster/id":
            text = _CLUSTER_ID.sub('"id":"<cluster id>"', text)
        try:
            return json.loads(text)
        except ValueError:
            return text


@dataclass(slots=True)
class StepTrace:
    """What one step caused. ``requests``: by broker, those that the controller sent it, in order. ``znodes``: path ->
    (data, version) afterwards. ``answers``: the controller's, to what the step asked."""

    step: str
    requests: dict[int, list[Plain]] = field(default_factory=dict)
    znodes: dict[str, tuple[Any, int]] = field(default_factory=dict)
    answers: list[Plain] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Difference:
    """``step``: its number, from 0. ``where``: a broker, a path of a znode, or "answers"."""

    step: int
    operation: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"step {self.step}, {self.operation}: {self.where}: {self.what}"


@dataclass(slots=True)
class Comparison:
    """``by_chance``: requests that are equal but for an order of `NOT_DETERMINISTIC`, by field."""

    steps: int = 0
    requests: int = 0
    identical: int = 0
    znodes: int = 0
    identical_znodes: int = 0
    answers: int = 0
    identical_answers: int = 0
    by_chance: Counter[tuple[str, str]] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)


def compare(ours: Sequence[StepTrace], kafkas: Sequence[StepTrace]) -> Comparison:
    """Ours beside Kafka's, step by step. A request that only one of them sent counts as one."""
    found = Comparison(steps=max(len(ours), len(kafkas)))
    for number in range(found.steps):
        if number >= len(ours) or number >= len(kafkas):
            who = "ours" if number < len(ours) else "Kafka's"
            one = (ours if number < len(ours) else kafkas)[number]
            found.differences.append(Difference(number, one.step, "script", f"only {who} went on"))
            continue
        a, b = ours[number], kafkas[number]
        for broker in sorted(a.requests.keys() | b.requests.keys()):
            pairs = _side_by_side(a.requests.get(broker, []), b.requests.get(broker, []))
            found.requests += len(pairs)
            for at, (mine, theirs) in enumerate(pairs):
                what = list(_request_differences(mine, theirs, found.by_chance))
                found.identical += not what
                found.differences += [Difference(number, a.step, f"broker {broker}, request {at}", one) for one in what]
        for path in sorted(a.znodes.keys() | b.znodes.keys()):
            found.znodes += 1
            what = list(_differences(a.znodes.get(path), b.znodes.get(path)))
            found.identical_znodes += not what
            found.differences += [Difference(number, a.step, path, one) for one in what]
        for mine, theirs in _side_by_side(a.answers, b.answers):
            found.answers += 1
            what = list(_differences(mine, theirs))
            found.identical_answers += not what
            found.differences += [Difference(number, a.step, "answers", one) for one in what]
    return found


def _sorted(value: Any) -> Any:
    """With every list of structs in the order of their texts."""
    if isinstance(value, dict):
        return {name: _sorted(inner) for name, inner in value.items()}
    if isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        return sorted((_sorted(inner) for inner in value), key=repr)
    return value


def _side_by_side(ours: Sequence[Plain], kafkas: Sequence[Plain]) -> list[tuple[Plain | None, Plain | None]]:
    length = max(len(ours), len(kafkas))
    return list(zip(_padded(ours, length), _padded(kafkas, length), strict=True))


def _padded(requests: Sequence[Plain], length: int) -> list[Plain | None]:
    return [*requests, *[None] * (length - len(requests))]


def _request_differences(
    mine: Plain | None, theirs: Plain | None, by_chance: Counter[tuple[str, str]]
) -> Iterator[str]:
    if mine is not None and theirs is not None and mine.get("api") == theirs.get("api"):
        for api, name in NOT_DETERMINISTIC:
            a, b = mine["body"].get(name), theirs["body"].get(name)
            if api == mine["api"] and a != b and _as_set(a) == _as_set(b):
                by_chance[api, name] += 1
                mine = mine | {"body": mine["body"] | {name: b}}
    yield from _differences(mine, theirs)


def _as_set(elements: Iterable[Any] | None) -> list[str]:
    return sorted(map(repr, elements or ()))


def _differences(mine: Any, theirs: Any, at: str = "") -> Iterator[str]:
    """Each field that differs, with both values."""
    if mine == theirs:
        return
    if isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() == theirs.keys():
        for name in mine:
            yield from _differences(mine[name], theirs[name], f"{at}.{name}")
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        if _as_set(mine) == _as_set(theirs):
            yield f"{at.lstrip('.')} in another order: ours {_short(mine)}, Kafka's {_short(theirs)}"
        else:
            for index, (a, b) in enumerate(zip(mine, theirs, strict=True)):
                yield from _differences(a, b, f"{at}[{index}]")
    else:
        yield f"{at.lstrip('.')}: ours {_short(mine)}, Kafka's {_short(theirs)}"


def _short(value: Any) -> str:
    """Of a list of structs, their names; otherwise the value."""
    if isinstance(value, list) and value and all(isinstance(inner, dict) for inner in value):
        names = [
            next((inner[k] for k in ("topic_name", "name", "topic", "partition_index") if k in inner), None)
            for inner in value
        ]
        if None not in names:
            return str(names)
    return f"{value!r:.400}"
