"""One replica that this broker hosts: its epochs, its role, and as a leader its ISR (rules 9.15-9.23, 9.48-9.59).

Nothing here awaits or decides when to act: ``ReplicaManager`` says what the controller wants, an ``IsrPolicy`` what to
propose. Epochs only ever grow.
"""

from __future__ import annotations

import enum
import uuid
from typing import Final

from broker_stub.alter_partition_manager import AlterPartitionItem, LeaderAndIsr, Result
from broker_stub.control_requests import NO_TOPIC_ID
from broker_stub.log_manager import LogManager
from wire import ErrorCode, LeaderAndIsrPartitionState
from wire.vocabulary import NO_LEADER, TopicPartition

#: rule 9.58: the controller will not change its mind, what it knows better comes with the next LeaderAndIsr
WAIT_FOR_CONTROLLER: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
#: rule 9.58: not now, but the same change may be proposed again
NOT_NOW: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})


class Outcome(enum.Enum):
    """What became of a proposed ISR."""

    COMMITTED = enum.auto()
    REVERTED = enum.auto()  # back to the committed ISR
    PENDING = enum.auto()  # stays proposed until a LeaderAndIsr comes
    RESUBMIT = enum.auto()  # stays proposed: ask again
    SUPERSEDED = enum.auto()  # the answer is about a state that is no more


class Partition:
    """Owns the state of one hosted replica. ``leader_epoch`` is -1 until the first LeaderAndIsr is accepted.

    ``isr`` is the committed one, and known to the leader alone; ``pending`` is the change under way, at most one.
    """

    __slots__ = (
        "_broker_id", "_log_manager", "adding_replicas", "controller_epoch", "isr", "leader", "leader_epoch",
        "partition_epoch", "pending", "removing_replicas", "replicas", "topic_partition",
    )  # fmt: skip

    def __init__(self, topic_partition: TopicPartition, broker_id: int, log_manager: LogManager) -> None:
        self.topic_partition = topic_partition
        self._broker_id = broker_id
        self._log_manager = log_manager
        self.leader = NO_LEADER
        self.leader_epoch = -1
        self.partition_epoch = 0
        self.controller_epoch = 0
        self.replicas: tuple[int, ...] = ()
        self.adding_replicas: tuple[int, ...] = ()
        self.removing_replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.pending: AlterPartitionItem | None = None

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else f"follower of {self.leader}"
        return f"<{self.topic_partition} {role}, epochs {self.leader_epoch}/{self.partition_epoch}, isr {self.isr}>"

    @property
    def is_leader(self) -> bool:
        return self.leader == self._broker_id

    @property
    def topic_id(self) -> uuid.UUID | None:
        """The id that the log knows."""
        return self._log_manager.topic_id(self.topic_partition)

    def make_leader(self, state: LeaderAndIsrPartitionState, topic_id: uuid.UUID | None) -> bool:
        """Lead (rule 9.22). False: the state is older than what is known, nothing changed. Raises KafkaStorageError.

        A partition that is RECOVERING is taken as recovered at once: there is nothing to recover.
        """
        return self._take_over(state, topic_id, state.isr)

    def make_follower(self, state: LeaderAndIsrPartitionState, topic_id: uuid.UUID | None) -> bool:
        """Follow ``state.leader``; the ISR is the leader's business (rule 9.23). Otherwise like ``make_leader``."""
        return self._take_over(state, topic_id, ())

    def _take_over(self, state: LeaderAndIsrPartitionState, topic_id: uuid.UUID | None, isr: tuple[int, ...]) -> bool:
        if state.partition_epoch < self.partition_epoch:
            return False
        self.create_log_if_not_exists(state, topic_id)
        self.controller_epoch = state.controller_epoch
        self.replicas = state.replicas
        self.adding_replicas = state.adding_replicas
        self.removing_replicas = state.removing_replicas
        self.isr = isr
        self.pending = None
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        return True

    def create_log_if_not_exists(self, state: LeaderAndIsrPartitionState, topic_id: uuid.UUID | None) -> None:
        """Raises KafkaStorageError."""
        self._log_manager.get_or_create_log(self.topic_partition, is_new=state.is_new, topic_id=topic_id)

    def delete(self) -> None:
        """It is hosted no more: whatever was under way for it is void."""
        self.leader = NO_LEADER
        self.isr = ()
        self.pending = None

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The committed ISR and who is being added to it (rule 9.48)."""
        added = () if self.pending is None else tuple(i for i in self.pending.isr if i not in self.isr)
        return self.isr + added

    def propose_isr(self, isr: tuple[int, ...]) -> AlterPartitionItem:
        """Make ``isr`` the pending change, under the current epochs (rule 9.49)."""
        assert self.is_leader
        self.pending = AlterPartitionItem(
            partition=self.topic_partition,
            topic_id=self.topic_id or NO_TOPIC_ID,
            leader=self.leader,
            controller_epoch=self.controller_epoch,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            isr=isr,
        )
        return self.pending

    def withdraw(self) -> None:
        """The pending change was never sent."""
        self.pending = None

    def alter_partition_completed(self, item: AlterPartitionItem, result: Result) -> Outcome:
        """Take in the controller's answer to a change that was proposed (rules 9.58, 9.59)."""
        if self.pending is not item:
            return Outcome.SUPERSEDED
        if isinstance(result, LeaderAndIsr):
            if result.leader_epoch != self.leader_epoch or result.partition_epoch < self.partition_epoch:
                return Outcome.PENDING
            self.isr = result.isr
            self.partition_epoch = result.partition_epoch
            self.pending = None
            return Outcome.COMMITTED
        if result in NOT_NOW:
            self.pending = None
            return Outcome.REVERTED
        return Outcome.PENDING if result in WAIT_FOR_CONTROLLER else Outcome.RESUBMIT
