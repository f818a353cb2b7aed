"""DeleteTopics (key 20), versions 0-6: the active controller's broker marks topics for deletion (10.35, 10.36)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Final

from kce.broker_stub.errors import InvalidRequest, Refused
from kce.broker_stub.handlers.admin import answering_mutations, wait_for
from kce.broker_stub.handlers.base import Handler, Services
from kce.broker_stub.quotas.mutations import MutationQuota
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse, ErrorCode
from kce.wire.control import NO_TOPIC_ID

_FIRST_VERSION_WITH_DISABLED_ERROR: Final = 3
_FIRST_VERSION_WITH_QUOTA_ERROR: Final = 5


async def respond(
    message: DeleteTopicsRequest, context: RequestContext, services: Services, quota: MutationQuota
) -> DeleteTopicsResponse:
    """Raises InvalidRequest, Refused."""
    if not services.controller.is_active:
        raise Refused(ErrorCode.NOT_CONTROLLER)
    if not services.config.delete_topic_enable:
        has_error = context.api_version >= _FIRST_VERSION_WITH_DISABLED_ERROR
        disabled = ErrorCode.TOPIC_DELETION_DISABLED if has_error else ErrorCode.INVALID_REQUEST
        raise Refused(disabled)
    wanted = [
        (services.metadata_cache.snapshot.topic_names.get(topic_id) if name is None else name, topic_id)
        for name, topic_id in await _topics(message, context)
    ]
    names = [name for name, _ in wanted if name is not None]
    hidden = await services.authorization.denied_in_turns(context, Operation.DESCRIBE, names)
    denied = await services.authorization.denied_in_turns(context, Operation.DELETE, names)
    results = []
    async for name, topic_id in context.paced(wanted):
        if name is not None and topic_id != NO_TOPIC_ID and name in hidden:
            results.append(_denied(None, topic_id))
        elif name is not None and name in denied:
            results.append(_denied(name, topic_id))
        else:
            results.append(_checked(name, topic_id, services, quota))
    errors = await services.admin.delete_topics(_taken_on(results))
    results = [
        replace(r, error_code=errors[r.name]) if r.error_code == ErrorCode.NONE and r.name is not None else r
        for r in results
    ]
    marked = set(_taken_on(results))
    await wait_for(services, message.timeout_ms, lambda now: marked.isdisjoint(now.topics))
    topics = services.metadata_cache.snapshot.topics
    late = {name for name in marked if message.timeout_ms <= 0 or name in topics}
    return DeleteTopicsResponse(
        responses=tuple(replace(r, error_code=ErrorCode.REQUEST_TIMED_OUT) if r.name in late else r for r in results),
    )


async def _topics(message: DeleteTopicsRequest, context: RequestContext) -> Iterable[tuple[str | None, uuid.UUID]]:
    """Name and id of each topic, without repetitions. Raises InvalidRequest."""
    topics: dict[tuple[str | None, uuid.UUID], None] = {}
    named: Iterator[tuple[str | None, uuid.UUID]] = ((name, NO_TOPIC_ID) for name in message.topic_names)
    async for name, topic_id in context.paced(chain(((t.name, t.topic_id) for t in message.topics), named)):
        if (name is None) == (topic_id == NO_TOPIC_ID):
            raise InvalidRequest("a topic needs either a name or an id")
        topics[name, topic_id] = None
    return topics


def _denied(name: str | None, topic_id: uuid.UUID) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _checked(name: str | None, topic_id: uuid.UUID, services: Services, quota: MutationQuota) -> DeletableTopicResult:
    """The result, without an error if the deletion is taken on.

    It has the id only if the request has it, and never a message, as in Kafka.
    """
    snapshot = services.metadata_cache.snapshot
    if name is None:
        return DeletableTopicResult(name=None, topic_id=topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
    result = DeletableTopicResult(name=name, topic_id=topic_id)
    if name not in snapshot.topics:
        return replace(result, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not quota.record(len(snapshot.topics[name])):
        return replace(result, error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    return result


def _taken_on(results: Iterable[DeletableTopicResult]) -> list[str]:
    return list(dict.fromkeys(r.name for r in results if r.error_code == ErrorCode.NONE and r.name is not None))


def error_response(message: DeleteTopicsRequest, context: RequestContext, error: ErrorCode) -> DeleteTopicsResponse:
    by_id = [DeletableTopicResult(name=t.name, topic_id=t.topic_id, error_code=error) for t in message.topics]
    by_name = [DeletableTopicResult(name=name, error_code=error) for name in message.topic_names]
    return DeleteTopicsResponse(responses=tuple(by_id + by_name))


HANDLER: Final = Handler(
    DeleteTopicsRequest, answering_mutations(respond, strict_from=_FIRST_VERSION_WITH_QUOTA_ERROR), error_response
)
