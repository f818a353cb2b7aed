"""CreatePartitions (key 37), versions 0-3: written to the metadata store by the controller's broker (10.12-10.16)."""

from __future__ import annotations

from typing import Final

from broker_stub.handlers.admin import has_leaders, named_twice, wait_for
from broker_stub.handlers.base import Handler, Services, answering_later
from broker_stub.reactor import RequestContext
from wire import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    ErrorCode,
)

_FIRST_VERSION_THAT_KNOWS_QUOTAS: Final = 3


async def respond(
    message: CreatePartitionsRequest, context: RequestContext, services: Services
) -> CreatePartitionsResponse:
    if not services.controller.is_active:
        return error_response(message, context, ErrorCode.NOT_CONTROLLER)
    twice = named_twice(topic.name for topic in message.topics)
    quota = services.mutation_quota(context, strict_from=_FIRST_VERSION_THAT_KNOWS_QUOTAS)
    results, added = {}, {}
    for topic in message.topics:
        name = topic.name
        if name in twice:
            results[name] = _refusal(name, ErrorCode.INVALID_REQUEST, f"topic {name} is there twice")
        elif services.controller.is_queued_for_deletion(name):
            results[name] = _refusal(name, ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name} is being deleted")
        else:
            results[name], numbers = await services.admin.create_partitions(
                topic, validate_only=message.validate_only, permit=quota.record
            )
            if numbers:
                added[name] = numbers
    await wait_for(services, message.timeout_ms, lambda now: all(has_leaders(now, name, added[name]) for name in added))
    for name, numbers in added.items():
        if message.timeout_ms <= 0 or not has_leaders(services.metadata_cache.snapshot, name, numbers):
            why = f"partitions are added to topic {name}, but have no leaders yet"
            results[name] = _refusal(name, ErrorCode.REQUEST_TIMED_OUT, why)
    return CreatePartitionsResponse(results=tuple(results.values()), throttle_time_ms=quota.throttle_time_ms)


def _refusal(name: str, error: ErrorCode, why: str | None = None) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=error, error_message=why)


def error_response(
    message: CreatePartitionsRequest, context: RequestContext, error: ErrorCode
) -> CreatePartitionsResponse:
    by_name = {topic.name: _refusal(topic.name, error) for topic in message.topics}
    return CreatePartitionsResponse(results=tuple(by_name.values()))


HANDLER: Final = Handler(CreatePartitionsRequest, answering_later(respond), error_response)
