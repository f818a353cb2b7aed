"""AlterConfigs (key 33), versions 0-2."""

from kce.wire.primitives import BOOL, INT8, INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "AlterConfigsRequest",
    "AlterConfigsRequestAlterConfigsResource",
    "AlterConfigsRequestAlterableConfig",
    "AlterConfigsResponse",
    "AlterConfigsResponseAlterConfigsResourceResponse",
]


@struct
class AlterConfigsRequestAlterableConfig(Struct):
    name: str = field(STRING, "0+")
    value: str | None = field(STRING, "0+", nullable="0+")


@struct
class AlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")
    configs: tuple[AlterConfigsRequestAlterableConfig, ...] = field([AlterConfigsRequestAlterableConfig], "0+")


@request(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsRequest(Message):
    resources: tuple[AlterConfigsRequestAlterConfigsResource, ...] = field(
        [AlterConfigsRequestAlterConfigsResource], "0+"
    )
    validate_only: bool = field(BOOL, "0+")


@struct
class AlterConfigsResponseAlterConfigsResourceResponse(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")


@response(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    responses: tuple[AlterConfigsResponseAlterConfigsResourceResponse, ...] = field(
        [AlterConfigsResponseAlterConfigsResourceResponse], "0+"
    )
