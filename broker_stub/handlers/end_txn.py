"""EndTxn (key 26), versions 0-4 (rules T5.8 to T5.12)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.handlers.base import Handler, Services, respond_to
from kce.broker_stub.handlers.transactions import check_supported, known_to
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.wire import EndTxnRequest, EndTxnResponse, ErrorCode

_FENCED_SINCE: Final = 2


def handle(request: Request, message: EndTxnRequest, services: Services) -> None:
    """Raises Refused, IllegalTransition."""
    check_supported(services)
    services.authorization.check(
        request.context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, message.transactional_id
    )

    def respond(code: ErrorCode) -> None:
        code = known_to(code, request.context.header.api_version, _FENCED_SINCE)
        respond_to(request, lambda: EndTxnResponse(error_code=code))

    services.transactions.end(
        message.transactional_id, message.producer_id, message.producer_epoch, commit=message.committed, on_done=respond
    )


def error_response(message: EndTxnRequest, context: RequestContext, error: ErrorCode) -> EndTxnResponse:
    return EndTxnResponse(error_code=error)


HANDLER: Final = Handler(EndTxnRequest, handle, error_response)
