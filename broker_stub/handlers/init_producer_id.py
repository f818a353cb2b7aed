"""InitProducerId (key 22), versions 0-5: for idempotent producers; there are no transactions (rules B3.57-B3.61)."""

from __future__ import annotations

from typing import Final

from broker_stub.errors import InvalidRequest
from broker_stub.handlers.base import Handler, Services, answering
from broker_stub.reactor import RequestContext
from wire import ErrorCode, InitProducerIdRequest, InitProducerIdResponse

_NONE: Final = -1


def respond(message: InitProducerIdRequest, context: RequestContext, services: Services) -> InitProducerIdResponse:
    """Raises InvalidRequest."""
    if (message.producer_id == _NONE) != (message.producer_epoch == _NONE):  # rule B3.58
        raise InvalidRequest("a producer id without its epoch, or an epoch without its id")
    if message.transactional_id is not None:
        return error_response(message, context, _transactional_error(message.transactional_id))
    found = services.producer_ids.next_id()
    if found is None:
        return error_response(message, context, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return InitProducerIdResponse(producer_id=found, producer_epoch=0)


def _transactional_error(transactional_id: str) -> ErrorCode:
    """What ends the client at once (rules B3.60, B3.61)."""
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if transactional_id else ErrorCode.INVALID_REQUEST


def error_response(message: InitProducerIdRequest, context: RequestContext, error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_epoch=_NONE)


HANDLER: Final = Handler(InitProducerIdRequest, answering(respond), error_response)
