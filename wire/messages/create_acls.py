"""CreateAcls (key 30), versions 0-3."""

from kce.wire.primitives import INT8, INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = ["AclCreation", "AclCreationResult", "CreateAclsRequest", "CreateAclsResponse"]


@struct
class AclCreation(Struct):
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")
    resource_pattern_type: int = field(INT8, "1+", default=3)
    principal: str = field(STRING, "0+")
    host: str = field(STRING, "0+")
    operation: int = field(INT8, "0+")
    permission_type: int = field(INT8, "0+")


@request(api_key=30, versions="0-3", flexible="2+")
class CreateAclsRequest(Message):
    creations: tuple[AclCreation, ...] = field([AclCreation], "0+")


@struct
class AclCreationResult(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")


@response(api_key=30, versions="0-3", flexible="2+")
class CreateAclsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    results: tuple[AclCreationResult, ...] = field([AclCreationResult], "0+")
