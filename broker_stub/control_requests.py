"""The parts of the three control requests that a broker uses, the same in all versions (see ``wire.control``)."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from kce.wire import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    control,
)
from kce.wire.steps import STEP_MASK, Steps
from kce.wire.vocabulary import NO_EPOCH, Endpoint, TopicPartition


def leader_and_isr_states(
    request: LeaderAndIsrRequest,
) -> Iterator[tuple[TopicPartition, LeaderAndIsrPartitionState]]:
    """Every partition of the request, in its order (rule 13.11)."""
    for topic, _, states in control.topics(request):
        for state in states:
            yield TopicPartition(topic, state.partition_index), state


def leader_and_isr_topic_ids(request: LeaderAndIsrRequest) -> dict[str, uuid.UUID]:
    """Topic name -> id, for topics with an id. Raises ValueError for a duplicate topic (rule 13.11)."""
    ids = {topic.topic_name: topic.topic_id for topic in request.topic_states}
    if len(ids) < len(request.topic_states):
        counts = Counter([topic.topic_name for topic in request.topic_states])
        duplicate = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"LeaderAndIsr has topic {duplicate} twice")
    return {name: topic_id for name, topic_id in ids.items() if topic_id.int}


def update_metadata_states(
    request: UpdateMetadataRequest,
) -> Iterator[tuple[str, tuple[UpdateMetadataPartitionState, ...]]]:
    """Topic name and partition states; ungrouped requests give a topic once for each partition."""
    for topic, _, states in control.topics(request):
        yield topic, states


def endpoints_of(broker: UpdateMetadataBroker) -> dict[str, Endpoint]:
    """Listener name -> endpoint. In versions without listener names it is the security protocol (rule 13.21).

    Raises ValueError for two endpoints of one name: in Kafka, no Broker can be made of them.
    """
    named = [e if e.listener else e._replace(listener=e.security_protocol) for e in control.endpoints(broker)]
    endpoints = {endpoint.listener: endpoint for endpoint in named}
    if len(endpoints) < len(named):
        raise ValueError(f"broker {broker.id} has more than one endpoint of the same listener: {named}")
    return endpoints


class StopReplica(NamedTuple):
    """The state of one partition in a StopReplica request."""

    leader_epoch: int
    delete_partition: bool


def stop_replica_states(request: StopReplicaRequest) -> Steps[dict[TopicPartition, StopReplica]]:
    """Versions 0-2 have one delete flag for all and no epochs (rule 13.24)."""
    states: dict[TopicPartition, StopReplica] = {}
    for i, state in enumerate(control.partition_states(request), 1):
        epoch = NO_EPOCH if state.leader_epoch is None else state.leader_epoch
        states[TopicPartition(state.topic, state.partition)] = StopReplica(epoch, bool(state.delete))
        if not i & STEP_MASK:
            yield
    return states
