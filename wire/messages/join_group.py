"""JoinGroup (key 11), versions 0-9."""

from kce.wire.primitives import BOOL, BYTES, INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = ["JoinGroupRequest", "JoinGroupRequestProtocol", "JoinGroupResponse", "JoinGroupResponseMember"]


@struct
class JoinGroupRequestProtocol(Struct):
    name: str = field(STRING, "0+")
    metadata: bytes = field(BYTES, "0+")


@request(api_key=11, versions="0-9", flexible="6+")
class JoinGroupRequest(Message):
    group_id: str = field(STRING, "0+")
    session_timeout_ms: int = field(INT32, "0+")
    rebalance_timeout_ms: int = field(INT32, "1+", default=-1, ignorable=True)
    member_id: str = field(STRING, "0+")
    group_instance_id: str | None = field(STRING, "5+", default=None, nullable="5+")
    protocol_type: str = field(STRING, "0+")
    protocols: tuple[JoinGroupRequestProtocol, ...] = field([JoinGroupRequestProtocol], "0+")
    reason: str | None = field(STRING, "8+", default=None, nullable="8+", ignorable=True)


@struct
class JoinGroupResponseMember(Struct):
    member_id: str = field(STRING, "0+")
    group_instance_id: str | None = field(STRING, "5+", default=None, nullable="5+", ignorable=True)
    metadata: bytes = field(BYTES, "0+")


@response(api_key=11, versions="0-9", flexible="6+")
class JoinGroupResponse(Message):
    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    error_code: int = field(INT16, "0+")
    generation_id: int = field(INT32, "0+", default=-1)
    protocol_type: str | None = field(STRING, "7+", default=None, nullable="7+", ignorable=True)
    protocol_name: str | None = field(STRING, "0+", nullable="7+")
    leader: str = field(STRING, "0+")
    skip_assignment: bool = field(BOOL, "9+")
    member_id: str = field(STRING, "0+")
    members: tuple[JoinGroupResponseMember, ...] = field([JoinGroupResponseMember], "0+")
