"""InitProducerId (key 22), versions 0-5."""

from kce.wire.primitives import INT16, INT32, INT64, STRING
from kce.wire.schema import Message, field, request, response

__all__ = ["InitProducerIdRequest", "InitProducerIdResponse"]


@request(api_key=22, versions="0-5", flexible="2+")
class InitProducerIdRequest(Message):
    transactional_id: str | None = field(STRING, "0+", nullable="0+")
    transaction_timeout_ms: int = field(INT32, "0+")
    producer_id: int = field(INT64, "3+", default=-1)
    producer_epoch: int = field(INT16, "3+", default=-1)


@response(api_key=22, versions="0-5", flexible="2+")
class InitProducerIdResponse(Message):
    throttle_time_ms: int = field(INT32, "0+", ignorable=True)
    error_code: int = field(INT16, "0+")
    producer_id: int = field(INT64, "0+", default=-1)
    producer_epoch: int = field(INT16, "0+")
