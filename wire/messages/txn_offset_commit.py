"""TxnOffsetCommit (key 28), versions 0-4."""

from kce.wire.primitives import INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitRequestPartition",
    "TxnOffsetCommitRequestTopic",
    "TxnOffsetCommitResponse",
    "TxnOffsetCommitResponsePartition",
    "TxnOffsetCommitResponseTopic",
]


@struct
class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = field(INT32, "0+")
    committed_offset: int = field(INT64, "0+")
    committed_leader_epoch: int = field(INT32, "2+", default=-1, ignorable=True)
    committed_metadata: str | None = field(STRING, "0+", nullable="0+")


@struct
class TxnOffsetCommitRequestTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[TxnOffsetCommitRequestPartition, ...] = field([TxnOffsetCommitRequestPartition], "0+")


@request(api_key=28, versions="0-4", flexible="3+")
class TxnOffsetCommitRequest(Message):
    transactional_id: str = field(STRING, "0+")
    group_id: str = field(STRING, "0+")
    producer_id: int = field(INT64, "0+")
    producer_epoch: int = field(INT16, "0+")
    generation_id: int = field(INT32, "3+", default=-1)
    member_id: str = field(STRING, "3+")
    group_instance_id: str | None = field(STRING, "3+", default=None, nullable="3+")
    topics: tuple[TxnOffsetCommitRequestTopic, ...] = field([TxnOffsetCommitRequestTopic], "0+")


@struct
class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")


@struct
class TxnOffsetCommitResponseTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[TxnOffsetCommitResponsePartition, ...] = field([TxnOffsetCommitResponsePartition], "0+")


@response(api_key=28, versions="0-4", flexible="3+")
class TxnOffsetCommitResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    topics: tuple[TxnOffsetCommitResponseTopic, ...] = field([TxnOffsetCommitResponseTopic], "0+")
