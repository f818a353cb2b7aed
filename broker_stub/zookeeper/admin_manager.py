"""Admin requests in ZooKeeper: creating and deleting topics, adding partitions, reading and changing configurations.

The request handlers check what needs the controller or the metadata cache. Errors are not raised, but part of the
response.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from random import Random

from kce.wire import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    ErrorCode,
)
from kce.wire.configuration import ConfigError, check_topic_config
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper import admin
from kce.zookeeper.admin import AdminError
from kce.zookeeper.kafka_zk_client import KafkaZkClient


class ZkAdminManager:
    """``random`` places new topics (rule 10.4), never on ``controllers``: the live nodes that are controllers only."""

    def __init__(
        self,
        zk: KafkaZkClient,
        ibp: MetadataVersion,
        random: Random,
        controllers: Callable[[], Collection[int]] = frozenset,
    ) -> None:
        self._controllers = controllers
        self._zk = zk
        self._ibp = ibp
        self._random = random

    async def create_topic(
        self,
        topic: CreatableTopic,
        brokers: Mapping[int, str | None],
        *,
        validate_only: bool,
        permit: Callable[[int], bool] = lambda partitions: True,
    ) -> CreatableTopicResult:
        """Rules 10.3-10.7, from "null config value" on. ``brokers``: id -> rack of those that are alive.

        ``permit`` checks the quota for that many partitions just before the topic is written (rule 10.11). Without
        assignments, -1 is not a valid number in ``topic``: the caller replaces it by the defaults.
        """
        try:
            config, assignment = self._plan(topic, brokers)
            await admin.check_new_topic(self._zk, topic.name, assignment)
            _check_config(topic.name, config)
            result = CreatableTopicResult(
                name=topic.name, num_partitions=len(assignment), replication_factor=len(assignment[0])
            )
            if validate_only:
                return result
            _check_quota(topic.name, len(assignment), permit)
            topic_id = self._zk.new_uuid() if self._ibp.supports_topic_ids else None
            await admin.write_topic(self._zk, topic.name, assignment, config, topic_id)
            return result if topic_id is None else replace(result, topic_id=topic_id)
        except AdminError as e:
            return CreatableTopicResult(name=topic.name, error_code=e.code, error_message=_message(e))

    def _plan(
        self, topic: CreatableTopic, brokers: Mapping[int, str | None]
    ) -> tuple[dict[str, str], Mapping[int, Sequence[int]]]:
        """Configuration and assignment. Raises AdminError."""
        nulls = sorted(entry.name for entry in topic.configs if entry.value is None)
        if nulls:
            raise AdminError(f"topic {topic.name}: {', '.join(nulls)} without a value", ErrorCode.INVALID_CONFIG)
        config = {entry.name: entry.value for entry in topic.configs if entry.value is not None}
        if not topic.assignments:
            controllers = self._controllers()
            usable = {broker: rack for broker, rack in brokers.items() if broker not in controllers}
            return config, admin.place(
                topic.name, usable, topic.num_partitions, topic.replication_factor, random=self._random
            )
        if (topic.num_partitions, topic.replication_factor) != (-1, -1):
            raise AdminError(
                f"topic {topic.name}: give either assignments, or the numbers of partitions and replicas",
                ErrorCode.INVALID_REQUEST,
            )
        repeated = [p for p, times in Counter(a.partition_index for a in topic.assignments).items() if times > 1]
        if repeated:
            raise AdminError(
                f"topic {topic.name}: partitions {sorted(repeated)} are assigned twice",
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            )
        assignment = {a.partition_index: a.broker_ids for a in topic.assignments}
        admin.check_takes_replicas(topic.name, assignment, self._controllers())
        return config, assignment

    async def create_partitions(
        self,
        topic: CreatePartitionsTopic,
        *,
        validate_only: bool,
        permit: Callable[[int], bool] = lambda partitions: True,
    ) -> tuple[CreatePartitionsTopicResult, Collection[int]]:
        """Rules 10.11, 10.13-10.16: the result and the numbers of all partitions that there are now."""
        assignments = None if topic.assignments is None else [a.broker_ids for a in topic.assignments]
        try:
            found, added = await admin.plan_partitions(
                self._zk, topic.name, topic.count, assignments, random=self._random
            )
            if validate_only:
                return CreatePartitionsTopicResult(name=topic.name), ()
            _check_quota(topic.name, len(added), permit)
            await admin.add_partitions(self._zk, found, added)
        except AdminError as e:
            refused = CreatePartitionsTopicResult(name=topic.name, error_code=e.code, error_message=_message(e))
            return refused, ()
        return CreatePartitionsTopicResult(name=topic.name), found.partitions.keys() | added.keys()

    async def delete_topic(self, topic: str) -> ErrorCode:
        """Rule 10.36. Success if the topic is already marked for deletion."""
        try:
            await admin.delete_topic(self._zk, topic)
        except AdminError as e:
            return e.code
        return ErrorCode.NONE

    async def config(self, kind: str, name: str) -> Mapping[str, str]:
        """The configuration in ``/config/<kind>/<name>``."""
        return await self._zk.get_config(kind, name)

    async def change_config(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        """Replace the configuration and notify every broker (rules 1.35, 1.54)."""
        await self._zk.change_config(kind, name, config)


def _check_config(topic: str, config: Mapping[str, str]) -> None:
    """Raises AdminError."""
    try:
        check_topic_config(config)
    except ConfigError as e:
        raise AdminError(f"topic {topic}: {e}", ErrorCode.INVALID_CONFIG) from None


def _message(error: AdminError) -> str | None:
    """Kafka says nothing about an unexpected error."""
    return None if error.code is ErrorCode.UNKNOWN_SERVER_ERROR else str(error)


def _check_quota(topic: str, partitions: int, permit: Callable[[int], bool]) -> None:
    """Raises AdminError."""
    if not permit(partitions):
        raise AdminError(
            f"topic {topic}: the controller mutation quota is exceeded",
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        )
