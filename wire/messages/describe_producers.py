"""DescribeProducers (key 61), versions 0."""

from kce.wire.primitives import INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "DescribeProducersRequest",
    "DescribeProducersResponse",
    "PartitionResponse",
    "ProducerState",
    "TopicRequest",
    "TopicResponse",
]


@struct
class TopicRequest(Struct):
    name: str = field(STRING, "0+")
    partition_indexes: tuple[int, ...] = field([INT32], "0+")


@request(api_key=61, versions="0", flexible="0+")
class DescribeProducersRequest(Message):
    topics: tuple[TopicRequest, ...] = field([TopicRequest], "0+")


@struct
class ProducerState(Struct):
    producer_id: int = field(INT64, "0+")
    producer_epoch: int = field(INT32, "0+")
    last_sequence: int = field(INT32, "0+", default=-1)
    last_timestamp: int = field(INT64, "0+", default=-1)
    coordinator_epoch: int = field(INT32, "0+")
    current_txn_start_offset: int = field(INT64, "0+", default=-1)


@struct
class PartitionResponse(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", default=None, nullable="0+")
    active_producers: tuple[ProducerState, ...] = field([ProducerState], "0+")


@struct
class TopicResponse(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[PartitionResponse, ...] = field([PartitionResponse], "0+")


@response(api_key=61, versions="0", flexible="0+")
class DescribeProducersResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    topics: tuple[TopicResponse, ...] = field([TopicResponse], "0+")
