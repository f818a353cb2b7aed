"""OffsetForLeaderEpoch (key 23), versions 0-4."""

from kce.wire.primitives import INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "OffsetForLeaderEpochResponseEpochEndOffset",
    "OffsetForLeaderPartition",
    "OffsetForLeaderTopic",
    "OffsetForLeaderTopicResult",
]


@struct
class OffsetForLeaderPartition(Struct):
    partition: int = field(INT32, "0+")
    current_leader_epoch: int = field(INT32, "2+", default=-1, ignorable=True)
    leader_epoch: int = field(INT32, "0+")


@struct
class OffsetForLeaderTopic(Struct):
    topic: str = field(STRING, "0+")
    partitions: tuple[OffsetForLeaderPartition, ...] = field([OffsetForLeaderPartition], "0+")


@request(api_key=23, versions="0-4", flexible="4+")
class OffsetForLeaderEpochRequest(Message):
    replica_id: int = field(INT32, "3+", default=-2, ignorable=True)
    topics: tuple[OffsetForLeaderTopic, ...] = field([OffsetForLeaderTopic], "0+")


@struct
class OffsetForLeaderEpochResponseEpochEndOffset(Struct):
    error_code: int = field(INT16, "0+")
    partition: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "1+", default=-1, ignorable=True)
    end_offset: int = field(INT64, "0+", default=-1)


@struct
class OffsetForLeaderTopicResult(Struct):
    topic: str = field(STRING, "0+")
    partitions: tuple[OffsetForLeaderEpochResponseEpochEndOffset, ...] = field(
        [OffsetForLeaderEpochResponseEpochEndOffset], "0+"
    )


@response(api_key=23, versions="0-4", flexible="4+")
class OffsetForLeaderEpochResponse(Message):
    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    topics: tuple[OffsetForLeaderTopicResult, ...] = field([OffsetForLeaderTopicResult], "0+")
