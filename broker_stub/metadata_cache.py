"""The cluster's metadata from the controller's UpdateMetadata requests, for Metadata responses (rules 9.35-9.42).

A ``MetadataSnapshot`` is immutable. Each UpdateMetadata makes a new one that replaces the old one in one step, so a
snapshot is a consistent state for as long as it is used.
"""

from __future__ import annotations

import logging
import operator
import uuid
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import trio

from kce.broker_stub.control_requests import endpoints_of, update_metadata_states
from kce.wire import Encoded, UpdateMetadataBroker, UpdateMetadataPartitionState, UpdateMetadataRequest
from kce.wire.control import NO_TOPIC_ID
from kce.wire.vocabulary import LEADER_DURING_DELETE, Endpoint, TopicPartition

state_change_logger = logging.getLogger("state.change.logger")

#: of encoded topics that are kept
MAX_ENCODED_BYTES: Final = 32 << 20

_EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AliveBroker:
    """A registered broker, as the controller describes it."""

    broker_id: int
    endpoints: Mapping[str, Endpoint]  # by listener name
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """The cluster at one moment; empty before the first UpdateMetadata (rule B7.1)."""

    controller_id: int | None = None
    alive_brokers: Mapping[int, AliveBroker] = field(default_factory=lambda: _EMPTY)
    topics: Mapping[str, Mapping[int, UpdateMetadataPartitionState]] = field(default_factory=lambda: _EMPTY)
    topic_ids: Mapping[str, uuid.UUID] = field(default_factory=lambda: _EMPTY)
    topic_names: Mapping[uuid.UUID, str] = field(default_factory=lambda: _EMPTY)

    def partition(self, partition: TopicPartition) -> UpdateMetadataPartitionState | None:
        return self.topics.get(partition.topic, _EMPTY).get(partition.partition)

    def topic_id(self, topic: str) -> uuid.UUID:
        """Zero if the topic has no known id."""
        return self.topic_ids.get(topic, NO_TOPIC_ID)

    def endpoint(self, broker_id: int, listener: str) -> Endpoint | None:
        """The address of an alive broker's listener; None if the broker is not alive or lacks the listener."""
        broker = self.alive_brokers.get(broker_id)
        return None if broker is None else broker.endpoints.get(listener)

    def reachable_brokers(self, listener: str) -> Iterator[tuple[AliveBroker, Endpoint]]:
        """The alive brokers that have the listener, each with the listener's address."""
        for broker in self.alive_brokers.values():
            if listener in broker.endpoints:
                yield broker, broker.endpoints[listener]

    def controller_endpoint(self, listener: str) -> Endpoint | None:
        return None if self.controller_id is None else self.endpoint(self.controller_id, listener)


CountedPart: TypeAlias = tuple[bytes, Mapping[int, int]]


#: the brokers of Metadata responses by version and listener, for as long as the alive ones are the very same object
EncodedBrokers: TypeAlias = dict[tuple[int, str], tuple[Mapping[int, AliveBroker], Encoded]]


class EncodedTopics:
    """Parts of Metadata responses, for as long as the facts that they tell are the very same objects; with each how
    often it has which error code."""

    def __init__(self) -> None:
        self._parts: dict[Hashable, tuple[tuple[object, ...], CountedPart]] = {}
        self._bytes = 0

    def get(self, key: Hashable, facts: tuple[object, ...]) -> CountedPart | None:
        found = self._parts.get(key)
        if found is None or any(map(operator.is_not, found[0], facts)):
            return None
        return found[1]

    def put(self, key: Hashable, facts: tuple[object, ...], part: CountedPart) -> None:
        size = len(part[0])
        self._bytes += size
        if self._bytes > MAX_ENCODED_BYTES:
            self._parts.clear()
            self._bytes = size
        self._parts[key] = facts, part


