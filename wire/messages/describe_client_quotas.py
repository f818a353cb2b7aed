"""DescribeClientQuotas (key 48), versions 0-1."""

from kce.wire.primitives import BOOL, FLOAT64, INT8, INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "ComponentData",
    "DescribeClientQuotasRequest",
    "DescribeClientQuotasResponse",
    "DescribeClientQuotasResponseEntityData",
    "DescribeClientQuotasResponseEntryData",
    "ValueData",
]


@struct
class ComponentData(Struct):
    entity_type: str = field(STRING, "0+")
    match_type: int = field(INT8, "0+")
    match: str | None = field(STRING, "0+", nullable="0+")


@request(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest(Message):
    components: tuple[ComponentData, ...] = field([ComponentData], "0+")
    strict: bool = field(BOOL, "0+")


@struct
class DescribeClientQuotasResponseEntityData(Struct):
    entity_type: str = field(STRING, "0+")
    entity_name: str | None = field(STRING, "0+", nullable="0+")


@struct
class ValueData(Struct):
    key: str = field(STRING, "0+")
    value: float = field(FLOAT64, "0+")


@struct
class DescribeClientQuotasResponseEntryData(Struct):
    entity: tuple[DescribeClientQuotasResponseEntityData, ...] = field([DescribeClientQuotasResponseEntityData], "0+")
    values: tuple[ValueData, ...] = field([ValueData], "0+")


@response(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")
    entries: tuple[DescribeClientQuotasResponseEntryData, ...] | None = field(
        [DescribeClientQuotasResponseEntryData], "0+", nullable="0+"
    )
