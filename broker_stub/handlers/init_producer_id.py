"""InitProducerId (key 22), versions 0-5, for idempotent and for transactional producers (rules B3.57-B3.59, T4)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.authorization import Authorization
from kce.broker_stub.errors import InvalidRequest, Refused
from kce.broker_stub.handlers.base import Handler, Services, respond_to
from kce.broker_stub.handlers.transactions import known_to
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.broker_stub.transactions.coordinator import InitResult
from kce.wire import ErrorCode, InitProducerIdRequest, InitProducerIdResponse

_NONE: Final = -1
_FENCED_SINCE: Final = 4


def handle(request: Request, message: InitProducerIdRequest, services: Services) -> None:
    """Raises InvalidRequest, IllegalTransition, Refused."""
    _authorize(request.context, message.transactional_id, services.authorization)
    if (message.producer_id == _NONE) != (message.producer_epoch == _NONE):  # rule T4.1
        raise InvalidRequest("producer id and producer epoch must be given together")
    if message.transactional_id is None:
        request.respond(_idempotent(message, request.context, services))
        return

    def respond(result: InitResult) -> None:
        code = known_to(result.error, request.context.header.api_version, _FENCED_SINCE)
        respond_to(
            request,
            lambda: InitProducerIdResponse(
                error_code=code, producer_id=result.producer_id, producer_epoch=result.producer_epoch
            ),
        )

    expected = None if message.producer_id == _NONE else (message.producer_id, message.producer_epoch)
    services.transactions.init_producer_id(message.transactional_id, message.transaction_timeout_ms, expected, respond)


def _authorize(context: RequestContext, transactional_id: str | None, authorization: Authorization) -> None:
    """Raises Refused."""
    if transactional_id is not None:
        authorization.check(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    elif not authorization.allows_on_cluster(
        context, Operation.IDEMPOTENT_WRITE, log_denied=False
    ) and not authorization.allows_on_any(context, Operation.WRITE, ResourceType.TOPIC):
        raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def _idempotent(message: InitProducerIdRequest, context: RequestContext, services: Services) -> InitProducerIdResponse:
    producer_id = services.producer_ids.next_id()
    if producer_id is None:
        return error_response(message, context, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return InitProducerIdResponse(producer_id=producer_id)


def error_response(message: InitProducerIdRequest, context: RequestContext, error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_epoch=_NONE)


HANDLER: Final = Handler(InitProducerIdRequest, handle, error_response)
