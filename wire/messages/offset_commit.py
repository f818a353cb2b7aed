"""OffsetCommit (key 8), versions 0-9."""

from kce.wire.primitives import INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "OffsetCommitRequest",
    "OffsetCommitRequestPartition",
    "OffsetCommitRequestTopic",
    "OffsetCommitResponse",
    "OffsetCommitResponsePartition",
    "OffsetCommitResponseTopic",
]


@struct
class OffsetCommitRequestPartition(Struct):
    partition_index: int = field(INT32, "0+")
    committed_offset: int = field(INT64, "0+")
    committed_leader_epoch: int = field(INT32, "6+", default=-1, ignorable=True)
    commit_timestamp: int = field(INT64, "1", default=-1)
    committed_metadata: str | None = field(STRING, "0+", nullable="0+")


@struct
class OffsetCommitRequestTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[OffsetCommitRequestPartition, ...] = field([OffsetCommitRequestPartition], "0+")


@request(api_key=8, versions="0-9", flexible="8+")
class OffsetCommitRequest(Message):
    group_id: str = field(STRING, "0+")
    generation_id_or_member_epoch: int = field(INT32, "1+", default=-1, ignorable=True)
    member_id: str = field(STRING, "1+", ignorable=True)
    group_instance_id: str | None = field(STRING, "7+", default=None, nullable="7+")
    retention_time_ms: int = field(INT64, "2-4", default=-1, ignorable=True)
    topics: tuple[OffsetCommitRequestTopic, ...] = field([OffsetCommitRequestTopic], "0+")


@struct
class OffsetCommitResponsePartition(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")


@struct
class OffsetCommitResponseTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[OffsetCommitResponsePartition, ...] = field([OffsetCommitResponsePartition], "0+")


@response(api_key=8, versions="0-9", flexible="8+")
class OffsetCommitResponse(Message):
    throttle_time_ms: int = field(INT32, "3+", ignorable=True)
    topics: tuple[OffsetCommitResponseTopic, ...] = field([OffsetCommitResponseTopic], "0+")
