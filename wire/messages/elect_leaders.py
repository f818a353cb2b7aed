"""ElectLeaders (key 43), versions 0-2."""

from kce.wire.primitives import INT8, INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "ElectLeadersRequest",
    "ElectLeadersRequestTopicPartitions",
    "ElectLeadersResponse",
    "PartitionResult",
    "ReplicaElectionResult",
]


@struct
class ElectLeadersRequestTopicPartitions(Struct):
    topic: str = field(STRING, "0+")
    partitions: tuple[int, ...] = field([INT32], "0+")


@request(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest(Message):
    election_type: int = field(INT8, "1+")
    topic_partitions: tuple[ElectLeadersRequestTopicPartitions, ...] | None = field(
        [ElectLeadersRequestTopicPartitions], "0+", nullable="0+"
    )
    timeout_ms: int = field(INT32, "0+", default=60000)


@struct
class PartitionResult(Struct):
    partition_id: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")


@struct
class ReplicaElectionResult(Struct):
    topic: str = field(STRING, "0+")
    partition_result: tuple[PartitionResult, ...] = field([PartitionResult], "0+")


@response(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "1+")
    replica_election_results: tuple[ReplicaElectionResult, ...] = field([ReplicaElectionResult], "0+")
