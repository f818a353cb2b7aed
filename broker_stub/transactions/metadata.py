"""One transactional id as a state machine (sections 2 and 4 of the transaction rules).

A change has two steps: ``prepare_...`` checks it, makes it pending and returns what the id will be, ``complete``
applies that once it is in the log (rule T2.4).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple

from kce.broker_stub.errors import Refused
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition

NONE: Final = -1
#: of an int16; kept to fence the producer that has the epoch before it (rule T4.14)
_MAX_EPOCH: Final = 2**15 - 1


class TransactionState(enum.Enum):
    """Id in records, and name on the wire (rule T2.1)."""

    EMPTY = 0, "Empty"
    ONGOING = 1, "Ongoing"
    PREPARE_COMMIT = 2, "PrepareCommit"
    PREPARE_ABORT = 3, "PrepareAbort"
    COMPLETE_COMMIT = 4, "CompleteCommit"
    COMPLETE_ABORT = 5, "CompleteAbort"
    DEAD = 6, "Dead"
    PREPARE_EPOCH_FENCE = 7, "PrepareEpochFence"

    @property
    def id(self) -> int:
        return self.value[0]

    @property
    def label(self) -> str:
        return self.value[1]

    @property
    def is_preparing(self) -> bool:
        """Whether markers are to be written."""
        return self in _COMPLETES

    @property
    def is_at_rest(self) -> bool:
        """Whether there is no transaction."""
        return self in _AT_REST

    @property
    def completed(self) -> TransactionState:
        """What follows the markers. Raises IllegalTransition in a state without markers."""
        if self not in _COMPLETES:
            raise IllegalTransition(f"{self.label} has no markers to complete")
        return _COMPLETES[self]


_COMPLETES: Final = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}
_AT_REST: Final = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
#: rule T2.3
PREVIOUS: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: _AT_REST,
    TransactionState.ONGOING: _AT_REST | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: frozenset({TransactionState.ONGOING}),
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: _AT_REST,
    TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.ONGOING}),
}


class IllegalTransition(Exception):
    """An error of the coordinator, answered UNKNOWN_SERVER_ERROR (rules T2.3, T2.7)."""


class Values(NamedTuple):
    """What is kept of a transactional id (rule T2.2). Times are in ms since 1970."""

    producer_id: int
    timeout_ms: int
    last_update_ms: int
    producer_epoch: int = NONE
    #: those before, for the retry of an InitProducerId; not in records (rule T2.11)
    last_producer_id: int = NONE
    last_producer_epoch: int = NONE
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NONE


def is_exhausted(epoch: int) -> bool:
    """Rule T4.13."""
    return epoch >= _MAX_EPOCH - 1


class TransactionMetadata:
    """``values`` are as the log has them, but for partitions whose marker is written (rule T11.2)."""

    __slots__ = ("fence_failed", "pending", "transactional_id", "values")

    def __init__(self, transactional_id: str, values: Values) -> None:
        self.transactional_id = transactional_id
        self.values = values
        self.pending: TransactionState | None = None
        #: the epoch has grown already, and its record could not be written (rule T4.12)
        self.fence_failed = False

    def __repr__(self) -> str:
        v = self.values
        pending = "" if self.pending is None else f", to be {self.pending.label}"
        return f"<{self.transactional_id} {v.state.label}{pending}, producer {v.producer_id}/{v.producer_epoch}>"

    def is_timed_out(self, now_ms: int) -> bool:
        """Rule T8.1."""
        v = self.values
        return v.state is TransactionState.ONGOING and self.pending is None and v.start_ms + v.timeout_ms < now_ms

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Rule T8.8."""
        v = self.values
        return v.state.is_at_rest and self.pending is None and v.last_update_ms <= now_ms - expiration_ms

    # first step

    def prepare_init(
        self, timeout_ms: int, expected: tuple[int, int] | None, new_producer_id: Iterable[int], now_ms: int
    ) -> Values:
        """InitProducerId; ``expected``: producer id and epoch that it gives. ``new_producer_id`` is asked if needed.

        Its state is PREPARE_EPOCH_FENCE if a transaction is to be aborted. Raises Refused, IllegalTransition, and what
        ``new_producer_id`` raises.
        """
        v = self.values
        if self.pending is not None:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        if expected is not None and not self._may_init(*expected):
            raise Refused(ErrorCode.PRODUCER_FENCED)
        if v.state.is_preparing:  # rule T4.8
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        if v.state is TransactionState.ONGOING:
            return self.prepare_fence()
        if is_exhausted(v.producer_epoch) and (expected is None or expected[1] == v.producer_epoch):  # rule T4.13
            last = NONE if expected is None else v.producer_epoch
            return self._to(
                TransactionState.EMPTY, timeout_ms=timeout_ms, producer_id=next(iter(new_producer_id)),
                producer_epoch=0, last_producer_epoch=last, partitions=frozenset(), start_ms=NONE,
                last_update_ms=now_ms,
            )  # fmt: skip
        epoch, last_epoch = self._next_epoch(None if expected is None else expected[1])
        return self._to(
            TransactionState.EMPTY, timeout_ms=timeout_ms, producer_epoch=epoch, last_producer_epoch=last_epoch,
            partitions=frozenset(), start_ms=NONE, last_update_ms=now_ms,
        )  # fmt: skip

    def _may_init(self, producer_id: int, epoch: int) -> bool:
        """Rule T4.5."""
        v = self.values
        return (
            v.producer_epoch == NONE
            or producer_id == v.producer_id
            or (producer_id == v.last_producer_id and is_exhausted(epoch))
        )

    def _next_epoch(self, expected: int | None) -> tuple[int, int]:
        """The epoch and the last one (rules T4.6, T4.15). Raises Refused, IllegalTransition."""
        v = self.values
        if is_exhausted(v.producer_epoch):
            raise IllegalTransition(f"{self!r} has no epochs left")
        if expected is None:
            return v.producer_epoch + 1, NONE
        if v.producer_epoch in (NONE, expected):
            return v.producer_epoch + 1, v.producer_epoch
        if expected == v.last_producer_epoch:
            return v.producer_epoch, v.last_producer_epoch
        raise Refused(ErrorCode.PRODUCER_FENCED)

    def prepare_fence(self) -> Values:
        """The next epoch fences the producer; then comes ``prepare_end`` (rules T4.9, T4.12, T4.14)."""
        epoch = self.values.producer_epoch
        if epoch == _MAX_EPOCH:
            raise IllegalTransition(f"{self!r} has no epochs left")
        return self._to(
            TransactionState.PREPARE_EPOCH_FENCE,
            producer_epoch=epoch if self.fence_failed else epoch + 1,
            last_producer_epoch=NONE,
        )

    def prepare_add(self, added: frozenset[TopicPartition], now_ms: int) -> Values:
        """Partitions join the transaction, which begins with the first (rules T2.9, T8.2)."""
        v = self.values
        return self._to(
            TransactionState.ONGOING,
            partitions=v.partitions | added,
            start_ms=now_ms if v.state.is_at_rest else v.start_ms,
            last_update_ms=now_ms,
        )

    def prepare_end(self, *, commit: bool, now_ms: int, fence: int | None = None) -> Values:
        """``fence``: the epoch of a fence that is pending; it counts from now on, whatever the log does (rule T4.9)."""
        if fence is not None:
            self.pending = None
            self.values = self.values._replace(producer_epoch=fence, last_producer_epoch=NONE)
        state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        return self._to(state, last_update_ms=now_ms)

    def prepare_complete(self, now_ms: int) -> Values:
        """It is pending until the last marker is written (rule T2.5)."""
        self.fence_failed = False
        return self._to(self.values.state.completed, partitions=frozenset(), last_update_ms=now_ms)

    def prepare_dead(self) -> Values:
        return self._to(TransactionState.DEAD, partitions=frozenset())

    def _to(self, state: TransactionState, **changed: object) -> Values:
        if self.pending is not None:
            raise IllegalTransition(f"{self!r} cannot become {state.label} now")
        if self.values.state not in PREVIOUS[state]:
            raise IllegalTransition(f"{self!r} cannot become {state.label}")
        v = self.values
        new = v._replace(state=state, last_producer_id=v.producer_id, **changed)  # type: ignore[arg-type]
        if new.producer_id < 0 or (state is not TransactionState.DEAD and new.producer_epoch < 0):
            raise IllegalTransition(f"{self!r} cannot have producer {new.producer_id}/{new.producer_epoch}")
        self.pending = state
        return new

    # second step

    def complete(self, new: Values) -> None:
        """Apply what was prepared; it is in the log. Raises IllegalTransition (rule T2.7)."""
        if self.pending is None or self.pending is not new.state or not self._may_follow(new):
            raise IllegalTransition(f"{self!r} cannot become {new}")
        old = self.values
        if new.state is TransactionState.EMPTY:  # rule T2.9: the start stays
            self.values = new._replace(start_ms=old.start_ms)
        else:
            self.values = new._replace(
                last_producer_id=old.last_producer_id, last_producer_epoch=old.last_producer_epoch
            )
        self.pending = None

    def _may_follow(self, new: Values) -> bool:
        old, state = self.values, new.state
        if state is TransactionState.EMPTY:
            bumped = new.producer_epoch in (old.producer_epoch, old.producer_epoch + 1)
            rotated = new.producer_epoch == 0 and new.producer_id != old.producer_id
            return (bumped or rotated) and not new.partitions and new.start_ms == NONE
        if (new.producer_id, new.producer_epoch, new.timeout_ms) != (
            old.producer_id, old.producer_epoch, old.timeout_ms,
        ):  # fmt: skip
            return False
        if state is TransactionState.ONGOING:
            return old.partitions <= new.partitions
        if state.is_preparing:
            return (old.partitions, old.start_ms) == (new.partitions, new.start_ms)
        return state in _COMPLETES.values() and new.start_ms != NONE

    def marker_written(self, partition: TopicPartition) -> None:
        """Rule T11.2. Raises IllegalTransition if no markers are written."""
        if not self.values.state.is_preparing:
            raise IllegalTransition(f"{self!r} has no marker for {partition}")
        self.values = self.values._replace(partitions=self.values.partitions - {partition})
