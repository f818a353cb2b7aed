"""ControlledShutdown (key 7), versions 0-3."""

from kce.wire.primitives import INT16, INT32, INT64, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = ["ControlledShutdownRequest", "ControlledShutdownResponse", "RemainingPartition"]


@request(api_key=7, versions="0-3", flexible="3+")
class ControlledShutdownRequest(Message):
    broker_id: int = field(INT32, "0+")
    broker_epoch: int = field(INT64, "2+", default=-1, ignorable=True)


@struct
class RemainingPartition(Struct):
    topic_name: str = field(STRING, "0+")
    partition_index: int = field(INT32, "0+")


@response(api_key=7, versions="0-3", flexible="3+")
class ControlledShutdownResponse(Message):
    error_code: int = field(INT16, "0+")
    remaining_partitions: tuple[RemainingPartition, ...] = field([RemainingPartition], "0+")
