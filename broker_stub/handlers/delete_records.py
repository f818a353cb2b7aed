"""DeleteRecords (key 21), versions 0-2 (section 6c)."""

from __future__ import annotations

from collections.abc import Awaitable
from itertools import chain
from typing import Final, TypeAlias

from kce.broker_stub.handlers.base import Handler, Services, after_steps, with_settings
from kce.broker_stub.handlers.long_answers import respond_by_topic
from kce.broker_stub.internal_topics import INTERNAL_TOPICS
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.replication.deletion import delete_records
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.wire import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    ErrorCode,
)
from kce.wire.steps import STEP_MASK, Steps
from kce.wire.vocabulary import TopicPartition

_NO_LOW_WATERMARK: Final = -1
#: low watermark and error
_Result: TypeAlias = tuple[int, ErrorCode]


def handle(request: Request, message: DeleteRecordsRequest, services: Services) -> Awaitable[None] | None:
    def delete(checked: tuple[dict[TopicPartition, int], dict[TopicPartition, _Result]]) -> None:
        offsets, refused = checked
        delete_records(
            services.data_plane,
            offsets,
            message.timeout_ms,
            lambda results: respond_by_topic(
                request, chain(refused.items(), results.items()), len(refused) + len(results),
                _partition, _topic, DeleteRecordsResponse, services,
            ),
        )  # fmt: skip

    return after_steps(request, _checked(message, request.context, services), delete)


def _checked(
    message: DeleteRecordsRequest, context: RequestContext, services: Services
) -> Steps[tuple[dict[TopicPartition, int], dict[TopicPartition, _Result]]]:
    """The offsets of what may be deleted, and the results of the rest."""
    offsets: dict[TopicPartition, int] = {}
    refused: dict[TopicPartition, _Result] = {}
    snapshot = services.metadata_cache.snapshot
    names = (topic.name for topic in message.topics)
    denied = yield from services.authorization.denied_in_steps(context, Operation.DELETE, ResourceType.TOPIC, names)
    entries = ((topic.name, entry) for topic in message.topics for entry in topic.partitions)
    for i, (name, entry) in enumerate(entries, 1):
        partition = TopicPartition(name, entry.partition_index)
        if name in denied:
            refused[partition] = _NO_LOW_WATERMARK, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif snapshot.partition(partition) is None:
            refused[partition] = _NO_LOW_WATERMARK, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif name in INTERNAL_TOPICS:
            refused[partition] = _NO_LOW_WATERMARK, ErrorCode.INVALID_TOPIC_EXCEPTION
        else:
            offsets[partition] = entry.offset
        if not i & STEP_MASK:
            yield
    return offsets, refused


def _partition(number: int, result: _Result) -> DeleteRecordsPartitionResult:
    low_watermark, code = result
    return DeleteRecordsPartitionResult(partition_index=number, low_watermark=low_watermark, error_code=code)


def _topic(name: str, partitions: tuple[DeleteRecordsPartitionResult, ...]) -> DeleteRecordsTopicResult:
    return DeleteRecordsTopicResult(name=name, partitions=partitions)


def error_response(message: DeleteRecordsRequest, context: RequestContext, error: ErrorCode) -> DeleteRecordsResponse:
    """The error for every partition, as often as it was named."""
    refused = _NO_LOW_WATERMARK, error
    return DeleteRecordsResponse(
        topics=tuple(
            _topic(topic.name, tuple(_partition(entry.partition_index, refused) for entry in topic.partitions))
            for topic in message.topics
        )
    )


HANDLER: Final = Handler(
    DeleteRecordsRequest,
    with_settings(handle, lambda message: (topic.name for topic in message.topics)),
    error_response,
)
