"""AlterPartitionReassignments (key 45), versions 0."""

from kce.wire.primitives import INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "AlterPartitionReassignmentsRequest",
    "AlterPartitionReassignmentsResponse",
    "ReassignablePartition",
    "ReassignablePartitionResponse",
    "ReassignableTopic",
    "ReassignableTopicResponse",
]


@struct
class ReassignablePartition(Struct):
    partition_index: int = field(INT32, "0+")
    replicas: tuple[int, ...] | None = field([INT32], "0+", default=None, nullable="0+")


@struct
class ReassignableTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[ReassignablePartition, ...] = field([ReassignablePartition], "0+")


@request(api_key=45, versions="0", flexible="0+")
class AlterPartitionReassignmentsRequest(Message):
    timeout_ms: int = field(INT32, "0+", default=60000)
    topics: tuple[ReassignableTopic, ...] = field([ReassignableTopic], "0+")


@struct
class ReassignablePartitionResponse(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")


@struct
class ReassignableTopicResponse(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[ReassignablePartitionResponse, ...] = field([ReassignablePartitionResponse], "0+")


@response(api_key=45, versions="0", flexible="0+")
class AlterPartitionReassignmentsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")
    responses: tuple[ReassignableTopicResponse, ...] = field([ReassignableTopicResponse], "0+")
