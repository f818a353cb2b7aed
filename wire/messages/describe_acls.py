"""DescribeAcls (key 29), versions 0-3."""

from kce.wire.primitives import INT8, INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = ["AclDescription", "DescribeAclsRequest", "DescribeAclsResource", "DescribeAclsResponse"]


@request(api_key=29, versions="0-3", flexible="2+")
class DescribeAclsRequest(Message):
    resource_type_filter: int = field(INT8, "0+")
    resource_name_filter: str | None = field(STRING, "0+", nullable="0+")
    pattern_type_filter: int = field(INT8, "1+", default=3)
    principal_filter: str | None = field(STRING, "0+", nullable="0+")
    host_filter: str | None = field(STRING, "0+", nullable="0+")
    operation: int = field(INT8, "0+")
    permission_type: int = field(INT8, "0+")


@struct
class AclDescription(Struct):
    principal: str = field(STRING, "0+")
    host: str = field(STRING, "0+")
    operation: int = field(INT8, "0+")
    permission_type: int = field(INT8, "0+")


@struct
class DescribeAclsResource(Struct):
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")
    pattern_type: int = field(INT8, "1+", default=3)
    acls: tuple[AclDescription, ...] = field([AclDescription], "0+")


@response(api_key=29, versions="0-3", flexible="2+")
class DescribeAclsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")
    resources: tuple[DescribeAclsResource, ...] = field([DescribeAclsResource], "0+")
