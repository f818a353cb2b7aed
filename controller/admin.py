"""What an administrator does to topics, straight to ZooKeeper, as Kafka's own tools did (rules 10.3-10.7, 10.35-10.36).

None of it needs to be the controller, and none of it is fenced (1.49): the controller sees the nodes and acts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from uuid import UUID

from controller import zk_data
from controller.assignment import assign_replicas
from controller.kafka_zk_client import KafkaZkClient
from controller.model import BrokerId, Leadership, ReplicaAssignment, TopicPartition
from controller.store import Create, NodeExists, SetData, value

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class AdminError(Exception):
    """The operation is refused. The text says which topic, why, and what would be right."""


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """``leadership`` is None while the controller has not written a state."""

    partition: int
    assignment: ReplicaAssignment
    leadership: Leadership | None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: UUID | None
    config: dict[str, str]
    marked_for_deletion: bool
    partitions: tuple[PartitionDescription, ...]


async def create_topic(
    zk: KafkaZkClient,
    topic: str,
    *,
    partitions: int = 1,
    replication_factor: int = 1,
    assignment: Mapping[int, Sequence[int]] | None = None,
    config: Mapping[str, str] | None = None,
    random: Random,
) -> UUID:
    """Write the topic's configuration, then its assignment with a new id, which is returned (rule 10.7).

    ``assignment`` (partition -> replicas) is taken as it is if given, else it is made for the registered brokers.
    Raises AdminError.
    """
    existing = await zk.get_topics(watch=False)
    check_topic_name(topic, existing)
    if topic in existing or topic in await zk.get_topic_deletions():
        raise AdminError(f"topic {topic} already exists, or is still being deleted")
    if assignment is None:
        registered = sorted((await zk.get_brokers(watch=False)).items())
        brokers: dict[int, str | None] = {broker_id: broker.rack for broker_id, (broker, _) in registered}
        try:
            made: Mapping[int, Sequence[int]] = assign_replicas(brokers, partitions, replication_factor, random=random)
        except ValueError as e:
            raise AdminError(f"topic {topic} cannot be placed: {e}") from None
    else:
        check_assignment(topic, assignment)
        made = assignment
    await zk.ensure_paths([zk_data.topic_config_path(topic)])
    value((await zk.store.write([SetData(zk_data.topic_config_path(topic), zk_data.encode_config(config or {}))]))[0])
    topic_id = zk.new_uuid()
    replicas = {p: ReplicaAssignment(tuple(BrokerId(r) for r in made[p])) for p in sorted(made)}
    answer = (await zk.store.write([Create(zk_data.topic_path(topic), zk_data.encode_topic(topic_id, replicas))]))[0]
    if isinstance(answer, NodeExists):
        raise AdminError(f"topic {topic} already exists")
    value(answer)
    return topic_id


def check_topic_name(topic: str, existing: set[str]) -> None:
    """Rule 10.5. Raises AdminError."""
    if not _LEGAL_NAME.fullmatch(topic) or topic in (".", ".."):
        raise AdminError(
            f"{topic!r} is no topic name: 1 to 249 of the characters a-z A-Z 0-9 . _ -, and not '.' or '..'"
        )
    for other in existing:
        if other != topic and other.replace(".", "_") == topic.replace(".", "_"):
            raise AdminError(f"topic {topic} collides with {other}: their metric names would be the same")


def check_assignment(topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
    """Rule 10.5. Raises AdminError."""
    if sorted(assignment) != list(range(len(assignment))) or not assignment:
        raise AdminError(f"topic {topic}: partitions must be numbered from 0 without gaps, not {sorted(assignment)}")
    sizes = {len(replicas) for replicas in assignment.values()}
    if len(sizes) > 1 or 0 in sizes:
        raise AdminError(f"topic {topic}: every partition needs the same number of replicas, at least one")
    for partition, replicas in assignment.items():
        if len(set(replicas)) < len(replicas):
            raise AdminError(f"topic {topic}: partition {partition} names a broker twice: {list(replicas)}")


async def delete_topic(zk: KafkaZkClient, topic: str) -> None:
    """Mark the topic for deletion; marked already is fine (rule 10.36). Raises AdminError for an unknown topic."""
    if topic not in await zk.get_topics(watch=False):
        raise AdminError(f"there is no topic {topic}")
    await zk.ensure_paths([zk_data.delete_topic_path(topic)])


async def describe_topics(zk: KafkaZkClient, topics: Sequence[str] | None = None) -> list[TopicDescription]:
    """All topics, or those named, as ZooKeeper has them. Raises AdminError for one that does not exist."""
    existing = await zk.get_topics(watch=False)
    for topic in topics or ():
        if topic not in existing:
            raise AdminError(f"there is no topic {topic}; there are: {', '.join(sorted(existing)) or 'none'}")
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
