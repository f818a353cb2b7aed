"""AlterPartition (key 56), versions 0-3: handed to this node's controller, parked until it answers (rule 9.70)."""

from __future__ import annotations

from typing import Final

from broker_stub.handlers.base import Handler, Services, replying
from broker_stub.reactor import Request, RequestContext
from wire import AlterPartitionRequest, AlterPartitionResponse, ErrorCode


async def handle(request: Request, message: AlterPartitionRequest, services: Services) -> None:
    services.controller.alter_partition(message, request.context.api_version, replying(request))


def error_response(message: AlterPartitionRequest, context: RequestContext, error: ErrorCode) -> AlterPartitionResponse:
    return AlterPartitionResponse(error_code=error)


HANDLER: Final = Handler(AlterPartitionRequest, handle, error_response)
