"""The logs of a node and the directories that they are in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import trio

from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.log.manager import LogManager
from kce.broker_stub.log.manager_config import LogManagerConfig
from kce.broker_stub.topic_configs import TopicConfigs
from kce.harness.errors import HarnessError, NodeHalted
from kce.harness.world import World
from kce.harness.world.memory_disk import MemoryDisk
from kce.wire.metadata_version import MetadataVersion
from kce.wire.vocabulary import TopicPartition

#: since then controllers learn of failed log directories
_IBP_1_0_IV0 = MetadataVersion.parse("1.0-IV0")
#: the log directory of a node that has none configured, on a disk in memory
_IN_MEMORY = "/kafka-logs"


class NodeLogs:
    """Without log directories records are kept in memory, until the node ends."""

    def __init__(
        self, config: BrokerConfig, properties: Mapping[str, str], world: World, now_ms: Callable[[], int]
    ) -> None:
        """Raises ConfigError."""
        self.node_id = config.broker_id
        self._config = config
        self._topics = TopicConfigs(properties)
        self._manager_config = LogManagerConfig.of(properties)
        self._world = world
        self._now_ms = now_ms
        #: of ``log.dirs``, what has failed before the logs are loaded
        self.failed_dirs: dict[str, OSError] = {}
        #: None until ``load`` has loaded it
        self.manager: LogManager | None = None
        #: told what a directory that fails had; None as long as there is no broker, to which the directory is offline
        self.on_failed: Callable[[Sequence[TopicPartition]], None] | None = None
        self._open: LogManager | None = None

    async def load(self, nursery: trio.Nursery) -> LogManager:
        """Load the logs, and start what looks after them.

        When directories fail and the node cannot go on, NodeHalted ends ``nursery`` (rule 9.68). Raises BrokerFailure.
        """

        def failed(path: str, partitions: list[TopicPartition]) -> None:
            if not self._survives_failed_dirs:
                nursery.start_soon(_halt, f"log directory {path} has failed, and {_IBP_1_0_IV0} is needed to go on")
            elif not manager.online:
                nursery.start_soon(_halt, f"log directory {path} has failed, and none is left")
            if self.on_failed is not None:
                self.on_failed(partitions)

        world, log_dirs = self._world, self._config.log_dirs
        manager = self._open = LogManager(
            world.disk if log_dirs else MemoryDisk(self._now_ms, world.machine),
            log_dirs or (_IN_MEMORY,),
            self._manager_config,
            now_ms=self._now_ms,
            random=world.random("logs"),
            config_of=self._topics.of,
            on_offline=failed,
        )
        await manager.load(self.failed_dirs)
        self.manager = manager
        await nursery.start(manager.run)
        return manager

    def abandon(self) -> None:
        """Let go of all files, as after a crash, unless ``close`` has closed them."""
        if self._open is not None:
            self._open.abandon()

    def topic_config_changed(self, topic: str, config: Mapping[str, str]) -> None:
        if self._topics.changed(topic, config) and self.manager is not None:
            self.manager.update_config([topic])

    def broker_config_changed(self, config: Mapping[str, str]) -> None:
        """The broker's dynamic settings, which topics without their own share (rule B7.30)."""
        if self._topics.broker_changed(config) and self.manager is not None:
            self.manager.update_config()

    @property
    def _survives_failed_dirs(self) -> bool:
        return self._config.inter_broker_protocol_version >= _IBP_1_0_IV0

    def halts_without(self, log_dir: str) -> bool:
        """Whether the node ends when that log directory fails (rule 9.68). Raises HarnessError for one that it does
        not have, or that is offline."""
        online = [] if self.manager is None else [directory.path for directory in self.manager.online]
        if log_dir.rstrip("/") not in online:
            raise HarnessError(
                f"there is no log directory {log_dir} of node {self.node_id}; online are {', '.join(online)}"
            )
        return len(online) == 1 or not self._survives_failed_dirs

    def fail(self, log_dir: str) -> None:
        """Let a log directory fail until the node starts again; without its last one the node ends."""
        if self.manager is not None:
            self.manager.fail(log_dir)


async def _halt(reason: str) -> None:
    raise NodeHalted(reason)
