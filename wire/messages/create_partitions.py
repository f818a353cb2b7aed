"""CreatePartitions (key 37), versions 0-3."""

from kce.wire.primitives import BOOL, INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "CreatePartitionsAssignment",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreatePartitionsTopic",
    "CreatePartitionsTopicResult",
]


@struct
class CreatePartitionsAssignment(Struct):
    broker_ids: tuple[int, ...] = field([INT32], "0+")


@struct
class CreatePartitionsTopic(Struct):
    name: str = field(STRING, "0+")
    count: int = field(INT32, "0+")
    assignments: tuple[CreatePartitionsAssignment, ...] | None = field(
        [CreatePartitionsAssignment], "0+", nullable="0+"
    )


@request(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest(Message):
    topics: tuple[CreatePartitionsTopic, ...] = field([CreatePartitionsTopic], "0+")
    timeout_ms: int = field(INT32, "0+")
    validate_only: bool = field(BOOL, "0+")


@struct
class CreatePartitionsTopicResult(Struct):
    name: str = field(STRING, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", default=None, nullable="0+")


@response(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    results: tuple[CreatePartitionsTopicResult, ...] = field([CreatePartitionsTopicResult], "0+")
