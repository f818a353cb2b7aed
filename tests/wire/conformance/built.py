"""Control requests as our controller builds them, of partitions 0 and 1 of topic t and partition 0 of topic u."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kce import wire
from kce.controller.context import ControllerContext
from kce.controller.control_requests import (
    BatchConfig,
    StopReplicaState,
    build_leader_and_isr,
    build_stop_replica,
    build_update_metadata,
)
from kce.controller.iteration_order import HashTable
from kce.controller.known_replicas import LeaderAndIsrState
from kce.wire.metadata_version import LATEST
from kce.wire.vocabulary import Endpoint, TopicPartition
from kce.zookeeper.model import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderAndIsr,
    Leadership,
    RegisteredBroker,
    ReplicaAssignment,
)
from tests.wire.conformance.support import T_ID, U_ID

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
PLAINTEXT = Endpoint("PLAINTEXT", "PLAINTEXT", "host0", 9090)
NAMED = (Endpoint("listener0", "PLAINTEXT", "host0", 9090), Endpoint("listener1", "SSL", "host0", 9091))
#: sender, and the epochs of the controller and of the receiver
SENDER, EPOCH, BROKER_EPOCH = 1, 2, 3
RECOVERING = 1


def _ids(*ids: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, ids))


ASSIGNMENTS = {
    T0: ReplicaAssignment(_ids(0, 1, 2), adding=_ids(2), removing=_ids(0)),
    T1: ReplicaAssignment(_ids(1, 0)),
    U0: ReplicaAssignment(_ids(1, 2, 0)),
}
LEADERSHIP = {
    T0: Leadership(LeaderAndIsr(BrokerId(0), _ids(0, 1), 10, RECOVERING, 20), ControllerEpoch(2)),
    T1: Leadership(LeaderAndIsr(BrokerId(1), _ids(1), 11, partition_epoch=21), ControllerEpoch(1)),
    U0: Leadership(LeaderAndIsr(BrokerId(1), _ids(1, 0), 12, partition_epoch=22), ControllerEpoch(0)),
}


def _context(broker0: Iterable[Endpoint] = (PLAINTEXT,)) -> ControllerContext:
    """Broker 0, which has a rack, and broker 1 are alive, broker 2 is not."""
    context = ControllerContext()
    context.epoch = ControllerEpoch(EPOCH)
    host1 = PLAINTEXT._replace(host="host1")
    context.add_live_brokers([
        (RegisteredBroker(BrokerId(0), tuple(broker0), "rack0"), BrokerEpoch(BROKER_EPOCH)),
        (RegisteredBroker(BrokerId(1), (host1,)), BrokerEpoch(4)),
    ])  # fmt: skip
    context.set_topics(["t", "u"])
    context.add_topic_id("t", T_ID)
    context.add_topic_id("u", U_ID)
    for tp, assignment in ASSIGNMENTS.items():
        context.set_assignment(tp, assignment)
    return context


_CONFIG = BatchConfig(broker_id=BrokerId(SENDER), ibp=LATEST, inter_broker_listener="PLAINTEXT")


#: ten partitions of each of ten topics, for sizes
MANY = {TopicPartition(f"topic-{topic}", p): LEADERSHIP[T1] for topic in range(10) for p in range(10)}


def leader_and_isr(
    version: int, leadership: Mapping[TopicPartition, Leadership] = LEADERSHIP
) -> wire.LeaderAndIsrRequest:
    """Partition 1 is new. Partitions that have no assignment are on no brokers."""
    states = {
        tp: LeaderAndIsrState(of, ASSIGNMENTS.get(tp, ReplicaAssignment()), is_new=tp == T1)
        for tp, of in leadership.items()
    }
    return build_leader_and_isr(version, _CONFIG, _context(), BrokerId(0), HashTable.of(states))


def update_metadata(
    version: int,
    broker0: Iterable[Endpoint] = (PLAINTEXT,),
    leadership: Mapping[TopicPartition, Leadership] = LEADERSHIP,
) -> wire.UpdateMetadataRequest:
    """The request without the broker epoch, which the channel adds (rule 8.8)."""
    return build_update_metadata(version, _CONFIG, _context(broker0), HashTable.of(leadership))


def stop_replica(version: int, states: dict[TopicPartition, StopReplicaState]) -> wire.StopReplicaRequest:
    return build_stop_replica(version, _CONFIG, _context(), BrokerId(0), HashTable.of(states))
