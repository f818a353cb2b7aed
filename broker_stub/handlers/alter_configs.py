"""AlterConfigs (key 33), versions 0-2: replaces all settings of topics or of this broker (rule B7.27).

IncrementalAlterConfigs uses the same code: which broker may change a resource, reading and storing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from kce.broker_stub import broker_loggers
from kce.broker_stub.config_entries import BrokerSettings
from kce.broker_stub.config_operations import (
    Change,
    OpType,
    changed_broker_config,
    changed_topic_config,
    check_changes,
    check_topic_values,
    known_settings,
)
from kce.broker_stub.dynamic_config import DynamicConfig
from kce.broker_stub.errors import ApiException, InvalidConfig, InvalidRequest, UnknownTopicOrPartition
from kce.broker_stub.handlers.base import Handler, Services
from kce.broker_stub.handlers.describe_configs import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    TOPIC,
    broker_settings,
    denied_config,
)
from kce.broker_stub.handlers.long_answers import Arrays, answering_each_later
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import AlterConfigsRequest, AlterConfigsResponse, ErrorCode
from kce.wire import AlterConfigsRequestAlterConfigsResource as RequestResource
from kce.wire import AlterConfigsResponseAlterConfigsResourceResponse as ResourceResponse
from kce.wire.configuration import ConfigError, whole_number
from kce.wire.steps import STEP_MASK
from kce.zookeeper.znodes import DEFAULT_ENTITY, config_path, is_path

log = logging.getLogger(__name__)

_NAMES: Final = {TOPIC: "TOPIC", BROKER: "BROKER", BROKER_LOGGER: "BROKER_LOGGER"}

R = TypeVar("R")


class Requested(Protocol):
    """A resource in the requests of both APIs."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


Q = TypeVar("Q", bound=Requested)


class Resource(NamedTuple):
    type: int
    name: str


def errors(make: Callable[..., R], resources: Iterable[Requested], error: ErrorCode) -> tuple[R, ...]:
    """The same error for every resource of a request. ``make`` is the class of the response's entries."""
    return tuple(_entry(make, Resource(r.resource_type, r.resource_name), error, None) for r in resources)


def _entry(make: Callable[..., R], resource: Resource, code: ErrorCode, text: str | None) -> R:
    return make(error_code=code, error_message=text, resource_type=resource.type, resource_name=resource.name)


async def alter_each(
    make: Callable[..., R],
    resources: Sequence[Q],
    changes_of: Callable[[Q], Iterable[Change]],
    context: RequestContext,
    services: Services,
    *,
    validate_only: bool,
    replace: bool = False,
) -> AsyncGenerator[R | None, None]:
    """Change each resource; the entries of the response. ``replace``: start from an empty configuration."""
    counts = Counter[Resource]()
    for i, requested in enumerate(resources, 1):
        counts[Resource(requested.resource_type, requested.resource_name)] += 1
        if not i & STEP_MASK:
            yield None
    for requested in resources:
        resource = Resource(requested.resource_type, requested.resource_name)
        changes = [change async for change in context.paced(changes_of(requested))]
        try:
            await _check(resource, changes, context, times=counts[resource], replace=replace)
            denied = denied_config(resource.type, resource.name, Operation.ALTER_CONFIGS, context, services)
            if denied is None or resource.type == BROKER:  # whose settings Kafka checks before the rights
                is_final = denied is None and not validate_only
                await _alter(resource, changes, context, services, is_final=is_final, replace=replace)
            code, text = denied or ErrorCode.NONE, None
        except InvalidConfig as e:
            code, text = e.code, _with_resource(resource, str(e))
        except ApiException as e:
            code, text = e.code, None if e.code == ErrorCode.UNKNOWN_SERVER_ERROR else str(e)
        except Exception:  # the other resources still get their results
            log.exception("could not change the settings of %r", resource)
            code, text = ErrorCode.UNKNOWN_SERVER_ERROR, None
        yield _entry(make, resource, code, text)


