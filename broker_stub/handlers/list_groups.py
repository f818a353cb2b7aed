"""ListGroups (key 16), versions 0-5 (rules G7.36, G7.37)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.handlers.base import Answer, Handler, Services, answering_in_steps
from kce.broker_stub.handlers.long_answers import answer_in_steps
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.wire import ErrorCode, ListGroupsRequest, ListGroupsResponse
from kce.wire.steps import STEP_MASK, Steps


def respond(message: ListGroupsRequest, context: RequestContext, services: Services) -> Steps[Answer]:
    error, groups = yield from services.groups.list_groups(message.states_filter, message.types_filter)
    authorization = services.authorization
    if authorization.is_on and not authorization.allows_on_cluster(context, Operation.DESCRIBE, log_denied=False):
        allowed = []
        for i, group in enumerate(groups, 1):
            if authorization.allows(context, Operation.DESCRIBE, ResourceType.GROUP, group.group_id, log_denied=False):
                allowed.append(group)
            if not i & STEP_MASK:
                yield
        groups = tuple(allowed)
    return (yield from answer_in_steps(ListGroupsResponse(error_code=error, groups=groups), context))


def error_response(message: ListGroupsRequest, context: RequestContext, error: ErrorCode) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=error)


HANDLER: Final = Handler(ListGroupsRequest, answering_in_steps(respond), error_response)
