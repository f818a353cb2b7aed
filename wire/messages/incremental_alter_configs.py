"""IncrementalAlterConfigs (key 44), versions 0-1."""

from kce.wire.primitives import BOOL, INT8, INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsRequestAlterConfigsResource",
    "IncrementalAlterConfigsRequestAlterableConfig",
    "IncrementalAlterConfigsResponse",
    "IncrementalAlterConfigsResponseAlterConfigsResourceResponse",
]


@struct
class IncrementalAlterConfigsRequestAlterableConfig(Struct):
    name: str = field(STRING, "0+")
    config_operation: int = field(INT8, "0+")
    value: str | None = field(STRING, "0+", nullable="0+")


@struct
class IncrementalAlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")
    configs: tuple[IncrementalAlterConfigsRequestAlterableConfig, ...] = field(
        [IncrementalAlterConfigsRequestAlterableConfig], "0+"
    )


@request(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest(Message):
    resources: tuple[IncrementalAlterConfigsRequestAlterConfigsResource, ...] = field(
        [IncrementalAlterConfigsRequestAlterConfigsResource], "0+"
    )
    validate_only: bool = field(BOOL, "0+")


@struct
class IncrementalAlterConfigsResponseAlterConfigsResourceResponse(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")


@response(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    responses: tuple[IncrementalAlterConfigsResponseAlterConfigsResourceResponse, ...] = field(
        [IncrementalAlterConfigsResponseAlterConfigsResourceResponse], "0+"
    )
