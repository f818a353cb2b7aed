"""Error codes inside responses: of partitions, topics, members, resources."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from kce import wire
from kce.wire.schema import Struct

#: Fields that name the topic and the partition of an error in the same or an enclosing structure.
_TOPICS = ("topic_name", "topic", "name")
_PARTITIONS = ("partition_index", "partition", "index")


def nested_errors(body: wire.Message, version: int) -> Iterator[tuple[str | None, int | None, int]]:
    """(topic name or id, partition, code) of each error below the top level; a code of 0 is none."""
    for field in body.__fields__:
        if version in field.versions:
            yield from _errors(getattr(body, field.name), version, None, None)


def _errors(value: Any, version: int, topic: str | None, partition: int | None) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        if value and isinstance(value[0], Struct):
            for element in value:
                yield from _errors(element, version, topic, partition)
        return
    if not isinstance(value, Struct):
        return
    fields = {f.name: getattr(value, f.name) for f in value.__fields__ if version in f.versions}
    names = (fields[name] for name in _TOPICS if isinstance(fields.get(name), str) and fields[name])
    topic_id = fields.get("topic_id")
    topic = next(names, str(topic_id) if isinstance(topic_id, uuid.UUID) and topic_id.int else topic)
    partition = next((fields[name] for name in _PARTITIONS if isinstance(fields.get(name), int)), partition)
    if code := fields.get("error_code"):
        yield topic, partition, code
    for name in fields:
        yield from _errors(fields[name], version, topic, partition)
