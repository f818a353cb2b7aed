"""OffsetDelete (key 47), versions 0."""

from kce.wire.primitives import INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "OffsetDeleteRequest",
    "OffsetDeleteRequestPartition",
    "OffsetDeleteRequestTopic",
    "OffsetDeleteResponse",
    "OffsetDeleteResponsePartition",
    "OffsetDeleteResponseTopic",
]


@struct
class OffsetDeleteRequestPartition(Struct):
    partition_index: int = field(INT32, "0+")


@struct
class OffsetDeleteRequestTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[OffsetDeleteRequestPartition, ...] = field([OffsetDeleteRequestPartition], "0+")


@request(api_key=47, versions="0", flexible="none")
class OffsetDeleteRequest(Message):
    group_id: str = field(STRING, "0+")
    topics: tuple[OffsetDeleteRequestTopic, ...] = field([OffsetDeleteRequestTopic], "0+")


@struct
class OffsetDeleteResponsePartition(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")


@struct
class OffsetDeleteResponseTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[OffsetDeleteResponsePartition, ...] = field([OffsetDeleteResponsePartition], "0+")


@response(api_key=47, versions="0", flexible="none")
class OffsetDeleteResponse(Message):
    error_code: int = field(INT16, "0+")
    throttle_time_ms: int = field(INT32, "0+", ignorable=True)
    topics: tuple[OffsetDeleteResponseTopic, ...] = field([OffsetDeleteResponseTopic], "0+")
