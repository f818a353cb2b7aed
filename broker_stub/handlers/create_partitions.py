"""CreatePartitions (key 37), versions 0-3: the active controller's broker writes to the store (rules 10.12-10.16)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from kce.broker_stub.errors import Refused
from kce.broker_stub.handlers.admin import answering_mutations, has_leaders, wait_for_leaders
from kce.broker_stub.handlers.base import Handler, Services
from kce.broker_stub.quotas.mutations import MutationQuota
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopicResult, ErrorCode
from kce.zookeeper.znodes import is_path, topic_path

_FIRST_VERSION_WITH_QUOTA_ERROR: Final = 3


async def respond(
    message: CreatePartitionsRequest, context: RequestContext, services: Services, quota: MutationQuota
) -> CreatePartitionsResponse:
    """Raises Refused."""
    if not services.controller.is_active:
        raise Refused(ErrorCode.NOT_CONTROLLER)
    times = Counter[str]()
    async for topic in context.paced(message.topics):
        times[topic.name] += 1
    results: dict[str, CreatePartitionsTopicResult] = {}
    once = (name for name, count in times.items() if count == 1)
    denied = await services.authorization.denied_in_turns(context, Operation.ALTER, once)
    changed: dict[str, Collection[int]] = {}
    wanted = []
    async for topic in context.paced(message.topics):
        name = topic.name
        if times[name] > 1:
            results[name] = _refusal(name, ErrorCode.INVALID_REQUEST, "Duplicate topic in request.")
        elif name in denied:
            results[name] = _refusal(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "The topic authorization is failed.")
        elif services.controller.is_queued_for_deletion(name):
            results[name] = _refusal(name, ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name} is being deleted")
        elif not is_path(topic_path(name)):
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"no znode of a topic can be {name!r}")
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
    return CreatePartitionsResponse(results=tuple([results[name] for name in times]))


def _refusal(name: str, error: ErrorCode, why: str | None = None) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=error, error_message=why)


def error_response(
    message: CreatePartitionsRequest, context: RequestContext, error: ErrorCode
) -> CreatePartitionsResponse:
    by_name = {topic.name: _refusal(topic.name, error) for topic in message.topics}
    return CreatePartitionsResponse(results=tuple(by_name.values()))


HANDLER: Final = Handler(
    CreatePartitionsRequest,
    answering_mutations(respond, strict_from=_FIRST_VERSION_WITH_QUOTA_ERROR),
    error_response,
    distinct_errors="name",
)
