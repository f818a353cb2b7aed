"""ListGroups (key 16), versions 0-5."""

from kce.wire.primitives import INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = ["ListGroupsRequest", "ListGroupsResponse", "ListedGroup"]


@request(api_key=16, versions="0-5", flexible="3+")
class ListGroupsRequest(Message):
    states_filter: tuple[str, ...] = field([STRING], "4+")
    types_filter: tuple[str, ...] = field([STRING], "5+")


@struct
class ListedGroup(Struct):
    group_id: str = field(STRING, "0+")
    protocol_type: str = field(STRING, "0+")
    group_state: str = field(STRING, "4+", ignorable=True)
    group_type: str = field(STRING, "5+", ignorable=True)


@response(api_key=16, versions="0-5", flexible="3+")
class ListGroupsResponse(Message):
    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16, "0+")
    groups: tuple[ListedGroup, ...] = field([ListedGroup], "0+")
