"""One partition's log: offsets, high watermark, leader epochs, producers (sections 3b, 5c, 6 of the broker's rules).

Nothing here awaits, so an append is atomic. An OSError is the failure of the log directory: it is reported by
``LogContext.failed`` and becomes KafkaStorageError.
"""

from __future__ import annotations

import enum
import functools
import itertools
import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Concatenate, Final, ParamSpec, TypeVar

from kce.broker_stub.disk import Buffer
from kce.broker_stub.errors import (
    ApiException,
    CorruptMessage,
    InconsistentTopicId,
    KafkaStorageError,
    MessageTooLarge,
    OffsetOutOfRange,
    RecordListTooLarge,
)
from kce.broker_stub.log.checkpoints import read_topic_id, write_topic_id
from kce.broker_stub.log.config import LogConfig
from kce.broker_stub.log.leader_epochs import UNDEFINED, EpochEnd, LeaderEpochCache
from kce.broker_stub.log.loading import aborted_transaction, end_of_transaction, load, rebuild_producers
from kce.broker_stub.log.names import PARTITION_METADATA
from kce.broker_stub.log.producer_state import (
    CompletedTransaction,
    Origin,
    ProducedBatch,
    ProducerAppend,
    ProducerStateManager,
)
from kce.broker_stub.log.segment import Segment
from kce.broker_stub.log.segments import FetchedRecords, LogContext, OffsetMetadata
from kce.broker_stub.log.validation import Assigned, CheckedRecords, assign_offsets, check_records
from kce.wire import errors
from kce.wire.batch_header import BatchHeader
from kce.wire.record import NO_PRODUCER, NO_TIMESTAMP, EndTransactionMarker
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

UNKNOWN_OFFSET: Final = -1
_MAX_INT32: Final = 2**31 - 1

P = ParamSpec("P")
R = TypeVar("R")


class Isolation(enum.Enum):
    """The offset up to which a reader may read (rule B4.1)."""

    LOG_END = enum.auto()
    HIGH_WATERMARK = enum.auto()
    COMMITTED = enum.auto()


class UnexpectedOffset(ApiException):
    """A follower's append that does not begin at the end of the log (rule B5.19)."""

    def __init__(self, text: str, first_offset: int, last_offset: int) -> None:
        super().__init__(text)
        self.first_offset = first_offset
        self.last_offset = last_offset


@dataclass(slots=True)
class Appended:
    """The result of an append; the first offset is -1 if it was empty. A duplicate has the original's offsets."""

    first_offset: int
    last_offset: int
    log_start_offset: int
    log_append_time: int = NO_TIMESTAMP
    size: int = 0
    is_duplicate: bool = False


