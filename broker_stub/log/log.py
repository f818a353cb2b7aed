"""One partition's log: offsets, high watermark, leader epochs, producers (sections 3b, 5c, 6 of the broker's rules).

Nothing here awaits, so an append is atomic.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from kce.broker_stub.disk import Buffer, content
from kce.broker_stub.errors import MessageTooLarge, OffsetOutOfRange, RecordListTooLarge
from kce.broker_stub.log import retention
from kce.broker_stub.log.appending import Appended, ProducerUpdates, UnexpectedOffset, extent_of
from kce.broker_stub.log.config import LogConfig
from kce.broker_stub.log.files import BEGINNING, LogFiles, storage, unlocated
from kce.broker_stub.log.leader_epochs import UNDEFINED, EpochEnd
from kce.broker_stub.log.loading import aborted_transaction, rebuild_producers
from kce.broker_stub.log.names import SWAP
from kce.broker_stub.log.producer_state import CLIENT, REPLICATION, Origin, ProducerStateManager
from kce.broker_stub.log.segment import Segment
from kce.broker_stub.log.segments import UNKNOWN_POSITION, FetchedRecords, LogContext, OffsetMetadata
from kce.broker_stub.log.validation import ANY_EPOCH, Assigned, assign_offsets, check_records, placed_batch
from kce.broker_stub.log.verification import EXEMPT, VerificationGuard
from kce.wire.batch_header import BatchHeader
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

UNKNOWN_OFFSET: Final = -1
#: ``Log.cut_to`` of a log that was not truncated
UNCUT: Final = 2**63 - 1


class Isolation(enum.Enum):
    """The offset up to which a reader may read (rule B4.1)."""

    LOG_END = enum.auto()
    HIGH_WATERMARK = enum.auto()
    COMMITTED = enum.auto()


class Log(LogFiles):
    """``truncations`` counts them. ``cut_to``: they have changed nothing before it since the cleaner last looked."""

    __slots__ = ("_first_unstable", "_high_watermark", "cut_to", "truncations")

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
        """Load the log from its folder, or make one; ``is_new``: there is none, make it when needed. Raises OSError.

        ``folder``: its name, if that is not the partition's.
        """
        super().__init__(
            context, partition, config, is_new=is_new, clean=clean, log_start_offset=log_start_offset,
            recovery_point=recovery_point, folder=folder,
        )  # fmt: skip
        self.truncations = 0
        self.cut_to = UNCUT
        self._high_watermark = BEGINNING if is_new else unlocated(self.log_start_offset)
        self._first_unstable: OffsetMetadata | None = None
        self._update_first_unstable()

    def __repr__(self) -> str:
        return f"<log {self.partition}, {self.log_start_offset} to {self.log_end_offset}, hw {self.high_watermark}>"

    # offsets

    @property
    def high_watermark(self) -> int:
        return self._high_watermark.offset

    def set_high_watermark(self, offset: int) -> int:
        """Kept within the log; what it is then."""
        if offset >= self.log_end_offset:
            self._set_high_watermark(self.end)
        else:
            self._set_high_watermark(unlocated(max(offset, self.log_start_offset)))
        return self._high_watermark.offset

    def maybe_increment_high_watermark(self, new: OffsetMetadata) -> bool:
        """Only forwards, or to a later segment at the same offset. Whether it moved."""
        old = self._high_watermark
        if old.segment == UNKNOWN_POSITION:
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
        if self._first_unstable is not None:
            self.producers.replicated(new.offset)
            self._update_first_unstable()

    @storage
    def located_high_watermark(self) -> OffsetMetadata:
        """The high watermark with its place in a segment. Raises KafkaStorageError."""
        if not self._high_watermark.is_located:
            located = self.segments.locate(self.high_watermark)
            self._high_watermark = BEGINNING if located == BEGINNING else located  # one object for many logs
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
        offset = None if self._producers is None else self._producers.first_unstable_offset
        if offset is None:
            self._first_unstable = None
        elif self._first_unstable is None or self._first_unstable.offset != max(offset, self.log_start_offset):
            self._first_unstable = OffsetMetadata(max(offset, self.log_start_offset))

    # appending

    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        *,
        origin: Origin = CLIENT,
        zstd_allowed: bool = True,
        guard: VerificationGuard | None = EXEMPT,
    ) -> Appended:
        """Validate, assign offsets, append (rules B3.16 to B3.21). ``guard``: of ``start_verification``, if any.

        Raises ApiException: InvalidRecord, InvalidTimestamp, MessageTooLarge, CorruptMessage, RecordListTooLarge, those
        of `ProducerAppend`, KafkaStorageError.
        """
        now_ms = self.context.now_ms()
        placed = placed_batch(records, origin, self.log_end_offset, leader_epoch, self.config)
        if placed is not None:
            return self._append_assigned(placed, origin, guard, now_ms)
        checked = check_records(records, origin, self.config.max_message_bytes)
        if not checked.batches:
            return Appended(UNKNOWN_OFFSET, UNKNOWN_OFFSET, self.log_start_offset)
        batch = assign_offsets(
            checked,
            self.log_end_offset,
            leader_epoch,
            config=self.config,
            origin=origin,
            now_ms=now_ms,
            zstd_allowed=zstd_allowed,
        )
        if batch.largest > self.config.max_message_bytes and batch.header.size != len(checked.data):
            raise MessageTooLarge(f"a batch of {batch.largest} bytes after it was converted")
        return self._append_assigned(batch, origin, guard, now_ms)

    @storage
    def _append_assigned(
        self, batch: Assigned, origin: Origin, guard: VerificationGuard | None, now_ms: int
    ) -> Appended:
        header = batch.header
        segments, size, last_offset = self.segments, header.size, header.last_offset
        self._note_epoch(header)
        segment = self._maybe_roll(segments.active, size, header.base_offset, last_offset, header.max_timestamp, now_ms)
        producers, updates = self.producers, None
        if header.has_producer:
            known = producers.producers.get(header.producer_id)
            original = known.duplicate_of(header) if origin is CLIENT and known is not None else None
            if original is not None:
                return Appended(
                    original.first_offset, original.last_offset, self.log_start_offset, original.timestamp,
                    is_duplicate=True,
                )  # fmt: skip
            if guard is not EXEMPT and header.is_transactional and not header.is_control:
                producers.check_verified(header.producer_id, guard)
            updates = ProducerUpdates()
            updates.add(producers, header, batch.parts, origin)
        segments.append(last_offset, header.max_timestamp, batch.offset_of_max, batch.parts)
        self._appended(segment, last_offset, producers, updates)
        return Appended(
            header.base_offset, last_offset, self.log_start_offset, batch.log_append_time, size,
            converted=batch.converted,
        )  # fmt: skip

    @storage
    def append_as_follower(self, records: Buffer, leader_epoch: int = ANY_EPOCH) -> Appended:
        """Append what the leader of that epoch has appended (rule B5.19). Raises UnexpectedOffset, ApiException."""
        checked = check_records(records, REPLICATION, self.config.max_message_bytes, leader_epoch)
        if not checked.batches:
            return Appended(UNKNOWN_OFFSET, UNKNOWN_OFFSET, self.log_start_offset)
        extent = extent_of(checked)
        if extent.first_offset < self.log_end_offset:
            raise UnexpectedOffset(
                f"{self.partition}: offset {extent.first_offset} for a log that ends at {self.log_end_offset}",
                checked.batches[0][1].base_offset,
                extent.last_offset,
            )
        segments, size = self.segments, len(checked.data)
        for _, header in checked.batches:
            self._note_epoch(header)
        now_ms = self.context.now_ms()
        segment = self._maybe_roll(
            segments.active, size, extent.roll_offset, extent.last_offset, extent.max_timestamp, now_ms
        )
        if not segment.can_hold(extent.last_offset):
            raise RecordListTooLarge(
                f"offset {extent.last_offset} with others, in a segment from {segment.base_offset} on"
            )
        producers = self.producers
        updates = ProducerUpdates.replicated(producers, checked)
        segments.append_all([header for _, header in checked.batches], checked.data)
        self._appended(segment, extent.last_offset, producers, updates)
        return Appended(extent.first_offset, extent.last_offset, self.log_start_offset, size=size)

    def _note_epoch(self, header: BatchHeader) -> None:
        """Rule B5.22."""
        if header.magic < 2:
            self.epochs.clear()
        elif self.config.record_version == 2:
            self.epochs.assign(header.partition_leader_epoch, header.base_offset)

    def _maybe_roll(
        self, active: Segment, size: int, first_offset: int, last_offset: int, max_timestamp: int, now_ms: int
    ) -> Segment:
        config = self.config
        if size > config.segment_bytes:
            raise RecordListTooLarge(f"{size} bytes of batches in segments of {config.segment_bytes}")
        if active.should_roll(
            size, last_offset, max_timestamp, now_ms=now_ms, segment_bytes=config.segment_bytes,
            segment_ms=config.max_segment_ms,
        ):  # fmt: skip
            return self.roll(first_offset)
        return active

    def _appended(
        self, segment: Segment, last_offset: int, producers: ProducerStateManager, updates: ProducerUpdates | None
    ) -> None:
        if self._high_watermark.offset > last_offset:
            self._set_high_watermark(self.end)
        producers.map_end_offset = last_offset + 1
        if updates is not None and updates.appends:
            has_begun = False
            for producer_id, append in updates.appends.items():
                producers.update(producer_id, append)
                has_begun = has_begun or bool(append.started)
            for transaction in updates.completed:
                stable = producers.last_stable_offset(transaction)
                if transaction.is_aborted:
                    segment.txn_index.append(aborted_transaction(transaction, stable))
                producers.complete(transaction)
            if has_begun or updates.completed:
                self._update_first_unstable()
        if last_offset + 1 - self.recovery_point >= self.config.flush_messages:
            self.flush()

    # segments

    @storage
    def roll(self, offset: int = 0) -> Segment:
        """A new active segment; what is before it is flushed soon (rule B6.12). Raises KafkaStorageError."""
        segment = self.segments.roll(offset, self.config)
        self.producers.map_end_offset = segment.base_offset
        self.producers.take_snapshot()
        if self.high_watermark >= self.log_end_offset:
            self._set_high_watermark(self.end)
        self.context.flush_later(self, segment.base_offset)
        return segment

    # reading

    @storage
    def read(self, offset: int, max_bytes: int, isolation: Isolation, *, at_least_one: bool = False) -> FetchedRecords:
        """Rules B4.12 to B4.15. Raises OffsetOutOfRange, KafkaStorageError."""
        if offset < self.log_start_offset:
            raise OffsetOutOfRange(f"offset {offset} of {self.partition}, which starts at {self.log_start_offset}")
        if not self.has_files:
            if offset:
                raise OffsetOutOfRange(f"offset {offset} of {self.partition}, which is empty")
            return FetchedRecords(BEGINNING)
        limit = self.located_end(isolation)
        is_committed = isolation is Isolation.COMMITTED
        return self.segments.read(offset, max_bytes, limit, at_least_one=at_least_one, with_aborted=is_committed)

    @storage
    def read_bytes(self, offset: int, max_bytes: int) -> Buffer:
        """What the log has from an offset on, the first batch whole. Raises OffsetOutOfRange, KafkaStorageError."""
        return content(self.read(offset, max_bytes, Isolation.LOG_END, at_least_one=True).records)

    @storage
    def locate(self, offset: int) -> OffsetMetadata:
        """Where the batch with that offset is, if there is one. Raises KafkaStorageError."""
        return self.segments.locate(offset) if self.has_files else BEGINNING

    # leader epochs

    @storage
    def assign_epoch(self, epoch: int) -> None:
        """A leader of this epoch begins to write (rule B5.22). Raises KafkaStorageError."""
        if self.config.record_version == 2:
            self.change_epochs(lambda epochs: epochs.assign(epoch, self.log_end_offset))

    def end_offset_of(self, epoch: int) -> EpochEnd:
        """Rule B5.23."""
        return self.epochs.end_offset(epoch, self.log_end_offset)

    def epoch_at(self, offset: int) -> int:
        epoch = self.epochs.epoch_at(offset)
        return UNDEFINED if epoch is None else epoch

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
        self.change_epochs(lambda epochs: epochs.truncate_from_start(offset))
        self.producers.log_start_moved(offset)
        self._update_first_unstable()
        return True

    @storage
    def truncate_to(self, offset: int) -> bool:
        """Remove what is at that offset and beyond (rule B5.27). Whether there was any. Raises KafkaStorageError."""
        self._check_truncation(offset)
        if offset >= self.log_end_offset:
            self.change_epochs(lambda epochs: epochs.truncate_from_end(self.log_end_offset))
            return False
        if offset < self.segments[0].base_offset:
            self.truncate_fully(offset)
            return True
        self.truncations += 1
        removed = self.segments.truncate_to(offset)
        if removed:  # in the active one nothing is compacted
            self.cut_to = min(self.cut_to, self.segments.active.base_offset)
        self._delete(removed)
        self.epochs.truncate_from_end(offset)
        self.log_start_offset = min(offset, self.log_start_offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.context.was_cut()
        self._rebuild_producers()
        if self.high_watermark >= offset:
            self._set_high_watermark(self.end)
        return True

    @storage
    def truncate_fully(self, offset: int) -> None:
        """Be empty, from that offset on. Raises KafkaStorageError."""
        self._check_truncation(offset)
        self.truncations += 1
        self.segments.start_at(offset, self.config)
        self.cut_to = min(self.cut_to, offset)
        self.epochs.clear()
        self.producers.truncate_fully(offset)
        self.log_start_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.context.was_cut()
        self._rebuild_producers()
        self._set_high_watermark(self.end)

    def _check_truncation(self, offset: int) -> None:
        if offset < 0:  # as only a leader with a defect says
            raise ValueError(f"{self.partition} cannot be truncated to {offset}")

    def _rebuild_producers(self) -> None:
        rebuild_producers(
            self.producers,
            self.segments,
            self.log_start_offset,
            self.log_end_offset,
            clean=False,
            now_ms=self.context.now_ms(),
        )
        self.producers.replicated(self.high_watermark)
        self._update_first_unstable()

    def _delete(self, segments: Sequence[Segment]) -> None:
        self.segments.delete_files(segments, self.config)
        self._delete_snapshots(segments)

    def _delete_snapshots(self, segments: Iterable[Segment]) -> None:
        paths = [path for segment in segments for path in self.producers.delete_later(segment.base_offset)]
        if paths:
            self.context.delete_later(paths, self.config.file_delete_delay_ms)

    # retention and compaction

    @storage
    def replace_segments(self, old: Sequence[Segment], new: Segment) -> None:
        """Put a compacted segment, whose files are flushed, in the place of others; the names survive a crash.

        Raises KafkaStorageError.
        """
        new.rename(SWAP)
        self.context.disk.flush_folder(self.folder)
        self.segments.replace(old, new)
        self.segments.delete_files(old, self.config)
        new.rename("")
        self._delete_snapshots([segment for segment in old if segment.base_offset != new.base_offset])
        replaced = {segment.base_offset for segment in old}
        if self._high_watermark.segment in replaced:
            self._high_watermark = OffsetMetadata(self.high_watermark)

    @storage
    def delete_old_segments(self) -> int:
        """Apply the retention; how many segments were removed (rules B6.14 to B6.17). Raises KafkaStorageError."""
        if self._is_kept_while_resting:
            return 0
        config = self.config
        deleted = self._delete_while(retention.before(self.log_start_offset))
        if config.is_delete:
            deleted += self._delete_while(retention.too_large(self.size, config.retention_bytes))
            deleted += self._delete_while(retention.too_old(self.context.now_ms(), config.retention_ms))
        return deleted

    @property
    def _is_kept_while_resting(self) -> bool:
        """Whether the retention leaves it as it is while it rests or has no files: then it need not wake."""
        if self._segments is not None:
            return False
        if self._rest is None:
            return True
        config, timestamp = self.config, self._resting_timestamp
        is_young = timestamp >= 0 and self.context.now_ms() - timestamp <= (config.retention_ms or 0)
        return config.retention_bytes != 0 and (config.retention_ms is None or is_young)

    def _delete_while(self, breaks: retention.Breaks) -> int:
        segments = list(self.segments)
        count = retention.deletable(segments, self.high_watermark, self.log_end_offset, breaks)
        if count:
            if count == len(segments):
                self.roll()
            removed = self.segments.remove_first(count)
            self.increment_log_start_offset(self.segments[0].base_offset)
            self._delete(removed)
        return count
