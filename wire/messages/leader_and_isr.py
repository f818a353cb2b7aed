"""LeaderAndIsr (key 4), versions 0-7."""

import uuid

from kce.wire.primitives import BOOL, INT8, INT16, INT32, INT64, STRING, UUID
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "LeaderAndIsrLiveLeader",
    "LeaderAndIsrPartitionError",
    "LeaderAndIsrPartitionState",
    "LeaderAndIsrRequest",
    "LeaderAndIsrResponse",
    "LeaderAndIsrTopicError",
    "LeaderAndIsrTopicState",
]


@struct
class LeaderAndIsrPartitionState(Struct):
    topic_name: str = field(STRING, "0-1", ignorable=True)
    partition_index: int = field(INT32, "0+")
    controller_epoch: int = field(INT32, "0+")
    leader: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "0+")
    isr: tuple[int, ...] = field([INT32], "0+")
    partition_epoch: int = field(INT32, "0+")
    replicas: tuple[int, ...] = field([INT32], "0+")
    adding_replicas: tuple[int, ...] = field([INT32], "3+", ignorable=True)
    removing_replicas: tuple[int, ...] = field([INT32], "3+", ignorable=True)
    is_new: bool = field(BOOL, "1+", ignorable=True)
    leader_recovery_state: int = field(INT8, "6+")


@struct
class LeaderAndIsrTopicState(Struct):
    topic_name: str = field(STRING, "2+")
    topic_id: uuid.UUID = field(UUID, "5+", ignorable=True)
    partition_states: tuple[LeaderAndIsrPartitionState, ...] = field([LeaderAndIsrPartitionState], "2+")


@struct
class LeaderAndIsrLiveLeader(Struct):
    broker_id: int = field(INT32, "0+")
    host_name: str = field(STRING, "0+")
    port: int = field(INT32, "0+")


@request(api_key=4, versions="0-7", flexible="4+")
class LeaderAndIsrRequest(Message):
    controller_id: int = field(INT32, "0+")
    is_kraft_controller: bool = field(BOOL, "7+")
    controller_epoch: int = field(INT32, "0+")
    broker_epoch: int = field(INT64, "2+", default=-1, ignorable=True)
    type: int = field(INT8, "5+")
    ungrouped_partition_states: tuple[LeaderAndIsrPartitionState, ...] = field([LeaderAndIsrPartitionState], "0-1")
    topic_states: tuple[LeaderAndIsrTopicState, ...] = field([LeaderAndIsrTopicState], "2+")
    live_leaders: tuple[LeaderAndIsrLiveLeader, ...] = field([LeaderAndIsrLiveLeader], "0+")


@struct
class LeaderAndIsrPartitionError(Struct):
    topic_name: str = field(STRING, "0-4", ignorable=True)
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")


@struct
class LeaderAndIsrTopicError(Struct):
    topic_id: uuid.UUID = field(UUID, "5+")
    partition_errors: tuple[LeaderAndIsrPartitionError, ...] = field([LeaderAndIsrPartitionError], "5+")


@response(api_key=4, versions="0-7", flexible="4+")
class LeaderAndIsrResponse(Message):
    error_code: int = field(INT16, "0+")
    partition_errors: tuple[LeaderAndIsrPartitionError, ...] = field([LeaderAndIsrPartitionError], "0-4")
    topics: tuple[LeaderAndIsrTopicError, ...] = field([LeaderAndIsrTopicError], "5+")
