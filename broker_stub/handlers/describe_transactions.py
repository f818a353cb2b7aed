"""DescribeTransactions (key 65), version 0 (rules T11.1, T11.2)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.errors import Refused
from kce.broker_stub.handlers.base import Handler, Services
from kce.broker_stub.handlers.long_answers import Arrays, answering_each
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.wire import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTopicData,
    DescribeTransactionsResponseTransactionState,
    ErrorCode,
)
from kce.wire.vocabulary import by_topic


def respond(
    message: DescribeTransactionsRequest, context: RequestContext, services: Services
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=tuple(_described(name, context, services) for name in message.transactional_ids)
    )


def _described(
    transactional_id: str, context: RequestContext, services: Services
) -> DescribeTransactionsResponseTransactionState:
    authorization = services.authorization
    if not authorization.allows(context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return _refused(transactional_id, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    try:
        values = services.transactions.describe(transactional_id).values
    except Refused as e:
        return _refused(transactional_id, e.code)
    topics = by_topic(dict.fromkeys(sorted(values.partitions)))
    return DescribeTransactionsResponseTransactionState(
        transactional_id=transactional_id,
        transaction_state=values.state.label,
        transaction_timeout_ms=values.timeout_ms,
        transaction_start_time_ms=values.start_ms,
        producer_id=values.producer_id,
        producer_epoch=values.producer_epoch,
        topics=tuple(
            DescribeTransactionsResponseTopicData(topic=topic, partitions=tuple(numbers))
            for topic, numbers in topics.items()
            if authorization.allows(context, Operation.DESCRIBE, ResourceType.TOPIC, topic)
        ),
    )


def _refused(transactional_id: str, error: ErrorCode) -> DescribeTransactionsResponseTransactionState:
    return DescribeTransactionsResponseTransactionState(transactional_id=transactional_id, error_code=error)


def error_response(
    message: DescribeTransactionsRequest, context: RequestContext, error: ErrorCode
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=tuple(_refused(name, error) for name in message.transactional_ids)
    )


HANDLER: Final = Handler(
    DescribeTransactionsRequest,
    answering_each(respond, Arrays("transactional_ids", "transaction_states")),
    error_response,
)
