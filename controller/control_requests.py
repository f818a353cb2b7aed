"""The control requests, built from the context; pure.

Versions that group partitions by topic carry them encoded (`encoded_states`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kce import wire
from kce.controller.context import NO_ASSIGNMENT, ControllerContext
from kce.controller.encoded_states import (
    encoded_index,
    leader_and_isr_state,
    update_metadata_state,
    update_metadata_tail,
)
from kce.controller.iteration_order import HashTable, by_topic
from kce.controller.known_replicas import KnownTopics, LeaderAndIsrState
from kce.wire.metadata_version import MetadataVersion
from kce.wire.vocabulary import SECURITY_PROTOCOLS
from kce.zookeeper.errors import IllegalState
from kce.zookeeper.model import BrokerId, Leadership, RegisteredBroker, TopicPartition

ZERO = uuid.UUID(int=0)
_PROTOCOL_IDS = {name: number for number, name in SECURITY_PROTOCOLS.items()}

_leader_and_isr_topic: Callable[..., wire.LeaderAndIsrTopicState] = wire.LeaderAndIsrTopicState
_update_metadata_topic: Callable[..., wire.UpdateMetadataTopicState] = wire.UpdateMetadataTopicState


@dataclass(frozen=True, slots=True)
class StopReplicaState:
    """One partition in a StopReplica request."""

    leader_epoch: int
    delete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """``inter_broker_listener``: of live leaders in LeaderAndIsr, even if the controller uses another listener
    (8.15)."""

    broker_id: BrokerId
    ibp: MetadataVersion
    inter_broker_listener: str


def build_leader_and_isr(
    version: int,
    config: BatchConfig,
    context: ControllerContext,
    broker: BrokerId,
    states: HashTable[TopicPartition, LeaderAndIsrState],
) -> wire.LeaderAndIsrRequest:
    """Rules 8.4, 8.14-8.16. Raises EncodeError."""
    leaders = {state.leadership.leader_and_isr.leader for state in states.values()}
    if version < 2:
        flat = [
            leader_and_isr_state(tp, version, state.leadership, state.assignment, state.is_new)
            for tp in states.order()
            for state in (states[tp],)
        ]
        return _leader_and_isr(config, context, broker, leaders, ungrouped=flat)
    topics = [
        (topic, wire.Encoded(len(of_topic), [state.encode(tp, version) for tp, state in of_topic]))
        for topic, of_topic in by_topic(states, java=True).items()
    ]
    return _leader_and_isr(config, context, broker, leaders, topics)


def build_known_leader_and_isr(
    config: BatchConfig, context: ControllerContext, broker: BrokerId, known: KnownTopics
) -> wire.LeaderAndIsrRequest:
    """The same of a version that groups partitions by topic."""
    return _leader_and_isr(config, context, broker, known.leaders, known.topics)


def _leader_and_isr(
    config: BatchConfig,
    context: ControllerContext,
    broker: BrokerId,
    leaders: Collection[int],
    topics: Sequence[tuple[str, wire.Encoded]] = (),
    ungrouped: Sequence[wire.LeaderAndIsrPartitionState] = (),
) -> wire.LeaderAndIsrRequest:
    live_leaders = []
    for live in context.live_or_shutting_down_brokers:
        endpoint = live.endpoint(config.inter_broker_listener)
        if live.id in leaders and endpoint is not None:
            live_leaders.append(
                wire.LeaderAndIsrLiveLeader(broker_id=live.id, host_name=endpoint.host, port=endpoint.port)
            )
    ids = context.topic_ids
    return wire.LeaderAndIsrRequest(
        controller_id=config.broker_id,
        controller_epoch=context.epoch,
        broker_epoch=context.broker_epochs[broker],
        ungrouped_partition_states=tuple(ungrouped),
        topic_states=tuple(
            [
                _leader_and_isr_topic(topic_name=topic, topic_id=ids.get(topic, ZERO), partition_states=states)
                for topic, states in topics
            ]
        ),
        live_leaders=tuple(live_leaders),
    )


def build_update_metadata(
    version: int,
    config: BatchConfig,
    context: ControllerContext,
    leadership: HashTable[TopicPartition, Leadership],
) -> wire.UpdateMetadataRequest:
    """The request for all brokers, without broker epoch. Raises EncodeError."""
    offline = context.offline_replicas()
    flat: list[wire.UpdateMetadataPartitionState] = []
    if version < 5:
        for tp in leadership.order():
            replicas, is_deleting = context.replicas(tp), context.is_queued_for_deletion(tp.topic)
            known = leadership[tp]
            flat.append(update_metadata_state(tp, version, known, replicas, offline(tp, replicas), is_deleting))
    topics = []
    assignments = context.assignments
    tails: dict[tuple[int, int, bool], bytes] = {}  # of what does not go away meanwhile
    has_offline_dirs = bool(context.replicas_on_offline_dirs)
    for topic, of_topic in by_topic(leadership, java=True).items() if version >= 5 else ():
        is_deleting = context.is_queued_for_deletion(topic)
        states = []
        for tp, known in of_topic:
            assignment = assignments.get(tp, NO_ASSIGNMENT)
            key = id(known), id(assignment), is_deleting
            tail = tails.get(key)
            if tail is None or has_offline_dirs:
                replicas = assignment.replicas
                tail = update_metadata_tail(version, known, replicas, offline(tp, replicas), is_deleting)
                tails[key] = tail
            states.append(encoded_index(tp[1]) + tail)
        topics.append(
            _update_metadata_topic(
                topic_name=topic,
                topic_id=context.topic_ids.get(topic, ZERO),
                partition_states=wire.Encoded(len(states), (b"".join(states),)),
            )
        )
    return wire.UpdateMetadataRequest(
        controller_id=config.broker_id,
        controller_epoch=context.epoch,
        ungrouped_partition_states=tuple(flat),
        topic_states=tuple(topics),
        live_brokers=tuple(update_metadata_broker(version, b) for b in context.live_or_shutting_down_brokers),
    )


def update_metadata_broker(version: int, broker: RegisteredBroker) -> wire.UpdateMetadataBroker:
    """Rule 8.21. Raises IllegalState if the version cannot express the broker's listeners."""
    endpoints = broker.endpoints
    if version == 0:
        plaintext = next((e for e in endpoints if e.security_protocol == "PLAINTEXT"), None)
        if plaintext is None:
            raise IllegalState(f"broker {broker.id} has no PLAINTEXT endpoint, which UpdateMetadata 0 needs")
        return wire.UpdateMetadataBroker(id=broker.id, v0_host=plaintext.host, v0_port=plaintext.port)
    for endpoint in endpoints:
        if version < 3 and endpoint.listener != endpoint.security_protocol:
            raise IllegalState(
                f"UpdateMetadata {version} has no listener names; broker {broker.id} has {endpoint.listener}"
            )
    return wire.UpdateMetadataBroker(
        id=broker.id,
        endpoints=tuple(
            wire.UpdateMetadataEndpoint(
                port=e.port,
                host=e.host,
                listener=e.listener,
                security_protocol=_PROTOCOL_IDS[e.security_protocol],
            )
            for e in endpoints
        ),
        rack=broker.rack,
    )


