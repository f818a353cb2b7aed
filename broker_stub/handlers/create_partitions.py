"""CreatePartitions (key 37), versions 0-3: the active controller's broker writes to the store (rules 10.12-10.16)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from kce.broker_stub.handlers.admin import has_leaders, wait_for_leaders
from kce.broker_stub.handlers.base import Handler, Services, answering_later
from kce.broker_stub.reactor import RequestContext
from kce.wire import CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopicResult, ErrorCode

_FIRST_VERSION_WITH_QUOTA_ERROR: Final = 3


async def respond(
    message: CreatePartitionsRequest, context: RequestContext, services: Services
) -> CreatePartitionsResponse:
    if not services.controller.is_active:
        return error_response(message, context, ErrorCode.NOT_CONTROLLER)
    times = Counter(topic.name for topic in message.topics)
    quota = services.mutation_quota(context, strict_from=_FIRST_VERSION_WITH_QUOTA_ERROR)
    results: dict[str, CreatePartitionsTopicResult] = {}
    changed: dict[str, Collection[int]] = {}
    wanted = []
    for topic in message.topics:
        name = topic.name
        if times[name] > 1:
            results[name] = _refusal(name, ErrorCode.INVALID_REQUEST, f"topic {name} appears twice")
        elif services.controller.is_queued_for_deletion(name):
            results[name] = _refusal(name, ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name} is being deleted")
        else:
            wanted.append(topic)
    for result, numbers in await services.admin.create_partitions(
        wanted, validate_only=message.validate_only, permit=quota.record
    ):
        results[result.name] = result
        if numbers:
            changed[result.name] = numbers
    await wait_for_leaders(services, message.timeout_ms, changed)
    for name, numbers in changed.items():  # rule 10.16: the partitions that it had before, too
        if message.timeout_ms <= 0 or not has_leaders(services.metadata_cache.snapshot, name, numbers):
            results[name] = _refusal(name, ErrorCode.REQUEST_TIMED_OUT)
    return CreatePartitionsResponse(
        results=tuple(results[name] for name in times), throttle_time_ms=quota.throttle_time_ms
    )


def _refusal(name: str, error: ErrorCode, why: str | None = None) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=error, error_message=why)


def error_response(
    message: CreatePartitionsRequest, context: RequestContext, error: ErrorCode
) -> CreatePartitionsResponse:
    by_name = {topic.name: _refusal(topic.name, error) for topic in message.topics}
    return CreatePartitionsResponse(results=tuple(by_name.values()))


HANDLER: Final = Handler(CreatePartitionsRequest, answering_later(respond), error_response)
