"""The producer state of a log: detects duplicates and invalid sequences, and tracks open transactions.

Rules B3.44 to B3.56, B3.64, B3.65. An append has two steps: `ProducerAppend` checks batches and collects the
changes, `ProducerStateManager.update` applies them once the batches are in the log.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeVar

from kce.broker_stub.disk import Disk
from kce.broker_stub.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from kce.broker_stub.log.names import DELETED, SNAPSHOT, offset_name, parse_offset_name
from kce.broker_stub.log.snapshots import CorruptSnapshot, ProducerSnapshot, read_snapshot, write_snapshot
from kce.broker_stub.log.verification import Verification, VerificationGuard, Verifications
from kce.wire.batch_header import BatchHeader
from kce.wire.record import NO_PRODUCER, NO_TIMESTAMP, EndTransactionMarker

log = logging.getLogger(__name__)

V = TypeVar("V")

#: rule B3.44
BATCHES_TO_RETAIN: Final = 5
_MAX_SEQUENCE: Final = 2**31 - 1
_NO_COORDINATOR: Final = -1
#: what most logs know of producers and transactions: one table for all, which is never changed
_NONE: Final[dict[int, Any]] = {}


class Origin(enum.Enum):
    """The origin of an append (rule B3.52)."""

    CLIENT = enum.auto()
    COORDINATOR = enum.auto()
    REPLICATION = enum.auto()


#: to read a member of an enum's class takes ten times as long in Python 3.11
CLIENT: Final = Origin.CLIENT
COORDINATOR: Final = Origin.COORDINATOR
REPLICATION: Final = Origin.REPLICATION


class ProducedBatch(NamedTuple):
    """A batch that a producer wrote."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        first = self.last_sequence - self.offset_delta
        return first if first >= 0 else first + _MAX_SEQUENCE + 1

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerState(NamedTuple):
    """A producer's state. ``transaction``: the first offset of the one that is open, if any."""

    epoch: int = NO_PRODUCER
    coordinator_epoch: int = _NO_COORDINATOR
    last_timestamp: int = NO_TIMESTAMP
    transaction: int | None = None
    batches: tuple[ProducedBatch, ...] = ()

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_PRODUCER

    def duplicate_of(self, header: BatchHeader) -> ProducedBatch | None:
        """Rule B3.45."""
        if header.producer_epoch == self.epoch and header.base_sequence != self.last_sequence + 1:
            last_sequence = header.last_sequence
            for batch in self.batches:
                if batch.last_sequence == last_sequence and batch.first_sequence == header.base_sequence:
                    return batch
        return None


class CompletedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerAppend:
    """The batches of one producer that are about to be appended. ``state`` is what it will be then."""

    __slots__ = ("_known", "_origin", "_producer_id", "_verification", "started", "state")

    def __init__(
        self,
        producer_id: int,
        known: ProducerState | None,
        origin: Origin,
        verification: Verification | None = None,
    ) -> None:
        self._producer_id = producer_id
        self._origin = origin
        self._verification = verification
        self._known = known or ProducerState()
        self.state = self._known
        #: first offsets of transactions
        self.started: list[int] = []

    def append(self, header: BatchHeader, marker: EndTransactionMarker | None) -> CompletedTransaction | None:
        """``marker``: of a control batch that ends a transaction.

        Raises InvalidProducerEpoch, OutOfOrderSequence, InvalidTxnState, TransactionCoordinatorFenced.
        """
        if not header.is_control:
            self.append_data(header)
            return None
        return None if marker is None else self._append_marker(header, marker)

    def append_data(self, header: BatchHeader) -> None:
        """`append` of what is no control batch."""
        self._check_epoch(header)
        state = self.state
        if self._origin is CLIENT:
            self._check_sequence(header)
        transaction = state.transaction
        if header.is_transactional:
            if transaction is None:
                transaction = header.base_offset
                self.started.append(transaction)
        elif transaction is not None:  # rule B3.64
            raise InvalidTxnState(f"{self._name} has an open transaction, and writes a batch that is in none")
        batch = ProducedBatch(header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp)
        earlier = state.batches if header.producer_epoch == state.epoch else ()
        self.state = ProducerState(
            header.producer_epoch,
            state.coordinator_epoch,
            header.max_timestamp,
            transaction,
            (*earlier, batch)[-BATCHES_TO_RETAIN:],
        )

    def _append_marker(self, header: BatchHeader, marker: EndTransactionMarker) -> CompletedTransaction | None:
        self._check_epoch(header)
        state = self.state
        if marker.coordinator_epoch < state.coordinator_epoch and self._origin is not REPLICATION:
            raise TransactionCoordinatorFenced(
                f"{self._name}: coordinator epoch {marker.coordinator_epoch} is below {state.coordinator_epoch}"
            )
        self.state = ProducerState(
            header.producer_epoch,
            marker.coordinator_epoch,
            header.max_timestamp,
            None,
            state.batches if header.producer_epoch == state.epoch else (),
        )
        if state.transaction is None:
            return None
        return CompletedTransaction(
            self._producer_id, state.transaction, header.base_offset, is_aborted=not marker.committed
        )

    @property
    def _name(self) -> str:
        return f"producer {self._producer_id}"

    def _check_epoch(self, header: BatchHeader) -> None:
        """Rule B3.47."""
        if header.producer_epoch < self.state.epoch and self._origin is not REPLICATION:
            raise InvalidProducerEpoch(
                f"{self._name}: epoch {header.producer_epoch} is below {self.state.epoch}, the last that was seen"
            )

    def _check_sequence(self, header: BatchHeader) -> None:
        """Rules B3.48 to B3.51, T10.17."""
        first, state = header.base_sequence, self.state
        if self._verification is not None and first > self._verification.lowest_sequence:
            raise OutOfOrderSequence(
                f"{self._name}: sequence {first} overtakes {self._verification.lowest_sequence}, which is not verified"
            )
        if state.epoch == NO_PRODUCER:
            return
        if header.producer_epoch != state.epoch:
            if first != 0:
                raise OutOfOrderSequence(
                    f"{self._name}: sequence {first} is the first of epoch {header.producer_epoch}, not 0"
                )
            return
        last = state.last_sequence
        if first != last + 1 and not (first == 0 and last == _MAX_SEQUENCE):
            raise OutOfOrderSequence(f"{self._name}: sequence {first} follows {last}")


def _with(known: dict[int, V], key: int, value: V) -> dict[int, V]:
    """That table with one more entry; another one if it is empty, because it may be that of all logs."""
    if not known:
        return {key: value}
    known[key] = value
    return known


