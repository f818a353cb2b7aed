"""Identifiers, epochs and frozen values (rules 5.1, 5.6-5.9)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, NewType
from uuid import UUID

from kce.wire import vocabulary
from kce.wire.vocabulary import (
    EPOCH_DURING_DELETE,
    NO_EPOCH,
    RECOVERED,
    RECOVERING,
    ElectionType,
    Endpoint,
    FeatureUpdate,
    TopicPartition,
    UpgradeType,
)

__all__ = [
    "EPOCH_DURING_DELETE",
    "LEADER_DURING_DELETE",
    "NO_EPOCH",
    "NO_LEADER",
    "RECOVERED",
    "RECOVERING",
    "BrokerEpoch",
    "BrokerId",
    "ControllerEpoch",
    "ElectionType",
    "Endpoint",
    "EpochZkVersion",
    "FeatureUpdate",
    "LeaderAndIsr",
    "Leadership",
    "PartitionReplica",
    "ProducerIdsBlock",
    "RegisteredBroker",
    "ReplicaAssignment",
    "TopicAssignment",
    "TopicPartition",
    "UpgradeType",
    "incremented",
]

BrokerId = NewType("BrokerId", int)
#: czxid of a broker's registration (rule 1.20)
BrokerEpoch = NewType("BrokerEpoch", int)
#: content of /controller_epoch
ControllerEpoch = NewType("ControllerEpoch", int)
#: ZooKeeper version of /controller_epoch, on which every controller write is conditional (rule 1.46)
EpochZkVersion = NewType("EpochZkVersion", int)

#: as `leader`: no leader
NO_LEADER = BrokerId(vocabulary.NO_LEADER)
#: as `leader` in UpdateMetadata: the topic is being deleted (rule 7.17)
LEADER_DURING_DELETE = BrokerId(vocabulary.LEADER_DURING_DELETE)


def incremented(epoch: int) -> int:
    """The next epoch, which overflows like Java's int."""
    return epoch + 1 if epoch < 2**31 - 1 else -(2**31)


class PartitionReplica(NamedTuple):
    """One replica of one partition."""

    topic_partition: TopicPartition
    replica: BrokerId


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A broker's registration (rules 1.16-1.19). ``features``: name -> (min_version, max_version).

    ``controller_only``: a node of ours that contends for controller and takes no replicas. Kafka ignores it.
    """

    id: BrokerId
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    features: dict[str, tuple[int, int]] = field(default_factory=dict, hash=False)
    controller_only: bool = False

    def endpoint(self, listener: str) -> Endpoint | None:
        for endpoint in self.endpoints:
            if endpoint.listener == listener:
                return endpoint
        return None


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """Replicas of a partition in preference order, and those that a reassignment adds and removes."""

    replicas: tuple[BrokerId, ...] = ()
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @property
    def origin(self) -> tuple[BrokerId, ...]:
        return tuple(r for r in self.replicas if r not in self.adding)

    @property
    def target(self) -> tuple[BrokerId, ...]:
        return tuple(r for r in self.replicas if r not in self.removing)

    @property
    def is_being_reassigned(self) -> bool:
        return bool(self.adding or self.removing)

    def reassign_to(self, target: Iterable[BrokerId]) -> ReplicaAssignment:
        """The assignment during a reassignment to ``target`` (rule 5.7)."""
        wanted = dict.fromkeys(target)  # a client may name very many
        origin = frozenset(self.origin)
        full = tuple(dict.fromkeys((*wanted, *self.origin)))
        return ReplicaAssignment(
            full,
            tuple(r for r in full if r not in origin),
            tuple(r for r in full if r not in wanted),
        )

    def remove_replica(self, replica: BrokerId) -> ReplicaAssignment:
        return ReplicaAssignment(
            tuple(r for r in self.replicas if r != replica),
            tuple(r for r in self.adding if r != replica),
            tuple(r for r in self.removing if r != replica),
        )


class LeaderAndIsr(NamedTuple):
    """Leader and ISR of a partition. ``partition_epoch`` is the version of its state znode (rule 1.29)."""

    leader: BrokerId
    isr: tuple[BrokerId, ...]
    leader_epoch: int = 0
    recovery_state: int = RECOVERED
    partition_epoch: int = 0

    @property
    def elected(self) -> BrokerId | None:
        """The leader, or None."""
        return None if self.leader == NO_LEADER else self.leader

    def new_leader(self, leader: BrokerId) -> LeaderAndIsr:
        return self.new_leader_and_isr(leader, self.isr)

    def new_leader_and_isr(self, leader: BrokerId, isr: Iterable[BrokerId]) -> LeaderAndIsr:
        epoch = incremented(self.leader_epoch)
        return LeaderAndIsr(leader, tuple(isr), epoch, self.recovery_state, self.partition_epoch)

    def new_recovering(self, leader: BrokerId, isr: Iterable[BrokerId]) -> LeaderAndIsr:
        return self.new_leader_and_isr(leader, isr)._replace(recovery_state=RECOVERING)

    def new_epoch(self) -> LeaderAndIsr:
        return self.new_leader_and_isr(self.leader, self.isr)

    def with_partition_epoch(self, partition_epoch: int) -> LeaderAndIsr:
        return LeaderAndIsr(self.leader, self.isr, self.leader_epoch, self.recovery_state, partition_epoch)


class Leadership(NamedTuple):
    """A LeaderAndIsr and the epoch of the controller that wrote it (rule 5.9)."""

    leader_and_isr: LeaderAndIsr
    controller_epoch: ControllerEpoch


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """The content of /brokers/topics/T (rule 1.25). ``topic_id`` is None for topics created before 2.8."""

    topic: str
    topic_id: UUID | None
    partitions: dict[int, ReplicaAssignment]


@dataclass(frozen=True, slots=True)
class ProducerIdsBlock:
    """Producer ids ``first`` to ``last`` inclusive belong to ``broker`` (rule 1.43)."""

    broker: BrokerId
    first: int
    last: int
