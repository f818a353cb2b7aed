"""JoinGroup (key 11), versions 0-9 (section 3 of the group rules)."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Final

from kce.broker_stub.groups.joining import Join
from kce.broker_stub.groups.member import NO_GENERATION, Client, JoinResult, Protocols
from kce.broker_stub.handlers.base import Handler, Services, after_steps, respond_to
from kce.broker_stub.handlers.groups import instance_id_error
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.security.operations import GROUP, READ
from kce.wire import ErrorCode, JoinGroupRequest, JoinGroupResponse
from kce.wire.steps import STEP_MASK, Steps

#: of a member: the group looks at all of them at once, and keeps them
_MOST_PROTOCOLS: Final = 10_000
_FIRST_VERSION_WITH_REBALANCE_TIMEOUT: Final = 1
_FIRST_VERSION_THAT_REPEATS: Final = 4  # with the member id that it was given
_FIRST_VERSION_WITH_NULL_PROTOCOL: Final = 7
_FIRST_VERSION_THAT_SKIPS_ASSIGNMENT: Final = 9


def handle(request: Request, message: JoinGroupRequest, services: Services) -> Awaitable[None] | None:
    """Raises IllegalState, Refused."""
    context = request.context
    error = instance_id_error(message.group_instance_id, services)
    if error is not None:
        request.respond(error_response(message, context, error))
        return None
    services.authorization.check(context, READ, GROUP, message.group_id)
    if len(message.protocols) > _MOST_PROTOCOLS:
        request.respond(error_response(message, context, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        return None

    if len(message.protocols) <= STEP_MASK:
        _join(request, message, services, tuple([(each.name, bytes(each.metadata)) for each in message.protocols]))
        return None
    return after_steps(request, _protocols(message), partial(_join, request, message, services))


def _join(request: Request, message: JoinGroupRequest, services: Services, protocols: Protocols) -> None:
    context = request.context
    version = context.header.api_version
    asked = Join(
        group_id=message.group_id,
        member_id=message.member_id,
        client=Client(context.header.client_id or "", f"/{context.connection.client_host}"),
        session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=(
            message.session_timeout_ms
            if version < _FIRST_VERSION_WITH_REBALANCE_TIMEOUT
            else message.rebalance_timeout_ms
        ),
        protocol_type=message.protocol_type,
        protocols=protocols,
        instance_id=message.group_instance_id,
        reason=message.reason,
        requires_member_id=version >= _FIRST_VERSION_THAT_REPEATS and message.group_instance_id is None,
        can_skip_assignment=version >= _FIRST_VERSION_THAT_SKIPS_ASSIGNMENT,
    )
    services.groups.join(asked, lambda result: respond_to(request, _response, result, version))


def _protocols(message: JoinGroupRequest) -> Steps[Protocols]:
    protocols = []
    for i, protocol in enumerate(message.protocols, 1):
        protocols.append((protocol.name, bytes(protocol.metadata)))
        if not i & STEP_MASK:
            yield
    return tuple(protocols)


def _response(result: JoinResult, version: int) -> JoinGroupResponse:
    protocol_name = result.protocol_name or (None if version >= _FIRST_VERSION_WITH_NULL_PROTOCOL else "")
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=protocol_name,
        leader=result.leader or "",
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=result.members,
    )


def error_response(message: JoinGroupRequest, context: RequestContext, error: ErrorCode) -> JoinGroupResponse:
    """Rule G3.46."""
    return _response(JoinResult(member_id="", error=error, generation=NO_GENERATION), context.api_version)


HANDLER: Final = Handler(JoinGroupRequest, handle, error_response)
