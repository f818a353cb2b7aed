"""Keeps a broker's cache of finalized features up to date with /feature (rules 1.41, 2.1, 4.22)."""

from __future__ import annotations

import logging

import trio

from kce.broker_stub.errors import BrokerFailure
from kce.broker_stub.finalized_features import FeatureCacheUpdateFailed, FinalizedFeatureCache
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.client import ChangeHandler
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import SessionExpired, SessionState, StoreError

log = logging.getLogger(__name__)


class FinalizedFeatureChangeListener:
    """``run`` ends with the node; it fails if the node does not support the finalized features."""

    def __init__(self, zk: KafkaZkClient, cache: FinalizedFeatureCache) -> None:
        self._zk = zk
        self._cache = cache
        self._changed = trio.Event()

    def session_changed(self, state: SessionState) -> None:
        """Call with every new state of the session, because the watch ends with the session."""
        if state is SessionState.ESTABLISHED:
            self._changed.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reports started after the first read. Raises BrokerFailure for features that are not supported."""
        handler = ChangeHandler(created=self._wake_up, changed=self._wake_up, deleted=self._wake_up)
        self._zk.register_change_handler(znodes.FEATURE, handler)
        await self._read()
        task_status.started()
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            try:
                await self._read()
            except (StoreError, SessionExpired) as e:  # read again in the next session
                log.info("%s could not be read: %s", znodes.FEATURE, e)

    def _wake_up(self) -> None:
        self._changed.set()

    async def _read(self) -> None:
        """Read /feature and renew the watch."""
        found = await self._zk.get_feature()
        try:
            if found is None:
                self._cache.clear()
                return
            enabled, features = cluster_nodes.decode_feature(found.data)
            if enabled:
                self._cache.update(features, found.stat.version)
            else:
                self._cache.clear()
        except (FeatureCacheUpdateFailed, znodes.BadZNode) as e:
            raise BrokerFailure(f"{znodes.FEATURE} cannot be followed: {e}") from None
