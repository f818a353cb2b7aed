"""ConsumerGroupHeartbeat (key 68) and ConsumerGroupDescribe (key 69), version 0: listed, and refused (rule B1.62)."""

from __future__ import annotations

from typing import Any, Final

from kce.broker_stub.errors import Refused
from kce.broker_stub.handlers.base import Handler, Services
from kce.broker_stub.reactor import Request, RequestContext
from kce.wire import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseDescribedGroup,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ErrorCode,
)


def _refuse(request: Request, message: Any, services: Services) -> None:
    """Raises Refused: the new protocol of groups needs KRaft."""
    raise Refused(ErrorCode.UNSUPPORTED_VERSION)


def _heartbeat_error(
    message: ConsumerGroupHeartbeatRequest, context: RequestContext, error: ErrorCode
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error)


def _describe_error(
    message: ConsumerGroupDescribeRequest, context: RequestContext, error: ErrorCode
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=tuple(
            ConsumerGroupDescribeResponseDescribedGroup(group_id=group_id, error_code=error)
            for group_id in message.group_ids
        )
    )


HANDLERS: Final[tuple[Handler[Any], ...]] = (
    Handler(ConsumerGroupHeartbeatRequest, _refuse, _heartbeat_error),
    Handler(ConsumerGroupDescribeRequest, _refuse, _describe_error),
)
