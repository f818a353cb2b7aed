"""DescribeConfigs (key 32), versions 0-4."""

from kce.wire.primitives import BOOL, INT8, INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "DescribeConfigsRequest",
    "DescribeConfigsResource",
    "DescribeConfigsResourceResult",
    "DescribeConfigsResponse",
    "DescribeConfigsResult",
    "DescribeConfigsSynonym",
]


@struct
class DescribeConfigsResource(Struct):
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")
    configuration_keys: tuple[str, ...] | None = field([STRING], "0+", nullable="0+")


@request(api_key=32, versions="0-4", flexible="4+")
class DescribeConfigsRequest(Message):
    resources: tuple[DescribeConfigsResource, ...] = field([DescribeConfigsResource], "0+")
    include_synonyms: bool = field(BOOL, "1+")
    include_documentation: bool = field(BOOL, "3+")


@struct
class DescribeConfigsSynonym(Struct):
    name: str = field(STRING, "1+")
    value: str | None = field(STRING, "1+", nullable="0+")
    source: int = field(INT8, "1+")


@struct
class DescribeConfigsResourceResult(Struct):
    name: str = field(STRING, "0+")
    value: str | None = field(STRING, "0+", nullable="0+")
    read_only: bool = field(BOOL, "0+")
    is_default: bool = field(BOOL, "0")
    config_source: int = field(INT8, "1+", default=-1, ignorable=True)
    is_sensitive: bool = field(BOOL, "0+")
    synonyms: tuple[DescribeConfigsSynonym, ...] = field([DescribeConfigsSynonym], "1+", ignorable=True)
    config_type: int = field(INT8, "3+", ignorable=True)
    documentation: str | None = field(STRING, "3+", nullable="0+", ignorable=True)


@struct
class DescribeConfigsResult(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")
    resource_type: int = field(INT8, "0+")
    resource_name: str = field(STRING, "0+")
    configs: tuple[DescribeConfigsResourceResult, ...] = field([DescribeConfigsResourceResult], "0+")


@response(api_key=32, versions="0-4", flexible="4+")
class DescribeConfigsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    results: tuple[DescribeConfigsResult, ...] = field([DescribeConfigsResult], "0+")
