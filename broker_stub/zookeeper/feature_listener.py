"""Keeps a broker's cache of finalized features as /feature has them (rules 1.41, 2.1, 4.22)."""

from __future__ import annotations

import logging

import trio

from broker_stub.finalized_features import FeatureCacheUpdateFailed, FinalizedFeatureCache
from controller import zk_data
from controller.kafka_zk_client import KafkaZkClient
from controller.store import SessionExpired, SessionState, StoreError
from controller.zk_client import ChangeHandler
from harness.errors import HarnessError

log = logging.getLogger(__name__)


class FinalizedFeatureChangeListener:
    """``run`` lasts as long as the node; a node that does not support what is finalized ends."""

    def __init__(self, zk: KafkaZkClient, cache: FinalizedFeatureCache) -> None:
        self._zk = zk
        self._cache = cache
        self._changed = trio.Event()

    def session_changed(self, state: SessionState) -> None:
        """To be told of every state: with the session the watch is gone."""
        if state is SessionState.ESTABLISHED:
            self._changed.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """It has started when /feature has been read once. Raises HarnessError for features that are not supported."""
        handler = ChangeHandler(created=self._notified, changed=self._notified, deleted=self._notified)
        self._zk.register_change_handler(zk_data.FEATURE, handler)
        await self._read()
        task_status.started()
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            try:
                await self._read()
            except (StoreError, SessionExpired) as e:  # the next session has it read again
                log.info("%s could not be read: %s", zk_data.FEATURE, e)

    def _notified(self) -> None:
        self._changed.set()

    async def _read(self) -> None:
        """Sets the watch again."""
        found = await self._zk.get_feature()
        try:
            if found is None:
                self._cache.clear()
                return
            enabled, features = zk_data.decode_feature(found.data)
            if enabled:
                self._cache.update(features, found.stat.version)
            else:
                self._cache.clear()
        except (FeatureCacheUpdateFailed, zk_data.BadZNode) as e:
            raise HarnessError(f"{zk_data.FEATURE} cannot be followed: {e}") from None
