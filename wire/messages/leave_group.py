"""LeaveGroup (key 13), versions 0-5."""

from kce.wire.primitives import INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = ["LeaveGroupRequest", "LeaveGroupResponse", "MemberIdentity", "MemberResponse"]


@struct
class MemberIdentity(Struct):
    member_id: str = field(STRING, "3+")
    group_instance_id: str | None = field(STRING, "3+", default=None, nullable="3+")
    reason: str | None = field(STRING, "5+", default=None, nullable="5+", ignorable=True)


@request(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest(Message):
    group_id: str = field(STRING, "0+")
    member_id: str = field(STRING, "0-2")
    members: tuple[MemberIdentity, ...] = field([MemberIdentity], "3+")


@struct
class MemberResponse(Struct):
    member_id: str = field(STRING, "3+")
    group_instance_id: str | None = field(STRING, "3+", nullable="3+")
    error_code: int = field(INT16, "3+")


@response(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse(Message):
    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16, "0+")
    members: tuple[MemberResponse, ...] = field([MemberResponse], "3+")
