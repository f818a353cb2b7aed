"""LeaderAndIsr (key 4), versions 0-7: fenced by broker epoch here, then by the replica manager (rules 9.1-9.29)."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Iterable, Mapping
from typing import Final

from kce.broker_stub.control_requests import leader_and_isr_states, leader_and_isr_topic_ids
from kce.broker_stub.handlers.base import (
    Answer,
    Handler,
    Later,
    Services,
    after_reading,
    answering_in_steps,
    log_answer,
)
from kce.broker_stub.handlers.long_answers import answer_in_steps
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
from kce.wire.steps import STEP_MASK, Steps, finish
from kce.wire.vocabulary import TopicPartition

_FIRST_VERSION_BY_ID: Final = 5


def respond(message: LeaderAndIsrRequest, context: RequestContext, services: Services) -> Steps[Answer | Later]:
    error: ErrorCode = ErrorCode.STALE_BROKER_EPOCH  # rule 9.6
    if not services.is_stale_broker_epoch(message.broker_epoch):
        result = services.replica_manager.become_leader_or_follower(message, context.header.correlation_id)
        error = result.error
    if error == ErrorCode.NONE:
        steps = _response(context.api_version, ErrorCode.NONE, result.partitions.items(), result.topic_ids)
    else:  # rule 9.9
        steps = _errors(message, context, error)
    log_answer(message, error, context, services)
    return (yield from answer_in_steps((yield from steps), context))


def error_response(message: LeaderAndIsrRequest, context: RequestContext, error: ErrorCode) -> LeaderAndIsrResponse:
    """The error at the top level and for every partition (rule 9.4)."""
    return finish(_errors(message, context, error))


def _errors(message: LeaderAndIsrRequest, context: RequestContext, error: ErrorCode) -> Steps[LeaderAndIsrResponse]:
    codes = ((partition, error) for partition, _ in leader_and_isr_states(message))  # one that is there twice, too
    topic_ids = {topic.topic_name: topic.topic_id for topic in message.topic_states}
    return (yield from _response(context.api_version, error, codes, topic_ids))


def _response(
    api_version: int,
    error: ErrorCode,
    codes: Iterable[tuple[TopicPartition, ErrorCode]],
    topic_ids: Mapping[str, uuid.UUID],
) -> Steps[LeaderAndIsrResponse]:
    """Flat before version 5, then grouped by topic id; zero for topics without one (rules 9.27, 13.13, 13.14)."""
    is_flat = api_version < _FIRST_VERSION_BY_ID
    flat: list[LeaderAndIsrPartitionError] = []
    by_id: dict[uuid.UUID, list[LeaderAndIsrPartitionError]] = {}
    for i, (partition, code) in enumerate(codes, 1):
        found = flat if is_flat else by_id.setdefault(topic_ids.get(partition.topic, NO_TOPIC_ID), [])
        name = partition.topic if is_flat else ""
        found.append(LeaderAndIsrPartitionError(topic_name=name, partition_index=partition.partition, error_code=code))
        if not i & STEP_MASK:
            yield
    topics = []
    for i, (topic_id, errors) in enumerate(by_id.items(), 1):
        topics.append(LeaderAndIsrTopicError(topic_id=topic_id, partition_errors=tuple(errors)))
        if not i & STEP_MASK:
            yield
    return LeaderAndIsrResponse(error_code=error, partition_errors=tuple(flat), topics=tuple(topics))


_answer: Final = answering_in_steps(respond)


def handle(request: Request, message: LeaderAndIsrRequest, services: Services) -> Awaitable[None] | None:
    """The settings of new topics are read soon; those of internal ones first, because their coordinators append without
    a request. Raises ValueError for a request that contradicts itself (rule 13.11)."""
    leader_and_isr_topic_ids(message)
    if _is_fenced(message, services):
        return _answer(request, message, services)
    hosted = services.replica_manager.partitions
    topics = {partition.topic for partition, _ in leader_and_isr_states(message) if partition not in hosted}
    services.topic_settings.expect(topics)
    handle_rest = _answer_with_logs if topics and services.log_manager.makes_files_at_once else _answer
    if internal := topics & INTERNAL_TOPICS:
        return after_reading(internal, handle_rest, request, message, services)
    return handle_rest(request, message, services)


async def _answer_with_logs(request: Request, message: LeaderAndIsrRequest, services: Services) -> None:
    """Other requests do not wait for the files of all new logs, each of which takes several flushes."""
    await request.in_turns(services.replica_manager.logs_made(message))
    rest = _answer(request, message, services)
    if rest is not None:
        await rest


def _is_fenced(message: LeaderAndIsrRequest, services: Services) -> bool:
    return (
        services.is_stale_broker_epoch(message.broker_epoch)
        or message.controller_epoch < services.replica_manager.controller_epoch
    )


HANDLER: Final = Handler(
    LeaderAndIsrRequest,
    handle,
    error_response,
    needs=Operation.CLUSTER_ACTION,
    has_errors_of_parts=False,  # a partition has one
    errors_in_steps=_errors,
)
