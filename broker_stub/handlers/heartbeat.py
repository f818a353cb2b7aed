"""Heartbeat (key 12), versions 0-4 (section 5 of the group rules)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.groups.coordinator import Committer
from kce.broker_stub.handlers.base import Handler, Services, answering
from kce.broker_stub.handlers.groups import instance_id_error
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import GROUP, READ
from kce.wire import ErrorCode, HeartbeatRequest, HeartbeatResponse


def respond(message: HeartbeatRequest, context: RequestContext, services: Services) -> HeartbeatResponse:
    """Raises Refused."""
    error = instance_id_error(message.group_instance_id, services)
    if error is None:
        services.authorization.check(context, READ, GROUP, message.group_id)
        member = Committer(message.generation_id, message.member_id, message.group_instance_id)
        error = services.groups.heartbeat(message.group_id, member)
    return HeartbeatResponse(error_code=error)


def error_response(message: HeartbeatRequest, context: RequestContext, error: ErrorCode) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=error)


HANDLER: Final = Handler(HeartbeatRequest, answering(respond), error_response)
