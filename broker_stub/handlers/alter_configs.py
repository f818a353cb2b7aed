"""AlterConfigs (key 33), versions 0-2: replaces all settings of topics or of this broker, by any broker (rule B7.27).

What it shares with IncrementalAlterConfigs is here: which resource may be changed by whom, reading and storing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from broker_stub.config_changes import Change, OpType, changed_broker_config, changed_topic_config
from broker_stub.errors import ApiError, InvalidRequest, UnknownTopicOrPartition
from broker_stub.handlers.base import Handler, Services, answering_later
from broker_stub.handlers.describe_configs import ALL_BROKERS, BROKER, TOPIC
from broker_stub.reactor import RequestContext
from wire import AlterConfigsRequest, AlterConfigsResponse, ErrorCode
from wire import AlterConfigsResponseAlterConfigsResourceResponse as ResourceResponse

logger = logging.getLogger("broker_stub.handlers")


class Resource(NamedTuple):
    type: int
    name: str


async def alter_all(
    asked: Sequence[tuple[Resource, Sequence[Change]]],
    services: Services,
    *,
    validate_only: bool,
    replace: bool = False,
) -> dict[Resource, tuple[ErrorCode, str | None]]:
    """Code and reason for each resource. ``replace``: the changes start from nothing."""
    times = Counter(resource for resource, _ in asked)
    answers: dict[Resource, tuple[ErrorCode, str | None]] = {}
    for resource, changes in asked:
        try:
            if times[resource] > 1:
                answers[resource] = ErrorCode.INVALID_REQUEST, f"{resource.name!r} is there twice"
                continue
            await _alter(resource, changes, services, validate_only=validate_only, replace=replace)
            answers[resource] = ErrorCode.NONE, None
        except ApiError as e:
            answers[resource] = e.code, str(e)
        except Exception as e:  # the other resources are to be answered all the same
            logger.exception("the settings of %r cannot be changed", resource)
            answers[resource] = ErrorCode.UNKNOWN_SERVER_ERROR, str(e)
    return answers


async def _alter(
    resource: Resource, changes: Sequence[Change], services: Services, *, validate_only: bool, replace: bool
) -> None:
    """Read, change, store: without a version check, as Kafka does it. Raises ApiError."""
    kind, entity = _entity(resource, services)
    now = {} if replace else await services.admin.config(kind, entity)
    if kind == "topics":
        changed = changed_topic_config(now, changes)
    else:
        changed = changed_broker_config(now, changes, for_all_brokers=entity == ALL_BROKERS)
    if not validate_only:
        await services.admin.change_config(kind, entity, changed)


def _entity(resource: Resource, services: Services) -> tuple[str, str]:
    """As the store names it. Raises ApiError."""
    if resource.type == TOPIC:
        if not resource.name:
            raise InvalidRequest("a topic without a name has no settings")
        if resource.name not in services.metadata_cache.snapshot.topics:
            raise UnknownTopicOrPartition(f"there is no topic {resource.name}")
        return "topics", resource.name
    if resource.type == BROKER:
        own = str(services.config.broker_id)
        if resource.name not in ("", own):
            raise InvalidRequest(f"this is broker {own}, which cannot change the settings of {resource.name!r}")
        return "brokers", resource.name or ALL_BROKERS
    raise InvalidRequest(f"resources of type {resource.type} have no settings here")


async def respond(message: AlterConfigsRequest, context: RequestContext, services: Services) -> AlterConfigsResponse:
    asked = [
        (
            Resource(resource.resource_type, resource.resource_name),
            [Change(entry.name, OpType.SET, entry.value) for entry in resource.configs],
        )
        for resource in message.resources
    ]
    answers = await alter_all(asked, services, validate_only=message.validate_only, replace=True)
    return AlterConfigsResponse(
        responses=tuple(
            ResourceResponse(error_code=code, error_message=why, resource_type=r.type, resource_name=r.name)
            for r, (code, why) in answers.items()
        )
    )


def error_response(message: AlterConfigsRequest, context: RequestContext, error: ErrorCode) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=tuple(
            ResourceResponse(
                error_code=error, error_message=None, resource_type=r.resource_type, resource_name=r.resource_name
            )
            for r in message.resources
        )
    )


HANDLER: Final = Handler(AlterConfigsRequest, answering_later(respond), error_response)
