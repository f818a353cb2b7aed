"""One replica that this broker hosts: its epochs, its role, and as a leader its ISR (rules 9.15-9.23, 9.48-9.59).

Nothing here awaits or decides when to act: ``ReplicaManager`` applies the controller's requests, an ``IsrPolicy``
decides what to propose. Epochs never decrease.
"""

from __future__ import annotations

import enum
import uuid
from typing import Final

from kce.broker_stub.alter_partition_manager import AlterPartitionItem, Result
from kce.broker_stub.log_manager import LogManager
from kce.wire import ErrorCode, LeaderAndIsrPartitionState
from kce.wire.control import NO_TOPIC_ID
from kce.wire.vocabulary import NO_LEADER, TopicPartition
from kce.zookeeper.model import BrokerId, LeaderAndIsr

#: rule 9.58: a retry would fail again; the next LeaderAndIsr brings the controller's state
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
#: rule 9.58: the same change may succeed later
NOT_NOW: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})


class ProposalOutcome(enum.Enum):
    """The result of an ISR proposal."""

    COMMITTED = enum.auto()
    REVERTED = enum.auto()  # back to the committed ISR
    PENDING = enum.auto()  # stays proposed until the next LeaderAndIsr
    RESUBMIT = enum.auto()  # stays proposed: retry
    SUPERSEDED = enum.auto()  # the response is about an earlier state


class Partition:
    """Owns the state of one hosted replica. ``leader_epoch`` is -1 until the first LeaderAndIsr is accepted.

    ``isr`` is the committed ISR, which only the leader knows; ``pending`` is the change in flight, at most one.
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
        """The id in the log."""
        return self._log_manager.topic_id(self.topic_partition)

    def make_leader(self, state: LeaderAndIsrPartitionState, topic_id: uuid.UUID | None) -> bool:
        """Become leader (rule 9.22). False if the state is older than the known one. Raises KafkaStorageError.

        A RECOVERING partition becomes RECOVERED at once, because there is nothing to recover.
        """
        return self._apply(state, topic_id, state.isr)

    def make_follower(self, state: LeaderAndIsrPartitionState, topic_id: uuid.UUID | None) -> bool:
        """Follow ``state.leader``, without an ISR (rule 9.23). Otherwise like ``make_leader``."""
        return self._apply(state, topic_id, ())

    def _apply(self, state: LeaderAndIsrPartitionState, topic_id: uuid.UUID | None, isr: tuple[int, ...]) -> bool:
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
        """The partition is no longer hosted; a change in flight is void."""
        self.leader = NO_LEADER
        self.isr = ()
        self.pending = None

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The committed ISR and the replicas that the pending change adds (rule 9.48)."""
        added = () if self.pending is None else tuple(i for i in self.pending.leader_and_isr.isr if i not in self.isr)
        return self.isr + added

    def propose_isr(self, isr: tuple[int, ...]) -> AlterPartitionItem:
        """Make ``isr`` the pending change, with the current epochs (rule 9.49)."""
        assert self.is_leader
        self.pending = AlterPartitionItem(
            partition=self.topic_partition,
            topic_id=self.topic_id or NO_TOPIC_ID,
            controller_epoch=self.controller_epoch,
            leader_and_isr=LeaderAndIsr(
                leader=BrokerId(self.leader),
                isr=tuple(map(BrokerId, isr)),
                leader_epoch=self.leader_epoch,
                partition_epoch=self.partition_epoch,
            ),
        )
        return self.pending

    def withdraw(self) -> None:
        """The pending change was never sent."""
        self.pending = None

    def alter_partition_completed(self, item: AlterPartitionItem, result: Result) -> ProposalOutcome:
        """Apply the controller's response to a proposed change (rules 9.58, 9.59)."""
        if self.pending is not item:
            return ProposalOutcome.SUPERSEDED
        if isinstance(result, LeaderAndIsr):
            if result.leader_epoch != self.leader_epoch or result.partition_epoch < self.partition_epoch:
                return ProposalOutcome.PENDING
            self.isr = result.isr
            self.partition_epoch = result.partition_epoch
            self.pending = None
            return ProposalOutcome.COMMITTED
        if result in NOT_NOW:
            self.pending = None
            return ProposalOutcome.REVERTED
        return ProposalOutcome.PENDING if result in WAIT_FOR_CONTROLLER else ProposalOutcome.RESUBMIT
