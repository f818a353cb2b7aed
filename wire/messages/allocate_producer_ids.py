"""AllocateProducerIds (key 67), versions 0."""

from kce.wire.primitives import INT16, INT32, INT64
from kce.wire.schema import Message, field, request, response

__all__ = ["AllocateProducerIdsRequest", "AllocateProducerIdsResponse"]


@request(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsRequest(Message):
    broker_id: int = field(INT32, "0+")
    broker_epoch: int = field(INT64, "0+", default=-1)


@response(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsResponse(Message):
    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    producer_id_start: int = field(INT64, "0+")
    producer_id_len: int = field(INT32, "0+")
