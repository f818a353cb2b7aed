"""DeleteRecords (key 21), versions 0-2."""

from kce.wire.primitives import INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "DeleteRecordsPartition",
    "DeleteRecordsPartitionResult",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteRecordsTopic",
    "DeleteRecordsTopicResult",
]


@struct
class DeleteRecordsPartition(Struct):
    partition_index: int = field(INT32, "0+")
    offset: int = field(INT64, "0+")


@struct
class DeleteRecordsTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[DeleteRecordsPartition, ...] = field([DeleteRecordsPartition], "0+")


@request(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest(Message):
    topics: tuple[DeleteRecordsTopic, ...] = field([DeleteRecordsTopic], "0+")
    timeout_ms: int = field(INT32, "0+")


@struct
class DeleteRecordsPartitionResult(Struct):
    partition_index: int = field(INT32, "0+")
    low_watermark: int = field(INT64, "0+")
    error_code: int = field(INT16, "0+")


@struct
class DeleteRecordsTopicResult(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[DeleteRecordsPartitionResult, ...] = field([DeleteRecordsPartitionResult], "0+")


@response(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    topics: tuple[DeleteRecordsTopicResult, ...] = field([DeleteRecordsTopicResult], "0+")
