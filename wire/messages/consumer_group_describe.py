"""ConsumerGroupDescribe (key 69), versions 0."""

import uuid

from kce.wire.primitives import BOOL, INT16, INT32, STRING, UUID
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupDescribeResponseAssignment",
    "ConsumerGroupDescribeResponseDescribedGroup",
    "ConsumerGroupDescribeResponseTopicPartitions",
    "Member",
]


@request(api_key=69, versions="0", flexible="0+")
class ConsumerGroupDescribeRequest(Message):
    group_ids: tuple[str, ...] = field([STRING], "0+")
    include_authorized_operations: bool = field(BOOL, "0+")


@struct
class ConsumerGroupDescribeResponseTopicPartitions(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    topic_name: str = field(STRING, "0+")
    partitions: tuple[int, ...] = field([INT32], "0+")


@struct
class ConsumerGroupDescribeResponseAssignment(Struct):
    topic_partitions: tuple[ConsumerGroupDescribeResponseTopicPartitions, ...] = field(
        [ConsumerGroupDescribeResponseTopicPartitions], "0+"
    )


@struct
class Member(Struct):
    member_id: str = field(STRING, "0+")
    instance_id: str | None = field(STRING, "0+", default=None, nullable="0+")
    rack_id: str | None = field(STRING, "0+", default=None, nullable="0+")
    member_epoch: int = field(INT32, "0+")
    client_id: str = field(STRING, "0+")
    client_host: str = field(STRING, "0+")
    subscribed_topic_names: tuple[str, ...] = field([STRING], "0+")
    subscribed_topic_regex: str | None = field(STRING, "0+", default=None, nullable="0+")
    assignment: ConsumerGroupDescribeResponseAssignment = field(ConsumerGroupDescribeResponseAssignment, "0+")
    target_assignment: ConsumerGroupDescribeResponseAssignment = field(ConsumerGroupDescribeResponseAssignment, "0+")


@struct
class ConsumerGroupDescribeResponseDescribedGroup(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", default=None, nullable="0+")
    group_id: str = field(STRING, "0+")
    group_state: str = field(STRING, "0+")
    group_epoch: int = field(INT32, "0+")
    assignment_epoch: int = field(INT32, "0+")
    assignor_name: str = field(STRING, "0+")
    members: tuple[Member, ...] = field([Member], "0+")
    authorized_operations: int = field(INT32, "0+", default=-2147483648)


@response(api_key=69, versions="0", flexible="0+")
class ConsumerGroupDescribeResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    groups: tuple[ConsumerGroupDescribeResponseDescribedGroup, ...] = field(
        [ConsumerGroupDescribeResponseDescribedGroup], "0+"
    )
