"""OffsetDelete (key 47), version 0 (rules G7.30 to G7.32)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.handlers.base import Handler, Services, answering
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.wire import (
    ErrorCode,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kce.wire.vocabulary import TopicPartition, by_topic


def respond(message: OffsetDeleteRequest, context: RequestContext, services: Services) -> OffsetDeleteResponse:
    """Raises Refused."""
    authorization = services.authorization
    authorization.check(context, Operation.DELETE, ResourceType.GROUP, message.group_id)
    denied = authorization.denied_topics(context, Operation.READ, (topic.name for topic in message.topics))
    snapshot = services.metadata_cache.snapshot
    codes: dict[TopicPartition, ErrorCode] = {}
    known = []
    for topic in message.topics:
        for entry in topic.partitions:
            partition = TopicPartition(topic.name, entry.partition_index)
            if topic.name in denied:
                codes[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif snapshot.partition(partition) is None:
                codes[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                known.append(partition)
    error, deleted = services.groups.delete_offsets(message.group_id, known)
    if error is not ErrorCode.NONE:
        return error_response(message, context, error)
    return OffsetDeleteResponse(
        topics=tuple(
            OffsetDeleteResponseTopic(
                name=name,
                partitions=tuple(
                    OffsetDeleteResponsePartition(partition_index=number, error_code=code)
                    for number, code in of_topic.items()
                ),
            )
            for name, of_topic in by_topic({**codes, **deleted}).items()
        )
    )


def error_response(message: OffsetDeleteRequest, context: RequestContext, error: ErrorCode) -> OffsetDeleteResponse:
    """Without partitions."""
    return OffsetDeleteResponse(error_code=error)


HANDLER: Final = Handler(OffsetDeleteRequest, answering(respond), error_response)
