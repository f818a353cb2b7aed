"""Replicas move to another log directory of their broker: a future log is filled, and replaces the log (rule B7.23).

One task copies what the logs have, some of it at a time, and swaps a log as soon as its future one has everything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import trio

from kce.broker_stub.errors import ApiException, KafkaStorageError, OffsetOutOfRange, Refused
from kce.broker_stub.log import Log
from kce.broker_stub.log.leader_epochs import UNDEFINED
from kce.broker_stub.log.manager import LogManager
from kce.broker_stub.partition import Partition
from kce.broker_stub.replication.copying import append_copied
from kce.broker_stub.replication.throttle import ReplicationQuota
from kce.wire import ErrorCode
from kce.wire.errors import CorruptRecord
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)


class HostedPartitions(Protocol):
    """The part of ReplicaManager that this module uses."""

    partitions: dict[TopicPartition, Partition]
    offline_partitions: set[TopicPartition]


class LogDirMoves:
    """``swapped`` is called with a partition after its log was replaced. ``max_bytes``: that are copied at once."""

    def __init__(
        self,
        hosted: Callable[[], HostedPartitions],
        logs: LogManager,
        swapped: Callable[[Partition], None],
        quota: ReplicationQuota,
        max_bytes: int,
    ) -> None:
        self._hosted = hosted
        self._logs = logs
        self._swapped = swapped
        self._quota = quota
        self._max_bytes = max_bytes
        #: an error that the next attempt would meet again
        self._failed: set[TopicPartition] = set()
        #: truncations of the log when its future one was last compared with it
        self._compared: dict[TopicPartition, int] = {}
        self._changed = trio.Event()

    def alter(self, topic_partition: TopicPartition, path: str) -> ErrorCode:
        """Move a replica to that directory, or remember the directory for a replica that is created later."""
        try:
            self._alter(topic_partition, path)
        except ApiException as e:
            log.warning("%s does not move to %s: %s", topic_partition, path, e)
            return e.code
        return ErrorCode.NONE

    def _alter(self, topic_partition: TopicPartition, path: str) -> None:
        future, hosted = self._logs.future, self._hosted()
        future.check_name(topic_partition)
        directory = future.directory(path)
        if topic_partition in hosted.offline_partitions:
            raise KafkaStorageError(f"{topic_partition} is offline")
        known, partition = future.logs.get(topic_partition), hosted.partitions.get(topic_partition)
        if known is not None and known.context is not directory:
            future.remove(topic_partition)
        future.prefer(topic_partition, directory)
        if partition is None or partition.log is None:
            raise Refused(ErrorCode.REPLICA_NOT_AVAILABLE)
        if partition.log.context is not directory and topic_partition not in future.logs:
            future.create(topic_partition, directory)
            self.partition_changed(partition)

    def partition_changed(self, partition: Partition) -> None:
        """Its role has changed, or it is not hosted any more; or it has a future log now."""
        self._forget(partition.topic_partition)
        self._changed.set()

    def _forget(self, topic_partition: TopicPartition) -> None:
        self._failed.discard(topic_partition)
        self._compared.pop(topic_partition, None)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._changed = trio.Event()
            waits = self._quota.delay()
            moving = [] if waits else self._movable()
            for partition in moving:
                self._step(partition)
                await trio.lowlevel.checkpoint()
            if waits:
                await trio.sleep(waits)
            elif not moving:
                await self._changed.wait()

    def _movable(self) -> list[Partition]:
        hosted = self._hosted().partitions
        return [
            partition
            for topic_partition in self._logs.future.logs
            if topic_partition not in self._failed
            and (partition := hosted.get(topic_partition)) is not None
            and partition.log is not None
        ]

    def _step(self, partition: Partition) -> None:
        """Copy some, and swap if that was all."""
        topic_partition, current = partition.topic_partition, partition.log
        future = self._logs.future.logs.get(topic_partition)
        if future is None or current is None or self._quota.is_exceeded:
            return
        try:
            self._truncate(current, future)
            self._copy(current, future)
            if future.log_end_offset == current.log_end_offset:
                self._swap(partition, current, future)
        except KafkaStorageError as e:
            log.warning("%s", e)  # the directory is offline, and with it the log or the future one
        except (ApiException, CorruptRecord) as e:
            log.warning("%s cannot move to %s: %s", topic_partition, future.context.path, e)
            self._failed.add(topic_partition)

    def _truncate(self, current: Log, future: Log) -> None:
        """Remove what the log does not have, or not any more (rule B5.25)."""
        partition = current.partition
        if future.latest_epoch is None:
            if self._compared.get(partition, current.truncations) != current.truncations:
                future.truncate_to(min(future.high_watermark, current.log_end_offset))
            elif future.log_end_offset > current.log_end_offset:
                future.truncate_to(current.log_end_offset)
        while (epoch := future.latest_epoch) is not None:
            found = current.end_offset_of(epoch)
            if found.end_offset == UNDEFINED:
                target = min(future.high_watermark, current.log_end_offset)
            elif found.epoch == epoch:
                target = found.end_offset
            else:
                target = min(found.end_offset, future.end_offset_of(found.epoch).end_offset)
            if not future.truncate_to(target):
                break
        self._compared[partition] = current.truncations

    def _copy(self, current: Log, future: Log) -> None:
        if future.log_end_offset < current.log_start_offset:
            future.truncate_fully(current.log_start_offset)
        if future.log_end_offset < current.log_end_offset:
            max_bytes = min(self._max_bytes, current.config.segment_bytes)
            records = current.read_bytes(future.log_end_offset, max_bytes)
            if not records:
                raise OffsetOutOfRange(f"nothing at offset {future.log_end_offset} of {current!r}")
            append_copied(future, records)
            self._quota.record(len(records))
        future.set_high_watermark(current.high_watermark)
        future.increment_log_start_offset(min(current.log_start_offset, future.high_watermark))

    def _swap(self, partition: Partition, current: Log, future: Log) -> None:
        latest = current.latest_epoch
        if latest is not None:  # the future log lacks that of a leader without records since
            future.assign_epoch(latest)
        partition.replace_log(self._logs.swap(partition.topic_partition))
        self._forget(partition.topic_partition)
        log.info("%s moved to %s", partition.topic_partition, future.context.path)
        self._swapped(partition)
