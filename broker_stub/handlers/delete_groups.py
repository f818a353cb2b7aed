"""DeleteGroups (key 42), versions 0-2 (rule G7.33)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.handlers.base import Handler, Services, answering
from kce.broker_stub.reactor import RequestContext
from kce.wire import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse, ErrorCode


def respond(message: DeleteGroupsRequest, context: RequestContext, services: Services) -> DeleteGroupsResponse:
    codes = services.groups.delete(dict.fromkeys(message.groups_names))
    return DeleteGroupsResponse(
        results=tuple(DeletableGroupResult(group_id=group_id, error_code=code) for group_id, code in codes.items())
    )


def error_response(message: DeleteGroupsRequest, context: RequestContext, error: ErrorCode) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=tuple(DeletableGroupResult(group_id=group_id, error_code=error) for group_id in message.groups_names)
    )


HANDLER: Final = Handler(DeleteGroupsRequest, answering(respond), error_response)
