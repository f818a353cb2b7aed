"""ConsumerGroupHeartbeat (key 68), versions 0."""

import uuid

from kce.wire.primitives import INT16, INT32, STRING, UUID
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatRequestTopicPartitions",
    "ConsumerGroupHeartbeatResponse",
    "ConsumerGroupHeartbeatResponseAssignment",
    "ConsumerGroupHeartbeatResponseTopicPartitions",
]


@struct
class ConsumerGroupHeartbeatRequestTopicPartitions(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: tuple[int, ...] = field([INT32], "0+")


@request(api_key=68, versions="0", flexible="0+")
class ConsumerGroupHeartbeatRequest(Message):
    group_id: str = field(STRING, "0+")
    member_id: str = field(STRING, "0+")
    member_epoch: int = field(INT32, "0+")
    instance_id: str | None = field(STRING, "0+", default=None, nullable="0+")
    rack_id: str | None = field(STRING, "0+", default=None, nullable="0+")
    rebalance_timeout_ms: int = field(INT32, "0+", default=-1)
    subscribed_topic_names: tuple[str, ...] | None = field([STRING], "0+", default=None, nullable="0+")
    server_assignor: str | None = field(STRING, "0+", default=None, nullable="0+")
    topic_partitions: tuple[ConsumerGroupHeartbeatRequestTopicPartitions, ...] | None = field(
        [ConsumerGroupHeartbeatRequestTopicPartitions], "0+", default=None, nullable="0+"
    )


@struct
class ConsumerGroupHeartbeatResponseTopicPartitions(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: tuple[int, ...] = field([INT32], "0+")


@struct
class ConsumerGroupHeartbeatResponseAssignment(Struct):
    topic_partitions: tuple[ConsumerGroupHeartbeatResponseTopicPartitions, ...] = field(
        [ConsumerGroupHeartbeatResponseTopicPartitions], "0+"
    )


@response(api_key=68, versions="0", flexible="0+")
class ConsumerGroupHeartbeatResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", default=None, nullable="0+")
    member_id: str | None = field(STRING, "0+", default=None, nullable="0+")
    member_epoch: int = field(INT32, "0+")
    heartbeat_interval_ms: int = field(INT32, "0+")
    assignment: ConsumerGroupHeartbeatResponseAssignment | None = field(
        ConsumerGroupHeartbeatResponseAssignment, "0+", default=None, nullable="0+"
    )