class ProducerStateManager:
    """The producers of one log, and the snapshots of their state in its folder. Raises OSError.

    ``map_end_offset``: up to there, the log's batches are accounted for.
    """

    __slots__ = (
        "_disk", "_folder", "_last_snapshot_offset", "_ongoing", "_unreplicated", "_verifications", "expiration_ms",
        "map_end_offset", "producers", "snapshots",
    )  # fmt: skip

    def __init__(self, disk: Disk, folder: str, *, expiration_ms: int) -> None:
        self._disk = disk
        self._folder = folder
        self.expiration_ms = expiration_ms
        self.producers: dict[int, ProducerState] = _NONE
        #: first offset -> producer id of open transactions, ascending
        self._ongoing: dict[int, int] = _NONE
        #: first offset -> last offset of transactions that have ended, perhaps beyond the high watermark
        self._unreplicated: dict[int, int] = _NONE
        self._verifications: Verifications | None = None
        self.map_end_offset = 0
        self._last_snapshot_offset = 0
        #: offsets of the snapshots, ascending
        self.snapshots = self._find_snapshots(disk.files(folder))

    @staticmethod
    def _find_snapshots(names: list[str]) -> tuple[int, ...]:
        parsed = (parse_offset_name(name) for name in names)
        return tuple(sorted(offset for offset, suffix in filter(None, parsed) if suffix == SNAPSHOT))

    def reload_snapshots(self) -> None:
        """Others have written snapshots, or removed some."""
        self.snapshots = self._find_snapshots(self._disk.files(self._folder))

    def _path(self, offset: int) -> str:
        return f"{self._folder}/{offset_name(offset, SNAPSHOT)}"

    def moved(self, folder: str) -> None:
        self._folder = folder

    @property
    def is_empty(self) -> bool:
        return not self.producers and not self._unreplicated

    @property
    def is_idle(self) -> bool:
        """Nothing is known of any producer."""
        return self.is_empty and not self._ongoing and self._verifications is None

    @property
    def verifications(self) -> Verifications:
        if self._verifications is None:
            self._verifications = Verifications()
        return self._verifications

    # appending

    def prepare(self, producer_id: int, origin: Origin) -> ProducerAppend:
        verification = None if self._verifications is None else self._verifications.get(producer_id)
        return ProducerAppend(producer_id, self.producers.get(producer_id), origin, verification)

    def has_open_transaction(self, producer_id: int) -> bool:
        known = self.producers.get(producer_id)
        return known is not None and known.transaction is not None

    def check_verified(self, producer_id: int, guard: VerificationGuard | None) -> None:
        """Raises InvalidTxnState unless a transaction is open or was verified (rule T10.15)."""
        if not self.has_open_transaction(producer_id) and not self.verifications.accepts(producer_id, guard):
            raise InvalidTxnState(f"producer {producer_id} has no transaction in this partition")

    def update(self, producer_id: int, append: ProducerAppend) -> None:
        """The batches are in the log."""
        self.producers = _with(self.producers, producer_id, append.state)
        for first_offset in append.started:
            self._ongoing = _with(self._ongoing, first_offset, producer_id)

    def last_stable_offset(self, completed: CompletedTransaction) -> int:
        """The last stable offset once ``completed`` is replicated."""
        others = (first for first, producer_id in self._ongoing.items() if producer_id != completed.producer_id)
        return min(others, default=completed.last_offset + 1)

    def complete(self, completed: CompletedTransaction) -> None:
        self._ongoing.pop(completed.first_offset, None)
        self._unreplicated = _with(self._unreplicated, completed.first_offset, completed.last_offset)

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the earliest transaction that is open or not yet replicated to its end (rule B3.65)."""
        if not self._ongoing and not self._unreplicated:  # as of most logs
            return None
        return min((*self._ongoing, *self._unreplicated))

    def has_late_transaction(self, now_ms: int, limit_ms: int) -> bool:
        """Whether the oldest open transaction was not written to for longer (rule T8.6)."""
        if not self._ongoing:
            return False
        producer_id = self._ongoing[min(self._ongoing)]
        return now_ms - self.producers[producer_id].last_timestamp > limit_ms

    def replicated(self, high_watermark: int) -> None:
        """The high watermark has moved."""
        if self._unreplicated:
            self._unreplicated = {first: last for first, last in self._unreplicated.items() if last >= high_watermark}

    def remove_expired(self, now_ms: int) -> None:
        """Rules B3.53, T10.18."""
        if self._verifications is not None:
            self._verifications.remove_expired(now_ms, self.expiration_ms)
        if any(self._is_expired(state, now_ms) for state in self.producers.values()):
            self.producers = {i: state for i, state in self.producers.items() if not self._is_expired(state, now_ms)}

    def _is_expired(self, state: ProducerState, now_ms: int) -> bool:
        return state.transaction is None and now_ms - state.last_timestamp >= self.expiration_ms

    # the log moves

    def log_start_moved(self, log_start_offset: int) -> None:
        self.replicated(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        self._last_snapshot_offset = self.snapshots[-1] if self.snapshots else log_start_offset

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Forget what is beyond the end of the log; the state is then that of the newest snapshot (rule B5.27)."""
        for offset in [i for i in self.snapshots if i > log_end_offset or i <= log_start_offset]:
            self._delete(offset)
        if log_end_offset == self.map_end_offset:
            self.log_start_moved(log_start_offset)
            return
        self._clear()
        while self.snapshots:
            offset = self.snapshots[-1]
            try:
                self._load(read_snapshot(self._disk, self._path(offset)), now_ms)
            except CorruptSnapshot as e:
                log.warning("%s: %s", self._path(offset), e)
                self._delete(offset)
            else:
                self.map_end_offset = self._last_snapshot_offset = offset
                return
        self.map_end_offset = self._last_snapshot_offset = log_start_offset

    def _load(self, snapshot: dict[int, ProducerSnapshot], now_ms: int) -> None:
        for producer_id, entry in snapshot.items():
            batch = ProducedBatch(entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp)
            state = ProducerState(
                entry.epoch,
                entry.coordinator_epoch,
                entry.timestamp,
                entry.transaction if entry.transaction >= 0 else None,
                (batch,) if entry.last_offset >= 0 else (),
            )
            if not self._is_expired(state, now_ms):
                self.producers = _with(self.producers, producer_id, state)
                if state.transaction is not None:
                    self._ongoing = _with(self._ongoing, state.transaction, producer_id)

    def _clear(self) -> None:
        self.producers = self._ongoing = self._unreplicated = _NONE

    def truncate_fully(self, offset: int) -> None:
        """The log is empty, and starts at that offset."""
        self._clear()
        for snapshot in self.snapshots:
            self._delete(snapshot)
        self._last_snapshot_offset = 0
        self.map_end_offset = offset

    # snapshots

    def take_snapshot(self) -> str | None:
        """Write a snapshot of the state at ``map_end_offset``, unless there is one; its path (rule B3.54)."""
        offset = self.map_end_offset
        if offset <= self._last_snapshot_offset:
            return None
        write_snapshot(self._disk, self._path(offset), dict(self._entries()))
        if offset not in self.snapshots:
            self.snapshots = tuple(sorted((*self.snapshots, offset)))
        self._last_snapshot_offset = offset
        return self._path(offset)

    def _entries(self) -> Iterator[tuple[int, ProducerSnapshot]]:
        for producer_id, state in self.producers.items():
            last = state.batches[-1] if state.batches else ProducedBatch(NO_PRODUCER, -1, 0, NO_TIMESTAMP)
            yield (
                producer_id,
                ProducerSnapshot(
                    state.epoch,
                    last.last_sequence,
                    last.last_offset,
                    last.offset_delta,
                    state.last_timestamp,
                    state.coordinator_epoch,
                    -1 if state.transaction is None else state.transaction,
                ),
            )

    def remove_stray(self, base_offsets: set[int]) -> None:
        """Keep the snapshots at the start of a segment, and the newest of the others if it is beyond them."""
        stray = [offset for offset in self.snapshots if offset not in base_offsets]
        kept = stray[-1] if stray and stray[-1] >= max(base_offsets, default=0) else None
        for offset in stray:
            if offset != kept:
                self._delete(offset)

    def delete_later(self, offset: int) -> list[str]:
        """Mark a snapshot as to be removed; its new path, if there was one."""
        if offset not in self.snapshots:
            return []
        self.snapshots = tuple(i for i in self.snapshots if i != offset)
        path = self._path(offset)
        if not self._disk.exists(path):
            return []
        self._disk.rename(path, path + DELETED)
        return [path + DELETED]

    def _delete(self, offset: int) -> None:
        self.snapshots = tuple(i for i in self.snapshots if i != offset)
        self._disk.delete(self._path(offset))
