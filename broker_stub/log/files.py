"""The files of one log: the partition's folder, made when something is to be written, and flushed, moved and closed.

A new log is a few fields in memory until something is to be written: then its folder and files are made. To a broker
that starts with one log directory, an empty log and none are the same. So a topic costs no files, and a broker may host
many partitions. Among several directories the manager has the files made at once.

A log that nobody has used for long rests: only what its files do not say stays in memory. It wakes when something needs
its segments.

An OSError is the failure of the log directory: it is reported by ``LogContext.failed`` and becomes KafkaStorageError.
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Concatenate, Final, ParamSpec, TypeVar

from kce.broker_stub.errors import InconsistentTopicId, KafkaStorageError
from kce.broker_stub.log.checkpoints import read_topic_id, write_topic_id
from kce.broker_stub.log.config import LogConfig
from kce.broker_stub.log.indexes import TimestampOffset
from kce.broker_stub.log.leader_epochs import Entries, LeaderEpochCache
from kce.broker_stub.log.loading import load
from kce.broker_stub.log.names import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA
from kce.broker_stub.log.producer_state import ProducerState, ProducerStateManager
from kce.broker_stub.log.segment import Segment
from kce.broker_stub.log.segments import LogContext, OffsetMetadata, Segments
from kce.broker_stub.log.verification import VerificationGuard
from kce.wire.vocabulary import TopicPartition

#: both ends of a log that has no files yet
BEGINNING: Final = OffsetMetadata(0, 0, 0)
_UNLOCATED_BEGINNING: Final = OffsetMetadata(0)

#: of a log that rests: its end (offset, segment, position), and of the segment the greatest timestamp and its offset,
#: when it was made, its jitter in ms, and the bytes since the last entry of the index
_REST: Final = struct.Struct(">qqiqqqqi")
_END: Final = struct.Struct(">qqi")

L = TypeVar("L", bound="LogFiles")
P = ParamSpec("P")
R = TypeVar("R")


def unlocated(offset: int) -> OffsetMetadata:
    """An offset without its place; one object for all logs that begin at 0."""
    return OffsetMetadata(offset) if offset else _UNLOCATED_BEGINNING


def storage(method: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
    """Rule B3.20."""

    @functools.wraps(method)
    def guarded(self: L, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except OSError as e:
            self.context.failed(e)
            raise KafkaStorageError(f"{self.folder}: {e}") from e

    return guarded


class LogFiles:
    """``recovery_point``: everything before it is flushed."""

    __slots__ = (
        "_epochs", "_folder", "_last_flush_ms", "_producers", "_rest", "_segments", "_topic_id", "_was_used", "config",
        "context", "log_start_offset", "partition", "recovery_point",
    )  # fmt: skip

    def __init__(
        self,
        context: LogContext,
        partition: TopicPartition,
        config: LogConfig,
        *,
        is_new: bool = False,
        clean: bool = True,
        log_start_offset: int = 0,
        recovery_point: int = 0,
        folder: str | None = None,
    ) -> None:
        self.context = context
        self.partition = partition
        self.config = config
        self._folder = None if folder is None else f"{context.path}/{folder}"
        self._segments: Segments | None = None
        self._producers: ProducerStateManager | None = None
        #: while it rests; segments and producers are None then
        self._rest: bytes | None = None
        #: since it was last looked whether it can rest
        self._was_used = False
        #: only the entries, without segments
        self._epochs: LeaderEpochCache | Entries = ()
        self._topic_id: uuid.UUID | None = None
        self._last_flush_ms = 0
        self.log_start_offset = self.recovery_point = 0
        if is_new:
            return
        self._load(clean, log_start_offset, recovery_point)
        self._topic_id = read_topic_id(context.disk, self._metadata_path)

    def _load(self, clean: bool, log_start_offset: int, recovery_point: int) -> Segments:
        context, folder = self.context, self.folder
        self._folder = folder  # one string for all that name files in it
        context.disk.make_folder(folder)
        self._epochs = epochs = self._open_epochs()
        self._producers = ProducerStateManager(context.disk, folder, expiration_ms=context.producer_id_expiration_ms)
        self._segments, self.log_start_offset, self.recovery_point = load(
            context,
            folder,
            self.config,
            clean=clean,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            epochs=epochs,
            producers=self._producers,
        )
        self._last_flush_ms = context.now_ms()
        context.woke(self)
        return self._segments

    # rest

    def rest_if_unused(self) -> bool:
        """Whether it rests now; not if it was used since this was last asked. Raises KafkaStorageError."""
        was_used, self._was_used = self._was_used, False
        return not was_used and self.rest()

    @storage
    def rest(self) -> bool:
        """Rest, if it has one segment, batches and no producers, and is not compacted. Raises KafkaStorageError."""
        segments, producers = self._segments, self._producers
        if segments is None or producers is None or not self.context.disk.exists(self.folder):
            return True  # it rests, or is deleted
        end, active = segments.end, segments.active
        if len(segments) > 1 or not active.size or self.config.is_compact:
            return False
        if not producers.is_idle or producers.map_end_offset != end.offset:
            return False
        active.release()
        self._rest = _REST.pack(
            *end, *active.max_timestamp, active.created_ms, active.jitter_ms, active.bytes_since_index_entry
        )
        self._epochs = self._known_epochs
        self._segments = self._producers = None
        if self._folder == f"{self.context.path}/{self.partition}":
            self._folder = None
        return True

    def _wake(self, rest: bytes) -> Segments:
        """Raises OSError."""
        context, folder = self.context, self.folder
        end, base_offset, _, timestamp, offset, created_ms, jitter_ms, since = _REST.unpack(rest)
        self._folder = folder
        active = Segment(context.disk, folder, base_offset, self.config, now_ms=created_ms, jitter_ms=jitter_ms)
        active.resume(TimestampOffset(timestamp, offset), since)
        producers = ProducerStateManager(context.disk, folder, expiration_ms=context.producer_id_expiration_ms)
        producers.map_end_offset = end
        producers.log_start_moved(self.log_start_offset)
        disk = context.disk if self.config.record_version == 2 else None
        self._epochs = LeaderEpochCache(disk, folder, self._known_epochs)
        self._producers = producers
        self._segments = Segments(context, folder, (active,), end)
        self._rest = None
        context.woke(self)
        return self._segments

    @property
    def _resting_end(self) -> OffsetMetadata:
        """Of a log without segments in memory."""
        return BEGINNING if self._rest is None else OffsetMetadata(*_END.unpack_from(self._rest))

    @property
    def _resting_timestamp(self) -> int:
        """The greatest of a log that rests; -1 if there is none."""
        assert self._rest is not None
        timestamp: int = _REST.unpack(self._rest)[3]
        return timestamp

    def _open_epochs(self) -> LeaderEpochCache:
        """Formats before magic 2 have no epochs (rule B5.22). Raises OSError."""
        disk = self.context.disk
        if self.config.record_version == 2:
            return LeaderEpochCache(disk, self.folder)
        disk.delete(f"{self.folder}/{LEADER_EPOCH_CHECKPOINT}")
        return LeaderEpochCache()

    @storage
    def update_config(self, config: LogConfig) -> None:
        """Raises KafkaStorageError."""
        if self._rest is not None:
            self._wake(self._rest)
        before, self.config = self.config, config
        if before.record_version != config.record_version:
            if self.has_files:
                self._epochs = self._open_epochs()
            elif config.record_version < 2:
                self._epochs = ()

    def _make(self) -> Segments:
        """Make the folder and the files of a new log. Raises OSError."""
        entries = self._known_epochs
        segments = self._load(True, 0, 0)
        self.change_epochs(lambda epochs: epochs.replace(entries))
        if self._topic_id is not None:
            write_topic_id(self.context.disk, self._metadata_path, self._topic_id)
        return segments

    @storage
    def make_files(self) -> None:
        """Raises KafkaStorageError."""
        if not self.has_files:
            self._make()

    @property
    def has_files(self) -> bool:
        return self._segments is not None or self._rest is not None

    @property
    def folder(self) -> str:
        return self._folder or f"{self.context.path}/{self.partition}"

    @property
    def segments(self) -> Segments:
        """Makes the files if there are none yet. Raises OSError."""
        self._was_used = True
        if self._segments is None:
            return self._make() if self._rest is None else self._wake(self._rest)
        return self._segments

    # the topic's id

    @property
    def _metadata_path(self) -> str:
        return f"{self.folder}/{PARTITION_METADATA}"

    @property
    def topic_id(self) -> uuid.UUID | None:
        return self._topic_id

    @storage
    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """Rule B6.7. Raises InconsistentTopicId, KafkaStorageError."""
        if self._topic_id is None:
            if self.has_files:
                write_topic_id(self.context.disk, self._metadata_path, topic_id)
            self._topic_id = topic_id
        elif self._topic_id != topic_id:
            raise InconsistentTopicId(f"{self.partition} has topic id {self._topic_id}, not {topic_id}")

    @property
    def producers(self) -> ProducerStateManager:
        """Makes the files if there are none yet. Raises OSError."""
        if self._producers is None:
            _ = self.segments
            assert self._producers is not None
        return self._producers

    def known_producers(self) -> Mapping[int, ProducerState]:
        """By producer id."""
        return {} if self._producers is None else self._producers.producers

    def has_late_transaction(self, limit_ms: int) -> bool:
        """See `ProducerStateManager` (rule T8.6)."""
        return self._producers is not None and self._producers.has_late_transaction(self.context.now_ms(), limit_ms)

    @storage
    def start_verification(self, producer_id: int, epoch: int, sequence: int) -> VerificationGuard | None:
        """The guard for batches from that sequence on; None if a transaction is open (rule T10.5).

        Raises KafkaStorageError.
        """
        if self.producers.has_open_transaction(producer_id):
            return None
        return self.producers.verifications.start(producer_id, epoch, sequence, self.context.now_ms())

    def remove_expired_producers(self) -> None:
        """Rule B3.53."""
        if self._producers is not None:
            self._producers.expiration_ms = self.context.producer_id_expiration_ms
            self._producers.remove_expired(self.context.now_ms())

    @property
    def _known_epochs(self) -> Entries:
        return self._epochs.entries if isinstance(self._epochs, LeaderEpochCache) else self._epochs

    @property
    def epochs(self) -> LeaderEpochCache:
        """To read them."""
        known = self._epochs
        return known if isinstance(known, LeaderEpochCache) else LeaderEpochCache(entries=known)

    def change_epochs(self, change: Callable[[LeaderEpochCache], object]) -> None:
        """In the file, too, if there is one. Raises OSError."""
        if self._rest is not None:
            self._wake(self._rest)
        epochs = self.epochs
        change(epochs)
        if self._segments is None:
            self._epochs = epochs.entries

    @property
    def latest_epoch(self) -> int | None:
        entries = self._known_epochs
        return entries[-1][0] if entries else None

    @property
    def leader_epochs(self) -> Entries:
        """(epoch, start offset), ascending."""
        return self._known_epochs

    @property
    def end(self) -> OffsetMetadata:
        return self._resting_end if self._segments is None else self._segments.end

    @property
    def base_offset(self) -> int:
        """Of the first segment; one that rests has no other."""
        return self._resting_end.segment if self._segments is None else self._segments[0].base_offset

    @property
    def size(self) -> int:
        return self._resting_end.position if self._segments is None else self._segments.size

    @property
    def segment_count(self) -> int:
        return 1 if self._segments is None else len(self._segments)

    @property
    def log_end_offset(self) -> int:
        return self._resting_end.offset if self._segments is None else self._segments.end.offset

    # on disk

    @storage
    def flush(self, end_offset: int | None = None) -> None:
        """Make everything before ``end_offset`` durable (rule B6.13). Raises KafkaStorageError."""
        end = self.log_end_offset if end_offset is None else end_offset
        if end > self.recovery_point:
            *files, folder = self.to_flush(end)
            for path in files:
                self.context.disk.open(path).flush()
            self.context.disk.flush_folder(folder)
            self.flushed(end)

    @storage
    def to_flush(self, end_offset: int) -> list[str]:
        """The files that must be flushed so that everything before ``end_offset`` is durable, and their folder."""
        if end_offset <= self.recovery_point or not self.has_files:
            return []
        segments = self.segments.from_offset(self.recovery_point, end_offset)
        return [path for segment in segments for path in segment.to_flush()] + [self.folder]

    def flushed(self, end_offset: int) -> None:
        """Everything before that offset is durable."""
        self.recovery_point = max(self.recovery_point, min(end_offset, self.log_end_offset))
        self._last_flush_ms = self.context.now_ms()

    @property
    def is_flush_due(self) -> bool:
        return self.has_files and self.context.now_ms() - self._last_flush_ms >= self.config.flush_ms

    @storage
    def close(self) -> None:
        """Flush everything and give back files; the log is not used afterwards. Raises KafkaStorageError."""
        if not self.has_files:
            return
        self.flush()
        self.producers.map_end_offset = self.log_end_offset
        if (path := self.producers.take_snapshot()) is not None:
            self.context.disk.flush(path)
        for segment in self.segments:
            segment.close()

    @storage
    def move(self, folder: str) -> None:
        """Rename the folder, if there is one. Raises KafkaStorageError."""
        if self.has_files:
            segments = self.segments
            self.context.disk.rename(self.folder, folder)
            self.epochs.moved(folder)
            self.producers.moved(folder)
            segments.moved(folder)
        self._folder = folder
