"""The events of a controller, named in the past tense (rules 3.9-3.36).

Events are data; a request also has the callback that takes its response. `dispatch` is the table of what handles them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kce import wire
from kce.zookeeper.model import BrokerId, TopicPartition

M = TypeVar("M", bound=wire.Message, covariant=True)


class ControllerState(enum.Enum):
    """Kafka's codes for what the controller is doing: the gauge ControllerState (rule 3.7)."""

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
        """The timer of the state's events; None for states that are not timed."""
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
    """Base of all."""

    @property
    def name(self) -> str:
        return type(self).__name__


@dataclass(frozen=True, slots=True)
class RequestReceived(ControllerEvent, Generic[M]):
    """A broker or a client sent a request to this node. ``reply`` takes the response, or None: this node is not the
    controller."""

    request: M
    api_version: int
    reply: Callable[[wire.Message | None], None]

    @property
    def name(self) -> str:
        return f"{type(self.request).__name__.removesuffix('Request')}Received"


@dataclass(frozen=True, slots=True)
class Started(ControllerEvent):
    pass


@dataclass(frozen=True, slots=True)
class ControllerChanged(ControllerEvent):
    """/controller was created or its data changed."""


@dataclass(frozen=True, slots=True)
class ControllerDeleted(ControllerEvent):
    """/controller was deleted: Kafka's Reelect."""


@dataclass(frozen=True, slots=True)
class SessionEstablished(ControllerEvent):
    """A new ZooKeeper session replaced an expired one: Kafka's RegisterBrokerAndReelect."""


@dataclass(frozen=True, slots=True)
class SessionExpiredEvent(ControllerEvent):
    """The ZooKeeper session expired: Kafka's Expire."""


@dataclass(frozen=True, slots=True)
class ShutdownRequested(ControllerEvent):
    """Ends the event loop."""


@dataclass(frozen=True, slots=True)
class BrokersChanged(ControllerEvent):
    """The children of /brokers/ids changed."""


@dataclass(frozen=True, slots=True)
class BrokerModified(ControllerEvent):
    """The data of /brokers/ids/N changed."""

    broker: BrokerId


@dataclass(frozen=True, slots=True)
class TopicsChanged(ControllerEvent):
    """The children of /brokers/topics changed."""


@dataclass(frozen=True, slots=True)
class PartitionsModified(ControllerEvent):
    """The data of /brokers/topics/T changed."""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicDeletionRequested(ControllerEvent):
    """The children of /admin/delete_topics changed."""


@dataclass(frozen=True, slots=True)
class ReplicaDeletionAnswered(ControllerEvent):
    """A broker answered StopReplica for replicas that are being deleted (rule 8.43)."""

    broker: BrokerId
    error_code: int
    partition_errors: tuple[tuple[TopicPartition, int], ...]


@dataclass(frozen=True, slots=True)
class IsrChangeNotified(ControllerEvent):
    """The children of /isr_change_notification changed."""


@dataclass(frozen=True, slots=True)
class LogDirEventNotified(ControllerEvent):
    """The children of /log_dir_event_notification changed."""


@dataclass(frozen=True, slots=True)
class LeaderAndIsrAnswered(ControllerEvent):
    response: wire.LeaderAndIsrResponse
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class UpdateMetadataAnswered(ControllerEvent):
    response: wire.UpdateMetadataResponse
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class ReassignPartitionsCreated(ControllerEvent):
    """/admin/reassign_partitions was created: Kafka's ZkPartitionReassignment."""


@dataclass(frozen=True, slots=True)
class ReassignedPartitionStateChanged(ControllerEvent):
    """The state znode of a partition under reassignment changed: Kafka's PartitionReassignmentIsrChange."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class PreferredReplicaElectionCreated(ControllerEvent):
    """/admin/preferred_replica_election was created: Kafka's ReplicaLeaderElection, triggered by ZooKeeper."""


@dataclass(frozen=True, slots=True)
class LeaderRebalanceDue(ControllerEvent):
    """Kafka's AutoPreferredReplicaLeaderElection."""


@dataclass(frozen=True, slots=True)
class UncleanLeaderElectionEnabled(ControllerEvent):
    """`unclean.leader.election.enable` became true for this broker: for every topic that does not set it."""


@dataclass(frozen=True, slots=True)
class TopicUncleanLeaderElectionEnabled(ControllerEvent):
    topic: str
