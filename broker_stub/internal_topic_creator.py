"""Creates the internal topics when a client first looks for a coordinator (rules G1.6 to G1.8)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from kce.broker_stub.group_config import GroupConfig
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.ports import AdminPort
from kce.wire import CreatableTopic, CreatableTopicConfig, ErrorCode

log = logging.getLogger(__name__)


class InternalTopicCreator:
    """``spawn`` starts a background task of the broker."""

    def __init__(
        self,
        config: GroupConfig,
        metadata_cache: MetadataCache,
        admin: AdminPort,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._config = config
        self._metadata_cache = metadata_cache
        self._admin = admin
        self._spawn = spawn
        self._is_creating = False

    def create(self, topic: str) -> None:
        """In the background, once at a time. Only that of groups: there is no coordinator of transactions."""
        if topic == GROUP_METADATA_TOPIC and not self._is_creating:
            self._is_creating = True
            self._spawn(self._create)

    async def _create(self) -> None:
        brokers = self._metadata_cache.snapshot.alive_brokers.values()
        try:
            (result,) = await self._admin.create_topics(
                [self._group_metadata_topic()], {broker.broker_id: broker.rack for broker in brokers},
                validate_only=False,
            )  # fmt: skip
        except Exception:  # the next look-up tries again
            log.exception("%s could not be created", GROUP_METADATA_TOPIC)
        else:
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                why = result.error_message or ErrorCode(result.error_code).name
                log.warning("%s could not be created: %s", GROUP_METADATA_TOPIC, why)
        finally:
            self._is_creating = False

    def _group_metadata_topic(self) -> CreatableTopic:
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": str(self._config.offsets_topic_segment_bytes),
            "compression.type": "producer",
        }
        return CreatableTopic(
            name=GROUP_METADATA_TOPIC,
            num_partitions=self._config.offsets_topic_num_partitions,
            replication_factor=self._config.offsets_topic_replication_factor,
            configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in configs.items()),
        )
