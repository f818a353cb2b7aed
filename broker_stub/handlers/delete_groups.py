"""DeleteGroups (key 42), versions 0-2 (rule G7.33)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.handlers.base import Answer, Handler, Later, Services, answering_in_steps
from kce.broker_stub.handlers.long_answers import answer_in_steps
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.wire import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse, ErrorCode
from kce.wire.steps import STEP_MASK, Steps


def respond(message: DeleteGroupsRequest, context: RequestContext, services: Services) -> Steps[Answer | Later]:
    groups = dict.fromkeys(message.groups_names)
    denied = yield from services.authorization.denied_in_steps(context, Operation.DELETE, ResourceType.GROUP, groups)
    deleted, refused = [], []
    for i, group in enumerate(groups, 1):
        if group in denied:
            refused.append(DeletableGroupResult(group_id=group, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
        else:
            deleted.append(DeletableGroupResult(group_id=group, error_code=services.groups.delete([group])[group]))
        if not i & STEP_MASK:
            yield
    return (yield from answer_in_steps(DeleteGroupsResponse(results=(*deleted, *refused)), context))


def error_response(message: DeleteGroupsRequest, context: RequestContext, error: ErrorCode) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=tuple(DeletableGroupResult(group_id=group_id, error_code=error) for group_id in message.groups_names)
    )


HANDLER: Final = Handler(DeleteGroupsRequest, answering_in_steps(respond), error_response)
