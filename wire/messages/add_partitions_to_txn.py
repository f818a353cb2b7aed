"""AddPartitionsToTxn (key 24), versions 0-5."""

from kce.wire.primitives import BOOL, INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "AddPartitionsToTxnPartitionResult",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "AddPartitionsToTxnResult",
    "AddPartitionsToTxnTopic",
    "AddPartitionsToTxnTopicResult",
    "AddPartitionsToTxnTransaction",
]


@struct
class AddPartitionsToTxnTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[int, ...] = field([INT32], "0+")


@struct
class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = field(STRING, "4+")
    producer_id: int = field(INT64, "4+")
    producer_epoch: int = field(INT16, "4+")
    verify_only: bool = field(BOOL, "4+")
    topics: tuple[AddPartitionsToTxnTopic, ...] = field([AddPartitionsToTxnTopic], "4+")


@request(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest(Message):
    transactions: tuple[AddPartitionsToTxnTransaction, ...] = field([AddPartitionsToTxnTransaction], "4+")
    v3_and_below_transactional_id: str = field(STRING, "0-3")
    v3_and_below_producer_id: int = field(INT64, "0-3")
    v3_and_below_producer_epoch: int = field(INT16, "0-3")
    v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...] = field([AddPartitionsToTxnTopic], "0-3")


@struct
class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = field(INT32, "0+")
    partition_error_code: int = field(INT16, "0+")


@struct
class AddPartitionsToTxnTopicResult(Struct):
    name: str = field(STRING, "0+")
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...] = field(
        [AddPartitionsToTxnPartitionResult], "0+"
    )


@struct
class AddPartitionsToTxnResult(Struct):
    transactional_id: str = field(STRING, "4+")
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...] = field([AddPartitionsToTxnTopicResult], "4+")


@response(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "4+", ignorable=True)
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = field([AddPartitionsToTxnResult], "4+")
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = field(
        [AddPartitionsToTxnTopicResult], "0-3"
    )
