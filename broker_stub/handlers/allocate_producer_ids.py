"""AllocateProducerIds (key 67), version 0: handed to this node's controller (rule 11.82)."""

from __future__ import annotations

from typing import Final

from broker_stub.handlers.base import Handler, Services, replying
from broker_stub.ports import ProducerIds
from broker_stub.reactor import Request, RequestContext
from wire import AllocateProducerIdsRequest, AllocateProducerIdsResponse, ErrorCode


async def handle(request: Request, message: AllocateProducerIdsRequest, services: Services) -> None:
    reply = replying(request)

    def answer(result: ProducerIds | ErrorCode) -> None:
        if isinstance(result, ErrorCode):
            reply(AllocateProducerIdsResponse(error_code=result))
        else:
            count = result.last - result.first + 1
            reply(AllocateProducerIdsResponse(producer_id_start=result.first, producer_id_len=count))

    services.controller.allocate_producer_ids(message.broker_id, message.broker_epoch, answer)


def error_response(
    message: AllocateProducerIdsRequest, context: RequestContext, error: ErrorCode
) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(error_code=error)


HANDLER: Final = Handler(AllocateProducerIdsRequest, handle, error_response)
