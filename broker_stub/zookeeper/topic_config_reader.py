"""Reads the settings of topics from ZooKeeper before their logs are made.

Kafka's broker waits for ZooKeeper as long as it takes. Here a LeaderAndIsr does not: while ZooKeeper cannot be reached,
new logs have the broker's settings, and those of their topic once it can.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

import trio

from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import SessionExpired, SessionState, StoreError

log = logging.getLogger(__name__)


class TopicConfigReader:
    """``changed`` gets each topic with its settings. Its owner reports the session's states, and runs ``run``."""

    def __init__(self, zk: KafkaZkClient, changed: Callable[[str, Mapping[str, str]], None]) -> None:
        self._zk = zk
        self._changed = changed
        self._is_lost = False
        self._back = trio.Event()
        self._unread: set[str] = set()
        #: of reads, which end with the connection
        self._scopes: set[trio.CancelScope] = set()

    def session_changed(self, state: SessionState) -> None:
        self._is_lost = state not in (SessionState.CONNECTED, SessionState.ESTABLISHED)
        if not self._is_lost:
            self._back.set()
            return
        for scope in self._scopes:
            scope.cancel()

    async def read_all(self, also: Callable[[str, Mapping[str, str]], None] = lambda topic, config: None) -> None:
        """For the start: ``also`` gets what ``changed`` gets. Raises StoreError, SessionExpired."""
        await self._read(await self._zk.get_children("/config/topics"), also)

    async def _read(
        self,
        topics: Collection[str],
        also: Callable[[str, Mapping[str, str]], None] = lambda topic, config: None,
    ) -> None:
        for topic, config in (await self._zk.get_topic_configs(list(topics))).items():
            if isinstance(config, dict):
                self._changed(topic, config)
                also(topic, config)

    async def prepare(self, topics: Collection[str]) -> None:
        """Returns when they are read, or when ZooKeeper cannot be reached."""
        self._unread.update(topics)
        if not self._is_lost:
            with trio.CancelScope() as scope:
                self._scopes.add(scope)
                try:
                    await self._read_unread(topics)
                finally:
                    self._scopes.discard(scope)
        if not self._unread.isdisjoint(topics):
            log.warning("the settings of topics %s cannot be read from ZooKeeper now", ", ".join(sorted(topics)))

    async def _read_unread(self, topics: Collection[str]) -> None:
        try:
            await self._read(topics)
        except (StoreError, SessionExpired) as e:
            log.info("the settings of topics could not be read: %s", e)
        else:
            self._unread.difference_update(topics)

    async def run(self) -> None:
        """Read again what could not be read, whenever the connection is back. Until cancelled."""
        while True:
            await self._back.wait()
            self._back = trio.Event()
            if self._unread:
                await self._read_unread(list(self._unread))
