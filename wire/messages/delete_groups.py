"""DeleteGroups (key 42), versions 0-2."""

from kce.wire.primitives import INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = ["DeletableGroupResult", "DeleteGroupsRequest", "DeleteGroupsResponse"]


@request(api_key=42, versions="0-2", flexible="2+")
class DeleteGroupsRequest(Message):
    groups_names: tuple[str, ...] = field([STRING], "0+")


@struct
class DeletableGroupResult(Struct):
    group_id: str = field(STRING, "0+")
    error_code: int = field(INT16, "0+")


@response(api_key=42, versions="0-2", flexible="2+")
class DeleteGroupsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    results: tuple[DeletableGroupResult, ...] = field([DeletableGroupResult], "0+")
