"""ListTransactions (key 66), versions 0-1 (rules T11.3 to T11.5)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.handlers.base import Handler, Services, answering
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.wire import (
    ErrorCode,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
)


def respond(message: ListTransactionsRequest, context: RequestContext, services: Services) -> ListTransactionsResponse:
    listed = services.transactions.list_transactions(
        message.state_filters, message.producer_id_filters, message.duration_filter
    )
    return ListTransactionsResponse(
        error_code=listed.error,
        unknown_state_filters=listed.unknown_states,
        transaction_states=tuple(
            ListTransactionsResponseTransactionState(
                transactional_id=metadata.transactional_id,
                producer_id=metadata.values.producer_id,
                transaction_state=metadata.values.state.label,
            )
            for metadata in listed.found
            if services.authorization.allows(
                context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, metadata.transactional_id
            )
        ),
    )


def error_response(
    message: ListTransactionsRequest, context: RequestContext, error: ErrorCode
) -> ListTransactionsResponse:
    return ListTransactionsResponse(error_code=error)


HANDLER: Final = Handler(ListTransactionsRequest, answering(respond), error_response)
