"""Metadata (key 3), versions 0-12, from the metadata cache (rules B7.1-B7.9).

Topics are not auto-created (rules B7.11-B7.14): an unknown name gets UNKNOWN_TOPIC_OR_PARTITION even with
`allow_auto_topic_creation`. There is no authorization.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Final, TypeVar

from kce import wire
from kce.broker_stub.errors import InvalidRequest
from kce.broker_stub.handlers.base import Handler, Services, answering
from kce.broker_stub.metadata_cache import MetadataSnapshot
from kce.broker_stub.reactor import RequestContext
from kce.wire import (
    ErrorCode,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    UpdateMetadataPartitionState,
)
from kce.wire.control import NO_TOPIC_ID
from kce.wire.vocabulary import NO_LEADER, is_valid_topic_name

T = TypeVar("T")

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})  # rule B7.9

_FIRST_VERSION_WITH_LISTENER_NOT_FOUND: Final = 6
_FIRST_VERSION_BY_ID: Final = 12
_FIRST_VERSION_WITH_EXTRA_BYTES: Final = 11  # librdkafka writes 9 and 10 differently, and never uses them here
_EXTRA_BYTES: Final = 3

# bits of rule B7.8: the codes of Kafka's ACL operations
_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = (1 << code for code in range(3, 10))
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = (1 << code for code in range(10, 13))
_ANY_RESOURCE: Final = _CREATE | _ALTER | _DESCRIBE | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
TOPIC_OPERATIONS: Final = _ANY_RESOURCE | _READ | _WRITE | _DELETE
NO_OPERATIONS: Final = -(2**31)
CLUSTER_OPERATIONS: Final = _ANY_RESOURCE | _CLUSTER_ACTION | _IDEMPOTENT_WRITE


def respond(message: MetadataRequest, context: RequestContext, services: Services) -> MetadataResponse:
    """Raises InvalidRequest."""
    snapshot = services.metadata_cache.snapshot
    builder = _ResponseBuilder(message, context, snapshot)
    include_operations = message.include_cluster_authorized_operations
    return MetadataResponse(
        brokers=builder.brokers(),
        cluster_id=services.cluster_id,
        controller_id=-1 if snapshot.controller_id is None else snapshot.controller_id,
        topics=builder.topics(),
        cluster_authorized_operations=CLUSTER_OPERATIONS if include_operations else NO_OPERATIONS,
    )


class _ResponseBuilder:
    """Answers one request from one snapshot."""

    def __init__(self, request: MetadataRequest, context: RequestContext, snapshot: MetadataSnapshot) -> None:
        self.request = request
        self.version = context.api_version
        self.listener = context.listener
        self.snapshot = snapshot

    def brokers(self) -> tuple[MetadataResponseBroker, ...]:
        """Alive brokers that have the listener of the request (rule B7.7)."""
        return tuple(
            MetadataResponseBroker(node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
            for broker, endpoint in self.snapshot.reachable_brokers(self.listener)
        )

    def topics(self) -> tuple[MetadataResponseTopic, ...]:
        requested = self.request.topics
        if requested is None or (self.version == 0 and not requested):  # rule B7.1
            return tuple(self._known(name) for name in self.snapshot.topics)
        self._check(requested)
        ids = [topic.topic_id for topic in requested if topic.topic_id != NO_TOPIC_ID]
        if ids:
            return tuple(self._by_id(topic_id) for topic_id in _unique(ids))
        return tuple(
            self._by_name(name) for name in _unique(topic.name for topic in requested if topic.name is not None)
        )

    def _check(self, requested: tuple[MetadataRequestTopic, ...]) -> None:  # rule B7.2
        by_id = self.version >= _FIRST_VERSION_BY_ID
        for topic in requested:
            if topic.topic_id != NO_TOPIC_ID and not by_id:
                raise InvalidRequest(f"topic ids are not supported in version {self.version}")
            if topic.name is None and not (by_id and topic.topic_id != NO_TOPIC_ID):
                raise InvalidRequest("a topic needs a name or an id")

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
        include_operations = self.request.include_topic_authorized_operations
        return MetadataResponseTopic(
            name=name,
            topic_id=self.snapshot.topic_id(name),
            is_internal=name in INTERNAL_TOPICS,
            partitions=tuple(self._partition(state) for state in states),
            topic_authorized_operations=TOPIC_OPERATIONS if include_operations else NO_OPERATIONS,
        )

    def _partition(self, state: UpdateMetadataPartitionState) -> MetadataResponsePartition:
        """Rules B7.5, B7.6."""
        replicas, isr = self._listed(state.replicas), self._listed(state.isr)
        if self._is_reachable(state.leader):
            complete = len(replicas) == len(state.replicas) and len(isr) == len(state.isr)
            error, leader = (ErrorCode.NONE if complete else ErrorCode.REPLICA_NOT_AVAILABLE), state.leader
        else:
            error, leader = self._unreachable_error(state.leader), NO_LEADER
        return MetadataResponsePartition(
            error_code=error,
            partition_index=state.partition_index,
            leader_id=leader,
            leader_epoch=state.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=isr,
            offline_replicas=state.offline_replicas,
        )

    def _listed(self, brokers: tuple[int, ...]) -> tuple[int, ...]:
        """Only version 0 omits brokers that cannot be reached."""
        return tuple(i for i in brokers if self._is_reachable(i)) if self.version == 0 else brokers

    def _is_reachable(self, broker_id: int) -> bool:
        return self.snapshot.endpoint(broker_id, self.listener) is not None

    def _unreachable_error(self, leader: int) -> ErrorCode:
        if leader in self.snapshot.alive_brokers and self.version >= _FIRST_VERSION_WITH_LISTENER_NOT_FOUND:
            return ErrorCode.LISTENER_NOT_FOUND
        return ErrorCode.LEADER_NOT_AVAILABLE


def _unique(values: Iterable[T]) -> Iterable[T]:
    return dict.fromkeys(values)


def decode(frame: bytes) -> tuple[wire.Header, wire.Message]:
    """Like ``wire.decode_request``, but accept a bug of librdkafka.

    When it requests all topics in a flexible version, it writes the null array length in four bytes instead of one.
    Kafka ignores trailing bytes of any request; here three trailing bytes are accepted in this case only.
    """
    try:
        return wire.decode_request(frame)
    except wire.TrailingBytes as e:
        header = wire.decode_request_header(frame)
        message = e.message
        if not isinstance(message, MetadataRequest) or message.topics is not None:
            raise
        if len(e.left_over) != _EXTRA_BYTES or header.api_version < _FIRST_VERSION_WITH_EXTRA_BYTES:
            raise
        return header, message


def error_response(message: MetadataRequest, context: RequestContext, error: ErrorCode) -> MetadataResponse:
    topics = tuple(
        MetadataResponseTopic(error_code=error, name=topic.name or "", topic_id=topic.topic_id)
        for topic in message.topics or ()
    )
    return MetadataResponse(topics=topics)


HANDLER: Final = Handler(MetadataRequest, answering(respond), error_response, decode)
