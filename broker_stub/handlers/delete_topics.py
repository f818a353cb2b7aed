"""DeleteTopics (key 20), versions 0-6: the active controller's broker marks topics for deletion (10.35, 10.36)."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Final

from kce.broker_stub.client_quotas import MutationQuota
from kce.broker_stub.errors import InvalidRequest
from kce.broker_stub.handlers.admin import wait_for
from kce.broker_stub.handlers.base import Handler, Services, answering_later
from kce.broker_stub.reactor import RequestContext
from kce.wire import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse, ErrorCode
from kce.wire.control import NO_TOPIC_ID

_FIRST_VERSION_WITH_DISABLED_ERROR: Final = 3
_FIRST_VERSION_WITH_QUOTA_ERROR: Final = 5


async def respond(message: DeleteTopicsRequest, context: RequestContext, services: Services) -> DeleteTopicsResponse:
    """Raises InvalidRequest."""
    if not services.controller.is_active:
        return error_response(message, context, ErrorCode.NOT_CONTROLLER)
    if not services.config.delete_topic_enable:
        has_error = context.api_version >= _FIRST_VERSION_WITH_DISABLED_ERROR
        disabled = ErrorCode.TOPIC_DELETION_DISABLED if has_error else ErrorCode.INVALID_REQUEST
        return error_response(message, context, disabled)
    quota = services.mutation_quota(context, strict_from=_FIRST_VERSION_WITH_QUOTA_ERROR)
    results = [await _delete(name, topic_id, services, quota) for name, topic_id in _topics(message)]
    marked = {r.name for r in results if r.error_code == ErrorCode.NONE and r.name is not None}
    await wait_for(services, message.timeout_ms, lambda now: marked.isdisjoint(now.topics))
    topics = services.metadata_cache.snapshot.topics
    late = {name for name in marked if message.timeout_ms <= 0 or name in topics}
    return DeleteTopicsResponse(
        throttle_time_ms=quota.throttle_time_ms,
        responses=tuple(replace(r, error_code=ErrorCode.REQUEST_TIMED_OUT) if r.name in late else r for r in results),
    )


def _topics(message: DeleteTopicsRequest) -> list[tuple[str | None, uuid.UUID]]:
    """Name and id of each topic, without repetitions. Raises InvalidRequest."""
    topics = [(topic.name, topic.topic_id) for topic in message.topics]
    topics += [(name, NO_TOPIC_ID) for name in message.topic_names]
    for name, topic_id in topics:
        if (name is None) == (topic_id == NO_TOPIC_ID):
            raise InvalidRequest("a topic needs either a name or an id")
    return list(dict.fromkeys(topics))


async def _delete(
    name: str | None, topic_id: uuid.UUID, services: Services, quota: MutationQuota
) -> DeletableTopicResult:
    """The result has the id only if the request has it, and never a message, as in Kafka."""
    snapshot = services.metadata_cache.snapshot
    if name is None:
        name = snapshot.topic_names.get(topic_id)
        if name is None:
            return DeletableTopicResult(name=None, topic_id=topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
    result = DeletableTopicResult(name=name, topic_id=topic_id)
    if name not in snapshot.topics:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif not quota.record(len(snapshot.topics[name])):
        error = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    else:
        error = await services.admin.delete_topic(name)
    return result if error == ErrorCode.NONE else replace(result, error_code=error)


def error_response(message: DeleteTopicsRequest, context: RequestContext, error: ErrorCode) -> DeleteTopicsResponse:
    by_id = [DeletableTopicResult(name=t.name, topic_id=t.topic_id, error_code=error) for t in message.topics]
    by_name = [DeletableTopicResult(name=name, error_code=error) for name in message.topic_names]
    return DeleteTopicsResponse(responses=tuple(by_id + by_name))


HANDLER: Final = Handler(DeleteTopicsRequest, answering_later(respond), error_response)
