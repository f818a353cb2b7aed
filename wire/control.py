"""The three control requests, read the same way in every version.

LeaderAndIsr, UpdateMetadata and StopReplica list partitions flat in old versions and grouped by topic in newer ones
(rules 13.11, 13.16, 13.24), and newer versions carry more fields. ``partition_states`` gives the fields of all three
as one flat record; ``topics`` gives the states as the messages hold them.
"""

from __future__ import annotations

import dataclasses
import operator
import uuid
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, overload

from kce.wire.messages.leader_and_isr import LeaderAndIsrPartitionState, LeaderAndIsrRequest, LeaderAndIsrResponse
from kce.wire.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from kce.wire.messages.update_metadata import UpdateMetadataBroker, UpdateMetadataPartitionState, UpdateMetadataRequest
from kce.wire.registry import LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA
from kce.wire.schema import Message
from kce.wire.vocabulary import SECURITY_PROTOCOLS, Endpoint

ControlRequest = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest

#: What versions without topic ids have in place of one.
NO_TOPIC_ID: Final = uuid.UUID(int=0)


class PartitionState(NamedTuple):
    """The state of one partition in a control request. None: requests of that API do not carry the field.

    ``decision_epoch`` is the epoch of the controller that decided the state, not of the one that sends it. Before
    version 3, ``leader_epoch`` of StopReplica is None and ``delete`` is the same for all partitions (rule 13.24).
    """

    topic: str
    topic_id: uuid.UUID | None
    partition: int
    decision_epoch: int | None = None
    leader: int | None = None
    leader_epoch: int | None = None
    isr: tuple[int, ...] | None = None
    partition_epoch: int | None = None
    replicas: tuple[int, ...] | None = None
    adding_replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    offline_replicas: tuple[int, ...] | None = None
    is_new: bool | None = None
    delete: bool | None = None


#: By API: a field of ``PartitionState`` -> the field of the message's own partition state that holds it.
STATE_FIELDS: Mapping[int, Mapping[str, str]] = MappingProxyType({
    LEADER_AND_ISR: {
        "partition": "partition_index", "decision_epoch": "controller_epoch", "leader": "leader",
        "leader_epoch": "leader_epoch", "isr": "isr", "partition_epoch": "partition_epoch", "replicas": "replicas",
        "adding_replicas": "adding_replicas", "removing_replicas": "removing_replicas", "is_new": "is_new",
    },
    UPDATE_METADATA: {
        "partition": "partition_index", "decision_epoch": "controller_epoch", "leader": "leader",
        "leader_epoch": "leader_epoch", "isr": "isr", "partition_epoch": "zk_version", "replicas": "replicas",
        "offline_replicas": "offline_replicas",
    },
    STOP_REPLICA: {
        "partition": "partition_index", "leader_epoch": "leader_epoch", "delete": "delete_partition",
    },
})  # fmt: skip

_VALUES = {api_key: operator.attrgetter(*fields.values()) for api_key, fields in STATE_FIELDS.items()}


@overload
def topics(
    request: LeaderAndIsrRequest,
) -> Iterator[tuple[str, uuid.UUID, tuple[LeaderAndIsrPartitionState, ...]]]: ...
@overload
def topics(
    request: UpdateMetadataRequest,
) -> Iterator[tuple[str, uuid.UUID, tuple[UpdateMetadataPartitionState, ...]]]: ...
def topics(request: LeaderAndIsrRequest | UpdateMetadataRequest) -> Iterator[tuple[str, uuid.UUID, Any]]:
    """(topic name, topic id or NO_TOPIC_ID, partition states). A flat version yields each partition by itself."""
    for state in request.ungrouped_partition_states:
        yield state.topic_name, NO_TOPIC_ID, (state,)
    for topic in request.topic_states:
        yield topic.topic_name, topic.topic_id, topic.partition_states


def partition_states(request: ControlRequest) -> Iterator[PartitionState]:
    """Every partition of the request, in its order."""
    fields, values = STATE_FIELDS[request.__api_key__], _VALUES[request.__api_key__]
    if isinstance(request, StopReplicaRequest):
        delete = request.delete_partitions
        for partition in request.ungrouped_partitions:
            yield PartitionState(partition.topic_name, None, partition.partition_index, delete=delete)
        for old_topic in request.topics:
            for index in old_topic.partition_indexes:
                yield PartitionState(old_topic.name, None, index, delete=delete)
        for topic in request.topic_states:
            for stopped in topic.partition_states:
                yield PartitionState(topic.topic_name, None, **dict(zip(fields, values(stopped), strict=True)))
        return
    for name, topic_id, states in topics(request):
        for state in states:
            known_id = topic_id if topic_id.int else None
            yield PartitionState(name, known_id, **dict(zip(fields, values(state), strict=True)))


def partition_count(request: ControlRequest) -> int:
    """The number of partitions in the request."""
    if isinstance(request, StopReplicaRequest):
        listed = len(request.ungrouped_partitions) + sum(len(topic.partition_indexes) for topic in request.topics)
    else:
        listed = len(request.ungrouped_partition_states)
    return listed + sum(len(topic.partition_states) for topic in request.topic_states)


_R = TypeVar("_R", bound=LeaderAndIsrRequest | UpdateMetadataRequest)


def map_states(request: _R, change: Callable[[Any], Any]) -> _R:
    """The request with ``change`` applied to each of its partition states."""

    def changed(topic: Any) -> Any:
        return dataclasses.replace(topic, partition_states=tuple(map(change, topic.partition_states)))

    flat: Any = tuple(map(change, request.ungrouped_partition_states))
    grouped: Any = tuple(map(changed, request.topic_states))
    return dataclasses.replace(request, ungrouped_partition_states=flat, topic_states=grouped)


def topic_names(request: Message | None) -> dict[uuid.UUID, str]:
    """Topic id -> name, of a LeaderAndIsr or UpdateMetadata request; empty for any other."""
    if not isinstance(request, (LeaderAndIsrRequest, UpdateMetadataRequest)):
        return {}
    return {topic.topic_id: topic.topic_name for topic in request.topic_states}


def partition_errors(response: Message | None, names: Mapping[uuid.UUID, str]) -> list[tuple[str, int, int]]:
    """(topic, partition, error code) of a LeaderAndIsr or StopReplica response; empty for any other.

    From version 5 on LeaderAndIsr identifies topics by id alone: ``names`` are those of its request (rule 13.15). An
    id without a name stands for itself.
    """
    if not isinstance(response, (LeaderAndIsrResponse, StopReplicaResponse)):
        return []
    errors = [(e.topic_name, e.partition_index, e.error_code) for e in response.partition_errors]
    if isinstance(response, LeaderAndIsrResponse):
        for topic in response.topics:
            name = names.get(topic.topic_id, str(topic.topic_id))
            errors += [(name, e.partition_index, e.error_code) for e in topic.partition_errors]
    return errors


def endpoints(broker: UpdateMetadataBroker) -> Iterator[Endpoint]:
    """The listeners of a live broker in an UpdateMetadata request.

    Version 0 has one listener, PLAINTEXT. Versions 1 and 2 name no listener: the security protocol's name stands for
    it, and nothing does if that is unknown, too (rule 13.21).
    """
    if broker.v0_host:
        yield Endpoint("PLAINTEXT", "PLAINTEXT", broker.v0_host, broker.v0_port)
    for endpoint in broker.endpoints:
        protocol = SECURITY_PROTOCOLS.get(endpoint.security_protocol, "")
        yield Endpoint(
            endpoint.listener or protocol, protocol or str(endpoint.security_protocol), endpoint.host, endpoint.port
        )
