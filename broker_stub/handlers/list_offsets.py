"""ListOffsets (key 2), versions 0-9 (section 7c)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Container
from typing import Final

from kce.broker_stub.errors import ApiException, Refused
from kce.broker_stub.handlers.base import Answer, Handler, Later, Services, answering_in_steps
from kce.broker_stub.handlers.long_answers import Arrays, each_in_steps, is_long
from kce.broker_stub.log import Isolation, Log
from kce.broker_stub.log.lookup import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    FoundOffset,
    earliest,
    find_max_timestamp,
    find_timestamp,
    offsets_before,
)
from kce.broker_stub.partition import Partition
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.replication.reading import CONSUMER, DEBUGGING_CONSUMER, isolation_of
from kce.broker_stub.security.operations import Operation
from kce.wire import (
    ErrorCode,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kce.wire.errors import CorruptRecord
from kce.wire.steps import STEP_MASK, Steps, finish
from kce.wire.vocabulary import TopicPartition

_log = logging.getLogger(__name__)

#: the first version that knows each of these (rule B7.17)
_SINCE: Final = {EARLIEST: 0, LATEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}

_TOPICS: Final = Arrays("topics", "topics")
_PARTITIONS: Final = Arrays("partitions", "partitions")


def handle(request: Request, message: ListOffsetsRequest, services: Services) -> Awaitable[None] | None:
    if is_long(message, _TOPICS, _PARTITIONS):
        return _answer_in_steps(request, message, services)
    request.respond(respond(message, request.context, services))
    return None


def respond(message: ListOffsetsRequest, context: RequestContext, services: Services) -> ListOffsetsResponse:
    return _respond(message, context, services, finish(_repeated(message)))


def _respond_in_steps(
    message: ListOffsetsRequest, context: RequestContext, services: Services
) -> Steps[Answer | Later]:
    repeated = yield from _repeated(message)

    def respond_to(some: ListOffsetsRequest) -> ListOffsetsResponse:
        return _respond(some, context, services, repeated)

    return (yield from each_in_steps(message, context, respond_to, _TOPICS, _PARTITIONS))


_answer_in_steps: Final = answering_in_steps(_respond_in_steps)


def _repeated(message: ListOffsetsRequest) -> Steps[Container[tuple[str, int]]]:
    """The partitions that it has more than once."""
    seen: set[tuple[str, int]] = set()
    repeated: set[tuple[str, int]] = set()
    for i, topic in enumerate(message.topics, 1):
        for j, entry in enumerate(topic.partitions, 1):
            partition = topic.name, entry.partition_index
            (repeated if partition in seen else seen).add(partition)
            if not j & STEP_MASK:
                yield
        if not i & STEP_MASK:
            yield
    return repeated


def _respond(
    message: ListOffsetsRequest, context: RequestContext, services: Services, repeated: Container[tuple[str, int]]
) -> ListOffsetsResponse:
    denied = services.authorization.denied_topics(context, Operation.DESCRIBE, (topic.name for topic in message.topics))
    return ListOffsetsResponse(
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _refused(entry, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                    if topic.name in denied
                    else _answer(
                        topic.name, entry, message, context, services, (topic.name, entry.partition_index) in repeated
                    )
                    for entry in topic.partitions
                ),
            )
            for topic in message.topics
        )
    )


def _refused(entry: ListOffsetsPartition, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=entry.partition_index, error_code=code)


def _answer(
    topic: str,
    entry: ListOffsetsPartition,
    message: ListOffsetsRequest,
    context: RequestContext,
    services: Services,
    is_repeated: bool,
) -> ListOffsetsPartitionResponse:
    version = context.header.api_version
    try:
        if is_repeated and version > 0:
            raise Refused(ErrorCode.INVALID_REQUEST)
        if entry.timestamp < 0 and version < _SINCE.get(entry.timestamp, version + 1):
            raise Refused(ErrorCode.UNSUPPORTED_VERSION)
        is_consumer = message.replica_id == CONSUMER
        isolation = isolation_of(message.isolation_level if is_consumer else 0, is_consumer=is_consumer)
        partition = services.data_plane.partition(TopicPartition(topic, entry.partition_index))
        leader_only = message.replica_id != DEBUGGING_CONSUMER
        log = partition.log_for(entry.current_leader_epoch, leader_only=leader_only)
        if version == 0:
            return ListOffsetsPartitionResponse(
                partition_index=entry.partition_index, old_style_offsets=_old_offsets(log, entry, message.replica_id)
            )
        found = _find(partition, log, entry.timestamp, isolation)
    except ApiException as e:
        return _refused(entry, _code(e.code, version))
    except CorruptRecord as e:
        _log.error("offsets of %s-%d could not be looked up: %s", topic, entry.partition_index, e)
        return _refused(entry, ErrorCode.CORRUPT_MESSAGE)
    return ListOffsetsPartitionResponse(
        partition_index=entry.partition_index,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch if version >= 4 else -1,
    )


def _code(code: ErrorCode, version: int) -> ErrorCode:
    """Rule B7.15."""
    return ErrorCode.LEADER_NOT_AVAILABLE if code == ErrorCode.OFFSET_NOT_AVAILABLE and version < 5 else code


def _find(partition: Partition, log: Log, timestamp: int, isolation: Isolation) -> FoundOffset:
    """Raises ApiException."""
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return earliest(log)
    if timestamp == LATEST_TIERED:
        return FoundOffset(-1, -1)
    is_behind = isolation is not Isolation.LOG_END and partition.epoch_start_offset > log.high_watermark
    if timestamp == LATEST:
        if is_behind:
            raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE)
        return FoundOffset(-1, log.located_end(isolation).offset, partition.leader_epoch)
    found = find_max_timestamp(log) if timestamp == MAX_TIMESTAMP else find_timestamp(log, timestamp)
    if found is not None and found.offset < log.located_end(isolation).offset:
        return found
    if is_behind:
        raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE)
    return FoundOffset(-1, -1)


def _old_offsets(log: Log, entry: ListOffsetsPartition, replica_id: int) -> tuple[int, ...]:
    """Rule B7.20: a consumer sees the high watermark instead of what is beyond it. Raises Refused."""
    if entry.max_num_offsets < 0:  # Kafka allocates an array of that size
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR)
    offsets = offsets_before(log, entry.timestamp, entry.max_num_offsets)
    if replica_id != CONSUMER or not any(offset > log.high_watermark for offset in offsets):
        return tuple(offsets)
    return (log.high_watermark, *(offset for offset in offsets if offset < log.high_watermark))


def error_response(message: ListOffsetsRequest, context: RequestContext, error: ErrorCode) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(_refused(entry, error) for entry in topic.partitions),
            )
            for topic in message.topics
        )
    )


HANDLER: Final = Handler(ListOffsetsRequest, handle, error_response)
