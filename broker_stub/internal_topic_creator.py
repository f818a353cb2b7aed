"""Creates the internal topics when a client first looks for a coordinator (rules G1.6 to G1.8, T1.4)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Mapping

from kce.broker_stub.group_config import GroupConfig
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.ports import AdminPort
from kce.broker_stub.transaction_config import TransactionConfig
from kce.wire import CreatableTopic, CreatableTopicConfig, ErrorCode

log = logging.getLogger(__name__)


class InternalTopicCreator:
    """``spawn`` starts a background task of the broker."""

    def __init__(
        self,
        groups: GroupConfig,
        transactions: TransactionConfig,
        metadata_cache: MetadataCache,
        admin: AdminPort,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._groups = groups
        self._transactions = transactions
        self._metadata_cache = metadata_cache
        self._admin = admin
        self._spawn = spawn
        self._creating: set[str] = set()

    def create(self, topic: str) -> None:
        """In the background, each once at a time; nothing for another topic."""
        if topic == GROUP_METADATA_TOPIC:
            wanted = self._group_metadata_topic()
        elif topic == TRANSACTION_STATE_TOPIC:
            wanted = self._transaction_state_topic()
        else:
            return
        if topic not in self._creating:
            self._creating.add(topic)
            self._spawn(functools.partial(self._create, wanted))

    async def _create(self, topic: CreatableTopic) -> None:
        brokers = self._metadata_cache.snapshot.alive_brokers.values()
        try:
            (result,) = await self._admin.create_topics(
                [topic], {broker.broker_id: broker.rack for broker in brokers}, validate_only=False
            )
        except Exception:  # the next look-up tries again
            log.exception("%s could not be created", topic.name)
        else:
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                why = result.error_message or ErrorCode(result.error_code).name
                log.warning("%s could not be created: %s", topic.name, why)
        finally:
            self._creating.discard(topic.name)

    def _group_metadata_topic(self) -> CreatableTopic:
        config = self._groups
        return _compacted(
            GROUP_METADATA_TOPIC,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            {"segment.bytes": config.offsets_topic_segment_bytes, "compression.type": "producer"},
        )

    def _transaction_state_topic(self) -> CreatableTopic:
        config = self._transactions
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
