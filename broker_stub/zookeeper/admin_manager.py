"""What a broker does in ZooKeeper for those who administrate it: the part of requests that needs no active controller.

The requests' own checks (who is controller, what the metadata cache knows) are the broker's; whatever is refused here
comes back inside the response's own struct, so that no exception of ours crosses into the broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

from controller import admin
from controller.admin import AdminError
from controller.kafka_zk_client import KafkaZkClient
from wire import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    ErrorCode,
)
from wire.metadata_version import MetadataVersion


class ZkAdminManager:
    """``random`` places new topics (rule 10.4)."""

    def __init__(self, zk: KafkaZkClient, ibp: MetadataVersion, random: Random) -> None:
        self._zk = zk
        self._ibp = ibp
        self._random = random

    async def create_topic(
        self,
        topic: CreatableTopic,
        brokers: Mapping[int, str | None],
        *,
        validate_only: bool,
        config_error: Callable[[Mapping[str, str]], str | None],
        permit: Callable[[int], bool] = lambda partitions: True,
    ) -> CreatableTopicResult:
        """Rules 10.3-10.7, from "null config value" on. ``brokers``: id -> rack of those that are alive.

        ``config_error`` says what is wrong with a configuration; ``permit`` is asked just before the topic is written
        whether there may be so many partitions more (rule 10.11). Numbers in ``topic`` are above 0 or wrong: -1 has
        been resolved where no assignments are given.
        """
        try:
            config, assignment = self._asked(topic, brokers)
            await admin.check_new_topic(self._zk, topic.name, assignment)
            if (wrong := config_error(config)) is not None:
                return CreatableTopicResult(
                    name=topic.name, error_code=ErrorCode.INVALID_CONFIG, error_message=f"topic {topic.name}: {wrong}"
                )
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
            return CreatableTopicResult(name=topic.name, error_code=e.code, error_message=str(e))

    def _asked(
        self, topic: CreatableTopic, brokers: Mapping[int, str | None]
    ) -> tuple[dict[str, str], Mapping[int, Sequence[int]]]:
        """Configuration and assignment. Raises AdminError."""
        nulls = sorted(entry.name for entry in topic.configs if entry.value is None)
        if nulls:
            raise AdminError(f"topic {topic.name}: {', '.join(nulls)} without a value", ErrorCode.INVALID_CONFIG)
        config = {entry.name: entry.value for entry in topic.configs if entry.value is not None}
        if not topic.assignments:
            return config, admin.place(
                topic.name, brokers, topic.num_partitions, topic.replication_factor, random=self._random
            )
        if (topic.num_partitions, topic.replication_factor) != (-1, -1):
            raise AdminError(
                f"topic {topic.name}: either assignments or the numbers of partitions and replicas, not both",
                ErrorCode.INVALID_REQUEST,
            )
        twice = [p for p, times in Counter(a.partition_index for a in topic.assignments).items() if times > 1]
        if twice:
            raise AdminError(
                f"topic {topic.name}: partitions {sorted(twice)} are assigned twice",
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            )
        return config, {a.partition_index: a.broker_ids for a in topic.assignments}

    async def create_partitions(
        self,
        topic: CreatePartitionsTopic,
        *,
        validate_only: bool,
        permit: Callable[[int], bool] = lambda partitions: True,
    ) -> tuple[CreatePartitionsTopicResult, range]:
        """Rules 10.11, 10.13-10.16: the answer and the numbers of the partitions that were added."""
        asked = None if topic.assignments is None else [a.broker_ids for a in topic.assignments]
        try:
            found, added = await admin.plan_partitions(self._zk, topic.name, topic.count, asked, random=self._random)
            if validate_only:
                return CreatePartitionsTopicResult(name=topic.name), range(0)
            _check_quota(topic.name, len(added), permit)
            await admin.add_partitions(self._zk, found, added)
        except AdminError as e:
            refused = CreatePartitionsTopicResult(name=topic.name, error_code=e.code, error_message=str(e))
            return refused, range(0)
        return CreatePartitionsTopicResult(name=topic.name), range(min(added), max(added) + 1)

    async def delete_topic(self, topic: str) -> ErrorCode:
        """Rule 10.36; that it is marked already is success."""
        try:
            await admin.delete_topic(self._zk, topic)
        except AdminError as e:
            return e.code
        return ErrorCode.NONE

    async def config(self, kind: str, name: str) -> Mapping[str, str]:
        """What is set at ``/config/<kind>/<name>``."""
        return await self._zk.get_config(kind, name)

    async def change_config(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        """Replace it and tell every broker (rules 1.35, 1.54)."""
        await self._zk.change_config(kind, name, config)


def _check_quota(topic: str, partitions: int, permit: Callable[[int], bool]) -> None:
    """Raises AdminError."""
    if not permit(partitions):
        raise AdminError(
            f"topic {topic}: the quota for partitions that are created and deleted is exceeded",
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        )