def build_stop_replica(
    version: int,
    config: BatchConfig,
    context: ControllerContext,
    broker: BrokerId,
    states: HashTable[TopicPartition, StopReplicaState],
) -> wire.StopReplicaRequest:
    """Rules 8.22, 13.23. Below version 3 all states have the same ``delete``."""
    topics = by_topic(states, java=False)
    ungrouped: tuple[wire.StopReplicaPartitionV0, ...] = ()
    topics_v1: tuple[wire.StopReplicaTopicV1, ...] = ()
    topic_states: tuple[wire.StopReplicaTopicState, ...] = ()
    if version == 0:
        ungrouped = tuple(
            wire.StopReplicaPartitionV0(topic_name=topic, partition_index=tp.partition)
            for topic, of_topic in topics.items()
            for tp, _ in of_topic
        )
    elif version < 3:
        topics_v1 = tuple(
            wire.StopReplicaTopicV1(name=topic, partition_indexes=tuple(tp.partition for tp, _ in of_topic))
            for topic, of_topic in topics.items()
        )
    else:
        topic_states = tuple(
            wire.StopReplicaTopicState(
                topic_name=topic,
                partition_states=tuple(
                    wire.StopReplicaPartitionState(
                        partition_index=tp.partition, leader_epoch=state.leader_epoch, delete_partition=state.delete
                    )
                    for tp, state in of_topic
                ),
            )
            for topic, of_topic in topics.items()
        )
    return wire.StopReplicaRequest(
        controller_id=config.broker_id,
        controller_epoch=context.epoch,
        broker_epoch=context.broker_epochs[broker],
        delete_partitions=version < 3 and any(state.delete for state in states.values()),
        ungrouped_partitions=ungrouped,
        topics=topics_v1,
        topic_states=topic_states,
    )
