"""IncrementalAlterConfigs (key 44), versions 0-1: of topics and of this broker, by any broker (rules B7.28, B7.29)."""

from __future__ import annotations

from typing import Final

from broker_stub.config_changes import Change
from broker_stub.handlers.alter_configs import Resource, alter_all
from broker_stub.handlers.base import Handler, Services, answering_later
from broker_stub.reactor import RequestContext
from wire import ErrorCode, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from wire import IncrementalAlterConfigsResponseAlterConfigsResourceResponse as ResourceResponse


async def respond(
    message: IncrementalAlterConfigsRequest, context: RequestContext, services: Services
) -> IncrementalAlterConfigsResponse:
    asked = [
        (
            Resource(resource.resource_type, resource.resource_name),
            [Change(entry.name, entry.config_operation, entry.value) for entry in resource.configs],
        )
        for resource in message.resources
    ]
    answers = await alter_all(asked, services, validate_only=message.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=tuple(
            ResourceResponse(error_code=code, error_message=why, resource_type=r.type, resource_name=r.name)
            for r, (code, why) in answers.items()
        )
    )


def error_response(
    message: IncrementalAlterConfigsRequest, context: RequestContext, error: ErrorCode
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=tuple(
            ResourceResponse(
                error_code=error, error_message=None, resource_type=r.resource_type, resource_name=r.resource_name
            )
            for r in message.resources
        )
    )


HANDLER: Final = Handler(IncrementalAlterConfigsRequest, answering_later(respond), error_response)
