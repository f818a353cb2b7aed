"""A log directory: its lock, its checkpoints, its pending deletions and flushes, and whether it has failed."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from kce.broker_stub.disk import Disk
from kce.broker_stub.errors import BrokerFailure
from kce.broker_stub.log.checkpoints import BadNumber, encode_offsets, read_offsets, write_clean_shutdown, write_offsets
from kce.broker_stub.log.names import (
    CLEAN_SHUTDOWN,
    LOCK,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
)
from kce.broker_stub.log.segments import NOTHING_RECENT, FlushableLog, LogContext, RestingLog
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

#: logs with segments in memory, of each directory
MAX_AWAKE: Final = 1_000
_TRIED_AT_ONCE: Final = 3
CHECKPOINTS = (RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, REPLICATION_OFFSET_CHECKPOINT)


class LogDirectory(LogContext):
    """A log directory; after a failure it is offline for good (``is_offline``, rule B3.20)."""

    def __init__(
        self,
        path: str,
        disk: Disk,
        *,
        now_ms: Callable[[], int],
        random: Random,
        producer_id_expiration_ms: int,
        delete_delay_ms: int,
        on_failure: Callable[[LogDirectory], None],
        wake: Callable[[], None],
    ) -> None:
        """``delete_delay_ms``: of logs that are deleted. ``wake``: there is something to flush or to delete."""
        self.path = path.rstrip("/")
        self.disk = disk
        self.random = random
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self.delete_delay_ms = delete_delay_ms
        self.recent = NOTHING_RECENT
        self.is_offline = False
        self.had_clean_shutdown = False
        #: those in use here, and the future ones
        self.log_count = 0
        #: a log was truncated since the recovery points were written
        self.has_cut_log = False
        self._now_ms = now_ms
        self._on_failure = on_failure
        self._wake = wake
        self._is_locked = False
        #: (when, order, path)
        self._deletions: list[tuple[int, int, str]] = []
        self._order = itertools.count()
        self._flushes: dict[FlushableLog, int] = {}
        #: those with segments in memory, in the order in which they woke
        self._awake: deque[RestingLog] = deque()
        self._written: dict[str, bytes] = {}
        self._checkpoints_written = 0

    def __repr__(self) -> str:
        return f"<log directory {self.path}{', offline' if self.is_offline else ''}>"

    def now_ms(self) -> int:
        return self._now_ms()

    def failed(self, error: OSError) -> None:
        if not self.is_offline:
            self.is_offline = True
            log.error("log directory %s is offline: %s", self.path, error)
            self._on_failure(self)

    def was_cut(self) -> None:
        self.has_cut_log = True
        self._wake()

    def woke(self, log: RestingLog) -> None:
        """Of too many, those that woke first rest. One that cannot, or was used, is asked again after the others."""
        self._awake.append(log)
        for _ in range(_TRIED_AT_ONCE):
            if len(self._awake) <= MAX_AWAKE or self._awake[0] is log:
                return
            first = self._awake.popleft()
            if not first.rest_if_unused():
                self._awake.append(first)

    # start and end

    def open(self) -> None:
        """Take the lock, and find out how the broker before ended. Raises OSError, BrokerFailure."""
        self.disk.make_folder(self.path)
        lock = f"{self.path}/{LOCK}"
        if not self.disk.lock(lock):
            raise BrokerFailure(f"{lock} is locked: another broker uses this log directory")
        self._is_locked = True
        marker = f"{self.path}/{CLEAN_SHUTDOWN}"
        self.had_clean_shutdown = self.disk.exists(marker)
        if self.had_clean_shutdown:
            self.disk.delete(marker)
            self.disk.flush_folder(self.path)

    def abandon(self) -> None:
        """Give back the lock, as the death of the process does."""
        if self._is_locked:
            self._is_locked = False
            self.disk.unlock(f"{self.path}/{LOCK}")

    def write_clean_shutdown(self, broker_epoch: int) -> None:
        """Raises OSError."""
        write_clean_shutdown(self.disk, f"{self.path}/{CLEAN_SHUTDOWN}", broker_epoch)

    def space(self) -> tuple[int, int]:
        """Total and usable bytes; -1 if they are not known."""
        try:
            return self.disk.space(self.path)
        except OSError:
            return -1, -1

    # checkpoints

    def read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        """Raises OSError, BadCheckpoint; if only numbers are bad, not for where recovery and logs start (rule B6.6)."""
        try:
            return read_offsets(self.disk, f"{self.path}/{name}")
        except BadNumber as e:
            if name not in (RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT):
                raise
            log.warning("%s/%s is ignored: %s", self.path, name, e)
            return {}

    def write_checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """At once; replaces one that is being written. Raises OSError."""
        self._checkpoints_written += 1
        write_offsets(self.disk, f"{self.path}/{name}", offsets)
        self._written[name] = encode_offsets(offsets)

    async def update_checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Write it if it has changed, while other tasks run. Raises OSError."""
        content = encode_offsets(offsets)
        if content == self._written.get(name):
            return
        path = f"{self.path}/{name}"
        part = f"{path}.tmp"
        before = self._checkpoints_written
        self.disk.write(part, content)
        await self.disk.flush_all([part])
        if self._checkpoints_written != before:
            return
        self.disk.rename(part, path)
        await self.disk.flush_all([self.path])
        self._written[name] = content

    # deferred work

    def delete_later(self, paths: list[str], delay_ms: int) -> None:
        when = self._now_ms() + delay_ms
        for path in paths:
            heapq.heappush(self._deletions, (when, next(self._order), path))
        self._wake()

    def flush_later(self, log: FlushableLog, end_offset: int) -> None:
        self._flushes[log] = end_offset
        self._wake()

    @property
    def next_deletion_ms(self) -> int | None:
        return self._deletions[0][0] if self._deletions else None

    def delete_due(self) -> None:
        """Delete what is due. Raises OSError."""
        while self._deletions and self._deletions[0][0] <= self._now_ms():
            self.disk.delete(heapq.heappop(self._deletions)[2])

    async def flush_due(self) -> None:
        """Flush what was to be flushed, while other tasks run. Raises OSError."""
        while self._flushes:
            flushable, end_offset = self._flushes.popitem()
            truncations = flushable.truncations
            await self.disk.flush_all(flushable.to_flush(end_offset))
            if flushable.truncations == truncations:
                flushable.flushed(end_offset)
