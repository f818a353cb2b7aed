"""ListOffsets (key 2), versions 0-9."""

from kce.wire.primitives import INT8, INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "ListOffsetsPartition",
    "ListOffsetsPartitionResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListOffsetsTopic",
    "ListOffsetsTopicResponse",
]


@struct
class ListOffsetsPartition(Struct):
    partition_index: int = field(INT32, "0+")
    current_leader_epoch: int = field(INT32, "4+", default=-1, ignorable=True)
    timestamp: int = field(INT64, "0+")
    max_num_offsets: int = field(INT32, "0", default=1)


@struct
class ListOffsetsTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[ListOffsetsPartition, ...] = field([ListOffsetsPartition], "0+")


@request(api_key=2, versions="0-9", flexible="6+")
class ListOffsetsRequest(Message):
    replica_id: int = field(INT32, "0+")
    isolation_level: int = field(INT8, "2+")
    topics: tuple[ListOffsetsTopic, ...] = field([ListOffsetsTopic], "0+")


@struct
class ListOffsetsPartitionResponse(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    old_style_offsets: tuple[int, ...] = field([INT64], "0")
    timestamp: int = field(INT64, "1+", default=-1)
    offset: int = field(INT64, "1+", default=-1)
    leader_epoch: int = field(INT32, "4+", default=-1)


@struct
class ListOffsetsTopicResponse(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[ListOffsetsPartitionResponse, ...] = field([ListOffsetsPartitionResponse], "0+")


@response(api_key=2, versions="0-9", flexible="6+")
class ListOffsetsResponse(Message):
    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    topics: tuple[ListOffsetsTopicResponse, ...] = field([ListOffsetsTopicResponse], "0+")
