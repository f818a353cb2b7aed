"""DescribeConfigs (key 32), versions 0-4, for topics and this broker (rules B7.25, B7.26), without documentation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable
from typing import Final

from kce.broker_stub import broker_loggers
from kce.broker_stub.authorization import DENIED
from kce.broker_stub.config_entries import (
    UNKNOWN_TYPE,
    BrokerSettings,
    ConfigEntry,
    ConfigSource,
    dynamic_default_entries,
    topic_entries,
)
from kce.broker_stub.errors import InvalidRequest
from kce.broker_stub.handlers.base import Handler, Services
from kce.broker_stub.handlers.long_answers import Arrays, answering_each_later
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import CLUSTER_NAME, Operation, ResourceType
from kce.wire import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    ErrorCode,
)
from kce.wire.configuration import whole_number
from kce.wire.steps import STEP_MASK
from kce.wire.vocabulary import is_valid_topic_name, topic_name_problem
from kce.zookeeper.znodes import DEFAULT_ENTITY

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS = 2, 4, 8, 16  # resource types
_OF_CLUSTER: Final = (BROKER, BROKER_LOGGER, CLIENT_METRICS)
_DESCRIBE: Final = Operation.DESCRIBE_CONFIGS


async def broker_settings(services: Services) -> BrokerSettings:
    """This broker's current settings."""
    return BrokerSettings(
        services.config.originals,
        await services.admin.config("brokers", str(services.config.broker_id)),
        await services.admin.config("brokers", DEFAULT_ENTITY),
    )


async def each(
    message: DescribeConfigsRequest, context: RequestContext, services: Services
) -> AsyncGenerator[DescribeConfigsResult | None, None]:
    """Raises InvalidRequest."""
    for i, resource in enumerate(message.resources, 1):
        if not i & STEP_MASK:
            yield None
        if resource.resource_type not in (TOPIC, *_OF_CLUSTER):
            raise InvalidRequest(f"unexpected resource type {resource.resource_type} of {resource.resource_name!r}")
    broker = await broker_settings(services)
    for resource in message.resources:
        denied = denied_config(resource.resource_type, resource.resource_name, _DESCRIBE, context, services)
        if denied is None:
            keys = {key async for key in context.paced(resource.configuration_keys or ())}
            yield await _describe(resource, keys, broker, services, with_synonyms=message.include_synonyms)
        else:
            yield _refusal(resource, denied, denied.name)


def denied_config(
    kind: int, name: str, operation: Operation, context: RequestContext, services: Services
) -> ErrorCode | None:
    """The error if the client may not do that with the settings of a topic, or of brokers."""
    if kind == TOPIC:
        resource = ResourceType.TOPIC
    elif kind in _OF_CLUSTER:
        resource, name = ResourceType.CLUSTER, CLUSTER_NAME
    else:
        return None
    return None if services.authorization.allows(context, operation, resource, name) else DENIED[resource]


async def _describe(
    resource: DescribeConfigsResource,
    keys: Collection[str],
    broker: BrokerSettings,
    services: Services,
    *,
    with_synonyms: bool,
) -> DescribeConfigsResult:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        if not is_valid_topic_name(name):
            why = f"Topic name is invalid: {topic_name_problem(name)}"
            return _refusal(resource, ErrorCode.INVALID_TOPIC_EXCEPTION, why)
        if name not in services.metadata_cache.snapshot.topics:
            return _refusal(resource, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
        found: Iterable[ConfigEntry] = topic_entries(await services.admin.config("topics", name), broker)
    elif resource.resource_type == BROKER:
        why = _broker_problem(name, services, " or empty string,") if name else ""
        if why:
            return _refusal(resource, ErrorCode.INVALID_REQUEST, why)
        found = broker.entries if name else dynamic_default_entries(broker)
    elif resource.resource_type == BROKER_LOGGER:
        why = _broker_problem(name, services, "") if name else "Broker id must not be empty"
        if why:
            return _refusal(resource, ErrorCode.INVALID_REQUEST, why)
        found = (
            ConfigEntry(logger, level, ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG, UNKNOWN_TYPE, False, False)
            for logger, level in broker_loggers.levels().items()
        )
    else:
        why = "Config type client-metrics is only supported on KRaft clusters"
        if not name:
            why = "Client metrics subscription name must not be empty"
        return _refusal(resource, ErrorCode.INVALID_REQUEST, why)
    return DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=name,
        configs=tuple(_results(found, keys, with_synonyms=with_synonyms)),
    )


def _results(
    entries: Iterable[ConfigEntry], keys: Collection[str], *, with_synonyms: bool
) -> Iterable[DescribeConfigsResourceResult]:
    for entry in entries:
        if not keys or entry.name in keys:
            yield DescribeConfigsResourceResult(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.is_sensitive,
                synonyms=tuple(
                    DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source) for s in entry.synonyms
                )
                if with_synonyms
                else (),
                config_type=entry.type,
                documentation=None,
            )


def _broker_problem(name: str, services: Services, alternative: str) -> str:
    """Why the name is not that of this broker, which may be written as Java reads numbers: 01, +1."""
    own, named = services.config.broker_id, whole_number(name)
    if named is None:
        return f"Broker id must be an integer, but it is: {name}"
    return "" if named == own else f"Unexpected broker id, expected {own}{alternative} but received {name}"


def _refusal(resource: DescribeConfigsResource, error: ErrorCode, why: str | None = None) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=error,
        error_message=why,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def error_response(
    message: DescribeConfigsRequest, context: RequestContext, error: ErrorCode
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=tuple(_refusal(resource, error) for resource in message.resources))


_answer: Final = answering_each_later(each, DescribeConfigsResponse, Arrays("resources", "results"))
HANDLER: Final = Handler(DescribeConfigsRequest, _answer, error_response)
