"""InitProducerId (key 22), versions 0-5: for idempotent producers, without transactions (rules B3.57-B3.61)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.errors import InvalidRequest
from kce.broker_stub.handlers.base import Handler, Services, answering
from kce.broker_stub.reactor import RequestContext
from kce.wire import ErrorCode, InitProducerIdRequest, InitProducerIdResponse

_NONE: Final = -1


def respond(message: InitProducerIdRequest, context: RequestContext, services: Services) -> InitProducerIdResponse:
    """Raises InvalidRequest."""
    if (message.producer_id == _NONE) != (message.producer_epoch == _NONE):  # rule B3.58
        raise InvalidRequest("producer id and producer epoch must be given together")
    if message.transactional_id is not None:
        return error_response(message, context, _transactional_error(message.transactional_id))
    producer_id = services.producer_ids.next_id()
    if producer_id is None:
        return error_response(message, context, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return InitProducerIdResponse(producer_id=producer_id)


def _transactional_error(transactional_id: str) -> ErrorCode:
    """A fatal error, so that the client gives up at once (rules B3.60, B3.61)."""
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if transactional_id else ErrorCode.INVALID_REQUEST


def error_response(message: InitProducerIdRequest, context: RequestContext, error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_epoch=_NONE)


HANDLER: Final = Handler(InitProducerIdRequest, answering(respond), error_response)
