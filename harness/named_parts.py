"""The parts of a message that name a topic or a partition: with them, without them, and put together again.

A part is a structure of any message of Kafka's. A topic that it names also holds for the parts inside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from kce.wire import ErrorCode

#: names of fields, in the messages of all APIs
_TOPIC_FIELDS: Final = ("topic_name", "topic", "name")
_PARTITION_FIELDS: Final = ("partition_index", "partition", "index")

#: whether a part with this topic and this partition is meant
Names = Callable[[str | None, int | None], bool]


def named(message: Any, names: Names) -> Iterator[Any]:
    """Every part that ``names`` selects, and those inside it that it selects, too."""
    return (part for part, topic, partition in _walk(message, None) if names(topic, partition))


def without(message: Any, names: Names) -> Any | None:
    """The message without the parts that ``names`` selects; None if no other part names a topic or a partition."""
    rest = _filtered(message, names, None, keep=False)
    is_left = any(topic is not None or partition is not None for _, topic, partition in _walk(rest, None))
    return rest if is_left else None


def only(response: Any, names: Names, error: ErrorCode) -> Any:
    """The response with only the parts that ``names`` selects, which get the error."""
    for part in tuple(named(response, names)):
        if hasattr(part, "error_code"):
            response = _replaced(response, part, dataclasses.replace(part, error_code=error))
    return _filtered(response, names, None, keep=True)


def merged(response: Any, more: Any) -> Any:
    """The response with the parts of another one of its class, each inside the part that names the same topic."""
    changes = {}
    for name, parts in _lists(more):
        together = list(getattr(response, name))
        for part in parts:
            topic = _topic(part)
            at = next((i for i, other in enumerate(together) if topic is not None and _topic(other) == topic), None)
            if at is None:
                together.append(part)
            else:
                together[at] = merged(together[at], part)
        changes[name] = tuple(together)
    return dataclasses.replace(response, **changes)


def _filtered(part: Any, names: Names, topic: str | None, *, keep: bool) -> Any:
    """With only the parts that are selected, or without them. Parts of which nothing is left go, too."""
    changes = {}
    for name, inner in _lists(part):
        left = []
        for one in inner:
            of = _topic(one) or topic
            if names(of, _partition(one)):
                if keep:
                    left.append(one)
                continue
            rest = _filtered(one, names, of, keep=keep)
            if keep and rest is one:
                continue  # it has nothing inside
            if rest is one or any(parts for _, parts in _lists(rest)):
                left.append(rest)
        changes[name] = tuple(left)
    return dataclasses.replace(part, **changes) if changes else part


def _walk(part: Any, topic: str | None) -> Iterator[tuple[Any, str | None, int | None]]:
    """Every part of a message, with the topic and the partition that it names."""
    topic = _topic(part) or topic
    yield part, topic, _partition(part)
    for _, inner in _lists(part):
        for one in inner:
            yield from _walk(one, topic)


def _lists(part: Any) -> Iterator[tuple[str, Sequence[Any]]]:
    """The fields that have parts, of which there is at least one."""
    for f in dataclasses.fields(part):
        value = getattr(part, f.name)
        if isinstance(value, (str, bytes)) or not hasattr(value, "__getitem__"):
            continue
        if len(value) and dataclasses.is_dataclass(value[0]):
            yield f.name, value


def _topic(part: Any) -> str | None:
    found = (getattr(part, name, None) for name in _TOPIC_FIELDS)
    return next((value for value in found if isinstance(value, str)), None)


def _partition(part: Any) -> int | None:
    found = (getattr(part, name, None) for name in _PARTITION_FIELDS)
    return next((value for value in found if isinstance(value, int)), None)


def _replaced(message: Any, old: Any, new: Any) -> Any:
    """The message with one part replaced."""
    if message is old:
        return new
    changes = {}
    for name, inner in _lists(message):
        replaced = tuple(_replaced(one, old, new) for one in inner)
        if any(a is not b for a, b in zip(replaced, inner, strict=True)):
            changes[name] = replaced
    return dataclasses.replace(message, **changes) if changes else message
