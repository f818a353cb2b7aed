"""AlterClientQuotas (key 49), versions 0-1."""

from kce.wire.primitives import BOOL, FLOAT64, INT16, INT32, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "AlterClientQuotasRequest",
    "AlterClientQuotasRequestEntityData",
    "AlterClientQuotasRequestEntryData",
    "AlterClientQuotasResponse",
    "AlterClientQuotasResponseEntityData",
    "AlterClientQuotasResponseEntryData",
    "OpData",
]


@struct
class AlterClientQuotasRequestEntityData(Struct):
    entity_type: str = field(STRING, "0+")
    entity_name: str | None = field(STRING, "0+", nullable="0+")


@struct
class OpData(Struct):
    key: str = field(STRING, "0+")
    value: float = field(FLOAT64, "0+")
    remove: bool = field(BOOL, "0+")


@struct
class AlterClientQuotasRequestEntryData(Struct):
    entity: tuple[AlterClientQuotasRequestEntityData, ...] = field([AlterClientQuotasRequestEntityData], "0+")
    ops: tuple[OpData, ...] = field([OpData], "0+")


@request(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasRequest(Message):
    entries: tuple[AlterClientQuotasRequestEntryData, ...] = field([AlterClientQuotasRequestEntryData], "0+")
    validate_only: bool = field(BOOL, "0+")


@struct
class AlterClientQuotasResponseEntityData(Struct):
    entity_type: str = field(STRING, "0+")
    entity_name: str | None = field(STRING, "0+", nullable="0+")


@struct
class AlterClientQuotasResponseEntryData(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", nullable="0+")
    entity: tuple[AlterClientQuotasResponseEntityData, ...] = field([AlterClientQuotasResponseEntityData], "0+")


@response(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    entries: tuple[AlterClientQuotasResponseEntryData, ...] = field([AlterClientQuotasResponseEntryData], "0+")
