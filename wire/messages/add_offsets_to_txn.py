"""AddOffsetsToTxn (key 25), versions 0-4."""

from kce.wire.primitives import INT16, INT32, INT64, STRING
from kce.wire.schema import Message, field, request, response

__all__ = ["AddOffsetsToTxnRequest", "AddOffsetsToTxnResponse"]


@request(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest(Message):
    transactional_id: str = field(STRING, "0+")
    producer_id: int = field(INT64, "0+")
    producer_epoch: int = field(INT16, "0+")
    group_id: str = field(STRING, "0+")


@response(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
