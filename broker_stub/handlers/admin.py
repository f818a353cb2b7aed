"""What the handlers of topics share: waiting for the metadata cache, and the names of topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import trio

from broker_stub.handlers.base import Services
from broker_stub.metadata_cache import MetadataSnapshot
from wire.vocabulary import NO_LEADER, TopicPartition

V = TypeVar("V")

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"


async def wait_for(services: Services, timeout_ms: int, holds: Callable[[MetadataSnapshot], bool]) -> None:
    """Until ``holds`` of this broker's metadata cache, or the time is over (rules B2.27-B2.29)."""
    if timeout_ms > 0:
        with trio.move_on_after(timeout_ms / 1000):
            await services.metadata_cache.wait_until(holds)


def has_leaders(snapshot: MetadataSnapshot, topic: str, partitions: Iterable[int]) -> bool:
    """Rule 10.8."""
    states = (snapshot.partition(TopicPartition(topic, number)) for number in partitions)
    return all(state is not None and state.leader != NO_LEADER for state in states)


def named_twice(names: Iterable[str]) -> set[str]:
    return {name for name, times in Counter(names).items() if times > 1}


def by_topic(values: Mapping[TopicPartition, V]) -> dict[str, dict[int, V]]:
    """As responses group them: topic -> partition -> value."""
    grouped: dict[str, dict[int, V]] = {}
    for (topic, number), value in values.items():
        grouped.setdefault(topic, {})[number] = value
    return grouped