async def _alter(
    resource: Resource,
    changes: Sequence[Change],
    context: RequestContext,
    services: Services,
    *,
    is_final: bool,
    replace: bool,
) -> None:
    """Read, change and, if it is final, store, without a version check, like Kafka. Raises ApiException."""
    if resource.type == BROKER_LOGGER:
        _check_broker(resource, services)
        broker_loggers.change(changes, validate_only=not is_final)
        return
    kind, entity = _entity(resource, services)
    if not (replace or is_path(path := config_path(kind, entity))):  # what is replaced is not read
        raise InvalidConfig(f'Invalid path string "{path}"')
    is_unknown = kind == "topics" and entity not in services.metadata_cache.snapshot.topics
    now = {} if replace or is_unknown else await services.admin.config(kind, entity)
    if kind == "topics":
        changed = await context.in_turns(changed_topic_config(now, changes))
        if is_unknown:
            raise UnknownTopicOrPartition(f"The topic '{entity}' does not exist.")
        check_topic_values(changed, services.dynamic_config.by_source)
    else:
        plain = services.dynamic_config.decoded(now)
        steps = changed_broker_config(plain, changes, for_all_brokers=entity == DEFAULT_ENTITY)
        changed = await context.in_turns(steps)
        known = await context.in_turns(known_settings(changed))
        _check_all(entity, known, await broker_settings(services), services.dynamic_config)
        if is_final:
            changed = _stored(entity, changed, services.dynamic_config)
    if is_final:
        await services.admin.change_config(kind, entity, changed)


def _check_all(entity: str, changed: Mapping[str, str], broker: BrokerSettings, dynamic: DynamicConfig) -> None:
    """Whether the broker can have these settings with its others. Raises InvalidRequest."""
    if entity == DEFAULT_ENTITY:
        wanted = {**changed, **dynamic.decoded(broker.dynamic)}
    else:
        wanted = {**dynamic.decoded(broker.dynamic_default), **changed}
    try:
        dynamic.check(wanted)
    except ConfigError as e:
        raise InvalidRequest(e.words) from None


def _stored(entity: str, changed: Mapping[str, str], dynamic: DynamicConfig) -> dict[str, str]:
    """What is stored; a change of anything of a broker reads its stores again (rule B9.38). Raises InvalidConfig."""
    try:
        if entity != DEFAULT_ENTITY:
            dynamic.reload_stores()
        return dynamic.encoded(changed)
    except ConfigError as e:
        raise InvalidConfig(e.words) from None


def _entity(resource: Resource, services: Services) -> tuple[str, str]:
    """Kind and name of the resource in the store. Raises ApiException."""
    if resource.type == TOPIC:
        if not resource.name:
            raise InvalidRequest("Default topic resources are not allowed.")
        return "topics", resource.name
    if resource.type == BROKER:
        if resource.name:
            _check_broker(resource, services)
            return "brokers", str(services.config.broker_id)
        return "brokers", DEFAULT_ENTITY
    raise InvalidRequest("AlterConfigs is only supported for topics and brokers, but resource type is CLIENT_METRICS")


async def _check(
    resource: Resource, changes: Sequence[Change], context: RequestContext, *, times: int, replace: bool
) -> None:
    """What Kafka checks before the client's rights. Raises InvalidRequest (rule B7.27)."""
    if times > 1:
        raise InvalidRequest("Each resource must appear at most once.")
    await context.in_turns(check_changes(changes))
    if resource.type not in (TOPIC, BROKER, CLIENT_METRICS) and (replace or resource.type != BROKER_LOGGER):
        raise InvalidRequest(f"Unknown resource type {resource.type}")


def _check_broker(resource: Resource, services: Services) -> None:
    """Raises InvalidRequest."""
    own, named = services.config.broker_id, whole_number(resource.name)
    if named is None:
        raise InvalidRequest(f"Node id must be an integer, but it is: {resource.name}")
    if named != own:
        raise InvalidRequest(f"Unexpected broker id, expected {own}, but received {resource.name}")


def _with_resource(resource: Resource, text: str) -> str:
    """Kafka names the resource in what it says about a value."""
    if not text.startswith(("Invalid value", "Validation", "Password", "Tiered Storage", "Invalid path")):
        return text
    named = f"ConfigResource(type={_NAMES[resource.type]}, name='{resource.name}')"
    return f"Invalid config value for resource {named}: {text}"


def _each(
    message: AlterConfigsRequest, context: RequestContext, services: Services
) -> AsyncGenerator[ResourceResponse | None, None]:
    def changes_of(resource: RequestResource) -> Iterable[Change]:
        return (Change(entry.name, OpType.SET, entry.value) for entry in resource.configs)

    return alter_each(
        ResourceResponse, message.resources, changes_of, context, services, validate_only=message.validate_only,
        replace=True,
    )  # fmt: skip


def error_response(message: AlterConfigsRequest, context: RequestContext, error: ErrorCode) -> AlterConfigsResponse:
    return AlterConfigsResponse(responses=errors(ResourceResponse, message.resources, error))


_answer: Final = answering_each_later(_each, AlterConfigsResponse, Arrays("resources", "responses"))
HANDLER: Final = Handler(AlterConfigsRequest, _answer, error_response)
