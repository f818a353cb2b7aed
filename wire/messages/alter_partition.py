"""AlterPartition (key 56), versions 0-3."""

import uuid

from kce.wire.primitives import INT8, INT16, INT32, INT64, STRING, UUID
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "AlterPartitionRequest",
    "AlterPartitionRequestPartitionData",
    "AlterPartitionRequestTopicData",
    "AlterPartitionResponse",
    "AlterPartitionResponsePartitionData",
    "AlterPartitionResponseTopicData",
    "BrokerState",
]


@struct
class BrokerState(Struct):
    broker_id: int = field(INT32, "3+")
    broker_epoch: int = field(INT64, "3+", default=-1)


@struct
class AlterPartitionRequestPartitionData(Struct):
    partition_index: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "0+")
    new_isr: tuple[int, ...] = field([INT32], "0-2")
    new_isr_with_epochs: tuple[BrokerState, ...] = field([BrokerState], "3+")
    leader_recovery_state: int = field(INT8, "1+")
    partition_epoch: int = field(INT32, "0+")


@struct
class AlterPartitionRequestTopicData(Struct):
    topic_name: str = field(STRING, "0-1", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "2+", ignorable=True)
    partitions: tuple[AlterPartitionRequestPartitionData, ...] = field([AlterPartitionRequestPartitionData], "0+")


@request(api_key=56, versions="0-3", flexible="0+")
class AlterPartitionRequest(Message):
    broker_id: int = field(INT32, "0+")
    broker_epoch: int = field(INT64, "0+", default=-1)
    topics: tuple[AlterPartitionRequestTopicData, ...] = field([AlterPartitionRequestTopicData], "0+")


@struct
class AlterPartitionResponsePartitionData(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    leader_id: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "0+")
    isr: tuple[int, ...] = field([INT32], "0+")
    leader_recovery_state: int = field(INT8, "1+", ignorable=True)
    partition_epoch: int = field(INT32, "0+")


@struct
class AlterPartitionResponseTopicData(Struct):
    topic_name: str = field(STRING, "0-1", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "2+", ignorable=True)
    partitions: tuple[AlterPartitionResponsePartitionData, ...] = field([AlterPartitionResponsePartitionData], "0+")


@response(api_key=56, versions="0-3", flexible="0+")
class AlterPartitionResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    topics: tuple[AlterPartitionResponseTopicData, ...] = field([AlterPartitionResponseTopicData], "0+")
