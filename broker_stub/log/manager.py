"""The logs of a broker in its log directories: loaded at the start, looked after, closed at the end (section 6).

manager = LogManager(disk, ["/logs"], ...)
await manager.load()
await nursery.start(manager.run)     # retention, checkpoints, flushes, deletions
...
manager.close(broker_epoch)          # clean; or ``abandon``, as in the death of the process
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from random import Random

import trio

from kce.broker_stub.disk import Disk
from kce.broker_stub.errors import BrokerFailure, KafkaStorageError
from kce.broker_stub.log.cleaner import Cleaner
from kce.broker_stub.log.config import LogConfig
from kce.broker_stub.log.directory import LogDirectory
from kce.broker_stub.log.future_logs import FutureLogs
from kce.broker_stub.log.log import Log
from kce.broker_stub.log.manager_config import LogManagerConfig
from kce.broker_stub.log.names import (
    CLEANER_OFFSET_CHECKPOINT,
    KRAFT_METADATA,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REMOTE_INDEX_CACHE,
    REPLICATION_OFFSET_CHECKPOINT,
    parse_folder,
)
from kce.wire.errors import CorruptRecord
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

#: after so many logs, other tasks run
_LOGS_AT_ONCE = 20


class LogManager:
    """Owns the logs. ``on_offline``: a log directory has failed, with these partitions in it."""

    def __init__(
        self,
        disk: Disk,
        log_dirs: Sequence[str],
        config: LogManagerConfig,
        *,
        now_ms: Callable[[], int],
        random: Random,
        config_of: Callable[[str], LogConfig],
        on_offline: Callable[[str, list[TopicPartition]], None] = lambda path, partitions: None,
    ) -> None:
        """``config_of``: the settings of a topic's logs."""
        self._disk = disk
        self._config = config
        self._config_of = config_of
        self._on_offline = on_offline
        self.now_ms = now_ms
        self._work = trio.Event()
        #: the cleaner is to look for work at once
        self._cleaner_changed = trio.Event()
        #: of the periodic duties
        self._duties = trio.CancelScope()
        self._log_dirs = log_dirs
        self.logs: dict[TopicPartition, Log] = {}
        self._deleted_in: set[LogDirectory] = set()
        self.directories = [
            LogDirectory(
                path,
                disk,
                now_ms=now_ms,
                random=random,
                producer_id_expiration_ms=config.producer_id_expiration_ms,
                delete_delay_ms=config.log_segment_delete_delay_ms,
                on_failure=self._failed,
                wake=self._wake,
            )
            for path in log_dirs
        ]
        #: of partitions that move to another directory
        self.future = FutureLogs(self.logs, self.directories, config_of, random)
        self._cleaner = Cleaner(self.logs, now_ms, config.log_cleaner_dedupe_buffer_size, self.future.logs)

    @property
    def online(self) -> list[LogDirectory]:
        return [directory for directory in self.directories if not directory.is_offline]

    def fail(self, path: str) -> None:
        """Let a directory fail, as an I/O error does. Raises ValueError for one that does not exist, or is offline."""
        for directory in self.online:
            if directory.path == path.rstrip("/"):
                directory.failed(OSError("it fails on command"))
                return
        raise ValueError(path)

    def _failed(self, directory: LogDirectory) -> None:
        partitions = [partition for partition, found in self.logs.items() if found.context is directory]
        for partition in partitions:
            del self.logs[partition]
        self.future.failed(directory)
        self._on_offline(directory.path, partitions)

    # loading

    async def load(self, failed: Mapping[str, OSError] | None = None) -> None:
        """Load every log; directories that have ``failed`` already are offline.

        Raises BrokerFailure if a directory is locked, has what no broker has made or a damaged log, or if none is left.
        """
        for path, directory in zip(self._log_dirs, self.directories, strict=True):
            try:
                if failed and path in failed:
                    raise failed[path]
                directory.open()
                await self._load(directory)
            except OSError as e:
                directory.failed(e)
        if not self.online:
            raise BrokerFailure(f"no log directory can be used: {', '.join(d.path for d in self.directories)}")

    async def _load(self, directory: LogDirectory) -> None:
        recovery_points = directory.read_checkpoint(RECOVERY_POINT_CHECKPOINT)
        log_starts = directory.read_checkpoint(LOG_START_OFFSET_CHECKPOINT)
        self._cleaner.ends |= directory.read_checkpoint(CLEANER_OFFSET_CHECKPOINT)
        high_watermarks = directory.read_checkpoint(REPLICATION_OFFSET_CHECKPOINT)
        for count, name in enumerate(self._disk.folders(directory.path)):
            if count % _LOGS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            path = f"{directory.path}/{name}"
            found = parse_folder(name)
            if name == REMOTE_INDEX_CACHE or (found is not None and found.partition.topic == KRAFT_METADATA):
                continue
            if found is None:
                raise BrokerFailure(f"{path} is not the folder of a partition: log directories have nothing else")
            if found.kind == "stray":  # somebody may want it yet
                log.warning("%s is left alone", path)
                continue
            if found.kind == "delete":
                directory.delete_later([path], 0)
                continue
            partition = found.partition
            known = self.logs.get(partition)  # its folder comes before that of a future log
            if known is not None and found.kind is None:
                raise BrokerFailure(f"{path} and {known.folder} are of the same partition: delete one")
            if known is not None and known.context is directory:
                log.warning("%s is left alone: %s is already in that directory", path, partition)
                continue
            try:
                loaded = Log(
                    directory,
                    partition,
                    self._config_of(partition.topic),
                    clean=directory.had_clean_shutdown,
                    log_start_offset=log_starts.get(partition, 0),
                    recovery_point=recovery_points.get(partition, 0),
                    folder=name if found.kind else None,
                )
            except CorruptRecord as e:  # rule B6.34
                raise BrokerFailure(
                    f"{path} is damaged, although the broker was shut down cleanly: {e}. "
                    "The next start recovers it: what is behind the damage is cut off"
                ) from e
            loaded.set_high_watermark(high_watermarks.get(partition, 0))  # rule B5.31
            directory.log_count += 1
            if found.kind:
                self.future.loaded(loaded)
            else:
                self.logs[partition] = loaded
        log.info(
            "%s: %d logs, after a%s shutdown",
            directory.path, len(self._logs_in(directory)), " clean" if directory.had_clean_shutdown else "n unclean",
        )  # fmt: skip

    def _logs_in(self, directory: LogDirectory) -> dict[TopicPartition, Log]:
        """Those in use."""
        return {partition: found for partition, found in self.logs.items() if found.context is directory}

    def _stored_in(self, directory: LogDirectory) -> dict[TopicPartition, Log]:
        """Those that have files, and future ones; no directory has two of one partition."""
        stored = {partition: found for partition, found in self._logs_in(directory).items() if found.has_files}
        return {**stored, **self.future.in_directory(directory)}

    # what control requests need

    def has_log(self, partition: TopicPartition) -> bool:
        return partition in self.logs

    def known(self, partition: TopicPartition) -> TopicPartition:
        """An equal object: that of its log, if there is one."""
        found = self.logs.get(partition)
        return partition if found is None else found.partition

    def topic_id(self, partition: TopicPartition) -> uuid.UUID | None:
        found = self.logs.get(partition)
        return None if found is None else found.topic_id

    def assign_topic_id(self, partition: TopicPartition, topic_id: uuid.UUID) -> None:
        """Raises InconsistentTopicId, KafkaStorageError."""
        self.logs[partition].assign_topic_id(topic_id)

    @property
    def makes_files_at_once(self) -> bool:
        """Of new logs: they alone tell a broker that starts without one of its directories that the log was in another.

        To a broker with one directory, an empty log and none are the same.
        """
        return len(self.directories) > 1

    def get_or_create_log(self, partition: TopicPartition, *, is_new: bool, topic_id: uuid.UUID | None) -> Log:
        """The log, which gets ``topic_id`` if it has none.

        Raises KafkaStorageError; also if there is none, ``is_new`` is false and a directory is offline, because the log
        may be in that directory (rule 9.24).
        """
        found = self.logs.get(partition)
        if found is None:
            if not is_new and len(self.online) < len(self.directories):
                raise KafkaStorageError(f"the log of {partition} may be in a log directory that is offline")
            found = self._create(partition)
            self.logs[partition] = found
        if topic_id is not None and found.topic_id is None:
            found.assign_topic_id(topic_id)
        return found

    def _create(self, partition: TopicPartition) -> Log:
        """In the directory that was chosen for it, or else that with the fewest logs, of those that can take it."""
        chosen = self.future.take_preferred(partition)
        while online := self.online:
            directory = chosen
            if directory is None:
                directory = min(online, key=attrgetter("log_count"))
            made = Log(directory, partition, self._config_of(partition.topic), is_new=True)
            try:
                if self.makes_files_at_once:
                    made.make_files()
            except KafkaStorageError:  # by now that directory is offline
                if chosen is not None:
                    raise
            else:
                directory.log_count += 1
                return made
        raise KafkaStorageError(f"no log directory is left for {partition}")

    def delete_log(self, partition: TopicPartition) -> None:
        """Delete it and its future one (rule B6.18). Raises KafkaStorageError."""
        self.future.remove(partition)
        found = self.logs.pop(partition, None)
        if found is None:
            return
        self._cleaner.forget(partition)
        if found.has_files:
            self._gone_from(found)
        self.future.delete(found)

    def _gone_from(self, found: Log) -> None:
        assert isinstance(found.context, LogDirectory)
        self._deleted_in.add(found.context)

    def swap(self, partition: TopicPartition) -> Log:
        """Put its future log in use. Raises KafkaStorageError."""
        self._gone_from(self.logs[partition])
        swapped = self.future.swap(partition)
        self.checkpoint_deletions()
        return swapped

    def checkpoint_deletions(self) -> None:
        """Remove logs that were deleted from the checkpoints: the next log of that partition must not start there."""
        deleted_in, self._deleted_in = self._deleted_in, set()
        for directory in deleted_in:
            if directory.is_offline:
                continue
            logs = self._stored_in(directory)
            try:
                self._write_recovery_points(directory, logs)
                self._write_cleaned(directory)
            except OSError as e:
                directory.failed(e)

    def update_config(self, topics: Iterable[str] | None = None) -> None:
        """The settings of these topics have changed; None: of all."""
        chosen = None if topics is None else set(topics)
        for found in self._all():
            if chosen is None or found.partition.topic in chosen:
                with suppress(KafkaStorageError):  # its directory has reported it
                    found.update_config(self._config_of(found.partition.topic))

    def reconfigure(self, config: LogManagerConfig) -> None:
        """Settings that change while the broker runs: the cleaner's (rule B6.22), and when producers and files go."""
        before, self._config = self._config, config
        if before.of_cleaner != config.of_cleaner:
            self._cleaner_changed.set()
        self._cleaner.resize(config.log_cleaner_dedupe_buffer_size)
        for directory in self.directories:
            directory.producer_id_expiration_ms = config.producer_id_expiration_ms
            directory.delete_delay_ms = config.log_segment_delete_delay_ms

    def _all(self) -> list[Log]:
        return [*self.logs.values(), *self.future.logs.values()]

    # while the broker runs

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
            starts = _log_starts(self._stored_in(directory))
            await self._guarded(directory, partial(directory.update_checkpoint, LOG_START_OFFSET_CHECKPOINT, starts))

    async def checkpoint_high_watermarks(self) -> None:
        """Rule B5.31."""
        for directory in self.online:
            marks = {partition: found.high_watermark for partition, found in self._stored_in(directory).items()}
            await self._guarded(directory, partial(directory.update_checkpoint, REPLICATION_OFFSET_CHECKPOINT, marks))

    # the end

    def close(self, broker_epoch: int = -1) -> None:
        """Flush and close every log, and say so in each directory (rule B6.9)."""
        for directory in self.online:
            logs = self._stored_in(directory)
            try:
                for found in logs.values():
                    found.close()
                directory.write_checkpoint(
                    REPLICATION_OFFSET_CHECKPOINT, {tp: found.high_watermark for tp, found in logs.items()}
                )
                self._write_recovery_points(directory, logs)
                self._write_cleaned(directory)
                directory.write_clean_shutdown(broker_epoch)
            except KafkaStorageError:
                continue  # the directory is offline already
            except OSError as e:
                directory.failed(e)
        self._duties.cancel()  # or a checkpoint that is due before the node ends has no log any more
        self.logs.clear()
        self.future.logs.clear()
        self.abandon()

    def _write_recovery_points(self, directory: LogDirectory, logs: Mapping[TopicPartition, Log]) -> None:
        """Raises OSError."""
        directory.write_checkpoint(RECOVERY_POINT_CHECKPOINT, {tp: found.recovery_point for tp, found in logs.items()})
        directory.write_checkpoint(LOG_START_OFFSET_CHECKPOINT, _log_starts(logs))

    def _write_cleaned(self, directory: LogDirectory) -> None:
        """Raises OSError."""
        if self._disk.exists(f"{directory.path}/{CLEANER_OFFSET_CHECKPOINT}"):
            directory.write_checkpoint(CLEANER_OFFSET_CHECKPOINT, self._cleaned_in(directory))

    def abandon(self) -> None:
        """End as a process does that dies: nothing is written."""
        for directory in self.directories:
            directory.abandon()


def _log_starts(logs: Mapping[TopicPartition, Log]) -> dict[TopicPartition, int]:
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
