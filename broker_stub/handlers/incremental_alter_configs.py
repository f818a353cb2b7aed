"""IncrementalAlterConfigs (key 44), versions 0-1: changes settings of topics or of this broker (rules B7.28, B7.29)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Final

from kce.broker_stub.config_operations import Change
from kce.broker_stub.handlers.alter_configs import alter_each, errors
from kce.broker_stub.handlers.base import Handler, Services
from kce.broker_stub.handlers.long_answers import Arrays, answering_each_later
from kce.broker_stub.reactor import RequestContext
from kce.wire import ErrorCode, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from kce.wire import IncrementalAlterConfigsRequestAlterConfigsResource as RequestResource
from kce.wire import IncrementalAlterConfigsResponseAlterConfigsResourceResponse as ResourceResponse


def _each(
    message: IncrementalAlterConfigsRequest, context: RequestContext, services: Services
) -> AsyncGenerator[ResourceResponse | None, None]:
    def changes_of(resource: RequestResource) -> Iterable[Change]:
        return (Change(entry.name, entry.config_operation, entry.value) for entry in resource.configs)

    return alter_each(
        ResourceResponse, message.resources, changes_of, context, services, validate_only=message.validate_only
    )


def error_response(
    message: IncrementalAlterConfigsRequest, context: RequestContext, error: ErrorCode
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(responses=errors(ResourceResponse, message.resources, error))


_answer: Final = answering_each_later(_each, IncrementalAlterConfigsResponse, Arrays("resources", "responses"))
HANDLER: Final = Handler(IncrementalAlterConfigsRequest, _answer, error_response)
