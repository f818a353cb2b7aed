"""StopReplica (key 5), versions 0-4."""

from kce.wire.primitives import BOOL, INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "StopReplicaPartitionError",
    "StopReplicaPartitionState",
    "StopReplicaPartitionV0",
    "StopReplicaRequest",
    "StopReplicaResponse",
    "StopReplicaTopicState",
    "StopReplicaTopicV1",
]


@struct
class StopReplicaPartitionV0(Struct):
    topic_name: str = field(STRING, "0")
    partition_index: int = field(INT32, "0")


@struct
class StopReplicaTopicV1(Struct):
    name: str = field(STRING, "1-2")
    partition_indexes: tuple[int, ...] = field([INT32], "1-2")


@struct
class StopReplicaPartitionState(Struct):
    partition_index: int = field(INT32, "3+")
    leader_epoch: int = field(INT32, "3+", default=-1)
    delete_partition: bool = field(BOOL, "3+")


@struct
class StopReplicaTopicState(Struct):
    topic_name: str = field(STRING, "3+")
    partition_states: tuple[StopReplicaPartitionState, ...] = field([StopReplicaPartitionState], "3+")


@request(api_key=5, versions="0-4", flexible="2+")
class StopReplicaRequest(Message):
    controller_id: int = field(INT32, "0+")
    is_kraft_controller: bool = field(BOOL, "4+")
    controller_epoch: int = field(INT32, "0+")
    broker_epoch: int = field(INT64, "1+", default=-1, ignorable=True)
    delete_partitions: bool = field(BOOL, "0-2")
    ungrouped_partitions: tuple[StopReplicaPartitionV0, ...] = field([StopReplicaPartitionV0], "0")
    topics: tuple[StopReplicaTopicV1, ...] = field([StopReplicaTopicV1], "1-2")
    topic_states: tuple[StopReplicaTopicState, ...] = field([StopReplicaTopicState], "3+")


@struct
class StopReplicaPartitionError(Struct):
    topic_name: str = field(STRING, "0+")
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")


@response(api_key=5, versions="0-4", flexible="2+")
class StopReplicaResponse(Message):
    error_code: int = field(INT16, "0+")
    partition_errors: tuple[StopReplicaPartitionError, ...] = field([StopReplicaPartitionError], "0+")
