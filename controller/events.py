"""Everything that can happen to a controller, past tense (rules 3.9-3.36).

Events hold data and, where somebody waits for an answer, the callback that gives it; what they cause is said in
`controller.Controller`. Equal pending watch events are one event: the handler reads the node anew anyway.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import wire
from controller.errors import ApiError, ControllerMoved
from controller.model import BrokerId, ElectionType, FeatureUpdate, ProducerIdsBlock, ReplicaAssignment, TopicPartition
from wire import ErrorCode


class ControllerState(enum.Enum):
    """What the controller is doing: Kafka's codes, for the gauge of that name (rule 3.7)."""

    IDLE = 0
    CONTROLLER_CHANGE = 1
    BROKER_CHANGE = 2
    TOPIC_CHANGE = 3
    TOPIC_DELETION = 4
    ALTER_PARTITION_REASSIGNMENT = 5
    AUTO_LEADER_BALANCE = 6
    MANUAL_LEADER_BALANCE = 7
    CONTROLLED_SHUTDOWN = 8
    ISR_CHANGE = 9
    LEADER_AND_ISR_RESPONSE_RECEIVED = 10
    LOG_DIR_CHANGE = 11
    CONTROLLER_SHUTDOWN = 12
    UNCLEAN_LEADER_ELECTION_ENABLE = 13
    TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE = 14
    LIST_PARTITION_REASSIGNMENT = 15
    UPDATE_METADATA_RESPONSE_RECEIVED = 16
    UPDATE_FEATURES = 17

    @property
    def timer_name(self) -> str | None:
        """Of the timer of its events; None for states that are not timed."""
        if self in (ControllerState.IDLE, ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED):
            return None
        name = _TIMED_AS.get(self, "".join(word.capitalize() for word in self.name.split("_")))
        return f"{name}RateAndTimeMs"


_TIMED_AS = {
    ControllerState.BROKER_CHANGE: "LeaderElection",
    ControllerState.ALTER_PARTITION_REASSIGNMENT: "PartitionReassignment",
}


@dataclass(frozen=True, slots=True)
class ControllerEvent:
    """Base of all. Instead of being processed, an event is refused on a node that is not the controller (rule 3.8), or
    preempted when the queue is drained (3.37)."""

    @property
    def state(self) -> ControllerState:
        return _STATES[type(self)]

    @property
    def coalesces(self) -> bool:
        """Whether one of several equal pending events is enough."""
        return type(self) in _WATCH_EVENTS

    def refuse(self) -> None:
        """Tell whoever waits for an answer that this node is not the controller."""

    def preempt(self) -> None:
        """The same, where Kafka does."""


@dataclass(frozen=True, slots=True)
class Started(ControllerEvent):
    pass


@dataclass(frozen=True, slots=True)
class ControllerChanged(ControllerEvent):
    """/controller was created or its data changed."""


@dataclass(frozen=True, slots=True)
class ControllerDeleted(ControllerEvent):
    """/controller vanished: Kafka's Reelect."""


@dataclass(frozen=True, slots=True)
class SessionEstablished(ControllerEvent):
    """A new ZooKeeper session after one that expired: Kafka's RegisterBrokerAndReelect."""


@dataclass(frozen=True, slots=True)
class SessionExpiredEvent(ControllerEvent):
    """Kafka's Expire."""


@dataclass(frozen=True, slots=True)
class ShutdownRequested(ControllerEvent):
    """Wakes the loop, so that it ends."""


@dataclass(frozen=True, slots=True)
class BrokersChanged(ControllerEvent):
    """Children of /brokers/ids."""


@dataclass(frozen=True, slots=True)
class BrokerModified(ControllerEvent):
    """Data of /brokers/ids/N."""

    broker: BrokerId


@dataclass(frozen=True, slots=True)
class TopicsChanged(ControllerEvent):
    """Children of /brokers/topics."""


@dataclass(frozen=True, slots=True)
class PartitionsModified(ControllerEvent):
    """Data of /brokers/topics/T."""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicDeletionRequested(ControllerEvent):
    """Children of /admin/delete_topics."""


