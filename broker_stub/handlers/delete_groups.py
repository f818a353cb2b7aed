"""DeleteGroups (key 42), versions 0-2 (rule G7.33)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.handlers.base import Handler, Services, answering
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.wire import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse, ErrorCode


def respond(message: DeleteGroupsRequest, context: RequestContext, services: Services) -> DeleteGroupsResponse:
    groups = dict.fromkeys(message.groups_names)
    denied = services.authorization.denied(context, Operation.DELETE, ResourceType.GROUP, groups)
    codes = dict(services.groups.delete({group: None for group in groups if group not in denied}))
    codes |= {group: ErrorCode.GROUP_AUTHORIZATION_FAILED for group in groups if group in denied}
    return DeleteGroupsResponse(
        results=tuple(DeletableGroupResult(group_id=group_id, error_code=code) for group_id, code in codes.items())
    )


def error_response(message: DeleteGroupsRequest, context: RequestContext, error: ErrorCode) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=tuple(DeletableGroupResult(group_id=group_id, error_code=error) for group_id in message.groups_names)
    )


HANDLER: Final = Handler(DeleteGroupsRequest, answering(respond), error_response)