class MetadataCache:
    """Owns the current snapshot. ``update`` does not await, so updates are atomic."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.encoded_topics = EncodedTopics()
        self.encoded_brokers: EncodedBrokers = {}
        self.snapshot = MetadataSnapshot()
        self._live_brokers: tuple[UpdateMetadataBroker, ...] = ()
        # those of the snapshot, which are never changed; the copy of a dict is fast, that of a view is not
        self._topics: dict[str, Mapping[int, UpdateMetadataPartitionState]] = {}
        self._topic_ids: dict[str, uuid.UUID] = {}
        self._topic_names: dict[uuid.UUID, str] = {}
        self._updated = trio.Event()

    def update(self, request: UpdateMetadataRequest) -> list[TopicPartition]:
        """Apply a request that passed fencing, and return the partitions that it deletes.

        Epochs are not compared: the last accepted request wins (rule 9.36).
        """
        old = self.snapshot
        topics, changed_ids, deleted = self._merged(request)
        topic_ids, topic_names = self._with_ids(changed_ids)
        if request.live_brokers == self._live_brokers:
            alive = old.alive_brokers  # the very same: see EncodedTopics
        else:
            described = {
                b.id: AliveBroker(b.id, MappingProxyType(endpoints_of(b)), b.rack) for b in request.live_brokers
            }
            alive = old.alive_brokers if described == dict(old.alive_brokers) else MappingProxyType(described)
        self._check_listeners(alive)
        self._live_brokers = request.live_brokers
        self._topics, self._topic_ids, self._topic_names = topics, topic_ids, topic_names
        self.snapshot = MetadataSnapshot(
            controller_id=request.controller_id if request.controller_id >= 0 else None,
            alive_brokers=alive,
            topics=MappingProxyType(topics),
            topic_ids=MappingProxyType(topic_ids),
            topic_names=MappingProxyType(topic_names),
        )
        self._updated.set()
        self._updated = trio.Event()
        return deleted

    async def wait_until(self, predicate: Callable[[MetadataSnapshot], bool]) -> MetadataSnapshot:
        """Wait for a snapshot for which ``predicate`` holds; the current one counts."""
        while not predicate(self.snapshot):
            await self._updated.wait()
        return self.snapshot

    def _check_listeners(self, alive: Mapping[int, AliveBroker]) -> None:  # rule 9.39
        own = alive.get(self.broker_id)
        if own is None:
            return
        for broker in alive.values():
            if broker.endpoints.keys() != own.endpoints.keys():
                state_change_logger.error(
                    "[Broker id=%d] Listeners are not the same on all brokers: %s here, %s on broker %d",
                    self.broker_id, sorted(own.endpoints), sorted(broker.endpoints), broker.broker_id,
                )  # fmt: skip

    def _merged(
        self, request: UpdateMetadataRequest
    ) -> tuple[dict[str, Mapping[int, UpdateMetadataPartitionState]], dict[str, uuid.UUID], list[TopicPartition]]:
        """Topics, the topic ids that change (zero: there is none any more) and deleted partitions."""
        topics, topic_ids = self._topics.copy(), self._topic_ids
        # rule 9.37: versions 5 and 6 have no ids, which removes known ones
        given = {topic.topic_name: topic.topic_id for topic in request.topic_states}
        changed_ids = {name: i for name, i in given.items() if i != topic_ids.get(name, NO_TOPIC_ID)}
        deleted: list[TopicPartition] = []
        changed: dict[str, dict[int, UpdateMetadataPartitionState]] = {}
        for name, states in update_metadata_states(request):
            if not states:
                continue
            partitions = changed.get(name)
            if partitions is None:
                partitions = changed[name] = dict(topics.get(name, _EMPTY))
            for state in states:
                if state.leader == LEADER_DURING_DELETE:
                    partitions.pop(state.partition_index, None)
                    deleted.append(TopicPartition(name, state.partition_index))
                else:
                    partitions[state.partition_index] = state
        for name, partitions in changed.items():
            if partitions:
                topics[name] = MappingProxyType(partitions)
            else:
                topics.pop(name, None)
                changed_ids[name] = NO_TOPIC_ID
        return topics, changed_ids, deleted

    def _with_ids(self, changed: Mapping[str, uuid.UUID]) -> tuple[dict[str, uuid.UUID], dict[uuid.UUID, str]]:
        """Ids by topic, and topics by id."""
        if not changed:
            return self._topic_ids, self._topic_names
        topic_ids, topic_names = self._topic_ids.copy(), self._topic_names.copy()
        for name, topic_id in changed.items():
            if (known := topic_ids.pop(name, None)) is not None:
                topic_names.pop(known, None)
            if topic_id != NO_TOPIC_ID:
                topic_ids[name] = topic_id
                topic_names[topic_id] = name
        if len(topic_names) < len(topic_ids):  # topics that share an id: the last one has it
            topic_names = {topic_id: name for name, topic_id in topic_ids.items()}
        return topic_ids, topic_names