@dataclass(frozen=True, slots=True)
class ReplicaDeletionAnswered(ControllerEvent):
    """A broker answered StopReplica for replicas that are being deleted (rule 8.43)."""

    broker: BrokerId
    error_code: int
    partition_errors: tuple[tuple[TopicPartition, int], ...]


@dataclass(frozen=True, slots=True)
class IsrChangeNotified(ControllerEvent):
    """Children of /isr_change_notification."""


@dataclass(frozen=True, slots=True)
class LogDirEventNotified(ControllerEvent):
    """Children of /log_dir_event_notification."""


@dataclass(frozen=True, slots=True)
class LeaderAndIsrAnswered(ControllerEvent):
    response: wire.LeaderAndIsrResponse
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class UpdateMetadataAnswered(ControllerEvent):
    response: wire.UpdateMetadataResponse
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class AlterPartitionReceived(ControllerEvent):
    """A leader asks for another ISR. When preempted it is never answered (rule 3.38)."""

    request: wire.AlterPartitionRequest
    api_version: int
    reply: Callable[[wire.AlterPartitionResponse], None]

    def refuse(self) -> None:
        self.reply(wire.AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER))


#: the partitions still led by the broker, or why the shutdown was not taken up
ShutdownResult = set[TopicPartition] | Exception


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequested(ControllerEvent):
    broker: BrokerId
    broker_epoch: int
    reply: Callable[[ShutdownResult], None]

    def refuse(self) -> None:
        self.reply(ControllerMoved("this broker is not the controller"))

    preempt = refuse


@dataclass(frozen=True, slots=True)
class ReassignPartitionsCreated(ControllerEvent):
    """/admin/reassign_partitions was created: Kafka's ZkPartitionReassignment."""


#: of each partition what became of its reassignment, or why none was looked at
AlterReassignmentsResult = dict[TopicPartition, ApiError] | ApiError


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsReceived(ControllerEvent):
    """Kafka's ApiPartitionReassignment. ``targets``: partition -> its replicas to be, None to cancel."""

    targets: Mapping[TopicPartition, Sequence[BrokerId] | None]
    reply: Callable[[AlterReassignmentsResult], None]

    def refuse(self) -> None:
        self.reply(ApiError(ErrorCode.NOT_CONTROLLER))

    preempt = refuse


#: partitions with replicas being added or removed, or why there is no list
ListReassignmentsResult = dict[TopicPartition, ReplicaAssignment] | ApiError


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsReceived(ControllerEvent):
    """``partitions``: those asked about, None for all."""

    partitions: frozenset[TopicPartition] | None
    reply: Callable[[ListReassignmentsResult], None]

    def refuse(self) -> None:
        self.reply(ApiError(ErrorCode.NOT_CONTROLLER))

    preempt = refuse


@dataclass(frozen=True, slots=True)
class ReassignedPartitionStateChanged(ControllerEvent):
    """Data of the state node of a partition that is being reassigned: Kafka's PartitionReassignmentIsrChange."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class PreferredReplicaElectionCreated(ControllerEvent):
    """/admin/preferred_replica_election was created: Kafka's ReplicaLeaderElection, triggered by ZooKeeper."""


#: of each partition the leader that was elected, or why there is none
ElectLeadersResult = dict[TopicPartition, BrokerId | ApiError]


@dataclass(frozen=True, slots=True)
class ElectLeadersReceived(ControllerEvent):
    """Kafka's ReplicaLeaderElection, triggered by an admin client."""

    partitions: frozenset[TopicPartition]
    election_type: ElectionType
    reply: Callable[[ElectLeadersResult], None]

    def refuse(self) -> None:
        self.reply(dict.fromkeys(self.partitions, ApiError(ErrorCode.NOT_CONTROLLER)))

    preempt = refuse


@dataclass(frozen=True, slots=True)
class LeaderRebalanceDue(ControllerEvent):
    """Kafka's AutoPreferredReplicaLeaderElection."""


@dataclass(frozen=True, slots=True)
class ConfigChangesNotified(ControllerEvent):
    """Children of /config/changes. No event of Kafka's controller: every broker listens."""


