"""DeleteRecords (key 21), versions 0-2 (section 6c)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kce.broker_stub.handlers.base import Handler, Services, respond_to, with_settings
from kce.broker_stub.internal_topics import INTERNAL_TOPICS
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    ErrorCode,
)
from kce.wire.vocabulary import TopicPartition, by_topic

_NO_LOW_WATERMARK: Final = -1


def handle(request: Request, message: DeleteRecordsRequest, services: Services) -> None:
    offsets: dict[TopicPartition, int] = {}
    refused: dict[TopicPartition, tuple[int, ErrorCode]] = {}
    snapshot = services.metadata_cache.snapshot
    denied = services.authorization.denied_topics(
        request.context, Operation.DELETE, (topic.name for topic in message.topics)
    )
    for topic in message.topics:
        for entry in topic.partitions:
            partition = TopicPartition(topic.name, entry.partition_index)
            if topic.name in denied:
                refused[partition] = _NO_LOW_WATERMARK, ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif snapshot.partition(partition) is None:
                refused[partition] = _NO_LOW_WATERMARK, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif topic.name in INTERNAL_TOPICS:
                refused[partition] = _NO_LOW_WATERMARK, ErrorCode.INVALID_TOPIC_EXCEPTION
            else:
                offsets[partition] = entry.offset

    def respond(results: Mapping[TopicPartition, tuple[int, ErrorCode]]) -> None:
        respond_to(request, lambda: _response({**refused, **results}))

    services.data_plane.delete_records(offsets, message.timeout_ms, respond)


def _response(results: Mapping[TopicPartition, tuple[int, ErrorCode]]) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(
                name=topic,
                partitions=tuple(
                    DeleteRecordsPartitionResult(partition_index=number, low_watermark=low_watermark, error_code=code)
                    for number, (low_watermark, code) in partitions.items()
                ),
            )
            for topic, partitions in by_topic(results).items()
        )
    )


def error_response(message: DeleteRecordsRequest, context: RequestContext, error: ErrorCode) -> DeleteRecordsResponse:
    return _response(
        {
            TopicPartition(topic.name, entry.partition_index): (_NO_LOW_WATERMARK, error)
            for topic in message.topics
            for entry in topic.partitions
        }
    )


HANDLER: Final = Handler(
    DeleteRecordsRequest,
    with_settings(handle, lambda message: (topic.name for topic in message.topics)),
    error_response,
)
