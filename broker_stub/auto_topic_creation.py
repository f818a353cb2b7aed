"""Creates topics for clients that ask for them: in Metadata requests, and as coordinators' (Kafka's
AutoTopicCreationManager; rules B7.11 to B7.14, G1.6 to G1.8, T1.4)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.ports import AdminPort, Permit, always
from kce.wire import CreatableTopic, CreatableTopicConfig, CreatableTopicResult, ErrorCode
from kce.wire.vocabulary import is_valid_topic_name

log = logging.getLogger(__name__)

#: what becomes of a topic that is there, or is there now: it has no leaders yet
_IS_THERE = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT)


class AutoTopicCreation:
    """``spawn`` starts a background task of the broker."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata_cache: MetadataCache,
        admin: AdminPort,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._config = config
        self._metadata_cache = metadata_cache
        self._admin = admin
        self._spawn = spawn
        self._creating: set[str] = set()

    async def create(self, names: Iterable[str], permit: Permit = always) -> dict[str, ErrorCode]:
        """Write topics to the metadata store, and return an answer for each: LEADER_NOT_AVAILABLE for one that is
        there now, UNKNOWN_TOPIC_OR_PARTITION for one that is being created (rules B7.12, B7.13).

        May raise what the store raises.
        """
        answers: dict[str, ErrorCode] = {}
        wanted = []
        for name in names:
            if not is_valid_topic_name(name):
                answers[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
            elif name in self._creating:
                answers[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                self._creating.add(name)
                wanted.append(self._creatable(name))
        try:
            for result in await self._written(wanted, permit):
                error = ErrorCode(result.error_code)
                answers[result.name] = ErrorCode.LEADER_NOT_AVAILABLE if error in _IS_THERE else error
                if error not in _IS_THERE:
                    log.warning("%s could not be created: %s", result.name, result.error_message or error.name)
        finally:
            self._creating.difference_update(topic.name for topic in wanted)
        return answers

    async def _written(self, topics: list[CreatableTopic], permit: Permit) -> list[CreatableTopicResult]:
        if not topics:
            return []
        brokers = self._metadata_cache.snapshot.alive_brokers.values()
        racks = {broker.broker_id: broker.rack for broker in brokers}
        return await self._admin.create_topics(topics, racks, validate_only=False, permit=permit)

    def create_internal(self, topic: str) -> None:
        """In the background, each once at a time; nothing for a topic that is not internal."""
        if topic in INTERNAL_TOPICS and topic not in self._creating:
            self._spawn(functools.partial(self._create_internal, topic))

    async def _create_internal(self, topic: str) -> None:
        try:
            await self.create([topic])
        except Exception:  # the next look-up tries again
            log.exception("%s could not be created", topic)

    def _creatable(self, name: str) -> CreatableTopic:
        if name == GROUP_METADATA_TOPIC:
            return self._group_metadata_topic()
        if name == TRANSACTION_STATE_TOPIC:
            return self._transaction_state_topic()
        config = self._config
        return CreatableTopic(
            name=name, num_partitions=config.num_partitions, replication_factor=config.default_replication_factor
        )

    def _group_metadata_topic(self) -> CreatableTopic:
        config = self._config.groups
        return _compacted(
            GROUP_METADATA_TOPIC,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            {"segment.bytes": config.offsets_topic_segment_bytes, "compression.type": "producer"},
        )

    def _transaction_state_topic(self) -> CreatableTopic:
        config = self._config.transactions
        return _compacted(
            TRANSACTION_STATE_TOPIC,
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
            {
                "compression.type": "uncompressed",
                "unclean.leader.election.enable": "false",
                "min.insync.replicas": config.transaction_state_log_min_isr,
                "segment.bytes": config.transaction_state_log_segment_bytes,
            },
        )


def _compacted(name: str, partitions: int, replication_factor: int, configs: Mapping[str, str | int]) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=(
            CreatableTopicConfig(name="cleanup.policy", value="compact"),
            *(CreatableTopicConfig(name=key, value=str(value)) for key, value in configs.items()),
        ),
    )
