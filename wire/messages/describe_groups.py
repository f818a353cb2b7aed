"""DescribeGroups (key 15), versions 0-5."""

from kce.wire.primitives import BOOL, BYTES, INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribeGroupsResponseDescribedGroup",
    "DescribedGroupMember",
]


@request(api_key=15, versions="0-5", flexible="5+")
class DescribeGroupsRequest(Message):
    groups: tuple[str, ...] = field([STRING], "0+")
    include_authorized_operations: bool = field(BOOL, "3+")


@struct
class DescribedGroupMember(Struct):
    member_id: str = field(STRING, "0+")
    group_instance_id: str | None = field(STRING, "4+", default=None, nullable="4+", ignorable=True)
    client_id: str = field(STRING, "0+")
    client_host: str = field(STRING, "0+")
    member_metadata: bytes = field(BYTES, "0+")
    member_assignment: bytes = field(BYTES, "0+")


@struct
class DescribeGroupsResponseDescribedGroup(Struct):
    error_code: int = field(INT16, "0+")
    group_id: str = field(STRING, "0+")
    group_state: str = field(STRING, "0+")
    protocol_type: str = field(STRING, "0+")
    protocol_data: str = field(STRING, "0+")
    members: tuple[DescribedGroupMember, ...] = field([DescribedGroupMember], "0+")
    authorized_operations: int = field(INT32, "3+", default=-2147483648)


@response(api_key=15, versions="0-5", flexible="5+")
class DescribeGroupsResponse(Message):
    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    groups: tuple[DescribeGroupsResponseDescribedGroup, ...] = field([DescribeGroupsResponseDescribedGroup], "0+")
