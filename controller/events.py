"""Everything that can happen to a controller, past tense (rules 3.9-3.36).

Events hold data and, where somebody waits for an answer, the callback that gives it; what they cause is said in
`controller.Controller`. Equal pending watch events are one event: the handler reads the node anew anyway.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import wire
from controller.errors import ControllerMoved
from controller.model import BrokerId, TopicPartition


class ControllerState(enum.Enum):
    """What the controller is doing: Kafka's codes, for the gauge of that name (rule 3.7)."""

    IDLE = 0
    CONTROLLER_CHANGE = 1
    BROKER_CHANGE = 2
    TOPIC_CHANGE = 3
    TOPIC_DELETION = 4
    CONTROLLED_SHUTDOWN = 8
    ISR_CHANGE = 9
    LEADER_AND_ISR_RESPONSE_RECEIVED = 10
    LOG_DIR_CHANGE = 11
    CONTROLLER_SHUTDOWN = 12
    UPDATE_METADATA_RESPONSE_RECEIVED = 16


@dataclass(frozen=True, slots=True)
class ControllerEvent:
    """Base of all. ``preempt`` is called instead of processing when the queue is drained (rule 3.37)."""

    @property
    def state(self) -> ControllerState:
        return _STATES[type(self)]

    @property
    def coalesces(self) -> bool:
        """Whether one of several equal pending events is enough."""
        return type(self) in _WATCH_EVENTS

    def preempt(self) -> None:
        return None


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


#: the partitions still led by the broker, or why the shutdown was not taken up
ShutdownResult = set[TopicPartition] | Exception


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequested(ControllerEvent):
    broker: BrokerId
    broker_epoch: int
    reply: Callable[[ShutdownResult], None]

    def preempt(self) -> None:
        self.reply(ControllerMoved("this broker is not the controller any more"))


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
}
_WATCH_EVENTS = frozenset(
    {
        ControllerChanged, BrokersChanged, BrokerModified, TopicsChanged, PartitionsModified, TopicDeletionRequested,
        IsrChangeNotified, LogDirEventNotified,
    }
)  # fmt: skip
