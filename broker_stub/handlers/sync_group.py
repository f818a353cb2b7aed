"""SyncGroup (key 14), versions 0-5 (section 4 of the group rules)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.groups.coordinator import Sync
from kce.broker_stub.groups.member import SyncResult
from kce.broker_stub.handlers.base import Handler, Services, respond_to
from kce.broker_stub.handlers.groups import instance_id_error
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.security.operations import GROUP, READ
from kce.wire import ErrorCode, SyncGroupRequest, SyncGroupResponse

_FIRST_VERSION_WITH_PROTOCOL: Final = 5


def handle(request: Request, message: SyncGroupRequest, services: Services) -> None:
    """Raises IllegalState, EncodeError, Refused."""
    error = instance_id_error(message.group_instance_id, services)
    names = message.protocol_type, message.protocol_name
    if error is None and None in names and request.context.api_version >= _FIRST_VERSION_WITH_PROTOCOL:
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # rule G4.1
    if error is not None:
        request.respond(SyncGroupResponse(error_code=error))
        return
    services.authorization.check(request.context, READ, GROUP, message.group_id)
    sync = Sync(
        message.group_id,
        message.generation_id,
        message.member_id,
        message.group_instance_id,
        *names,
        {entry.member_id: bytes(entry.assignment) for entry in message.assignments},
    )
    services.groups.sync(sync, lambda result: respond_to(request, _response, result))


def _response(result: SyncResult) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


def error_response(message: SyncGroupRequest, context: RequestContext, error: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error)


HANDLER: Final = Handler(SyncGroupRequest, handle, error_response)
