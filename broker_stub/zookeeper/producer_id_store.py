"""Blocks of producer ids that a broker allocates itself, in ZooKeeper (rules B3.59, 1.43)."""

from __future__ import annotations

import logging

from kce.zookeeper import znodes
from kce.zookeeper.admin_nodes import allocate_producer_ids
from kce.zookeeper.errors import IllegalState
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import BrokerId
from kce.zookeeper.store import SessionExpired, StoreError

log = logging.getLogger(__name__)


class ZkProducerIds:
    def __init__(self, zk: KafkaZkClient, broker: int) -> None:
        self._zk = zk
        self._broker = BrokerId(broker)

    async def allocate(self) -> range | None:
        """A new block; None if ZooKeeper cannot give one now."""
        try:
            block = await allocate_producer_ids(self._zk, self._broker)
        except (IllegalState, SessionExpired, StoreError, znodes.BadZNode) as e:
            log.warning("no block of producer ids: %s", e or type(e).__name__)
            return None
        return range(block.first, block.last + 1)
