"""DescribeLogDirs (key 35), versions 0-4."""

from kce.wire.primitives import BOOL, INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "DescribableLogDirTopic",
    "DescribeLogDirsPartition",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponse",
    "DescribeLogDirsResult",
    "DescribeLogDirsTopic",
]


@struct
class DescribableLogDirTopic(Struct):
    topic: str = field(STRING, "0+")
    partitions: tuple[int, ...] = field([INT32], "0+")


@request(api_key=35, versions="0-4", flexible="2+")
class DescribeLogDirsRequest(Message):
    topics: tuple[DescribableLogDirTopic, ...] | None = field([DescribableLogDirTopic], "0+", nullable="0+")


@struct
class DescribeLogDirsPartition(Struct):
    partition_index: int = field(INT32, "0+")
    partition_size: int = field(INT64, "0+")
    offset_lag: int = field(INT64, "0+")
    is_future_key: bool = field(BOOL, "0+")


@struct
class DescribeLogDirsTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[DescribeLogDirsPartition, ...] = field([DescribeLogDirsPartition], "0+")


@struct
class DescribeLogDirsResult(Struct):
    error_code: int = field(INT16, "0+")
    log_dir: str = field(STRING, "0+")
    topics: tuple[DescribeLogDirsTopic, ...] = field([DescribeLogDirsTopic], "0+")
    total_bytes: int = field(INT64, "4+", default=-1, ignorable=True)
    usable_bytes: int = field(INT64, "4+", default=-1, ignorable=True)


@response(api_key=35, versions="0-4", flexible="2+")
class DescribeLogDirsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "3+", ignorable=True)
    results: tuple[DescribeLogDirsResult, ...] = field([DescribeLogDirsResult], "0+")
