"""The three control requests read alike whatever their version: old ones are flat, newer ones grouped by topic."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import NamedTuple

from wire import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
)
from wire.vocabulary import NO_EPOCH, SECURITY_PROTOCOLS, Endpoint, TopicPartition

NO_TOPIC_ID = uuid.UUID(int=0)


def leader_and_isr_states(
    request: LeaderAndIsrRequest,
) -> Iterator[tuple[TopicPartition, LeaderAndIsrPartitionState]]:
    """Every partition of the request, in its order (rule 13.11)."""
    for state in request.ungrouped_partition_states:
        yield TopicPartition(state.topic_name, state.partition_index), state
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield TopicPartition(topic.topic_name, state.partition_index), state


def leader_and_isr_topic_ids(request: LeaderAndIsrRequest) -> dict[str, uuid.UUID]:
    """Topic name -> id, without those that have none. Raises ValueError for a topic that is there twice (13.11)."""
    names = [topic.topic_name for topic in request.topic_states]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"LeaderAndIsr names topic {twice} twice")
    return {topic.topic_name: topic.topic_id for topic in request.topic_states if topic.topic_id != NO_TOPIC_ID}


def update_metadata_states(
    request: UpdateMetadataRequest,
) -> Iterator[tuple[str, tuple[UpdateMetadataPartitionState, ...]]]:
    """Topic name and partition states; a topic of an ungrouped request comes once for each partition."""
    for state in request.ungrouped_partition_states:
        yield state.topic_name, (state,)
    for topic in request.topic_states:
        yield topic.topic_name, topic.partition_states


def endpoints_of(broker: UpdateMetadataBroker) -> dict[str, Endpoint]:
    """Listener name -> endpoint. Old versions name no listener: their protocol's name stands for it (rule 13.21)."""
    if not broker.endpoints and broker.v0_host:
        return {"PLAINTEXT": Endpoint("PLAINTEXT", "PLAINTEXT", broker.v0_host, broker.v0_port)}
    endpoints = {}
    for endpoint in broker.endpoints:
        protocol = SECURITY_PROTOCOLS.get(endpoint.security_protocol, str(endpoint.security_protocol))
        name = endpoint.listener or protocol
        endpoints[name] = Endpoint(name, protocol, endpoint.host, endpoint.port)
    return endpoints


class StopReplica(NamedTuple):
    """What StopReplica wants of one partition."""

    leader_epoch: int
    delete_partition: bool


def stop_replica_states(request: StopReplicaRequest) -> dict[TopicPartition, StopReplica]:
    """Versions 0-2 have one delete flag for all and no epochs (rule 13.24)."""
    states: dict[TopicPartition, StopReplica] = {}
    everywhere = StopReplica(NO_EPOCH, request.delete_partitions)
    for old in request.ungrouped_partitions:
        states[TopicPartition(old.topic_name, old.partition_index)] = everywhere
    for old_topic in request.topics:
        for index in old_topic.partition_indexes:
            states[TopicPartition(old_topic.name, index)] = everywhere
    for topic in request.topic_states:
        for state in topic.partition_states:
            partition = TopicPartition(topic.topic_name, state.partition_index)
            states[partition] = StopReplica(state.leader_epoch, state.delete_partition)
    return states
