"""Translates the ids that servers assign, from those of a recording to those of the cluster it is replayed to.

    identities = Identities(recording.topic_names())
    body = identities.translated(request.body)         # what to send
    identities.learn(request, recorded, answer)        # after each response

A client's requests carry ids that it was given: of topics (KIP-516), group members and their generations, fetch
sessions (KIP-227), producers and their epochs (KIP-98), delegation tokens. A pair is learned when a live response
gives another value than the recorded one; topic ids are learned by name, from any response that has both. An id that
was given before the recording began stays as it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kce import wire
from kce.wire.batch_header import read_headers, with_producer
from kce.wire.errors import CorruptRecord

#: fields of responses whose values are ids by themselves, and fields that refer to them under another name
_ASSIGNED: Final = ("member_id", "session_id", "token_id", "hmac")
_REFERRING: Final = {"leader": "member_id"}
_GENERATIONS: Final = ("generation_id", "generation_id_or_member_epoch")
#: (producer id, its epoch), as requests call them
_PRODUCERS: Final = (("producer_id", "producer_epoch"), ("v3_and_below_producer_id", "v3_and_below_producer_epoch"))
#: an empty text, no session, and no generation or producer
_NONE: Final = (None, "", b"", 0, -1)


class Identities:
    """``topic_names`` are those of the recorded topics, by their ids."""

    def __init__(self, topic_names: Mapping[uuid.UUID, str]) -> None:
        self._topic_names = topic_names
        self._topic_ids: dict[str, uuid.UUID] = {}  # live ones, by name
        self._assigned: dict[tuple[str, object], Any] = {}  # live values by field and recorded value
        self._generations: dict[tuple[str, int], int] = {}  # by group and recorded generation
        self._producers: dict[tuple[int, int], tuple[int, int]] = {}

    def topic_names(self) -> dict[str, str]:
        """Names by recorded and by live ids, as text."""
        recorded = {str(topic_id): name for topic_id, name in self._topic_names.items()}
        return recorded | {str(topic_id): name for name, topic_id in self._topic_ids.items()}

    def topics_of(self, body: wire.Message) -> set[str]:
        """Names of the recorded topics that ``body`` has the ids of."""
        found = (each for each in leaves(body) if isinstance(each, uuid.UUID))
        return {self._topic_names[each] for each in found if each in self._topic_names}

    def learn_topics(self, live: wire.Message) -> None:
        """Take the topic ids of a live message that has their names, too."""
        self._topic_ids |= {name: topic_id for topic_id, name in named_topics(live)}

    def learn(self, request: wire.Message, recorded: wire.Message, answer: wire.Message) -> None:
        """Take the ids of a live ``answer`` to ``request``, which had others when it was ``recorded``."""
        self.learn_topics(answer)
        for name in _ASSIGNED:
            then, now = getattr(recorded, name, None), getattr(answer, name, None)
            if then not in _NONE and now not in _NONE:
                self._assigned[name, then] = now
        group = getattr(request, "group_id", None)
        then, now = (getattr(each, "generation_id", -1) for each in (recorded, answer))
        if group is not None and min(then, now) >= 0:
            self._generations[group, then] = now
        producers = [
            (getattr(each, "producer_id", -1), getattr(each, "producer_epoch", -1)) for each in (recorded, answer)
        ]
        if all(producer >= 0 for producer, _ in producers):
            self._producers[producers[0]] = producers[1]

    def translated(self, body: Any, group: str | None = None) -> Any:
        """A recorded message with the live ids. ``group``: of a response, which does not name it."""
        if isinstance(body, tuple):
            elements = tuple(self.translated(each, group) for each in body)
            return elements if any(new is not old for new, old in zip(elements, body, strict=True)) else body
        if not dataclasses.is_dataclass(body) or isinstance(body, type):
            return body
        group = getattr(body, "group_id", None) or group
        changes = {
            field.name: self._value(field.name, getattr(body, field.name), group) for field in dataclasses.fields(body)
        }
        for producer, epoch in _PRODUCERS:
            pair = changes.get(producer), changes.get(epoch)
            if pair in self._producers:
                changes[producer], changes[epoch] = self._producers[pair]
        changed = {name: value for name, value in changes.items() if value is not getattr(body, name)}
        return dataclasses.replace(body, **changed) if changed else body

    def _value(self, name: str, value: Any, group: str | None) -> Any:
        if isinstance(value, uuid.UUID):
            return self._topic_ids.get(self._topic_names.get(value, ""), value)
        if name in _GENERATIONS and group is not None:
            return self._generations.get((group, value), value)
        if name == "records" and isinstance(value, (bytes, memoryview)):
            return self._records(value)
        if isinstance(value, (str, bytes, int)):
            return self._assigned.get((_REFERRING.get(name, name), value), value)
        return self.translated(value, group)

    def _records(self, records: bytes | memoryview) -> bytes | memoryview:
        """Batches of producers with the live ids; what is no batch stays as it is."""
        view = memoryview(records)
        parts: list[bytes | memoryview] = []
        end = 0
        with contextlib.suppress(CorruptRecord):
            for at, header in read_headers(view):
                if (live := self._producers.get((header.producer_id, header.producer_epoch))) is not None:
                    parts += view[end:at], with_producer(view[at : at + header.size], header, *live)
                    end = at + header.size
        return b"".join((*parts, view[end:])) if parts else records


def topic_names(bodies: Iterable[wire.Message | None]) -> dict[uuid.UUID, str]:
    """Names of topics by their ids, from all messages that have both."""
    return {topic_id: name for body in bodies if body is not None for topic_id, name in named_topics(body)}


def named_topics(body: wire.Message) -> Iterator[tuple[uuid.UUID, str]]:
    """(id, name) of the topics of which ``body`` has both: control requests, responses to Metadata and CreateTopics."""
    for topic in (topic for field in ("topic_states", "topics") for topic in getattr(body, field, None) or ()):
        topic_id = getattr(topic, "topic_id", None)
        name = getattr(topic, "topic_name", None) or getattr(topic, "name", None)
        if topic_id is not None and topic_id.int and name:
            yield topic_id, name


def leaves(value: Any) -> Iterator[Any]:
    """The values in a message that are neither structs nor arrays."""
    if isinstance(value, tuple):
        for each in value:
            yield from leaves(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name))
    else:
        yield value
