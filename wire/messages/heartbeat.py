"""Heartbeat (key 12), versions 0-4."""

from kce.wire.primitives import INT16, INT32, STRING
from kce.wire.schema import Message, field, request, response

__all__ = ["HeartbeatRequest", "HeartbeatResponse"]


@request(api_key=12, versions="0-4", flexible="4+")
class HeartbeatRequest(Message):
    group_id: str = field(STRING, "0+")
    generation_id: int = field(INT32, "0+")
    member_id: str = field(STRING, "0+")
    group_instance_id: str | None = field(STRING, "3+", default=None, nullable="3+")


@response(api_key=12, versions="0-4", flexible="4+")
class HeartbeatResponse(Message):
    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16, "0+")
