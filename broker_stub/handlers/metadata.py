"""Metadata (key 3), versions 0-12, from the metadata cache alone (rules B7.1-B7.9).

Topics are not created on request (rules B7.11-B7.14): an unknown name is UNKNOWN_TOPIC_OR_PARTITION, whatever
`allow_auto_topic_creation` says. Nobody is refused authorisation.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Final, TypeVar

import wire
from broker_stub.control_requests import NO_TOPIC_ID
from broker_stub.errors import InvalidRequest
from broker_stub.handlers.base import Handler, Services, answering
from broker_stub.metadata_cache import MetadataSnapshot
from broker_stub.reactor import RequestContext
from wire import (
    ErrorCode,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    UpdateMetadataPartitionState,
)
from wire.vocabulary import NO_LEADER

T = TypeVar("T")

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})  # rule B7.9

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_FIRST_VERSION_WITH_LISTENER_NOT_FOUND: Final = 6
_FIRST_VERSION_BY_ID: Final = 12
_FIRST_VERSION_WITH_SLIP: Final = 11  # in 9 and 10 librdkafka's slip looks different, and it never uses these here
_SLIP_BYTES: Final = 3

# bits of rule B7.8, by the numbers that Kafka gives operations in access control lists
_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = (1 << code for code in range(3, 10))
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = (1 << code for code in range(10, 13))
_ANY_RESOURCE: Final = _CREATE | _ALTER | _DESCRIBE | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
TOPIC_OPERATIONS: Final = _ANY_RESOURCE | _READ | _WRITE | _DELETE
OPERATIONS_NOT_ASKED: Final = -(2**31)
CLUSTER_OPERATIONS: Final = _ANY_RESOURCE | _CLUSTER_ACTION | _IDEMPOTENT_WRITE


def is_valid_topic_name(name: str) -> bool:
    return name not in (".", "..") and _TOPIC_NAME.fullmatch(name) is not None


def respond(message: MetadataRequest, context: RequestContext, services: Services) -> MetadataResponse:
    """Raises InvalidRequest."""
    snapshot = services.metadata_cache.snapshot
    answer = _Answer(message, context, snapshot)
    asked_operations = message.include_cluster_authorized_operations
    return MetadataResponse(
        brokers=answer.brokers(),
        cluster_id=services.cluster_id,
        controller_id=-1 if snapshot.controller_id is None else snapshot.controller_id,
        topics=answer.topics(),
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked_operations else OPERATIONS_NOT_ASKED,
    )


class _Answer:
    """One request against one snapshot."""

    def __init__(self, request: MetadataRequest, context: RequestContext, snapshot: MetadataSnapshot) -> None:
        self.request = request
        self.version = context.api_version
        self.listener = context.listener
        self.snapshot = snapshot

    def brokers(self) -> tuple[MetadataResponseBroker, ...]:
        """Those that are alive and have the listener that was asked on (rule B7.7)."""
        found = []
        for broker in self.snapshot.alive_brokers.values():
            endpoint = broker.endpoints.get(self.listener)
            if endpoint is not None:
                found.append(
                    MetadataResponseBroker(
                        node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                    )
                )
        return tuple(found)

    def topics(self) -> tuple[MetadataResponseTopic, ...]:
        asked = self.request.topics
        if asked is None or (self.version == 0 and not asked):  # rule B7.1
            return tuple(self._known(name) for name in self.snapshot.topics)
        self._check(asked)
        ids = [topic.topic_id for topic in asked if topic.topic_id != NO_TOPIC_ID]
        if ids:
            return tuple(self._by_id(topic_id) for topic_id in _once(ids))
        return tuple(self._by_name(name) for name in _once(topic.name for topic in asked if topic.name is not None))

    def _check(self, asked: tuple[MetadataRequestTopic, ...]) -> None:  # rule B7.2
        by_id = self.version >= _FIRST_VERSION_BY_ID
        for topic in asked:
            if topic.topic_id != NO_TOPIC_ID and not by_id:
                raise InvalidRequest(f"topic ids are not supported in version {self.version}")
            if topic.name is None and not (by_id and topic.topic_id != NO_TOPIC_ID):
                raise InvalidRequest("a topic without name and without id")

    def _by_id(self, topic_id: uuid.UUID) -> MetadataResponseTopic:
        name = self.snapshot.topic_names.get(topic_id)
        if name is None or name not in self.snapshot.topics:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
        return self._known(name)

    def _by_name(self, name: str) -> MetadataResponseTopic:
        if name in self.snapshot.topics:
            return self._known(name)
        valid = is_valid_topic_name(name)  # rule B7.4
        return MetadataResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if valid else ErrorCode.INVALID_TOPIC_EXCEPTION,
            name=name,
            is_internal=name in INTERNAL_TOPICS,
        )

    def _known(self, name: str) -> MetadataResponseTopic:
        states = self.snapshot.topics[name].values()
        asked_operations = self.request.include_topic_authorized_operations
        return MetadataResponseTopic(
            name=name,
            topic_id=self.snapshot.topic_id(name),
            is_internal=name in INTERNAL_TOPICS,
            partitions=tuple(self._partition(state) for state in states),
            topic_authorized_operations=TOPIC_OPERATIONS if asked_operations else OPERATIONS_NOT_ASKED,
        )

    def _partition(self, state: UpdateMetadataPartitionState) -> MetadataResponsePartition:
        """Rules B7.5, B7.6."""
        replicas, isr = self._shown(state.replicas), self._shown(state.isr)
        if self._is_reachable(state.leader):
            whole = len(replicas) == len(state.replicas) and len(isr) == len(state.isr)
            error, leader = (ErrorCode.NONE if whole else ErrorCode.REPLICA_NOT_AVAILABLE), state.leader
        else:
            error, leader = self._why_unreachable(state.leader), NO_LEADER
        return MetadataResponsePartition(
            error_code=error,
            partition_index=state.partition_index,
            leader_id=leader,
            leader_epoch=state.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=isr,
            offline_replicas=state.offline_replicas,
        )

    def _shown(self, brokers: tuple[int, ...]) -> tuple[int, ...]:
        """Version 0 alone leaves out who cannot be reached."""
        return tuple(i for i in brokers if self._is_reachable(i)) if self.version == 0 else brokers

    def _is_reachable(self, broker_id: int) -> bool:
        return self.snapshot.endpoint(broker_id, self.listener) is not None

    def _why_unreachable(self, leader: int) -> ErrorCode:
        if leader in self.snapshot.alive_brokers and self.version >= _FIRST_VERSION_WITH_LISTENER_NOT_FOUND:
            return ErrorCode.LISTENER_NOT_FOUND
        return ErrorCode.LEADER_NOT_AVAILABLE


def _once(values: Iterable[T]) -> Iterable[T]:
    return dict.fromkeys(values)


def decode(frame: bytes) -> tuple[wire.Header, wire.Message]:
    """Like ``wire.decode_request``, but for a slip of librdkafka's that Kafka does not notice.

    Asking for all topics in a flexible version, it writes the null count in four bytes where one belongs. Kafka never
    looks at what is left of a request; here three bytes too many are let pass in this one case, and in no other.
    """
    try:
        return wire.decode_request(frame)
    except wire.TrailingBytes as e:
        header = wire.decode_request_header(frame)
        message = e.message
        if not isinstance(message, MetadataRequest) or message.topics is not None:
            raise
        if len(e.left_over) != _SLIP_BYTES or header.api_version < _FIRST_VERSION_WITH_SLIP:
            raise
        return header, message


def error_response(message: MetadataRequest, context: RequestContext, error: ErrorCode) -> MetadataResponse:
    topics = tuple(
        MetadataResponseTopic(error_code=error, name=topic.name or "", topic_id=topic.topic_id)
        for topic in message.topics or ()
    )
    return MetadataResponse(topics=topics)


HANDLER: Final = Handler(MetadataRequest, answering(respond), error_response, decode)
