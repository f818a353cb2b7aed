"""Log managers on a disk in memory; one that can fail."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random

import trio

from kce.broker_stub import LogManager, LogManagerConfig, TopicPartition
from kce.broker_stub.errors import KafkaStorageError
from kce.broker_stub.log import Log, LogConfig
from kce.harness.world.memory_disk import MemoryDisk


def now_ms() -> int:
    return 1_700_000_000_000 + round(trio.current_time() * 1000)


@cache
def config_of(settings: tuple[tuple[str, str], ...], protocol: str | None) -> LogConfig:
    return LogConfig.of(dict(settings), {"inter.broker.protocol.version": protocol} if protocol else {})


class MemoryLogManager(LogManager):
    """``topic``: settings of every topic; they may be changed. It serves without being loaded."""

    def __init__(
        self,
        topic: Mapping[str, str] | None = None,
        disk: MemoryDisk | None = None,
        log_dirs: Sequence[str] = ("/logs",),
        inter_broker_protocol_version: str | None = None,
    ) -> None:
        self.topic = dict(topic or {})
        self.disk = disk or MemoryDisk(now_ms)
        super().__init__(
            self.disk, log_dirs, LogManagerConfig.of({}), now_ms=now_ms, random=Random(1),
            config_of=lambda name: config_of(tuple(self.topic.items()), inter_broker_protocol_version),
        )  # fmt: skip


class FailingLogManager(MemoryLogManager):
    """``offline``: a directory failed, and may hold missing logs. ``broken``: partitions whose logs fail."""

    def __init__(self) -> None:
        super().__init__()
        self.offline = False
        self.broken: set[TopicPartition] = set()

    def get_or_create_log(self, partition: TopicPartition, *, is_new: bool, topic_id: uuid.UUID | None) -> Log:
        if partition in self.broken or (self.offline and not is_new and not self.has_log(partition)):
            raise KafkaStorageError(f"{partition} is in a directory that is offline")
        return super().get_or_create_log(partition, is_new=is_new, topic_id=topic_id)

    def delete_log(self, partition: TopicPartition) -> None:
        super().delete_log(partition)
        if partition in self.broken:
            raise KafkaStorageError(f"{partition} is in a directory that is offline")
