"""OffsetFetch (key 9), versions 0-9."""

from kce.wire.primitives import BOOL, INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "OffsetFetchRequest",
    "OffsetFetchRequestGroup",
    "OffsetFetchRequestTopic",
    "OffsetFetchRequestTopics",
    "OffsetFetchResponse",
    "OffsetFetchResponseGroup",
    "OffsetFetchResponsePartition",
    "OffsetFetchResponsePartitions",
    "OffsetFetchResponseTopic",
    "OffsetFetchResponseTopics",
]


@struct
class OffsetFetchRequestTopic(Struct):
    name: str = field(STRING, "0-7")
    partition_indexes: tuple[int, ...] = field([INT32], "0-7")


@struct
class OffsetFetchRequestTopics(Struct):
    name: str = field(STRING, "8+")
    partition_indexes: tuple[int, ...] = field([INT32], "8+")


@struct
class OffsetFetchRequestGroup(Struct):
    group_id: str = field(STRING, "8+")
    member_id: str | None = field(STRING, "9+", default=None, nullable="9+", ignorable=True)
    member_epoch: int = field(INT32, "9+", default=-1, ignorable=True)
    topics: tuple[OffsetFetchRequestTopics, ...] | None = field([OffsetFetchRequestTopics], "8+", nullable="8+")


@request(api_key=9, versions="0-9", flexible="6+")
class OffsetFetchRequest(Message):
    group_id: str = field(STRING, "0-7")
    topics: tuple[OffsetFetchRequestTopic, ...] | None = field([OffsetFetchRequestTopic], "0-7", nullable="2-7")
    groups: tuple[OffsetFetchRequestGroup, ...] = field([OffsetFetchRequestGroup], "8+")
    require_stable: bool = field(BOOL, "7+")


@struct
class OffsetFetchResponsePartition(Struct):
    partition_index: int = field(INT32, "0-7")
    committed_offset: int = field(INT64, "0-7")
    committed_leader_epoch: int = field(INT32, "5-7", default=-1, ignorable=True)
    metadata: str | None = field(STRING, "0-7", nullable="0-7")
    error_code: int = field(INT16, "0-7")


@struct
class OffsetFetchResponseTopic(Struct):
    name: str = field(STRING, "0-7")
    partitions: tuple[OffsetFetchResponsePartition, ...] = field([OffsetFetchResponsePartition], "0-7")


@struct
class OffsetFetchResponsePartitions(Struct):
    partition_index: int = field(INT32, "8+")
    committed_offset: int = field(INT64, "8+")
    committed_leader_epoch: int = field(INT32, "8+", default=-1, ignorable=True)
    metadata: str | None = field(STRING, "8+", nullable="8+")
    error_code: int = field(INT16, "8+")


@struct
class OffsetFetchResponseTopics(Struct):
    name: str = field(STRING, "8+")
    partitions: tuple[OffsetFetchResponsePartitions, ...] = field([OffsetFetchResponsePartitions], "8+")


@struct
class OffsetFetchResponseGroup(Struct):
    group_id: str = field(STRING, "8+")
    topics: tuple[OffsetFetchResponseTopics, ...] = field([OffsetFetchResponseTopics], "8+")
    error_code: int = field(INT16, "8+")


@response(api_key=9, versions="0-9", flexible="6+")
class OffsetFetchResponse(Message):
    throttle_time_ms: int = field(INT32, "3+", ignorable=True)
    topics: tuple[OffsetFetchResponseTopic, ...] = field([OffsetFetchResponseTopic], "0-7")
    error_code: int = field(INT16, "2-7", ignorable=True)
    groups: tuple[OffsetFetchResponseGroup, ...] = field([OffsetFetchResponseGroup], "8+")
