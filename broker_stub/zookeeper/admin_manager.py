"""Admin requests in ZooKeeper: creating and deleting topics, adding partitions, reading and changing configurations.

The request handlers check what needs the controller or the metadata cache. Errors are not raised, but part of the
response.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Final

import trio

from kce.broker_stub.errors import Refused
from kce.pauses import Paced
from kce.wire import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    ErrorCode,
)
from kce.wire.configuration import ConfigError, check_topic_config
from kce.wire.control import NO_TOPIC_ID
from kce.wire.metadata_version import MetadataVersion
from kce.wire.vocabulary import TopicPartition
from kce.zookeeper import admin, client_configs, topic_plans
from kce.zookeeper.assignment import RackAwareMode
from kce.zookeeper.errors import ControllerMoved
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import TopicAssignment
from kce.zookeeper.topic_plans import AdminError
from kce.zookeeper.znodes import consumer_offset_path

#: so many topics, and partitions of new topics, are checked and then written together
_TOPICS_AT_ONCE: Final = 100
_PARTITIONS_AT_ONCE: Final = 10_000


class ZkAdminManager:
    """``random`` places new topics (rule 10.4), never on ``controllers``: the live nodes that are controllers only."""

    def __init__(
        self,
        zk: KafkaZkClient,
        ibp: MetadataVersion,
        random: Random,
        controllers: Callable[[], Collection[int]] = frozenset,
        inherited: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """``inherited``: what topics without settings of their own have from the broker."""
        self._controllers = controllers
        self._inherited = inherited
        self._zk = zk
        self._ibp = ibp
        self._random = random

    async def create_topics(
        self,
        topics: Sequence[CreatableTopic],
        brokers: Mapping[int, str | None],
        *,
        validate_only: bool,
        permit: Callable[[int], bool] = lambda partitions: True,
    ) -> list[CreatableTopicResult]:
        """Rules 10.3-10.7, from "null config value" on. ``brokers``: id -> rack of those that are alive.

        ``permit`` checks the quota for that many partitions just before a topic is written (rule 10.11). Without
        assignments, -1 is not a valid number in a topic: the caller replaces it by the defaults.
        """
        results: list[CreatableTopicResult] = []
        rest = deque(topics)
        while rest:
            taken = await self._taken_names(topics, validate_only=validate_only)
            new: dict[str, admin.NewTopic] = {}
            begin = len(results)
            metric_names, partitions = set(), 0
            while rest and len(new) < _TOPICS_AT_ONCE and partitions < _PARTITIONS_AT_ONCE:
                name = topic_plans.metric_name(rest[0].name)
                if name in metric_names:  # whether it is taken is known when that one is written
                    break
                topic = rest.popleft()
                planned, result = await self._plan_topic(topic, brokers, taken, None if validate_only else permit)
                results.append(result)
                if planned is not None:
                    metric_names.add(name)
                    new[topic.name] = planned
                    partitions += len(planned.assignment)
                if rest:  # after the last the write waits
                    await trio.lowlevel.checkpoint()
            for topic_name, error in (await admin.write_topics(self._zk, list(new.values()))).items():
                at = next(i for i in range(begin, len(results)) if results[i].name == topic_name)
                results[at] = _refused(topic_name, error)
        return results

    async def _taken_names(self, topics: Sequence[CreatableTopic], *, validate_only: bool) -> admin.TakenNames:
        if validate_only:
            return await admin.TakenNames.read(self._zk)
        return await admin.TakenNames.for_creation(self._zk, (topic.name for topic in topics))

    async def _plan_topic(
        self,
        topic: CreatableTopic,
        brokers: Mapping[int, str | None],
        taken: admin.TakenNames,
        permit: Callable[[int], bool] | None,
    ) -> tuple[admin.NewTopic | None, CreatableTopicResult]:
        """What to write, and the result once it is written. Without ``permit`` nothing is to be written."""
        try:
            config, assignment = await self._plan(topic, brokers)
            taken.check(topic.name, assignment)
            _check_config(config, self._inherited())
            if permit is not None:
                _check_quota(topic.name, len(assignment), permit)
        except AdminError as e:
            return None, _refused(topic.name, e)
        topic_id = self._zk.new_uuid() if permit is not None and self._ibp.supports_topic_ids else None
        result = CreatableTopicResult(
            name=topic.name, topic_id=topic_id or NO_TOPIC_ID, num_partitions=len(assignment),
            replication_factor=len(assignment[0]),
        )  # fmt: skip
        return None if permit is None else admin.NewTopic(topic.name, assignment, config, topic_id), result

    async def _plan(
        self, topic: CreatableTopic, brokers: Mapping[int, str | None]
    ) -> tuple[dict[str, str], Mapping[int, Sequence[int]]]:
        """Configuration and assignment. Raises AdminError."""
        config, nulls = {}, []
        async for entry in Paced(topic.configs):
            if entry.value is None:
                nulls.append(entry.name)
            else:
                config[entry.name] = entry.value
        if nulls:
            names = ", ".join(sorted(nulls))
            raise AdminError(f"topic {topic.name}: {names} without a value", ErrorCode.INVALID_CONFIG)
        if not topic.assignments:
            controllers = self._controllers()
            usable = {broker: rack for broker, rack in brokers.items() if broker not in controllers}
            return config, topic_plans.place(
                topic.name, usable, topic.num_partitions, topic.replication_factor, random=self._random
            )
        if (topic.num_partitions, topic.replication_factor) != (-1, -1):
            raise AdminError(
                f"topic {topic.name}: give either assignments, or the numbers of partitions and replicas",
                ErrorCode.INVALID_REQUEST,
            )
        topic_plans.check_count(topic.name, len(topic.assignments))
        repeated = [p for p, times in Counter(a.partition_index for a in topic.assignments).items() if times > 1]
        if repeated:
            raise AdminError(
                f"topic {topic.name}: partition {min(repeated)} is assigned twice",
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            )
        assignment = {a.partition_index: a.broker_ids for a in topic.assignments}
        topic_plans.check_takes_replicas(topic.name, assignment, self._controllers())
        return config, assignment

    async def create_partitions(
        self,
        topics: Sequence[CreatePartitionsTopic],
        *,
        validate_only: bool,
        permit: Callable[[int], bool] = lambda partitions: True,
    ) -> list[tuple[CreatePartitionsTopicResult, Collection[int]]]:
        """Rules 10.11, 10.13-10.16: for each topic the result and the numbers of all partitions that there are now.

        The topics have different names.
        """
        results: list[tuple[CreatePartitionsTopicResult, Collection[int]]] = []
        for begin in range(0, len(topics), _TOPICS_AT_ONCE):
            results += await self._create_partitions(topics[begin : begin + _TOPICS_AT_ONCE], validate_only, permit)
        return results

    async def _create_partitions(
        self, topics: Sequence[CreatePartitionsTopic], validate_only: bool, permit: Callable[[int], bool]
    ) -> list[tuple[CreatePartitionsTopicResult, Collection[int]]]:
        refused: dict[str, AdminError] = {}
        plans: dict[str, tuple[TopicAssignment, Mapping[int, Sequence[int]]]] = {}
        try:
            brokers = await admin.get_brokers_with_racks(self._zk, RackAwareMode.ENFORCED)
        except AdminError as e:
            return [(_not_added(topic.name, e), ()) for topic in topics]
        known = await self._zk.get_topic_assignments([topic.name for topic in topics])
        for topic in topics:
            assignments = None if topic.assignments is None else [a.broker_ids for a in topic.assignments]
            try:
                plan = topic_plans.planned_partitions(
                    topic.name, known.get(topic.name), brokers, topic.count, assignments, random=self._random
                )
                if not validate_only:
                    _check_quota(topic.name, len(plan[1]), permit)
                    plans[topic.name] = plan
            except AdminError as e:
                refused[topic.name] = e
            await trio.lowlevel.checkpoint()
        refused |= await admin.add_partitions_to(self._zk, plans)
        results: list[tuple[CreatePartitionsTopicResult, Collection[int]]] = []
        for topic in topics:
            if (error := refused.get(topic.name)) is not None:
                results.append((_not_added(topic.name, error), ()))
            else:
                found, added = plans.get(topic.name, (None, {}))
                numbers = () if found is None else found.partitions.keys() | added.keys()
                results.append((CreatePartitionsTopicResult(name=topic.name), numbers))
        return results

    async def delete_topics(self, topics: Sequence[str]) -> dict[str, ErrorCode]:
        """Rule 10.36. Success if a topic is already marked for deletion."""
        marked = await admin.delete_topics(self._zk, topics)
        return {
            topic: answer.code if isinstance(answer, AdminError) else ErrorCode.NONE for topic, answer in marked.items()
        }

    async def config(self, kind: str, name: str) -> Mapping[str, str]:
        """The configuration in ``/config/<kind>/<name>``."""
        return await self._zk.get_config(kind, name)

    async def configs(self, kind: str) -> Mapping[str, Mapping[str, str]]:
        """Those in ``/config/<kind>``, by name."""
        return await self._zk.get_configs(kind)

    async def change_config(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        """Replace the configuration and notify every broker (rules 1.35, 1.54)."""
        with _while_there_is_a_controller():
            await self._zk.change_config(kind, name, config)

    async def client_configs(self, kind: str) -> Mapping[str, Mapping[str, str]]:
        """Those in ``/config/<kind>``."""
        return await client_configs.read_all(self._zk, kind)

    async def change_client_config(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        """Replace the configuration, or delete its node, and notify every broker (rule B8.15)."""
        with _while_there_is_a_controller():
            await client_configs.change(self._zk, kind, name, config)

    async def consumer_offset(self, group: str, partition: TopicPartition) -> int | None:
        """Rule G7.29. Raises ValueError for one that is no number."""
        found = await self._zk.get_one(consumer_offset_path(group, partition))
        return None if found is None else int(found.data)

    async def put_consumer_offset(self, group: str, partition: TopicPartition, offset: int) -> None:
        """Rule G7.16."""
        await self._zk.set_or_create(consumer_offset_path(group, partition), str(offset).encode())


@contextmanager
def _while_there_is_a_controller() -> Iterator[None]:
    """Rule 1.54. Raises Refused."""
    try:
        yield
    except ControllerMoved as e:
        raise Refused(ErrorCode.STALE_CONTROLLER_EPOCH, str(e)) from None


def _refused(topic: str, error: AdminError) -> CreatableTopicResult:
    return CreatableTopicResult(name=topic, error_code=error.code, error_message=_message(error))


def _not_added(topic: str, error: AdminError) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=topic, error_code=error.code, error_message=_message(error))


def _check_config(config: Mapping[str, str], inherited: Mapping[str, str]) -> None:
    """Raises AdminError."""
    try:
        check_topic_config(config, inherited)
    except ConfigError as e:
        raise AdminError(e.words, ErrorCode.INVALID_CONFIG) from None


def _message(error: AdminError) -> str | None:
    """Kafka says nothing about an unexpected error, and what everybody knows of quotas."""
    is_told = error.code not in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    return str(error) if is_told else None


def _check_quota(topic: str, partitions: int, permit: Callable[[int], bool]) -> None:
    """Raises AdminError."""
    if not permit(partitions):
        raise AdminError(
            f"topic {topic}: the controller mutation quota is exceeded",
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        )
