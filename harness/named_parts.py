"""The parts of a message that name a topic or a partition: with them, without them, and put together again.

A part is a structure of any message of Kafka's, or the plain number of a partition or name of a topic in a list of
them. A topic that it names also holds for the parts inside it.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kce.wire import ErrorCode
from kce.wire.registry import message_class
from kce.wire.schema import Field

#: by the field that says it, in the messages of all APIs: what a part is about
_KINDS: Final = {
    **dict.fromkeys(("topic_name", "topic", "name"), "topic"),
    "topic_id": "topic_id",
    **dict.fromkeys(("partition_index", "partition", "index", "partition_id"), "partition"),
    **{name: name for name in ("group_id", "transactional_id", "producer_id", "resource_type", "resource_name")},
}
#: the type of a resource that is a topic, whose name is in `resource_name`
_TOPIC_RESOURCE: Final = 2
#: fields with parts whose `name` is that of something else: a setting, an assignor, a feature, a user
_NAMES_OF_OTHERS: Final = frozenset({
    "configs", "synonyms", "protocols", "supported_features", "finalized_features", "users", "deletions", "upsertions",
})  # fmt: skip
#: fields with plain numbers and names
_PARTITIONS: Final = ("partitions", "partition_indexes")
_TOPICS: Final = ("topic_names",)
#: what says that a part is about a topic, a partition or a resource
_SUBJECTS: Final = frozenset({"topic", "topic_id", "partition", "resource_name"})
_ERRORS: Final = ("error_code", "partition_error_code")

About = Mapping[str, Any]


@dataclass(frozen=True)
class Names:
    """Selects parts: those with this topic, with this partition, or with both. ``topic_name``: the name by a topic id,
    None if it is not known."""

    topic: str | None = None
    partition: int | None = None
    topic_name: Callable[[uuid.UUID], str | None] = lambda topic_id: None

    def select(self, about: About) -> bool:
        topic, partition = about.get("topic"), about.get("partition")
        return (
            (self.topic is None or topic == self.topic)
            and (self.partition is None or partition == self.partition)
            and (self.partition is not None or topic is not None)
        )

    def about(self, part: Any, outer: About) -> About:
        """What a part is about; ``outer`` is that of the part around it."""
        if isinstance(part, (str, int)):
            return {**outer, "topic" if isinstance(part, str) else "partition": part}
        about = dict(outer)
        for f in dataclasses.fields(part):
            kind, value = _KINDS.get(f.name), getattr(part, f.name)
            if kind is not None and value is not None and (kind != "topic" or value):
                about[kind] = value
        if about.get("resource_type") == _TOPIC_RESOURCE:
            about["topic"] = about["resource_name"]
        if "topic" not in about and "topic_id" in about and (name := self.topic_name(about["topic_id"])) is not None:
            about["topic"] = name
        return about


def is_named(message: Any, names: Names) -> bool:
    """Whether ``names`` selects a part."""
    return any(names.select(about) for _, about in _walk(message, names, {}))


def without(message: Any, names: Names) -> Any | None:
    """The message without the parts that ``names`` selects; None if no other part names a topic or a partition."""
    rest = _filtered(message, names, {}, keep=False)
    is_left = any(about.keys() & _SUBJECTS for _, about in _walk(rest, names, {}))
    return rest if is_left else None


def refusal(request: Any, answer: Any, names: Names, error: ErrorCode, version: int) -> Any | None:
    """The response with an error for each part of a request that ``names`` selects, and with no others.

    ``answer`` is a broker's error response to the request: its parts are taken, if it has them. None where no response
    of this version has errors of such parts.
    """
    selected = [(part, about) for part, about in _walk(request, names, {}) if names.select(about)]
    leaves = [about for part, about in selected if not any(True for _ in _lists(part))]
    cls: Any = message_class(request.__api_key__, "response")
    built = _built(cls, leaves, frozenset(), error, version)
    if built is None or (names.partition is not None and not is_named(built, Names(partition=names.partition))):
        return None
    lists = {name: getattr(built, name) for name, _ in _lists(built)}
    kept = _with_error(_filtered(answer, names, {}, keep=True), error)
    return merged(dataclasses.replace(answer, **lists), kept)


def merged(response: Any, more: Any) -> Any:
    """The response with the parts of another one of its class: inside, or in place of, those about the same."""
    changes = {}
    for name, parts in _lists(more):
        together = list(getattr(response, name))
        at = {_same(part): i for i, part in enumerate(together)}
        for part in parts:
            i = at.get(_same(part)) if _same(part) else None
            if i is None:
                together.append(part)
            else:
                together[i] = merged(together[i], part) if any(True for _ in _lists(part)) else part
        changes[name] = tuple(together)
    return dataclasses.replace(response, **changes)


def _same(part: Any) -> tuple[Any, ...]:
    return tuple(getattr(part, f.name) for f in dataclasses.fields(part) if f.name in _KINDS)


def _filtered(part: Any, names: Names, about: About, *, keep: bool) -> Any:
    """With only the parts that are selected, or without them. Parts of which nothing is left go, too."""
    changes = {}
    for name, inner in _lists(part):
        if name == "forgotten_topics_data":
            continue  # of a fetch session; it has no answer
        left = []
        for one in inner:
            of = names.about(one, about)
            if names.select(of):
                if keep:
                    left.append(one)
                continue
            rest = one if isinstance(one, (str, int)) else _filtered(one, names, of, keep=keep)
            if keep and rest is one:
                continue  # it has nothing inside
            if rest is one or any(True for _ in _lists(rest)):
                left.append(rest)
        changes[name] = tuple(left)
    return dataclasses.replace(part, **changes) if changes else part


def _walk(part: Any, names: Names, outer: About) -> Iterator[tuple[Any, About]]:
    """Every part of a message, with what it is about."""
    about = names.about(part, outer)
    yield part, about
    for _, inner in _lists(part):
        for one in inner:
            yield from _walk(one, names, about)


def _lists(part: Any) -> Iterator[tuple[str, Sequence[Any]]]:
    """The fields that have parts, of which there is at least one, but for those that are about something else."""
    if isinstance(part, (str, int)):
        return
    for f in dataclasses.fields(part):
        value = getattr(part, f.name)
        if (
            f.name in _NAMES_OF_OTHERS
            or isinstance(value, (str, bytes))
            or not hasattr(value, "__getitem__")
            or not len(value)
        ):
            continue
        if dataclasses.is_dataclass(value[0]) or f.name in (*_PARTITIONS, *_TOPICS):
            yield f.name, value


def _built(cls: Any, leaves: list[About], used: frozenset[str], error: ErrorCode, version: int) -> Any | None:
    """A response, or a part of one, about ``leaves``; None if its class has no error for them."""
    fields: list[Field] = [f for f in cls.__fields__ if version in f.versions]
    kinds = {kind: f.name for f in fields if used and (kind := _KINDS.get(f.name))}
    values = {name: leaves[0][kind] for kind, name in kinds.items() if kind in leaves[0]}
    inner: dict[str, Any] = {}
    for f in fields:
        element: Any = f.type
        if not f.array or not hasattr(element, "__fields__"):
            continue
        keys = {kind for g in element.__fields__ if version in g.versions and (kind := _KINDS.get(g.name))}
        groups: dict[tuple[Any, ...], list[About]] = {}
        if keys - used:
            for about in leaves:
                if all(kind in about for kind in keys - used - {"topic_id"}):
                    groups.setdefault(tuple(about.get(kind) for kind in sorted(keys)), []).append(about)
        parts = [_built(element, group, used | keys | {"part"}, error, version) for group in groups.values()]
        if found := tuple(part for part in parts if part is not None):
            inner[f.name] = found
    if inner:
        return cls(**values, **inner)
    codes = dict.fromkeys((f.name for f in fields if f.name in _ERRORS), error)
    return cls(**values, **codes) if used and codes and kinds.keys() & _SUBJECTS else None


def _with_error(part: Any, error: ErrorCode) -> Any:
    """With the error in the innermost parts."""
    changes: dict[str, Any] = {name: tuple(_with_error(one, error) for one in inner) for name, inner in _lists(part)}
    if not changes:
        changes = {f.name: error for f in dataclasses.fields(part) if f.name in _ERRORS}
    return dataclasses.replace(part, **changes)
