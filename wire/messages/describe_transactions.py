"""DescribeTransactions (key 65), versions 0."""

from kce.wire.primitives import INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
    "DescribeTransactionsResponseTopicData",
    "DescribeTransactionsResponseTransactionState",
]


@request(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest(Message):
    transactional_ids: tuple[str, ...] = field([STRING], "0+")


@struct
class DescribeTransactionsResponseTopicData(Struct):
    topic: str = field(STRING, "0+")
    partitions: tuple[int, ...] = field([INT32], "0+")


@struct
class DescribeTransactionsResponseTransactionState(Struct):
    error_code: int = field(INT16, "0+")
    transactional_id: str = field(STRING, "0+")
    transaction_state: str = field(STRING, "0+")
    transaction_timeout_ms: int = field(INT32, "0+")
    transaction_start_time_ms: int = field(INT64, "0+")
    producer_id: int = field(INT64, "0+")
    producer_epoch: int = field(INT16, "0+")
    topics: tuple[DescribeTransactionsResponseTopicData, ...] = field([DescribeTransactionsResponseTopicData], "0+")


@response(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    transaction_states: tuple[DescribeTransactionsResponseTransactionState, ...] = field(
        [DescribeTransactionsResponseTransactionState], "0+"
    )
