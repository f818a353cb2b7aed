"""What makes a topic valid, and where the replicas of new partitions go (rules 10.4-10.5, 10.13-10.15). Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from random import Random
from typing import Final

from kce.wire import ErrorCode
from kce.wire.vocabulary import topic_name_problem
from kce.zookeeper.assignment import InvalidPartitions, InvalidReplicationFactor, assign_replicas
from kce.zookeeper.model import TopicAssignment

#: Kafka's validation of the numbers of partitions overflows above it, and refuses the topic
MAX_PARTITIONS: Final = 46_341
#: what the replication factor of an answer can hold
_MAX_REPLICAS: Final = 2**15 - 1
#: replicas in the text of an error, which an answer must be able to hold
_SHOWN: Final = 100
_MAX_BROKER_ID: Final = 2**31 - 1
_PLACEMENT_ERRORS: Final[dict[type[ValueError], ErrorCode]] = {
    InvalidPartitions: ErrorCode.INVALID_PARTITIONS,
    InvalidReplicationFactor: ErrorCode.INVALID_REPLICATION_FACTOR,
}


class AdminError(Exception):
    """An invalid operation. The text names the topic, the problem and valid values; ``code`` is for a response."""

    def __init__(self, text: str, code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR) -> None:
        super().__init__(text)
        self.code = code


def check_takes_replicas(topic: str, assignment: Mapping[int, Sequence[int]], controllers: Collection[int]) -> None:
    """Raises AdminError for a replica on one of ``controllers``, which take none."""
    chosen = sorted({broker for replicas in assignment.values() for broker in replicas} & set(controllers))
    if chosen:
        raise AdminError(
            f"topic {topic}: nodes {chosen} are controllers only and take no replicas",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )


def place(
    topic: str,
    brokers: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    *,
    fixed_start: int = -1,
    start_partition: int = -1,
    random: Random,
) -> dict[int, tuple[int, ...]]:
    """``assign_replicas`` for a topic; above `MAX_PARTITIONS`, only for one more, which `check_assignment` refuses.

    Raises AdminError."""
    try:
        return assign_replicas(
            brokers, min(partitions, MAX_PARTITIONS + 1), replication_factor,
            fixed_start=fixed_start, start_partition=start_partition, random=random,
        )  # fmt: skip
    except ValueError as e:
        code = _PLACEMENT_ERRORS.get(type(e), ErrorCode.UNKNOWN_SERVER_ERROR)
        raise AdminError(str(e), code) from None


def metric_name(topic: str) -> str:
    """Topics whose names differ only in dots and underscores have the same metrics."""
    return topic.replace(".", "_")


def check_topic_name(topic: str) -> None:
    """Raises AdminError."""
    problem = topic_name_problem(topic)
    if problem is not None:
        raise AdminError(f"Topic name is invalid: {problem}", ErrorCode.INVALID_TOPIC_EXCEPTION)


def check_count(topic: str, partitions: int) -> None:
    """Raises AdminError."""
    if partitions > MAX_PARTITIONS:
        problem = f"at most {MAX_PARTITIONS} partitions are possible"
        raise AdminError(f"topic {topic}: {problem}", ErrorCode.INVALID_REPLICA_ASSIGNMENT)


def check_assignment(topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
    """Rule 10.5. Raises AdminError."""
    check_count(topic, len(assignment))
    problem = None
    sizes = {len(replicas) for replicas in assignment.values()}
    if (missing := next((p for p in range(len(assignment) or 1) if p not in assignment), None)) is not None:
        problem = f"partitions must be numbered from 0 without gaps, and there is no {missing}"
    elif len(sizes) > 1 or 0 in sizes:
        problem = "every partition needs the same number of replicas, at least one"
    elif max(sizes) > _MAX_REPLICAS:
        problem = f"at most {_MAX_REPLICAS} replicas are possible"
    else:
        for partition, replicas in assignment.items():
            if len(set(replicas)) < len(replicas):
                problem = f"partition {partition} has duplicate replicas: {list(replicas[:_SHOWN])}"
            elif any(replica > _MAX_BROKER_ID for replica in replicas):
                problem = f"partition {partition} has the replica {max(replicas)}, which is no broker id"
    if problem is not None:
        raise AdminError(f"topic {topic}: {problem}", ErrorCode.INVALID_REPLICA_ASSIGNMENT)


def planned_partitions(
    topic: str,
    found: TopicAssignment | None,
    brokers: Mapping[int, str | None],
    count: int,
    assignments: Sequence[Sequence[int]] | None,
    *,
    random: Random,
) -> tuple[TopicAssignment, dict[int, tuple[int, ...]]]:
    """``admin.plan_partitions`` of what was ``found``, on these ``brokers`` with their racks. Raises AdminError."""
    known = {} if found is None else found.partitions
    if any(replicas.is_being_reassigned for replicas in known.values()):
        raise AdminError(f"partitions of topic {topic} are being reassigned", ErrorCode.REASSIGNMENT_IN_PROGRESS)
    if found is None or not known:
        raise AdminError(f"The topic '{topic}' does not exist.", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if count == len(known):
        raise AdminError(f"Topic already has {count} partitions.", ErrorCode.INVALID_PARTITIONS)
    if count < len(known):
        raise AdminError(
            f"Topic currently has {len(known)} partitions, which is higher than the requested {count}.",
            ErrorCode.INVALID_PARTITIONS,
        )
    if 0 not in known:
        raise AdminError(f"topic {topic} has no partition 0, which determines the replication factor")
    first = known[0].replicas
    if assignments is None:
        if count > MAX_PARTITIONS:
            raise AdminError(
                f"topic {topic}: at most {MAX_PARTITIONS} partitions are possible, not {count}",
                ErrorCode.INVALID_PARTITIONS,
            )
        start = next((i for i, broker in enumerate(brokers) if first and broker >= first[0]), 0)
        added = place(
            topic, brokers, count - len(known), len(first),
            fixed_start=start, start_partition=len(known), random=random,
        )  # fmt: skip
    else:
        _check_added(assignments, len(known), count - len(known), len(first), brokers)
        added = {len(known) + i: tuple(replicas) for i, replicas in enumerate(assignments)}
    return found, added


def _check_added(
    assignments: Sequence[Sequence[int]], start: int, wanted: int, replication_factor: int, brokers: Iterable[int]
) -> None:
    """Rule 10.14. Raises AdminError, in Kafka's words."""
    problem = None
    unknown = sorted({replica for replicas in assignments for replica in replicas} - set(brokers))
    if unknown:
        problem = f"Unknown broker(s) in replica assignment: {_listed(unknown)}."
    elif len(assignments) != wanted:
        problem = f"Increasing the number of partitions by {wanted} but {len(assignments)} assignments provided."
    else:
        added = dict(enumerate(assignments, start))
        problem = next(filter(None, itertools.starmap(_replicas_problem, added.items())), None)
        wrong = {
            partition: len(replicas) for partition, replicas in added.items() if len(replicas) != replication_factor
        }
        if problem is None and wrong:
            problem = (
                f"Inconsistent replication factor between partitions, partition 0 has {replication_factor} while "
                f"partitions [{_listed(wrong)}] have replication factors [{_listed(wrong.values())}], respectively."
            )
    if problem is not None:
        raise AdminError(problem, ErrorCode.INVALID_REPLICA_ASSIGNMENT)


def _replicas_problem(partition: int, replicas: Sequence[int]) -> str | None:
    if not replicas:
        return f"Cannot have replication factor of 0 for partition id {partition}."
    if len(set(replicas)) < len(replicas):
        listed = _listed(replicas)
        return f"Duplicate brokers not allowed in replica assignment: {listed} for partition id {partition}."
    return None


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
