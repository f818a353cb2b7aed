"""The logs of a broker in its log directories: loaded at the start, looked after, closed at the end (section 6).

manager = LogManager(disk, ["/logs"], ...)
await manager.load()
await nursery.start(manager.run)     # retention, checkpoints, flushes, deletions
...
manager.close(broker_epoch)          # clean; or ``abandon``, as in the death of the process
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
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
from kce.broker_stub.log.upkeep import Upkeep, log_starts
from kce.wire.errors import CorruptRecord
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

#: after so many logs, other tasks run
_LOGS_AT_ONCE = 20


class LogManager(Upkeep):
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
        self._config_of = config_of
        self._on_offline = on_offline
        self.now_ms = now_ms
        self._log_dirs = log_dirs
        self._deleted_in: set[LogDirectory] = set()
        logs: dict[TopicPartition, Log] = {}
        directories = [
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
        future = FutureLogs(logs, directories, config_of, random)
        cleaner = Cleaner(logs, now_ms, config.log_cleaner_dedupe_buffer_size, future.logs)
        super().__init__(config, directories, logs, future, cleaner)

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
        directory.write_checkpoint(LOG_START_OFFSET_CHECKPOINT, log_starts(logs))

    def _write_cleaned(self, directory: LogDirectory) -> None:
        """Raises OSError."""
        if self._disk.exists(f"{directory.path}/{CLEANER_OFFSET_CHECKPOINT}"):
            directory.write_checkpoint(CLEANER_OFFSET_CHECKPOINT, self._cleaned_in(directory))

    def abandon(self) -> None:
        """End as a process does that dies: nothing is written."""
        for directory in self.directories:
            directory.abandon()
