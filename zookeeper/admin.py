"""Administration of topics, directly in ZooKeeper (rules 10.4-10.7, 10.13-10.16, 10.36).

It needs no controller and is not fenced (1.49): the controller watches the znodes and acts on them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final
from uuid import UUID

import outcome
import trio

from kce.wire import ErrorCode
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.assignment import InconsistentRacks, RackAwareMode, usable_racks
from kce.zookeeper.client import UNFENCED
from kce.zookeeper.errors import ControllerMoved
from kce.zookeeper.kafka_zk_client import Creation, KafkaZkClient, state_creations
from kce.zookeeper.model import BrokerId, LeaderAndIsr, Leadership, ReplicaAssignment, TopicAssignment, TopicPartition
from kce.zookeeper.store import Create, MultiFailed, NodeExists, NoNode, Op, TooLarge, value
from kce.zookeeper.topic_plans import (
    AdminError,
    check_assignment,
    check_takes_replicas,
    check_topic_name,
    metric_name,
    place,
    planned_partitions,
)

#: only a name with one of these can have the metrics of another
_COLLIDING: Final = frozenset("._")


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """``leadership`` is None until the controller has written a state."""

    partition: int
    assignment: ReplicaAssignment
    leadership: Leadership | None

    @property
    def state(self) -> LeaderAndIsr | None:
        return None if self.leadership is None else self.leadership.leader_and_isr


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: UUID | None
    config: dict[str, str]
    marked_for_deletion: bool
    partitions: tuple[PartitionDescription, ...]

    @property
    def has_leaders(self) -> bool:
        """Whether every partition has a leader."""
        return all(p.state is not None and p.state.elected is not None for p in self.partitions)


async def create_topic(
    zk: KafkaZkClient,
    topic: str,
    *,
    partitions: int = 1,
    replication_factor: int = 1,
    assignment: Mapping[int, Sequence[int]] | None = None,
    config: Mapping[str, str] | None = None,
    rack_aware_mode: RackAwareMode = RackAwareMode.ENFORCED,
    random: Random,
) -> UUID:
    """Create a topic; returns its new id.

    ``assignment``: partition -> replicas; None places replicas on the registered brokers. Raises AdminError.
    """
    if assignment is None:
        brokers = await get_brokers_with_racks(zk, rack_aware_mode)
        assignment = place(topic, brokers, partitions, replication_factor, random=random)
    else:
        registered = (await zk.get_brokers(watch=False)).values()
        check_takes_replicas(topic, assignment, {broker.id for broker, _ in registered if broker.controller_only})
    await check_new_topic(zk, topic, assignment)
    topic_id = zk.new_uuid()
    await write_topic(zk, topic, assignment, config or {}, topic_id)
    return topic_id


async def get_brokers_with_racks(
    zk: KafkaZkClient, mode: RackAwareMode, among: Collection[int] | None = None
) -> dict[int, str | None]:
    """Registered brokers and their racks, filtered by `usable_racks`. Raises AdminError."""
    registered: dict[int, str | None] = {
        broker_id: broker.rack
        for broker_id, (broker, _) in (await zk.get_brokers(watch=False)).items()
        if not broker.controller_only
    }
    try:
        return usable_racks(registered, mode, among)
    except InconsistentRacks as e:
        raise AdminError(f"replicas cannot be placed by rack: {e}") from None


async def check_new_topic(zk: KafkaZkClient, topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
    """Validate all but the configuration (rule 10.5). Raises AdminError."""
    (await TakenNames.read(zk)).check(topic, assignment)


class TakenNames:
    """The names that a new topic must not have (rule 10.5): of topics, and of those that are being deleted."""

    def __init__(self, existing: Collection[str], deleting: Collection[str]) -> None:
        self._existing, self._deleting = existing, deleting
        self._by_metric_name = {metric_name(topic): topic for topic in sorted(existing, reverse=True)}

    @classmethod
    async def for_creation(cls, zk: KafkaZkClient, topics: Iterable[str]) -> TakenNames:
        """As far as `write_topics` does not find out itself: other topics with the same metrics."""
        return await cls.read(zk) if any(not _COLLIDING.isdisjoint(topic) for topic in topics) else cls((), ())

    @classmethod
    async def read(cls, zk: KafkaZkClient) -> TakenNames:
        existing, deleting = await zk.get_children_of([znodes.TOPICS, znodes.DELETE_TOPICS])
        return cls(set(existing), set(deleting))

    def check(self, topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
        """Raises AdminError."""
        check_topic_name(topic)
        self.check_is_new(topic)
        if (other := self._by_metric_name.get(metric_name(topic))) is not None:
            raise AdminError(
                f"Topic '{topic}' collides with existing topics: {other}",
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            )
        check_assignment(topic, assignment)

    def check_is_new(self, topic: str) -> None:
        """Raises AdminError."""
        if topic in self._deleting:
            raise AdminError(f"Topic '{topic}' is marked for deletion.", ErrorCode.TOPIC_ALREADY_EXISTS)
        if topic in self._existing:
            raise _already_exists(topic)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """``assignment``: partition -> replicas. ``topic_id`` is None before 2.8."""

    name: str
    assignment: Mapping[int, Sequence[int]]
    config: Mapping[str, str]
    topic_id: UUID | None


async def write_topic(
    zk: KafkaZkClient,
    topic: str,
    assignment: Mapping[int, Sequence[int]],
    config: Mapping[str, str],
    topic_id: UUID | None,
) -> None:
    """``write_topics`` for one. Raises AdminError."""
    for error in (await write_topics(zk, [NewTopic(topic, assignment, config, topic_id)])).values():
        raise error


async def write_topics(zk: KafkaZkClient, topics: Sequence[NewTopic]) -> dict[str, AdminError]:
    """Write the configurations, even if empty, then the assignments (rule 10.7). Returns the errors by topic.

    Both are written in one step where nothing is in the way, such as a topic of that name, and with them the states
    of partitions that the controller has prepared.
    """
    creation = Creation({topic.name: _written(topic) for topic in topics})
    zk.creation_handler.prepare(creation)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(zk.creation_handler.sent, creation)  # when the write was sent
        try:
            written = await outcome.acapture(_write_together, zk, topics, creation)
            creation.is_written = written == outcome.Value([])
        finally:
            creation.ended.set()
    in_steps = written.unwrap()
    if not in_steps:
        return {}
    refused = await _refused(zk, in_steps)
    return refused | await _write_in_steps(zk, [topic for topic in in_steps if topic.name not in refused])


async def _write_together(zk: KafkaZkClient, topics: Sequence[NewTopic], creation: Creation) -> list[NewTopic]:
    """Returns those that are not written, because something is in the way."""
    groups: list[list[Op]] = [[_config_creation(topic), _creation(topic)] for topic in topics]
    for topic, group in zip(topics, groups, strict=True):
        if states := creation.states.get(topic.name):
            group += state_creations([topic.name], states)
    try:
        answers = await zk.fenced_together(groups, creation.expected)
    except (ControllerMoved, NoNode):  # also if there is no /controller_epoch any more
        return list(topics)
    failed = []
    for topic, answer in zip(topics, answers, strict=True):
        if isinstance(answer, MultiFailed):
            if not isinstance(answer.error, (NoNode, NodeExists, TooLarge)):
                raise answer.error
            failed.append(topic)
    return failed


async def _refused(zk: KafkaZkClient, topics: Sequence[NewTopic]) -> dict[str, AdminError]:
    """Those that exist, or are being deleted, with the errors; not those that we have written (see below)."""
    taken = await TakenNames.read(zk)
    refused: dict[str, AdminError] = {}
    for topic in topics:
        try:
            taken.check_is_new(topic.name)
        except AdminError as e:
            if not await _is_ours(zk, topic):
                refused[topic.name] = e
    return refused


async def _is_ours(zk: KafkaZkClient, topic: NewTopic) -> bool:
    """Whether an existing topic has our new id: an attempt whose response was lost has written it (1.52)."""
    found = (await zk.get_topic_assignments([topic.name])).get(topic.name)
    return topic.topic_id is not None and found is not None and found.topic_id == topic.topic_id


async def _write_in_steps(zk: KafkaZkClient, topics: Sequence[NewTopic]) -> dict[str, AdminError]:
    refused = await _write_configs(zk, topics)
    written = [topic for topic in topics if topic.name not in refused]
    for topic, answer in zip(written, await zk.store.write([_creation(topic) for topic in written]), strict=True):
        if isinstance(answer, TooLarge):
            refused[topic.name] = _too_many_partitions(topic.name, len(topic.assignment))
        elif isinstance(answer, NodeExists):
            if not await _is_ours(zk, topic):
                refused[topic.name] = _already_exists(topic.name)
        else:
            value(answer)
    return refused


async def _write_configs(zk: KafkaZkClient, topics: Sequence[NewTopic]) -> dict[str, AdminError]:
    refused = {}
    for topic, answer in zip(topics, await zk.store.write([_config_creation(t) for t in topics]), strict=True):
        try:
            if isinstance(answer, (NodeExists, NoNode)):  # left over; or the first of all
                await zk.put_config("topics", topic.name, topic.config)
            else:
                value(answer)
        except TooLarge as e:
            text = f"topic {topic.name}: the configuration is too large: {e}"
            refused[topic.name] = AdminError(text, ErrorCode.INVALID_CONFIG)
    return refused


def _config_creation(topic: NewTopic) -> Create:
    return Create(znodes.topic_config_path(topic.name), cluster_nodes.encode_config(topic.config))


def _creation(topic: NewTopic) -> Create:
    return Create(znodes.topic_path(topic.name), znodes.encode_topic(topic.topic_id, _written(topic).partitions))


def _written(topic: NewTopic) -> TopicAssignment:
    replicas = {p: ReplicaAssignment(tuple(map(BrokerId, topic.assignment[p]))) for p in sorted(topic.assignment)}
    return TopicAssignment(topic.name, topic.topic_id, replicas)


def _too_many_partitions(topic: str, count: int) -> AdminError:
    return AdminError(
        f"topic {topic}: the replicas of {count} partitions do not fit into a znode",
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    )


def _already_exists(topic: str) -> AdminError:
    return AdminError(f"Topic '{topic}' already exists.", ErrorCode.TOPIC_ALREADY_EXISTS)


async def plan_partitions(
    zk: KafkaZkClient, topic: str, count: int, assignments: Sequence[Sequence[int]] | None, *, random: Random
) -> tuple[TopicAssignment, dict[int, tuple[int, ...]]]:
    """The current topic, and the new partitions that it needs to have ``count`` (rules 10.13-10.15).

    ``assignments``: replicas of each new partition; None places them. Raises AdminError.
    """
    brokers = await get_brokers_with_racks(zk, RackAwareMode.ENFORCED)  # whether it places replicas or not
    found = (await zk.get_topic_assignments([topic])).get(topic)
    return planned_partitions(topic, found, brokers, count, assignments, random=random)


async def add_partitions(zk: KafkaZkClient, found: TopicAssignment, added: Mapping[int, Sequence[int]]) -> None:
    """``add_partitions_to`` for one topic. Raises AdminError."""
    for error in (await add_partitions_to(zk, {found.topic: (found, added)})).values():
        raise error


async def add_partitions_to(
    zk: KafkaZkClient, plans: Mapping[str, tuple[TopicAssignment, Mapping[int, Sequence[int]]]]
) -> dict[str, AdminError]:
    """Rewrite the topics' znodes unconditionally; keeps their ids and reassignments (rule 10.16).

    Returns the errors by topic.
    """
    topics = {}
    for topic, (found, added) in plans.items():
        new = {p: ReplicaAssignment(tuple(map(BrokerId, replicas))) for p, replicas in added.items()}
        topics[topic] = found.topic_id, {**found.partitions, **new}
    refused = {}
    for topic, error in (await zk.try_set_topic_assignments(topics, UNFENCED)).items():
        if not isinstance(error, TooLarge):
            raise error
        refused[topic] = _too_many_partitions(topic, len(topics[topic][1]))
    return refused


async def delete_topic(zk: KafkaZkClient, topic: str) -> bool:
    """Mark the topic for deletion (rule 10.36). Returns False if it was already marked.

    Raises AdminError for an unknown topic.
    """
    (answer,) = (await delete_topics(zk, [topic])).values()
    if isinstance(answer, AdminError):
        raise answer
    return answer


async def delete_topics(zk: KafkaZkClient, topics: Sequence[str]) -> dict[str, bool | AdminError]:
    """``delete_topic`` for many; an AdminError in place."""
    there = await zk.store.exists([znodes.topic_path(topic) for topic in topics])
    marked = [topic for topic, stat in zip(topics, there, strict=True) if stat is not None]
    found: dict[str, bool | AdminError] = {
        topic: AdminError(f"The topic '{topic}' does not exist.", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for topic in topics
    }
    markers = [Create(znodes.delete_topic_path(topic)) for topic in marked]
    answers = await zk.store.write(markers)
    if any(isinstance(answer, NoNode) for answer in answers):
        await zk.ensure_paths([znodes.DELETE_TOPICS])
        answers = await zk.store.write(markers)
    for topic, answer in zip(marked, answers, strict=True):
        found[topic] = not isinstance(answer, NodeExists)
        if found[topic]:
            value(answer)
    return found


async def describe_topics(zk: KafkaZkClient, topics: Sequence[str] | None = None) -> list[TopicDescription]:
    """Describe all topics, or ``topics``, from ZooKeeper. Raises AdminError for an unknown one."""
    existing = await zk.get_topics(watch=False)
    for topic in topics or ():
        if topic not in existing:
            raise AdminError(f"unknown topic {topic}; existing topics: {', '.join(sorted(existing)) or 'none'}")
    names = sorted(existing if topics is None else topics)
    assignments = await zk.get_topic_assignments(names)
    configs = await zk.get_topic_configs(names)
    deleting = await zk.get_topic_deletions()
    partitions = [TopicPartition(t, p) for t, found in assignments.items() for p in found.partitions]
    states = await zk.get_partition_states(partitions)
    described = []
    for topic, found in assignments.items():
        config = configs[topic]
        rows = []
        for number, assignment in found.partitions.items():
            state = states[TopicPartition(topic, number)]
            rows.append(PartitionDescription(number, assignment, state if isinstance(state, Leadership) else None))
        plain = config if isinstance(config, dict) else {}
        described.append(TopicDescription(topic, found.topic_id, plain, topic in deleting, tuple(rows)))
    return described
