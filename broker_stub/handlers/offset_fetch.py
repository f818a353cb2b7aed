"""OffsetFetch (key 9), versions 0-9 (section 7c of the group rules)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Final, TypeVar

from kce.broker_stub.errors import error_code
from kce.broker_stub.groups.coordinator import FetchedOffset
from kce.broker_stub.groups.records import CommittedOffset
from kce.broker_stub.handlers.base import (
    Answer,
    Handler,
    Later,
    Services,
    answering,
    answering_in_steps,
    answering_later,
)
from kce.broker_stub.handlers.long_answers import (
    Arrays,
    answer_in_steps,
    encoded_by_topic,
    is_long,
    parts,
    results_by_topic,
)
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.wire import (
    ErrorCode,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kce.wire.long_messages import is_long as is_long_message
from kce.wire.steps import Steps, finish
from kce.wire.vocabulary import NO_EPOCH, TopicPartition, by_topic

log = logging.getLogger(__name__)

_FIRST_VERSION_OF_GROUPS: Final = 1
_FIRST_BATCHED_VERSION: Final = 8
#: that are answered in one step: some have 1000 partitions
_FEW_GROUPS: Final = 15
_NO_OFFSET: Final = CommittedOffset(offset=-1, commit_timestamp=-1, leader_epoch=NO_EPOCH)

_DENIED: Final = FetchedOffset(None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)

_TOPICS: Final = Arrays("topics", "topics")
_PARTITIONS: Final = Arrays("partition_indexes", "partitions")

Fetched = Mapping[TopicPartition, FetchedOffset]
P = TypeVar("P")


def _respond(message: OffsetFetchRequest, context: RequestContext, services: Services) -> OffsetFetchResponse:
    if context.api_version < _FIRST_BATCHED_VERSION:
        error, found = _fetched(message.group_id, message.topics, message, context, services)
        return _single(found, error)
    groups = []
    for group in message.groups:
        error, found = _fetched(group.group_id, group.topics, message, context, services)
        groups.append(_group(group, found, error))
    return OffsetFetchResponse(groups=tuple(groups))


def _fetched(
    group_id: str,
    topics: Iterable[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None,
    message: OffsetFetchRequest,
    context: RequestContext,
    services: Services,
) -> tuple[ErrorCode, Fetched]:
    """What the client may not describe is refused, or hidden if it asks for all."""
    authorization = services.authorization
    if not authorization.allows(context, Operation.DESCRIBE, ResourceType.GROUP, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED, {}
    wanted = _partitions(topics)
    if wanted is None:
        error, found = services.groups.fetch_offsets(group_id, None, require_stable=message.require_stable)
        denied = authorization.denied_topics(context, Operation.DESCRIBE, dict.fromkeys(p.topic for p in found))
        return error, {partition: offset for partition, offset in found.items() if partition.topic not in denied}
    denied = authorization.denied_topics(context, Operation.DESCRIBE, dict.fromkeys(p.topic for p in wanted))
    allowed = [partition for partition in wanted if partition.topic not in denied]
    error, found = services.groups.fetch_offsets(group_id, allowed, require_stable=message.require_stable)
    if error is ErrorCode.NONE:
        found = {**found, **{partition: _DENIED for partition in wanted if partition.topic in denied}}
    return error, found


async def _respond_from_zookeeper(
    message: OffsetFetchRequest, context: RequestContext, services: Services
) -> OffsetFetchResponse:
    """Rule G7.29. Raises Refused."""
    found = {}
    authorization = services.authorization
    authorization.check(context, Operation.DESCRIBE, ResourceType.GROUP, message.group_id)
    wanted = _partitions(message.topics) or ()
    denied = authorization.denied_topics(context, Operation.DESCRIBE, dict.fromkeys(p.topic for p in wanted))
    snapshot = services.metadata_cache.snapshot
    for partition in wanted:
        if partition.topic in denied:
            found[partition] = _DENIED
            continue
        found[partition] = FetchedOffset(None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if snapshot.partition(partition) is None:
            continue
        try:
            offset = await services.admin.consumer_offset(message.group_id, partition)
        except Exception as e:
            log.exception("the offset of group %s for %s could not be read", message.group_id, partition)
            found[partition] = FetchedOffset(None, error_code(e))
        else:
            if offset is not None:
                found[partition] = FetchedOffset(CommittedOffset(offset=offset, commit_timestamp=-1))
    return _single(found)


def _respond_in_steps(
    message: OffsetFetchRequest, context: RequestContext, services: Services
) -> Steps[Answer | Later]:
    """Of one group: what ``_respond`` gives, for very many partitions."""
    error, found_ones = yield from _fetched_in_steps(message, message, context, services)
    if error is not ErrorCode.NONE:
        return Answer(_single({}, error))
    errors = Counter({int(ErrorCode.NONE): 1})  # of the response itself

    def of_partition(number: int, fetched: FetchedOffset) -> OffsetFetchResponsePartition:
        errors[fetched.error] += 1
        return _partition(OffsetFetchResponsePartition, number, fetched)

    def of_topic(name: str, partitions: Any) -> OffsetFetchResponseTopic:
        return OffsetFetchResponseTopic(name=name, partitions=partitions)

    topics: Any = yield from encoded_by_topic(found_ones, of_partition, of_topic, context.header)
    return Answer(OffsetFetchResponse(topics=topics), errors)


def _fetched_in_steps(
    group: OffsetFetchRequest | OffsetFetchRequestGroup,
    message: OffsetFetchRequest,
    context: RequestContext,
    services: Services,
) -> Steps[tuple[ErrorCode, Iterable[tuple[TopicPartition, FetchedOffset]]]]:
    """``_fetched`` of a group with very many partitions."""
    allowed: dict[TopicPartition, FetchedOffset] = {}
    denied: dict[TopicPartition, FetchedOffset] = {}
    for part in parts(group, _TOPICS, _PARTITIONS):
        error, found = _fetched(group.group_id, part.topics, message, context, services)
        if error is not ErrorCode.NONE:
            return error, ()
        for partition, fetched in found.items():
            (denied if fetched is _DENIED else allowed)[partition] = fetched
        yield
    return ErrorCode.NONE, chain(allowed.items(), denied.items())


def _respond_to_groups_in_steps(
    message: OffsetFetchRequest, context: RequestContext, services: Services
) -> Steps[Answer | Later]:
    """What ``_respond`` gives, for very many groups or partitions."""
    groups = []
    for i, group in enumerate(message.groups, 1):
        if group.topics and is_long(group, _TOPICS, _PARTITIONS):
            error, found_ones = yield from _fetched_in_steps(group, message, context, services)
            topics = yield from results_by_topic(found_ones, _partition_of_group, _topic_of_group)
            groups.append(OffsetFetchResponseGroup(group_id=group.group_id, error_code=error, topics=topics))
        else:
            error, found = _fetched(group.group_id, group.topics, message, context, services)
            groups.append(_group(group, found, error))
        if not i & _FEW_GROUPS:
            yield
    return (yield from answer_in_steps(OffsetFetchResponse(groups=tuple(groups)), context))


_answer: Final = answering(_respond)
_answer_in_steps: Final = answering_in_steps(_respond_in_steps)
_answer_groups_in_steps: Final = answering_in_steps(_respond_to_groups_in_steps)
_answer_from_zookeeper: Final = answering_later(_respond_from_zookeeper)


def handle(request: Request, message: OffsetFetchRequest, services: Services) -> Awaitable[None] | None:
    version = request.context.api_version
    if version >= _FIRST_BATCHED_VERSION:
        is_short = len(message.groups) <= _FEW_GROUPS and not is_long_message(message)
        return (_answer if is_short else _answer_groups_in_steps)(request, message, services)
    if version < _FIRST_VERSION_OF_GROUPS:
        return _answer_from_zookeeper(request, message, services)
    if message.topics and is_long(message, _TOPICS, _PARTITIONS):
        return _answer_in_steps(request, message, services)
    return _answer(request, message, services)


def _partitions(
    topics: Iterable[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None,
) -> list[TopicPartition] | None:
    """None for all (rule G7.24)."""
    if topics is None:
        return None
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partition_indexes]


def _single(found: Fetched, error: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponse:
    """Rule G7.28: version 1 does not tell the error."""
    return OffsetFetchResponse(
        error_code=error,
        topics=tuple(
            OffsetFetchResponseTopic(
                name=topic,
                partitions=tuple(
                    _partition(OffsetFetchResponsePartition, number, fetched) for number, fetched in of_topic.items()
                ),
            )
            for topic, of_topic in by_topic(found).items()
        ),
    )


def _partition(make: Callable[..., P], number: int, fetched: FetchedOffset) -> P:
    """``make`` is the class of the response's entries."""
    known = fetched.committed or _NO_OFFSET
    return make(
        partition_index=number,
        committed_offset=known.offset,
        committed_leader_epoch=known.leader_epoch,
        metadata=known.metadata,
        error_code=fetched.error,
    )


def _group(group: OffsetFetchRequestGroup, found: Fetched, error: ErrorCode) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        error_code=error,
        topics=finish(results_by_topic(found.items(), _partition_of_group, _topic_of_group)),
    )


def _partition_of_group(number: int, fetched: FetchedOffset) -> OffsetFetchResponsePartitions:
    return _partition(OffsetFetchResponsePartitions, number, fetched)


def _topic_of_group(name: str, partitions: tuple[OffsetFetchResponsePartitions, ...]) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(name=name, partitions=partitions)


def error_response(message: OffsetFetchRequest, context: RequestContext, error: ErrorCode) -> OffsetFetchResponse:
    if context.api_version >= _FIRST_BATCHED_VERSION:
        return OffsetFetchResponse(groups=tuple(_group(group, {}, error) for group in message.groups))
    if context.api_version >= 2:
        return _single({}, error)
    return _single(dict.fromkeys(_partitions(message.topics) or (), FetchedOffset(None, error)))


HANDLER: Final = Handler(OffsetFetchRequest, handle, error_response)
