"""What a compaction keeps: decisions on batches, without files (rules B6.22, B6.23; Kafka's Cleaner).

A pass reads the batches that are new since the last one into `KeyOffsets`; then every batch goes through
`Compaction.filtered`.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kce.broker_stub.log.indexes import AbortedTransaction
from kce.broker_stub.log.producer_state import ProducerState
from kce.wire.record import (
    NO_TIMESTAMP,
    Codec,
    ControlRecordType,
    Record,
    RecordBatch,
    TimestampType,
    control_record_type,
)

#: of the digest of a key, so that memory is bounded by the number of keys
_DIGEST_BYTES: Final = 16
NO_OFFSET: Final = -1


class KeyOffsets:
    """The last offset of each key, for at most ``capacity`` keys. ``latest``: the last offset that was read."""

    def __init__(self, capacity: int) -> None:
        self._offsets: dict[bytes, int] = {}
        self._capacity = capacity
        self.latest = NO_OFFSET

    def __len__(self) -> int:
        return len(self._offsets)

    def get(self, key: bytes) -> int:
        return self._offsets.get(_digest(key), NO_OFFSET)

    def add(self, batch: RecordBatch, first_offset: int, *, counts: bool) -> bool:
        """Take the keys of a batch, from ``first_offset`` on; False if not all of them have room: those before have.

        ``counts``: its records supersede earlier ones; those of control batches and aborted transactions do not.
        """
        if counts:
            for record in batch.records:
                if record.key is not None and record.offset >= first_offset:
                    if len(self._offsets) >= self._capacity:
                        return False
                    self._offsets[_digest(record.key)] = record.offset
                    self.latest = max(self.latest, record.offset)
        if batch.last_offset >= first_offset:
            self.latest = max(self.latest, batch.last_offset)
        return True


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()


class Transactions:
    """The transactions of the batches that go by."""

    def __init__(self) -> None:
        self._kept: list[AbortedTransaction] = []
        #: by first offset, not reached yet
        self._aborted: list[tuple[int, AbortedTransaction]] = []
        #: by producer id; whether a batch of it was met
        self._open: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committed: set[int] = set()

    def expect(self, aborted: Iterable[AbortedTransaction]) -> None:
        for transaction in aborted:
            heapq.heappush(self._aborted, (transaction.first_offset, transaction))

    def is_discarded(self, batch: RecordBatch) -> bool:
        """Whether it is data of an aborted transaction, or the marker of one that has no data left."""
        while self._aborted and self._aborted[0][0] <= batch.last_offset:
            transaction = heapq.heappop(self._aborted)[1]
            self._open.setdefault(transaction.producer_id, (transaction, False))
        if batch.is_control:
            return self._ends(batch)
        if not batch.is_transactional:
            return False
        found = self._open.get(batch.producer_id)
        if found is None:
            self._committed.add(batch.producer_id)
            return False
        self._open[batch.producer_id] = found[0], True
        return True

    def take_kept(self) -> list[AbortedTransaction]:
        """The aborted transactions whose markers went by and stay."""
        kept, self._kept = self._kept, []
        return kept

    def _ends(self, batch: RecordBatch) -> bool:
        if not batch.records:  # a marker that was emptied
            return True
        kind = control_record_type(batch.records[0])
        if kind == ControlRecordType.ABORT:
            transaction, has_data = self._open.pop(batch.producer_id, (None, False))
            if transaction is not None and has_data:
                self._kept.append(transaction)
                return False
            return True
        if kind == ControlRecordType.COMMIT:
            was_there = batch.producer_id in self._committed
            self._committed.discard(batch.producer_id)
            return not was_there
        return False


@dataclass(frozen=True, slots=True)
class Compaction:
    """One pass over a log. Times are ms since 1970. ``end_offset``: of what may be cleaned.

    ``old_delete_horizon_ms``: tombstones of magic 0 and 1, which have no horizon of their own, go from segments that
    were last written by then.
    """

    keys: KeyOffsets
    transactions: Transactions
    producers: Mapping[int, ProducerState]
    now_ms: int
    delete_retention_ms: int
    end_offset: int
    old_delete_horizon_ms: int = 0

    def filtered_old(self, batch: RecordBatch, modified_ms: int) -> RecordBatch | None:
        """A batch of magic 0 or 1 as it is kept, or None. ``modified_ms``: when its segment was last written."""
        keeps_tombstones = modified_ms > self.old_delete_horizon_ms
        records = tuple(
            record
            for record in batch.records
            if record.offset > self.keys.latest
            or (
                record.key is not None
                and record.offset >= self.keys.get(record.key)
                and (record.value is not None or keeps_tombstones)
            )
        )
        if len(records) == len(batch.records):
            return batch
        if not records:
            return None
        return RecordBatch.of(*records, magic=batch.magic, codec=batch.codec, timestamp_type=batch.timestamp_type)

    def filtered(self, batch: RecordBatch) -> RecordBatch | None:
        """A batch of magic 2 as it is kept: itself if nothing changes, without records, or None."""
        discarded = self.transactions.is_discarded(batch)
        drops_all = discarded and (not batch.is_control or self._is_past_horizon(batch))
        records = () if drops_all else tuple(record for record in batch.records if self._is_kept(batch, record))
        if not records:
            return _emptied(batch) if self._is_needed(batch) else None
        has_tombstones = any(record.value is None for record in records)
        needs_horizon = (has_tombstones or (discarded and batch.is_control)) and not batch.has_delete_horizon
        if not needs_horizon and len(records) == len(batch.records):
            return batch
        base_timestamp = batch.base_timestamp if batch.has_delete_horizon else records[0].timestamp
        if needs_horizon:  # in place of the base timestamp (KIP-534)
            base_timestamp = self.now_ms + self.delete_retention_ms
        is_appended = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
        return replace(
            batch,
            records=records,
            base_timestamp=base_timestamp,
            max_timestamp=batch.max_timestamp if is_appended else max(record.timestamp for record in records),
            has_delete_horizon=batch.has_delete_horizon or needs_horizon,
        )

    def _is_past_horizon(self, batch: RecordBatch) -> bool:
        return batch.has_delete_horizon and batch.base_timestamp <= self.now_ms

    def _is_kept(self, batch: RecordBatch, record: Record) -> bool:
        if batch.is_control or record.offset > self.keys.latest:
            return True
        if record.key is None or record.offset < self.keys.get(record.key):
            return False
        return record.value is not None or not self._is_past_horizon(batch)

    def _is_needed(self, batch: RecordBatch) -> bool:
        """Whether the batch stays even without records: the last of its producer, or of the pass."""
        if batch.last_offset + 1 == self.end_offset:
            return True
        state = self.producers.get(batch.producer_id)
        if state is None:
            return False
        if state.batches:
            return batch.last_offset == state.batches[-1].last_offset
        return batch.is_control and batch.producer_epoch == state.epoch


def _emptied(batch: RecordBatch) -> RecordBatch:
    if not batch.records:
        return batch
    return replace(batch, records=(), codec=Codec.NONE, base_timestamp=NO_TIMESTAMP, has_delete_horizon=False)