@dataclass(frozen=True, slots=True)
class UncleanLeaderElectionEnabled(ControllerEvent):
    """`unclean.leader.election.enable` became true for this broker, and so for every topic without its own."""


@dataclass(frozen=True, slots=True)
class TopicUncleanLeaderElectionEnabled(ControllerEvent):
    topic: str


@dataclass(frozen=True, slots=True)
class AllocateProducerIdsReceived(ControllerEvent):
    """A broker wants producer ids. When preempted it is never answered (rule 3.38)."""

    broker: BrokerId
    broker_epoch: int
    reply: Callable[[ProducerIdsBlock | ErrorCode], None]

    def refuse(self) -> None:
        self.reply(ErrorCode.NOT_CONTROLLER)


#: of each feature what became of its update, or why none was looked at
UpdateFeaturesResult = dict[str, ApiError] | ApiError


@dataclass(frozen=True, slots=True)
class UpdateFeaturesReceived(ControllerEvent):
    """When preempted it is never answered (rule 3.38)."""

    updates: tuple[FeatureUpdate, ...]
    reply: Callable[[UpdateFeaturesResult], None]
    validate_only: bool = False

    def refuse(self) -> None:
        self.reply(ApiError(ErrorCode.NOT_CONTROLLER))


_STATES: dict[type[ControllerEvent], ControllerState] = {
    Started: ControllerState.CONTROLLER_CHANGE,
    ControllerChanged: ControllerState.CONTROLLER_CHANGE,
    ControllerDeleted: ControllerState.CONTROLLER_CHANGE,
    SessionEstablished: ControllerState.CONTROLLER_CHANGE,
    SessionExpiredEvent: ControllerState.CONTROLLER_CHANGE,
    ShutdownRequested: ControllerState.CONTROLLER_SHUTDOWN,
    BrokersChanged: ControllerState.BROKER_CHANGE,
    BrokerModified: ControllerState.BROKER_CHANGE,
    TopicsChanged: ControllerState.TOPIC_CHANGE,
    PartitionsModified: ControllerState.TOPIC_CHANGE,
    TopicDeletionRequested: ControllerState.TOPIC_DELETION,
    ReplicaDeletionAnswered: ControllerState.TOPIC_DELETION,
    IsrChangeNotified: ControllerState.ISR_CHANGE,
    LogDirEventNotified: ControllerState.LOG_DIR_CHANGE,
    LeaderAndIsrAnswered: ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED,
    UpdateMetadataAnswered: ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED,
    AlterPartitionReceived: ControllerState.ISR_CHANGE,
    ControlledShutdownRequested: ControllerState.CONTROLLED_SHUTDOWN,
    ReassignPartitionsCreated: ControllerState.ALTER_PARTITION_REASSIGNMENT,
    AlterPartitionReassignmentsReceived: ControllerState.ALTER_PARTITION_REASSIGNMENT,
    ListPartitionReassignmentsReceived: ControllerState.LIST_PARTITION_REASSIGNMENT,
    ReassignedPartitionStateChanged: ControllerState.ALTER_PARTITION_REASSIGNMENT,
    PreferredReplicaElectionCreated: ControllerState.MANUAL_LEADER_BALANCE,
    ElectLeadersReceived: ControllerState.MANUAL_LEADER_BALANCE,
    ConfigChangesNotified: ControllerState.IDLE,
    LeaderRebalanceDue: ControllerState.AUTO_LEADER_BALANCE,
    UncleanLeaderElectionEnabled: ControllerState.UNCLEAN_LEADER_ELECTION_ENABLE,
    TopicUncleanLeaderElectionEnabled: ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE,
    AllocateProducerIdsReceived: ControllerState.IDLE,
    UpdateFeaturesReceived: ControllerState.UPDATE_FEATURES,
}
_WATCH_EVENTS = frozenset(
    {
        ControllerChanged, BrokersChanged, BrokerModified, TopicsChanged, PartitionsModified, TopicDeletionRequested,
        IsrChangeNotified, LogDirEventNotified, ReassignPartitionsCreated, ReassignedPartitionStateChanged,
        PreferredReplicaElectionCreated, ConfigChangesNotified,
    }
)  # fmt: skip
