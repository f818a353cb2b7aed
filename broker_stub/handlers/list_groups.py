"""ListGroups (key 16), versions 0-5 (rules G7.36, G7.37)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.handlers.base import Handler, Services, answering
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.wire import ErrorCode, ListGroupsRequest, ListGroupsResponse


def respond(message: ListGroupsRequest, context: RequestContext, services: Services) -> ListGroupsResponse:
    error, groups = services.groups.list_groups(message.states_filter, message.types_filter)
    authorization = services.authorization
    if authorization.is_on and not authorization.allows_on_cluster(context, Operation.DESCRIBE):
        groups = tuple(
            group
            for group in groups
            if authorization.allows(context, Operation.DESCRIBE, ResourceType.GROUP, group.group_id, log_denied=False)
        )
    return ListGroupsResponse(error_code=error, groups=groups)


def error_response(message: ListGroupsRequest, context: RequestContext, error: ErrorCode) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=error)


HANDLER: Final = Handler(ListGroupsRequest, answering(respond), error_response)
