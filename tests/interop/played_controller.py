"""Requests of a controller that a test plays.

Partitions are in the order in which real controllers send them: that of a hash table, in which Kafka's broker has them,
too.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from kce import wire
from kce.controller.iteration_order import table_order
from kce.wire.vocabulary import TopicPartition

#: nobody is there: what brokers ask their controller is not answered
_CONTROLLER: Final = 9
#: higher than that of the real one, whose requests are refused from then on
_EPOCH: Final = 1000
T = TypeVar("T")


class State(NamedTuple):
    """Who leads a partition, in which epoch, who is in sync, and where its replicas are."""

    leader: int
    epoch: int
    isr: Sequence[int]
    replicas: Sequence[int]


def sender(broker_epoch: int) -> dict[str, Any]:
    """The fields that all requests of a controller have."""
    return {"controller_id": _CONTROLLER, "controller_epoch": _EPOCH, "broker_epoch": broker_epoch}


def update_metadata(
    broker_epoch: int, topic: str, topic_id: uuid.UUID, states: Mapping[int, State], ports: Mapping[int, int]
) -> wire.UpdateMetadataRequest:
    """``ports``: of the brokers that are alive."""
    brokers = tuple(
        wire.UpdateMetadataBroker(
            id=broker,
            endpoints=tuple(
                wire.UpdateMetadataEndpoint(port=port, host="127.0.0.1", listener=name, security_protocol=0)
                for name in ("DATA", "CONTROL")
            ),
        )
        for broker, port in ports.items()
    )
    partitions = tuple(
        wire.UpdateMetadataPartitionState(
            partition_index=number, controller_epoch=_EPOCH, leader=led.leader, leader_epoch=led.epoch,
            isr=tuple(led.isr), zk_version=max(led.epoch, 0), replicas=tuple(led.replicas),
        )
        for number, led in _in_order(topic, states)
    )  # fmt: skip
    of_topic = wire.UpdateMetadataTopicState(topic_name=topic, topic_id=topic_id, partition_states=partitions)
    return wire.UpdateMetadataRequest(**sender(broker_epoch), topic_states=(of_topic,), live_brokers=brokers)


def leader_and_isr(
    broker_epoch: int, topic: str, topic_id: uuid.UUID, states: Mapping[int, State], ports: Mapping[int, int]
) -> wire.LeaderAndIsrRequest:
    """Partitions in their first epoch are new."""
    partitions = tuple(
        wire.LeaderAndIsrPartitionState(
            partition_index=number, controller_epoch=_EPOCH, leader=led.leader, leader_epoch=led.epoch,
            isr=tuple(led.isr), partition_epoch=led.epoch, replicas=tuple(led.replicas), is_new=led.epoch == 0,
        )
        for number, led in _in_order(topic, states)
    )  # fmt: skip
    of_topic = wire.LeaderAndIsrTopicState(topic_name=topic, topic_id=topic_id, partition_states=partitions)
    live = tuple(
        wire.LeaderAndIsrLiveLeader(broker_id=broker, host_name="127.0.0.1", port=port)
        for broker, port in ports.items()
    )
    return wire.LeaderAndIsrRequest(**sender(broker_epoch), topic_states=(of_topic,), live_leaders=live)


def stop_replica(broker_epoch: int, topic: str, epochs: Mapping[int, int], *, delete: bool) -> wire.StopReplicaRequest:
    """``epochs``: of the leaders, by partition."""
    partitions = tuple(
        wire.StopReplicaPartitionState(partition_index=number, leader_epoch=epoch, delete_partition=delete)
        for number, epoch in _in_order(topic, epochs)
    )
    of_topic = wire.StopReplicaTopicState(topic_name=topic, partition_states=partitions)
    return wire.StopReplicaRequest(**sender(broker_epoch), topic_states=(of_topic,))


def _in_order(topic: str, of: Mapping[int, T]) -> list[tuple[int, T]]:
    ordered = table_order(TopicPartition(topic, number) for number in of)
    return [(place.partition, of[place.partition]) for place in ordered]
