"""ListPartitionReassignments (key 46), versions 0."""

from kce.wire.primitives import INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "ListPartitionReassignmentsRequest",
    "ListPartitionReassignmentsResponse",
    "ListPartitionReassignmentsTopics",
    "OngoingPartitionReassignment",
    "OngoingTopicReassignment",
]


@struct
class ListPartitionReassignmentsTopics(Struct):
    name: str = field(STRING, "0+")
    partition_indexes: tuple[int, ...] = field([INT32], "0+")


@request(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest(Message):
    timeout_ms: int = field(INT32, "0+", default=60000)
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None = field(
        [ListPartitionReassignmentsTopics], "0+", default=None, nullable="0+"
    )


@struct
class OngoingPartitionReassignment(Struct):
    partition_index: int = field(INT32, "0+")
    replicas: tuple[int, ...] = field([INT32], "0+")
    adding_replicas: tuple[int, ...] = field([INT32], "0+")
    removing_replicas: tuple[int, ...] = field([INT32], "0+")


@struct
class OngoingTopicReassignment(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[OngoingPartitionReassignment, ...] = field([OngoingPartitionReassignment], "0+")


@response(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")
    topics: tuple[OngoingTopicReassignment, ...] = field([OngoingTopicReassignment], "0+")
