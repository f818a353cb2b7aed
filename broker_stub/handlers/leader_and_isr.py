"""LeaderAndIsr (key 4), versions 0-7: fenced here by broker epoch, then by the replica manager (rules 9.1-9.29)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final

from broker_stub.control_requests import NO_TOPIC_ID, leader_and_isr_states
from broker_stub.handlers.base import Handler, Services, answering
from broker_stub.reactor import RequestContext
from wire import (
    ErrorCode,
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from wire.vocabulary import TopicPartition

_FIRST_VERSION_BY_ID: Final = 5


def respond(message: LeaderAndIsrRequest, context: RequestContext, services: Services) -> LeaderAndIsrResponse:
    if services.is_stale_broker_epoch(message.broker_epoch):  # rule 9.6
        return error_response(message, context, ErrorCode.STALE_BROKER_EPOCH)
    outcome = services.replica_manager.become_leader_or_follower(message, context.header.correlation_id)
    if outcome.error != ErrorCode.NONE:  # rule 9.9
        return error_response(message, context, outcome.error)
    return _response(context.api_version, ErrorCode.NONE, outcome.partitions, outcome.topic_ids)


def error_response(message: LeaderAndIsrRequest, context: RequestContext, error: ErrorCode) -> LeaderAndIsrResponse:
    """The error at the top and on every partition (rule 9.4)."""
    codes = {partition: error for partition, _ in leader_and_isr_states(message)}
    topic_ids = {topic.topic_name: topic.topic_id for topic in message.topic_states}
    return _response(context.api_version, error, codes, topic_ids)


def _response(
    api_version: int,
    error: ErrorCode,
    codes: Mapping[TopicPartition, ErrorCode],
    topic_ids: Mapping[str, uuid.UUID],
) -> LeaderAndIsrResponse:
    """Flat before version 5, then by topic id; topics without an id share the zero one (rules 9.27, 13.13, 13.14)."""
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


HANDLER: Final = Handler(LeaderAndIsrRequest, answering(respond), error_response)
