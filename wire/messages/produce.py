"""Produce (key 0), versions 0-11."""

from kce.wire.primitives import INT16, INT32, INT64, RECORDS, STRING
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "BatchIndexAndErrorMessage",
    "PartitionProduceData",
    "PartitionProduceResponse",
    "ProduceRequest",
    "ProduceResponse",
    "ProduceResponseLeaderIdAndEpoch",
    "ProduceResponseNodeEndpoint",
    "TopicProduceData",
    "TopicProduceResponse",
]


@struct
class PartitionProduceData(Struct):
    index: int = field(INT32, "0+")
    records: bytes | None = field(RECORDS, "0+", nullable="0+")


@struct
class TopicProduceData(Struct):
    name: str = field(STRING, "0+")
    partition_data: tuple[PartitionProduceData, ...] = field([PartitionProduceData], "0+")


@request(api_key=0, versions="0-11", flexible="9+")
class ProduceRequest(Message):
    transactional_id: str | None = field(STRING, "3+", default=None, nullable="3+")
    acks: int = field(INT16, "0+")
    timeout_ms: int = field(INT32, "0+")
    topic_data: tuple[TopicProduceData, ...] = field([TopicProduceData], "0+")


@struct
class BatchIndexAndErrorMessage(Struct):
    batch_index: int = field(INT32, "8+")
    batch_index_error_message: str | None = field(STRING, "8+", default=None, nullable="8+")


@struct
class ProduceResponseLeaderIdAndEpoch(Struct):
    leader_id: int = field(INT32, "10+", default=-1)
    leader_epoch: int = field(INT32, "10+", default=-1)


@struct
class PartitionProduceResponse(Struct):
    index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    base_offset: int = field(INT64, "0+")
    log_append_time_ms: int = field(INT64, "2+", default=-1, ignorable=True)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    record_errors: tuple[BatchIndexAndErrorMessage, ...] = field([BatchIndexAndErrorMessage], "8+", ignorable=True)
    error_message: str | None = field(STRING, "8+", default=None, nullable="8+", ignorable=True)
    current_leader: ProduceResponseLeaderIdAndEpoch = field(ProduceResponseLeaderIdAndEpoch, "10+", tag=0, tagged="10+")


@struct
class TopicProduceResponse(Struct):
    name: str = field(STRING, "0+")
    partition_responses: tuple[PartitionProduceResponse, ...] = field([PartitionProduceResponse], "0+")


@struct
class ProduceResponseNodeEndpoint(Struct):
    node_id: int = field(INT32, "10+")
    host: str = field(STRING, "10+")
    port: int = field(INT32, "10+")
    rack: str | None = field(STRING, "10+", default=None, nullable="10+")


@response(api_key=0, versions="0-11", flexible="9+")
class ProduceResponse(Message):
    responses: tuple[TopicProduceResponse, ...] = field([TopicProduceResponse], "0+")
    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    node_endpoints: tuple[ProduceResponseNodeEndpoint, ...] = field(
        [ProduceResponseNodeEndpoint], "10+", tag=0, tagged="10+"
    )
