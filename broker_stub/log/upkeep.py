"""What is done regularly while a broker runs: retention, compaction, flushes, checkpoints, deletions (section 6)."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import trio

from kce.broker_stub.errors import KafkaStorageError
from kce.broker_stub.log.cleaner import Cleaner
from kce.broker_stub.log.directory import LogDirectory
from kce.broker_stub.log.future_logs import FutureLogs
from kce.broker_stub.log.log import Log
from kce.broker_stub.log.manager_config import LogManagerConfig
from kce.broker_stub.log.names import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
)
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)


class Upkeep:
    """Looks after the logs in log directories. ``future``: those that move to another directory."""

    def __init__(
        self,
        config: LogManagerConfig,
        directories: Sequence[LogDirectory],
        logs: dict[TopicPartition, Log],
        future: FutureLogs,
        cleaner: Cleaner,
    ) -> None:
        self._config = config
        self.directories = directories
        self.logs = logs
        self.future = future
        self._cleaner = cleaner
        self._work = trio.Event()
        #: the cleaner is to look for work at once
        self._cleaner_changed = trio.Event()
        #: of the periodic duties
        self._duties = trio.CancelScope()

    @property
    def online(self) -> list[LogDirectory]:
        return [directory for directory in self.directories if not directory.is_offline]

    def _all(self) -> list[Log]:
        return [*self.logs.values(), *self.future.logs.values()]

    def _logs_in(self, directory: LogDirectory) -> dict[TopicPartition, Log]:
        """Those in use."""
        return {partition: found for partition, found in self.logs.items() if found.context is directory}

    def _stored_in(self, directory: LogDirectory) -> dict[TopicPartition, Log]:
        """Those that have files, and future ones; no directory has two of one partition."""
        stored = {partition: found for partition, found in self._logs_in(directory).items() if found.has_files}
        return {**stored, **self.future.in_directory(directory)}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled, or closed; the logs are loaded."""
        config = self._config
        async with trio.open_nursery() as nursery:
            self._duties = nursery.cancel_scope
            delay = config.log_initial_task_delay_ms
            for interval_ms, initial_ms, task in (
                (config.log_retention_check_interval_ms, delay, self._retain),
                (config.log_flush_scheduler_interval_ms, delay, self._flush_dirty),
                (config.log_flush_offset_checkpoint_interval_ms, delay, self.checkpoint_recovery_points),
                (config.log_flush_start_offset_checkpoint_interval_ms, delay, self.checkpoint_log_starts),
                (config.replica_high_watermark_checkpoint_interval_ms, 0, self.checkpoint_high_watermarks),
                (config.producer_id_expiration_check_interval_ms, 0, self._expire_producers),
            ):
                nursery.start_soon(_every, interval_ms / 1000, initial_ms / 1000, task)
            nursery.start_soon(self._do_later)
            if config.log_cleaner_enable:
                nursery.start_soon(self._clean)
            task_status.started()

    def _wake(self) -> None:
        self._work.set()

    async def _do_later(self) -> None:
        """Flush what was rolled, delete what is due, write where truncated logs are recovered from (rule B5.34)."""
        while True:
            deadline = math.inf
            self._work = trio.Event()
            for directory in self.online:
                if directory.has_cut_log:
                    await self._checkpoint_recovery_points_in(directory)
                await self._guarded(directory, directory.flush_due)
                await self._guarded(directory, _as_async(directory.delete_due))
                due = directory.next_deletion_ms
                if due is not None:
                    deadline = min(deadline, trio.current_time() + (due - directory.now_ms()) / 1000)
            with trio.move_on_at(deadline):
                await self._work.wait()

    async def _guarded(self, directory: LogDirectory, action: Callable[[], Awaitable[None]]) -> None:
        if not directory.is_offline:
            try:
                await action()
            except OSError as e:
                directory.failed(e)

    async def _each(self, action: Callable[[Log], object]) -> None:
        for found in self._all():
            partition = found.partition
            if found in (self.logs.get(partition), self.future.logs.get(partition)):
                try:
                    action(found)
                except KafkaStorageError as e:
                    log.warning("%s", e)
            await trio.lowlevel.checkpoint()

    async def _retain(self) -> None:
        """What is compacted is the cleaner's; without it, nothing is deleted there (rule B6.14)."""
        is_enabled = self._config.log_cleaner_enable
        await self._each(
            lambda found: found.delete_old_segments() if is_enabled or not found.config.is_compact else None
        )

    async def _clean(self) -> None:
        """Compact at once, and again after each wait; also when settings of the cleaner change: Kafka's starts anew."""
        while True:
            changed = self._cleaner_changed = trio.Event()
            await self._compact()
            with trio.move_on_after(self._config.log_cleaner_backoff_ms / 1000):
                await changed.wait()

    async def _compact(self) -> None:
        """Compact logs until none needs it (rule B6.22)."""
        while (cleaned := await self._cleaner.clean_next()) is not None:
            directory = cleaned.context
            assert isinstance(directory, LogDirectory)
            ends = self._cleaned_in(directory)
            await self._guarded(directory, partial(directory.update_checkpoint, CLEANER_OFFSET_CHECKPOINT, ends))

    def _cleaned_in(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        ends = {tp: self._cleaner.end_of_last_pass(found) for tp, found in self._logs_in(directory).items()}
        return {partition: end for partition, end in ends.items() if end is not None}

    async def _flush_dirty(self) -> None:
        await self._each(lambda found: found.flush() if found.is_flush_due else None)

    async def _expire_producers(self) -> None:
        await self._each(Log.remove_expired_producers)

    async def checkpoint_recovery_points(self) -> None:
        """Rule B5.34."""
        for directory in self.online:
            await self._checkpoint_recovery_points_in(directory)

    async def _checkpoint_recovery_points_in(self, directory: LogDirectory) -> None:
        directory.has_cut_log = False
        points = {partition: found.recovery_point for partition, found in self._stored_in(directory).items()}
        await self._guarded(directory, partial(directory.update_checkpoint, RECOVERY_POINT_CHECKPOINT, points))

    async def checkpoint_log_starts(self) -> None:
        for directory in self.online:
            starts = log_starts(self._stored_in(directory))
            await self._guarded(directory, partial(directory.update_checkpoint, LOG_START_OFFSET_CHECKPOINT, starts))

    async def checkpoint_high_watermarks(self) -> None:
        """Rule B5.31."""
        for directory in self.online:
            marks = {partition: found.high_watermark for partition, found in self._stored_in(directory).items()}
            await self._guarded(directory, partial(directory.update_checkpoint, REPLICATION_OFFSET_CHECKPOINT, marks))


def log_starts(logs: Mapping[TopicPartition, Log]) -> dict[TopicPartition, int]:
    """The log start offsets that are not the base offset of the first segment."""
    return {
        partition: found.log_start_offset
        for partition, found in logs.items()
        if found.log_start_offset > found.base_offset
    }


def _as_async(action: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        action()
        await trio.lowlevel.checkpoint()

    return run


async def _every(interval: float, initial: float, task: Callable[[], Awaitable[None]]) -> None:
    """Seconds between the ends of one run and the start of the next; never if that is longer than a clock goes."""
    await trio.sleep(initial)
    while True:
        await trio.sleep(interval)
        await task()
