"""IncrementalAlterConfigs (key 44), versions 0-1: changes settings of topics or of this broker (rules B7.28, B7.29)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.config_operations import Change
from kce.broker_stub.handlers.alter_configs import Resource, alter_all, entries, errors
from kce.broker_stub.handlers.base import Handler, Services, answering_later
from kce.broker_stub.reactor import RequestContext
from kce.wire import ErrorCode, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from kce.wire import IncrementalAlterConfigsResponseAlterConfigsResourceResponse as ResourceResponse


async def respond(
    message: IncrementalAlterConfigsRequest, context: RequestContext, services: Services
) -> IncrementalAlterConfigsResponse:
    changes = [
        (
            Resource(resource.resource_type, resource.resource_name),
            [Change(entry.name, entry.config_operation, entry.value) for entry in resource.configs],
        )
        for resource in message.resources
    ]
    results = await alter_all(changes, context, services, validate_only=message.validate_only)
    return IncrementalAlterConfigsResponse(responses=entries(ResourceResponse, results))


def error_response(
    message: IncrementalAlterConfigsRequest, context: RequestContext, error: ErrorCode
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(responses=entries(ResourceResponse, errors(message.resources, error)))


HANDLER: Final = Handler(IncrementalAlterConfigsRequest, answering_later(respond), error_response)
