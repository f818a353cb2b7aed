"""ListGroups (key 16), versions 0-5 (rules G7.36, G7.37)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.handlers.base import Handler, Services, answering
from kce.broker_stub.reactor import RequestContext
from kce.wire import ErrorCode, ListGroupsRequest, ListGroupsResponse


def respond(message: ListGroupsRequest, context: RequestContext, services: Services) -> ListGroupsResponse:
    error, groups = services.groups.list_groups(message.states_filter, message.types_filter)
    return ListGroupsResponse(error_code=error, groups=groups)


def error_response(message: ListGroupsRequest, context: RequestContext, error: ErrorCode) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=error)


HANDLER: Final = Handler(ListGroupsRequest, answering(respond), error_response)
