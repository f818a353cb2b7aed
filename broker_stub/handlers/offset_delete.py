"""OffsetDelete (key 47), version 0 (rules G7.30 to G7.32)."""

from __future__ import annotations

from itertools import chain
from typing import Final

from kce.broker_stub.handlers.base import Answer, Handler, Later, Services, answering_in_steps
from kce.broker_stub.handlers.long_answers import answer_in_steps, results_by_topic
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.wire import (
    ErrorCode,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kce.wire.steps import STEP_MASK, Steps
from kce.wire.vocabulary import TopicPartition


def respond(message: OffsetDeleteRequest, context: RequestContext, services: Services) -> Steps[Answer | Later]:
    """Raises Refused."""
    authorization = services.authorization
    authorization.check(context, Operation.DELETE, ResourceType.GROUP, message.group_id)
    names = (topic.name for topic in message.topics)
    denied = yield from authorization.denied_in_steps(context, Operation.READ, ResourceType.TOPIC, names)
    snapshot = services.metadata_cache.snapshot
    codes: dict[TopicPartition, ErrorCode] = {}
    known = []
    entries = ((topic.name, entry.partition_index) for topic in message.topics for entry in topic.partitions)
    for i, (name, number) in enumerate(entries, 1):
        partition = TopicPartition(name, number)
        if name in denied:
            codes[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif snapshot.partition(partition) is None:
            codes[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            known.append(partition)
        if not i & STEP_MASK:
            yield
    error, deleted = services.groups.delete_offsets(message.group_id, list(dict.fromkeys(known)))
    if error is not ErrorCode.NONE:
        return Answer(error_response(message, context, error))
    topics = yield from results_by_topic(chain(codes.items(), deleted.items()), _partition, _topic)
    return (yield from answer_in_steps(OffsetDeleteResponse(topics=topics), context))


def _partition(number: int, code: ErrorCode) -> OffsetDeleteResponsePartition:
    return OffsetDeleteResponsePartition(partition_index=number, error_code=code)


def _topic(name: str, partitions: tuple[OffsetDeleteResponsePartition, ...]) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(name=name, partitions=partitions)


def error_response(message: OffsetDeleteRequest, context: RequestContext, error: ErrorCode) -> OffsetDeleteResponse:
    """Without partitions."""
    return OffsetDeleteResponse(error_code=error)


HANDLER: Final = Handler(OffsetDeleteRequest, answering_in_steps(respond), error_response)