def storage(method: Callable[Concatenate[Log, P], R]) -> Callable[Concatenate[Log, P], R]:
    """Rule B3.20."""

    @functools.wraps(method)
    def guarded(self: Log, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except OSError as e:
            self.context.failed(e)
            raise KafkaStorageError(f"{self.folder}: {e}") from e

    return guarded


class Log:
    """``recovery_point``: everything before it is flushed. ``folder``: the path of the partition's folder."""

    __slots__ = (
        "_epochs", "_first_unstable", "_high_watermark", "_last_flush_ms", "_producers", "_topic_id", "config",
        "context", "folder", "log_start_offset", "partition", "recovery_point", "segments", "truncations",
    )  # fmt: skip

    def __init__(
        self,
        context: LogContext,
        folder: str,
        partition: TopicPartition,
        config: LogConfig,
        *,
        clean: bool = True,
        log_start_offset: int = 0,
        recovery_point: int = 0,
    ) -> None:
        """Load the log in ``folder``, or make one. Raises OSError."""
        self.context = context
        self.folder = folder
        self.partition = partition
        self.config = config
        context.disk.make_folder(folder)
        self._epochs = LeaderEpochCache(context.disk, folder)
        self._producers = ProducerStateManager(context.disk, folder, expiration_ms=context.producer_id_expiration_ms)
        self.segments, self.log_start_offset, self.recovery_point = load(
            context,
            folder,
            config,
            clean=clean,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            epochs=self._epochs,
            producers=self._producers,
        )
        self.truncations = 0
        self._high_watermark = OffsetMetadata(self.log_start_offset)
        self._first_unstable: OffsetMetadata | None = None
        self._last_flush_ms = context.now_ms()
        self._topic_id = read_topic_id(context.disk, self._metadata_path)
        self._update_first_unstable()

    def __repr__(self) -> str:
        return f"<log {self.partition}, {self.log_start_offset} to {self.log_end_offset}, hw {self.high_watermark}>"

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
            write_topic_id(self.context.disk, self._metadata_path, topic_id)
            self._topic_id = topic_id
        elif self._topic_id != topic_id:
            raise InconsistentTopicId(f"{self.partition} has topic id {self._topic_id}, not {topic_id}")

    # offsets

    @property
    def log_end_offset(self) -> int:
        return self.segments.end.offset

    @property
    def end(self) -> OffsetMetadata:
        return self.segments.end

    @property
    def high_watermark(self) -> int:
        return self._high_watermark.offset

    @property
    def size(self) -> int:
        return self.segments.size

    def set_high_watermark(self, offset: int) -> int:
        """Kept within the log; what it is then."""
        if offset >= self.log_end_offset:
            self._set_high_watermark(self.end)
        else:
            self._set_high_watermark(OffsetMetadata(max(offset, self.log_start_offset)))
        return self.high_watermark

    def maybe_increment_high_watermark(self, new: OffsetMetadata) -> bool:
        """Only forwards, or to a later segment at the same offset. Whether it moved."""
        old = self.located_high_watermark()
        if new.offset > self.log_end_offset:
            raise ValueError(f"high watermark {new.offset} beyond the end of {self!r}")
        if old.offset < new.offset or (old.offset == new.offset and old.segment < new.segment):
            self._set_high_watermark(new)
            return True
        return False

    def _set_high_watermark(self, new: OffsetMetadata) -> None:
        if new.offset < self._high_watermark.offset:
            log.warning("%s: the high watermark moves back to %d", self, new.offset)
        self._high_watermark = new
        self._producers.replicated(new.offset)
        self._update_first_unstable()

    @storage
    def located_high_watermark(self) -> OffsetMetadata:
        """The high watermark with its place in a segment. Raises KafkaStorageError."""
        if not self._high_watermark.is_located:
            self._high_watermark = self.segments.locate(self.high_watermark)
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Rule B3.65."""
        unstable = self._first_unstable
        return self.high_watermark if unstable is None else min(unstable.offset, self.high_watermark)

    @storage
    def located_last_stable(self) -> OffsetMetadata:
        """The last stable offset with its place in a segment. Raises KafkaStorageError."""
        unstable = self._first_unstable
        if unstable is None or unstable.offset >= self.high_watermark:
            return self.located_high_watermark()
        if not unstable.is_located:
            unstable = self._first_unstable = self.segments.locate(unstable.offset)
        return unstable

    def located_end(self, isolation: Isolation) -> OffsetMetadata:
        """The end of what a reader sees. Raises KafkaStorageError."""
        match isolation:
            case Isolation.LOG_END:
                return self.end
            case Isolation.HIGH_WATERMARK:
                return self.located_high_watermark()
            case Isolation.COMMITTED:
                return self.located_last_stable()

    def _update_first_unstable(self) -> None:
        offset = self._producers.first_unstable_offset
        if offset is None:
            self._first_unstable = None
        elif self._first_unstable is None or self._first_unstable.offset != max(offset, self.log_start_offset):
            self._first_unstable = OffsetMetadata(max(offset, self.log_start_offset))

    # appending

    @storage
    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        *,
        origin: Origin = Origin.CLIENT,
        zstd_allowed: bool = True,
    ) -> Appended:
        """Validate, assign offsets, append (rules B3.16 to B3.21).

        Raises ApiException: InvalidRecord, InvalidTimestamp, MessageTooLarge, CorruptMessage, RecordListTooLarge, those
        of `ProducerAppend`, KafkaStorageError.
        """
        checked = check_records(records, origin, self.config.max_message_bytes)
        if not checked.batches:
            return Appended(UNKNOWN_OFFSET, UNKNOWN_OFFSET, self.log_start_offset)
        batch = assign_offsets(
            checked,
            self.log_end_offset,
            leader_epoch,
            config=self.config,
            origin=origin,
            now_ms=self.context.now_ms(),
            zstd_allowed=zstd_allowed,
        )
        header = batch.header
        if header.size != len(checked.data) and header.size > self.config.max_message_bytes:
            raise MessageTooLarge(f"a batch of {header.size} bytes after it was converted")
        return self._append_assigned(batch, origin)

    def _append_assigned(self, batch: Assigned, origin: Origin) -> Appended:
        header = batch.header
        self._epochs.assign(header.partition_leader_epoch, header.base_offset)
        segment = self._maybe_roll(header.size, header.base_offset, header.last_offset, header.max_timestamp)
        original: ProducedBatch | None = None
        appends: dict[int, ProducerAppend] = {}
        completed: list[CompletedTransaction] = []
        if header.producer_id != NO_PRODUCER:
            known = self._producers.producers.get(header.producer_id)
            if origin is Origin.CLIENT and known is not None:
                original = known.duplicate_of(header)
            if original is not None:
                return Appended(
                    original.first_offset, original.last_offset, self.log_start_offset, original.timestamp,
                    is_duplicate=True,
                )  # fmt: skip
            marker = _marker(header, b"".join(batch.parts)) if header.is_control else None
            append = appends[header.producer_id] = self._producers.prepare(header.producer_id, origin)
            if (transaction := append.append(header, marker)) is not None:
                completed.append(transaction)
        self.segments.append(
            header.last_offset, header.max_timestamp, header.last_offset, batch.parts, self.config.index_interval_bytes
        )
        self._appended(segment, header.last_offset, appends, completed)
        return Appended(
            header.base_offset, header.last_offset, self.log_start_offset, batch.log_append_time, header.size
        )

    @storage
    def append_as_follower(self, records: Buffer) -> Appended:
        """Append what the leader has appended (rule B5.19). Raises UnexpectedOffset, ApiException."""
        checked = check_records(records, Origin.REPLICATION, self.config.max_message_bytes)
        if not checked.batches:
            return Appended(UNKNOWN_OFFSET, UNKNOWN_OFFSET, self.log_start_offset)
        headers = [header for _, header in checked.batches]
        first, last = headers[0], headers[-1]
        for before, after in itertools.pairwise(headers):
            if before.last_offset >= after.last_offset:
                raise CorruptMessage(f"offset {after.last_offset} follows {before.last_offset}")
        start = first.base_offset if first.magic == 2 else first.last_offset
        if start < self.log_end_offset:
            raise UnexpectedOffset(
                f"{self.partition}: offset {start} is appended to a log that ends at {self.log_end_offset}",
                first.base_offset,
                last.last_offset,
            )
        for header in headers:
            if header.magic == 2:
                self._epochs.assign(header.partition_leader_epoch, header.base_offset)
            else:  # rule B5.22
                self._epochs.clear()
        most = max(headers, key=lambda header: header.max_timestamp)  # the first of them
        roll_offset = first.base_offset if first.magic == 2 else last.last_offset - _MAX_INT32
        segment = self._maybe_roll(len(checked.data), roll_offset, last.last_offset, most.max_timestamp)
        appends, completed = self._replicated_producers(checked)
        self.segments.append(
            last.last_offset, most.max_timestamp, most.last_offset, (checked.data,), self.config.index_interval_bytes
        )
        self._appended(segment, last.last_offset, appends, completed)
        return Appended(start, last.last_offset, self.log_start_offset, size=len(checked.data))

    def _replicated_producers(
        self, checked: CheckedRecords
    ) -> tuple[dict[int, ProducerAppend], list[CompletedTransaction]]:
        appends: dict[int, ProducerAppend] = {}
        completed = []
        for at, header in checked.batches:
            if header.producer_id == NO_PRODUCER:
                continue
            append = appends.get(header.producer_id)
            if append is None:
                append = self._producers.prepare(header.producer_id, Origin.REPLICATION)
                appends[header.producer_id] = append
            marker = _marker(header, checked.data[at : at + header.size]) if header.is_control else None
            if (transaction := append.append(header, marker)) is not None:
                completed.append(transaction)
        return appends, completed

    def _maybe_roll(self, size: int, first_offset: int, last_offset: int, max_timestamp: int) -> Segment:
        config = self.config
        if size > config.segment_bytes:
            raise RecordListTooLarge(f"{size} bytes of batches in segments of {config.segment_bytes}")
        if self.segments.active.should_roll(
            size, last_offset, max_timestamp, now_ms=self.context.now_ms(), segment_bytes=config.segment_bytes,
            segment_ms=config.segment_ms, index_bytes=config.segment_index_bytes,
        ):  # fmt: skip
            self.roll(first_offset)
        return self.segments.active

    def _appended(
        self,
        segment: Segment,
        last_offset: int,
        appends: dict[int, ProducerAppend],
        completed: list[CompletedTransaction],
    ) -> None:
        if self.high_watermark >= self.log_end_offset:
            self._set_high_watermark(self.end)
        for producer_id, append in appends.items():
            self._producers.update(producer_id, append)
        for transaction in completed:
            stable = self._producers.last_stable_offset(transaction)
            if transaction.is_aborted:
                segment.txn_index.append(aborted_transaction(transaction, stable))
            self._producers.complete(transaction)
        self._producers.map_end_offset = last_offset + 1
        if appends:
            self._update_first_unstable()
        if last_offset + 1 - self.recovery_point >= self.config.flush_messages:
            self.flush()

    # segments

    @storage
    def roll(self, offset: int = 0) -> Segment:
        """A new active segment; what is before it is flushed soon (rule B6.12). Raises KafkaStorageError."""
        segment = self.segments.roll(offset, self.config)
        self._producers.map_end_offset = segment.base_offset
        self._producers.take_snapshot()
        if self.high_watermark >= self.log_end_offset:
            self._set_high_watermark(self.end)
        self.context.flush_later(self, segment.base_offset)
        return segment

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
        if end_offset <= self.recovery_point:
            return []
        segments = self.segments.from_offset(self.recovery_point, end_offset)
        return [path for segment in segments for path in segment.to_flush()] + [self.folder]

    def flushed(self, end_offset: int) -> None:
        """Everything before that offset is durable."""
        self.recovery_point = max(self.recovery_point, min(end_offset, self.log_end_offset))
        self._last_flush_ms = self.context.now_ms()

    @property
    def is_flush_due(self) -> bool:
        return self.context.now_ms() - self._last_flush_ms >= self.config.flush_ms

    @storage
    def close(self) -> None:
        """Flush everything and give back files; the log is not used afterwards. Raises KafkaStorageError."""
        self.flush()
        self._producers.map_end_offset = self.log_end_offset
        if (path := self._producers.take_snapshot()) is not None:
            self.context.disk.flush(path)
        for segment in self.segments:
            segment.close()

    @storage
    def move(self, folder: str) -> None:
        """Rename the folder. Raises KafkaStorageError."""
        self.context.disk.rename(self.folder, folder)
        self.folder = folder
        self._epochs.moved(folder)
        self._producers.moved(folder)
        self.segments.moved(folder)

    # reading

    @storage
    def read(self, offset: int, max_bytes: int, isolation: Isolation, *, at_least_one: bool = False) -> FetchedRecords:
        """Rules B4.12 to B4.15. Raises OffsetOutOfRange, KafkaStorageError."""
        if offset < self.log_start_offset:
            raise OffsetOutOfRange(f"offset {offset} of {self.partition}, which starts at {self.log_start_offset}")
        limit = self.located_end(isolation)
        is_committed = isolation is Isolation.COMMITTED
        return self.segments.read(offset, max_bytes, limit, at_least_one=at_least_one, with_aborted=is_committed)

    # leader epochs

    @property
    def latest_epoch(self) -> int | None:
        return self._epochs.latest

    @property
    def leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset), ascending."""
        return self._epochs.entries

    @storage
    def assign_epoch(self, epoch: int) -> None:
        """A leader of this epoch begins to write (rule B5.22). Raises KafkaStorageError."""
        self._epochs.assign(epoch, self.log_end_offset)

    def end_offset_of(self, epoch: int) -> EpochEnd:
        """Rule B5.23."""
        return self._epochs.end_offset(epoch, self.log_end_offset)

    def epoch_at(self, offset: int) -> int:
        epoch = self._epochs.epoch_at(offset)
        return UNDEFINED if epoch is None else epoch

    # producers

    @property
    def producers(self) -> ProducerStateManager:
        return self._producers

    # the ends of the log move

    @storage
    def increment_log_start_offset(self, offset: int) -> bool:
        """Whether it moved (rule B6.19). Raises OffsetOutOfRange, KafkaStorageError."""
        if offset > self.high_watermark:
            raise OffsetOutOfRange(f"{self.partition} cannot start at {offset}, beyond {self.high_watermark}")
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.recovery_point = max(self.recovery_point, offset)
        self._epochs.truncate_from_start(offset)
        self._producers.log_start_moved(offset)
        self._update_first_unstable()
        return True

    @storage
    def truncate_to(self, offset: int) -> bool:
        """Remove what is at that offset and beyond (rule B5.27). Whether there was any. Raises KafkaStorageError."""
        if offset >= self.log_end_offset:
            self._epochs.truncate_from_end(self.log_end_offset)
            return False
        if offset < self.segments[0].base_offset:
            self.truncate_fully(offset)
            return True
        self.truncations += 1
        removed = self.segments.truncate_to(offset)
        self._delete(removed)
        self._epochs.truncate_from_end(offset)
        self.log_start_offset = min(offset, self.log_start_offset)
        self.recovery_point = min(self.recovery_point, offset)
        self._rebuild_producers()
        if self.high_watermark >= offset:
            self._set_high_watermark(self.end)
        return True

    @storage
    def truncate_fully(self, offset: int, log_start_offset: int | None = None) -> None:
        """Be empty, from that offset on. Raises KafkaStorageError."""
        self.truncations += 1
        removed = self.segments.start_at(offset, self.config)
        self._delete_snapshots(removed)
        self._epochs.clear()
        self._producers.truncate_fully(offset)
        self.log_start_offset = offset if log_start_offset is None else log_start_offset
        self.recovery_point = min(self.recovery_point, offset)
        self._rebuild_producers()
        self._set_high_watermark(self.end)

    def _rebuild_producers(self) -> None:
        rebuild_producers(
            self._producers,
            self.segments,
            self.log_start_offset,
            self.log_end_offset,
            clean=False,
            now_ms=self.context.now_ms(),
        )
        self._update_first_unstable()

    def _delete(self, segments: list[Segment]) -> None:
        self.segments.delete_files(segments, self.config)
        self._delete_snapshots(segments)

    def _delete_snapshots(self, segments: list[Segment]) -> None:
        paths = [path for segment in segments for path in self._producers.delete_later(segment.base_offset)]
        if paths:
            self.context.delete_later(paths, self.config.file_delete_delay_ms)

    # retention

    @storage
    def delete_old_segments(self) -> int:
        """Apply the retention; how many segments were removed (rules B6.14 to B6.17). Raises KafkaStorageError."""
        deleted = self._delete_while(self._before_start)
        if self.config.is_delete:
            deleted += self._delete_while(self._too_large()) + self._delete_while(self._too_old())
        return deleted

    def _delete_while(self, breaks: Callable[[Segment, Segment | None], bool]) -> int:
        """Remove the oldest segments, up to the first that is to stay or is not replicated."""
        count = 0
        for segment, following in self._with_following():
            upper_bound = self.log_end_offset if following is None else following.base_offset
            if self.high_watermark < upper_bound or not breaks(segment, following):
                break
            if following is None and not segment.size:  # rule B6.16
                break
            count += 1
        if count:
            if count == len(self.segments):
                self.roll()
            removed = self.segments.remove_first(count)
            self.increment_log_start_offset(self.segments[0].base_offset)
            self._delete(removed)
        return count

    def _with_following(self) -> Iterator[tuple[Segment, Segment | None]]:
        segments = list(self.segments)
        yield from zip(segments, [*segments[1:], None], strict=True)

    def _before_start(self, segment: Segment, following: Segment | None) -> bool:
        return following is not None and following.base_offset <= self.log_start_offset

    def _too_large(self) -> Callable[[Segment, Segment | None], bool]:
        left = -1 if self.config.retention_bytes is None else self.size - self.config.retention_bytes

        def breaks(segment: Segment, following: Segment | None) -> bool:
            nonlocal left
            left -= segment.size
            return left >= 0

        return breaks

    def _too_old(self) -> Callable[[Segment, Segment | None], bool]:
        now_ms, retention_ms = self.context.now_ms(), self.config.retention_ms

        def breaks(segment: Segment, following: Segment | None) -> bool:
            return retention_ms is not None and now_ms - segment.largest_timestamp_ms > retention_ms

        return breaks


def _marker(header: BatchHeader, batch: Buffer) -> EndTransactionMarker | None:
    try:
        return end_of_transaction(header, batch)
    except errors.CorruptRecord as e:
        raise CorruptMessage(str(e)) from None
