"""ControlledShutdown (key 7), versions 0-3: handed to this node's controller, parked until it answers (rule 9.69)."""

from __future__ import annotations

from typing import Final

from broker_stub.handlers.base import Handler, Services, replying
from broker_stub.reactor import Request, RequestContext
from wire import ControlledShutdownRequest, ControlledShutdownResponse, ErrorCode


async def handle(request: Request, message: ControlledShutdownRequest, services: Services) -> None:
    services.controller.controlled_shutdown(message.broker_id, message.broker_epoch, replying(request))


def error_response(
    message: ControlledShutdownRequest, context: RequestContext, error: ErrorCode
) -> ControlledShutdownResponse:
    return ControlledShutdownResponse(error_code=error)


HANDLER: Final = Handler(ControlledShutdownRequest, handle, error_response)
