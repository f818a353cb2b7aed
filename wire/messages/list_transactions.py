"""ListTransactions (key 66), versions 0-1."""

from kce.wire.primitives import INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = ["ListTransactionsRequest", "ListTransactionsResponse", "ListTransactionsResponseTransactionState"]


@request(api_key=66, versions="0-1", flexible="0+")
class ListTransactionsRequest(Message):
    state_filters: tuple[str, ...] = field([STRING], "0+")
    producer_id_filters: tuple[int, ...] = field([INT64], "0+")
    duration_filter: int = field(INT64, "1+", default=-1)


@struct
class ListTransactionsResponseTransactionState(Struct):
    transactional_id: str = field(STRING, "0+")
    producer_id: int = field(INT64, "0+")
    transaction_state: str = field(STRING, "0+")


@response(api_key=66, versions="0-1", flexible="0+")
class ListTransactionsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    unknown_state_filters: tuple[str, ...] = field([STRING], "0+")
    transaction_states: tuple[ListTransactionsResponseTransactionState, ...] = field(
        [ListTransactionsResponseTransactionState], "0+"
    )
