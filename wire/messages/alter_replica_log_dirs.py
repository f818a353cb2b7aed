"""AlterReplicaLogDirs (key 34), versions 0-2."""

from kce.wire.primitives import INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "AlterReplicaLogDir",
    "AlterReplicaLogDirPartitionResult",
    "AlterReplicaLogDirTopic",
    "AlterReplicaLogDirTopicResult",
    "AlterReplicaLogDirsRequest",
    "AlterReplicaLogDirsResponse",
]


@struct
class AlterReplicaLogDirTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: tuple[int, ...] = field([INT32], "0+")


@struct
class AlterReplicaLogDir(Struct):
    path: str = field(STRING, "0+")
    topics: tuple[AlterReplicaLogDirTopic, ...] = field([AlterReplicaLogDirTopic], "0+")


@request(api_key=34, versions="0-2", flexible="2+")
class AlterReplicaLogDirsRequest(Message):
    dirs: tuple[AlterReplicaLogDir, ...] = field([AlterReplicaLogDir], "0+")


@struct
class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")


@struct
class AlterReplicaLogDirTopicResult(Struct):
    topic_name: str = field(STRING, "0+")
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...] = field([AlterReplicaLogDirPartitionResult], "0+")


@response(api_key=34, versions="0-2", flexible="2+")
class AlterReplicaLogDirsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    results: tuple[AlterReplicaLogDirTopicResult, ...] = field([AlterReplicaLogDirTopicResult], "0+")
