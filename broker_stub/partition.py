"""One replica that this broker hosts: its epochs, its role, and as a leader its ISR (rules 9.15-9.23, 9.48-9.59).

Nothing here awaits or decides when to act: ``ReplicaManager`` applies the controller's requests, an ``IsrPolicy``
decides what to propose. Epochs never decrease.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from typing import Final

from kce.broker_stub.alter_partition_manager import AlterPartitionItem, Result
from kce.broker_stub.disk import Buffer
from kce.broker_stub.errors import Refused
from kce.broker_stub.followers import Follower, Followers
from kce.broker_stub.log import Appended, Log, Origin
from kce.broker_stub.log.manager import LogManager
from kce.broker_stub.log.verification import EXEMPT, VerificationGuard
from kce.wire import ErrorCode, LeaderAndIsrPartitionState
from kce.wire.control import NO_TOPIC_ID
from kce.wire.errors import NO_ERROR
from kce.wire.vocabulary import NO_EPOCH, NO_LEADER, TopicPartition
from kce.zookeeper.model import BrokerId, LeaderAndIsr

#: `acks` of a producer that waits for every replica in the ISR
ALL: Final = -1

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
        "_broker_id", "_log_manager", "adding_replicas", "controller_epoch", "epoch_start_offset", "followers",
        "is_leader", "isr", "leader", "leader_epoch", "log", "partition_epoch", "pending", "removing_replicas",
        "replicas", "requested_topic_id", "topic_partition",
    )  # fmt: skip

    def __init__(self, topic_partition: TopicPartition, broker_id: int, log_manager: LogManager) -> None:
        self.topic_partition = topic_partition
        self._broker_id = broker_id
        self._log_manager = log_manager
        self.leader = NO_LEADER
        self.is_leader = False
        self.leader_epoch = -1
        self.partition_epoch = 0
        self.controller_epoch = 0
        self.replicas: tuple[int, ...] = ()
        self.adding_replicas: tuple[int, ...] = ()
        self.removing_replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.pending: AlterPartitionItem | None = None
        #: None before the first LeaderAndIsr
        self.log: Log | None = None
        #: of the last LeaderAndIsr: a follower fetches with it (rule 9.19)
        self.requested_topic_id: uuid.UUID | None = None
        self.followers = Followers()
        #: as a leader: where the log ended when its epoch began
        self.epoch_start_offset = 0

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else f"follower of {self.leader}"
        return f"<{self.topic_partition} {role}, epochs {self.leader_epoch}/{self.partition_epoch}, isr {self.isr}>"

    @property
    def topic_id(self) -> uuid.UUID | None:
        """The id in the log."""
        return self._log_manager.topic_id(self.topic_partition) if self.log is None else self.log.topic_id

    def make_leader(self, state: LeaderAndIsrPartitionState, topic_id: uuid.UUID | None, now_ms: float) -> bool:
        """Become leader (rule 9.22). False if the state is older than the known one. Raises KafkaStorageError.

        ``now_ms`` is kept: one object for all partitions of a request costs the least memory.

        A RECOVERING partition becomes RECOVERED at once, because there is nothing to recover.
        """
        was_leader, epoch = self.is_leader, self.leader_epoch
        if not self._apply(state, topic_id, state.isr):
            return False
        self.followers.assign(i for i in state.replicas if i != self._broker_id)
        if state.leader_epoch > epoch and self.log is not None:
            self.log.assign_epoch(state.leader_epoch)
            self.epoch_start_offset = self.log.log_end_offset
            self.followers.new_epoch(state.isr, self.log.log_end_offset, now_ms, is_new_leader=not was_leader)
        return True

    def make_follower(self, state: LeaderAndIsrPartitionState, topic_id: uuid.UUID | None) -> bool:
        """Follow ``state.leader``, without an ISR (rule 9.23). Otherwise like ``make_leader``."""
        self.followers.assign(())
        return self._apply(state, topic_id, ())

    def _apply(self, state: LeaderAndIsrPartitionState, topic_id: uuid.UUID | None, isr: tuple[int, ...]) -> bool:
        if state.partition_epoch < self.partition_epoch:
            return False
        self.create_log_if_not_exists(state, topic_id)
        self.requested_topic_id = topic_id
        self.controller_epoch = state.controller_epoch
        self.replicas = state.replicas
        self.adding_replicas = state.adding_replicas
        self.removing_replicas = state.removing_replicas
        self.isr = isr
        self.pending = None
        self.leader = state.leader
        self.is_leader = state.leader == self._broker_id
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        return True

    def create_log_if_not_exists(self, state: LeaderAndIsrPartitionState, topic_id: uuid.UUID | None) -> None:
        """Raises KafkaStorageError."""
        self.log = self._log_manager.get_or_create_log(self.topic_partition, is_new=state.is_new, topic_id=topic_id)

    def replace_log(self, log: Log) -> None:
        """``log`` has the same records, in other places."""
        self.log = log
        self.followers.relocate()

    def delete(self) -> None:
        """The partition is no longer hosted; a change in flight is void."""
        self.leader = NO_LEADER
        self.is_leader = False
        self.isr = ()
        self.pending = None
        self.log = None
        self.followers.assign(())

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The committed ISR and the replicas that the pending change adds (rule 9.48)."""
        if self.pending is None:
            return self.isr
        return self.isr + tuple(i for i in self.pending.leader_and_isr.isr if i not in self.isr)

    # records

    def leader_log(self) -> Log:
        """Raises Refused with NOT_LEADER_OR_FOLLOWER (rule B3.12)."""
        if self.log is None or not self.is_leader:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic_partition} is not led by {self._broker_id}")
        return self.log

    def log_for(self, current_leader_epoch: int, *, leader_only: bool) -> Log:
        """The log for a reader that knows that leader epoch, or -1 (rules B4.8, B4.9). Raises Refused."""
        if current_leader_epoch != NO_EPOCH and current_leader_epoch != self.leader_epoch:
            is_old = current_leader_epoch < self.leader_epoch
            raise Refused(
                ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"{self.topic_partition}: leader epoch {current_leader_epoch} is not {self.leader_epoch}",
            )
        if leader_only or self.log is None:
            return self.leader_log()
        return self.log

    @property
    def min_isr(self) -> int:
        """Rule B3.14."""
        assert self.log is not None
        return min(self.log.config.min_insync_replicas, len(self.replicas))

    def append(
        self,
        records: Buffer,
        acks: int,
        *,
        origin: Origin = Origin.CLIENT,
        zstd_allowed: bool = True,
        guard: VerificationGuard | None = EXEMPT,
    ) -> Appended:
        """Rules B3.12, B3.13, B3.16 to B3.21, T10.15. Raises ApiException."""
        log = self.leader_log()
        if acks == ALL and len(self.isr) < log.config.min_insync_replicas and len(self.isr) < self.min_isr:
            raise Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"the ISR of {self.topic_partition} has {len(self.isr)} replicas, not {self.min_isr}",
            )
        return log.append_as_leader(records, self.leader_epoch, origin=origin, zstd_allowed=zstd_allowed, guard=guard)

    def start_verification(self, producer_id: int, epoch: int, sequence: int) -> VerificationGuard | None:
        """See ``Log``. Raises ApiException (rules T10.4, T10.5)."""
        return self.leader_log().start_verification(producer_id, epoch, sequence)

    def is_acknowledged(self, end_offset: int) -> ErrorCode | None:
        """Whether enough replicas have everything before ``end_offset``: the code to answer, or None (rule B2.14)."""
        if self.log is None or not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.log.high_watermark < end_offset:
            return None
        size = len(self.maximal_isr)
        enough = size >= self.log.config.min_insync_replicas or size >= self.min_isr
        return NO_ERROR if enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    def advance_high_watermark(self, joins: Callable[[int, Follower, int], bool]) -> bool:
        """Advance as far as the followers allow; return whether it moved (rules 9.50, B3.15).

        ``joins``: whether a broker, which follows, is about to join the ISR of a log that ends there.
        """
        log = self.log
        if log is None or not self.is_leader:
            return False
        new = self.followers.high_watermark(log.end, self.maximal_isr, joins)
        if len(self.isr) < log.config.min_insync_replicas and len(self.isr) < self.min_isr:
            return False
        return log.maybe_increment_high_watermark(new)

    def may_join_isr(self, broker_id: int) -> bool:
        """Whether a follower has what the ISR has (rule 9.47)."""
        follower = self.followers.get(broker_id)
        if self.log is None or follower is None or self.pending is not None or broker_id in self.isr:
            return False
        if broker_id in self.followers.laggards:
            return False
        return follower.end.offset >= max(self.log.high_watermark, self.epoch_start_offset)

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
