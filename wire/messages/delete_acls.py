"""DeleteAcls (key 31), versions 0-3."""

from kce.wire.primitives import INT8, INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "DeleteAclsFilter",
    "DeleteAclsFilterResult",
    "DeleteAclsMatchingAcl",
    "DeleteAclsRequest",
    "DeleteAclsResponse",
]


@struct
class DeleteAclsFilter(Struct):
    resource_type_filter: int = field(INT8, "0+")
    resource_name_filter: str | None = field(STRING, "0+", nullable="0+")
    pattern_type_filter: int = field(INT8, "1+", default=3)
    principal_filter: str | None = field(STRING, "0+", nullable="0+")
    host_filter: str | None = field(STRING, "0+", nullable="0+")
    operation: int = field(INT8, "0+")
    permission_type: int = field(INT8, "0+")


@request(api_key=31, versions="0-3", flexible="2+")
class DeleteAclsRequest(Message):
    filters: tuple[DeleteAclsFilter, ...] = field([DeleteAclsFilter], "0+")


@struct
class DeleteAclsMatchingAcl(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")
    pattern_type: int = field(INT8, "1+", default=3)
    principal: str = field(STRING, "0+")
    host: str = field(STRING, "0+")
    operation: int = field(INT8, "0+")
    permission_type: int = field(INT8, "0+")


@struct
class DeleteAclsFilterResult(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")
    matching_acls: tuple[DeleteAclsMatchingAcl, ...] = field([DeleteAclsMatchingAcl], "0+")


@response(api_key=31, versions="0-3", flexible="2+")
class DeleteAclsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    filter_results: tuple[DeleteAclsFilterResult, ...] = field([DeleteAclsFilterResult], "0+")
