"""ListTransactions (key 66), versions 0-1 (rules T11.3 to T11.5)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.handlers.base import Answer, Handler, Services, answering_in_steps
from kce.broker_stub.handlers.long_answers import answer_in_steps
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.wire import (
    ErrorCode,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
)
from kce.wire.steps import STEP_MASK, Steps


def respond(message: ListTransactionsRequest, context: RequestContext, services: Services) -> Steps[Answer]:
    listed = yield from services.transactions.list_transactions(
        message.state_filters, message.producer_id_filters, message.duration_filter
    )
    found = []
    for i, metadata in enumerate(listed.found, 1):
        if services.authorization.allows(
            context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, metadata.transactional_id
        ):
            entry = ListTransactionsResponseTransactionState(
                transactional_id=metadata.transactional_id,
                producer_id=metadata.values.producer_id,
                transaction_state=metadata.values.state.label,
            )
            found.append(entry)
        if not i & STEP_MASK:
            yield
    response = ListTransactionsResponse(
        error_code=listed.error, unknown_state_filters=listed.unknown_states, transaction_states=tuple(found)
    )
    return (yield from answer_in_steps(response, context))


def error_response(
    message: ListTransactionsRequest, context: RequestContext, error: ErrorCode
) -> ListTransactionsResponse:
    return ListTransactionsResponse(error_code=error)


HANDLER: Final = Handler(ListTransactionsRequest, answering_in_steps(respond), error_response)
