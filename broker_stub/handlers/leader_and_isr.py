"""LeaderAndIsr (key 4), versions 0-7: fenced by broker epoch here, then by the replica manager (rules 9.1-9.29)."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Mapping
from typing import Final

from kce.broker_stub.control_requests import leader_and_isr_states
from kce.broker_stub.handlers.base import Handler, Services, after_reading, answering, logged
from kce.broker_stub.internal_topics import INTERNAL_TOPICS
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import (
    ErrorCode,
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from kce.wire.control import NO_TOPIC_ID
from kce.wire.vocabulary import TopicPartition

_FIRST_VERSION_BY_ID: Final = 5


def respond(message: LeaderAndIsrRequest, context: RequestContext, services: Services) -> LeaderAndIsrResponse:
    if services.is_stale_broker_epoch(message.broker_epoch):  # rule 9.6
        return error_response(message, context, ErrorCode.STALE_BROKER_EPOCH)
    result = services.replica_manager.become_leader_or_follower(message, context.header.correlation_id)
    if result.error != ErrorCode.NONE:  # rule 9.9
        return error_response(message, context, result.error)
    return _response(context.api_version, ErrorCode.NONE, result.partitions, result.topic_ids)


def error_response(message: LeaderAndIsrRequest, context: RequestContext, error: ErrorCode) -> LeaderAndIsrResponse:
    """The error at the top level and for every partition (rule 9.4)."""
    codes = {partition: error for partition, _ in leader_and_isr_states(message)}
    topic_ids = {topic.topic_name: topic.topic_id for topic in message.topic_states}
    return _response(context.api_version, error, codes, topic_ids)


def _response(
    api_version: int,
    error: ErrorCode,
    codes: Mapping[TopicPartition, ErrorCode],
    topic_ids: Mapping[str, uuid.UUID],
) -> LeaderAndIsrResponse:
    """Flat before version 5, then grouped by topic id; zero for topics without one (rules 9.27, 13.13, 13.14)."""
    if api_version < _FIRST_VERSION_BY_ID:
        errors = tuple(
            LeaderAndIsrPartitionError(topic_name=p.topic, partition_index=p.partition, error_code=code)
            for p, code in codes.items()
        )
        return LeaderAndIsrResponse(error_code=error, partition_errors=errors)
    by_id: dict[uuid.UUID, list[LeaderAndIsrPartitionError]] = {}
    for partition, code in codes.items():
        by_id.setdefault(topic_ids.get(partition.topic, NO_TOPIC_ID), []).append(
            LeaderAndIsrPartitionError(partition_index=partition.partition, error_code=code)
        )
    topics = tuple(LeaderAndIsrTopicError(topic_id=i, partition_errors=tuple(errors)) for i, errors in by_id.items())
    return LeaderAndIsrResponse(error_code=error, topics=topics)


_answer: Final = answering(logged(respond))


def handle(request: Request, message: LeaderAndIsrRequest, services: Services) -> Awaitable[None] | None:
    """The settings of new topics are read soon; those of internal ones first, because their coordinators append without
    a request."""
    hosted = services.replica_manager.partitions
    topics = {partition.topic for partition, _ in leader_and_isr_states(message) if partition not in hosted}
    services.topic_settings.expect(topics)
    if internal := topics & INTERNAL_TOPICS:
        return after_reading(internal, _answer, request, message, services)
    _answer(request, message, services)
    return None


HANDLER: Final = Handler(
    LeaderAndIsrRequest,
    handle,
    error_response,
    needs=Operation.CLUSTER_ACTION,
    has_errors_of_parts=False,  # a partition has one
)
