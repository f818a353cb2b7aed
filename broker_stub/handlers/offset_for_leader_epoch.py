"""OffsetForLeaderEpoch (key 23), versions 0-4: where the records of a leader epoch end (rule B5.24)."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from kce.broker_stub.errors import ApiException
from kce.broker_stub.handlers.base import Handler, Services
from kce.broker_stub.handlers.long_answers import Arrays, answering_each
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import (
    ErrorCode,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from kce.wire.vocabulary import TopicPartition


def respond(
    message: OffsetForLeaderEpochRequest, context: RequestContext, services: Services
) -> OffsetForLeaderEpochResponse:
    authorization = services.authorization
    denied: Container[str] = ()
    if not authorization.allows_on_cluster(context, Operation.CLUSTER_ACTION, log_denied=False):
        denied = authorization.denied_topics(context, Operation.DESCRIBE, (topic.topic for topic in message.topics))
    return OffsetForLeaderEpochResponse(
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    _refused(entry, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                    if topic.topic in denied
                    else _answer(topic.topic, entry, services)
                    for entry in topic.partitions
                ),
            )
            for topic in message.topics
        )
    )


def _refused(entry: OffsetForLeaderPartition, code: ErrorCode) -> OffsetForLeaderEpochResponseEpochEndOffset:
    return OffsetForLeaderEpochResponseEpochEndOffset(partition=entry.partition, error_code=code)


def _answer(
    topic: str, entry: OffsetForLeaderPartition, services: Services
) -> OffsetForLeaderEpochResponseEpochEndOffset:
    try:
        partition = services.data_plane.partition(TopicPartition(topic, entry.partition))
        found = partition.log_for(entry.current_leader_epoch, leader_only=True).end_offset_of(entry.leader_epoch)
    except ApiException as e:
        return _refused(entry, e.code)
    return OffsetForLeaderEpochResponseEpochEndOffset(
        partition=entry.partition, leader_epoch=found.epoch, end_offset=found.end_offset
    )


def error_response(
    message: OffsetForLeaderEpochRequest, context: RequestContext, error: ErrorCode
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(_refused(entry, error) for entry in topic.partitions),
            )
            for topic in message.topics
        )
    )


_answer_each: Final = answering_each(respond, Arrays("topics", "topics"), Arrays("partitions", "partitions"))
HANDLER: Final = Handler(OffsetForLeaderEpochRequest, _answer_each, error_response)
