"""Reads the settings of topics from ZooKeeper, soon after the broker has heard of a topic, many at a time.

Kafka's broker reads them before it makes a log, and waits for ZooKeeper as long as it takes. Here a log makes no files
until something is written, and a LeaderAndIsr does not wait: whatever depends on the settings has them read first.
While ZooKeeper cannot be reached, new logs have the broker's settings, and those of their topic once it can.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

import trio

from kce.broker_stub.ports import TopicSettings
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import SessionExpired, SessionState, StoreError

log = logging.getLogger(__name__)

#: topics that a broker hears of within so long are read together
GATHER_S: Final = 0.1


class TopicConfigReader(TopicSettings):
    """``changed`` gets each topic with its settings. Its owner reports the session's states, and runs ``run``."""

    def __init__(self, zk: KafkaZkClient, changed: Callable[[str, Mapping[str, str]], None]) -> None:
        self._zk = zk
        self._changed = changed
        self._is_lost = False
        self._unread: set[str] = set()
        #: could not be read
        self._failed: set[str] = set()
        #: there is something to read, or the connection is back
        self._woken = trio.Event()
        #: of reads, which end with the connection
        self._scopes: set[trio.CancelScope] = set()

    @property
    def unread(self) -> Collection[str]:
        return self._unread

    def expect(self, topics: Collection[str]) -> None:
        if topics:
            self._unread.update(topics)
            self._woken.set()

    def session_changed(self, state: SessionState) -> None:
        self._is_lost = state not in (SessionState.CONNECTED, SessionState.ESTABLISHED)
        if not self._is_lost:
            self._woken.set()
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

    async def read(self, topics: Collection[str]) -> None:
        done = False
        if not self._is_lost:
            with trio.CancelScope() as scope:
                self._scopes.add(scope)
                try:
                    await self._read(topics)
                    done = True
                except (StoreError, SessionExpired) as e:
                    log.info("the settings of topics could not be read: %s", e)
                finally:
                    self._scopes.discard(scope)
        self._unread.difference_update(topics)
        if done:
            self._failed.difference_update(topics)
        else:
            self._failed.update(topics)
            log.warning("the settings of topics %s cannot be read from ZooKeeper now", ", ".join(sorted(topics)))

    async def run(self) -> None:
        """Read what is expected, and again what could not be read whenever the connection is back. Until cancelled."""
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            await trio.sleep(GATHER_S)
            topics = sorted(self._unread | self._failed)
            if topics and not self._is_lost:
                await self.read(topics)
