"""LeaveGroup (key 13), versions 0-5 (section 6 of the group rules)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.handlers.base import Handler, Services
from kce.broker_stub.handlers.long_answers import Arrays, answering_each
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.wire import ErrorCode, LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

_FIRST_VERSION_WITH_MEMBERS: Final = 3


def respond(message: LeaveGroupRequest, context: RequestContext, services: Services) -> LeaveGroupResponse:
    """Raises Refused."""
    services.authorization.check(context, Operation.READ, ResourceType.GROUP, message.group_id)
    is_single = context.api_version < _FIRST_VERSION_WITH_MEMBERS
    members = (MemberIdentity(member_id=message.member_id),) if is_single else message.members
    error, results = services.groups.leave(message.group_id, members)
    if is_single:  # rule G6.8
        return LeaveGroupResponse(error_code=results[0].error_code if results else error)
    return LeaveGroupResponse(error_code=error, members=results)


def error_response(message: LeaveGroupRequest, context: RequestContext, error: ErrorCode) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=error)


_answer_each: Final = answering_each(respond, Arrays("members", "members"))
HANDLER: Final = Handler(LeaveGroupRequest, _answer_each, error_response)
