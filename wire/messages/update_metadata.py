"""UpdateMetadata (key 6), versions 0-8."""

import uuid

from kce.wire.primitives import BOOL, INT8, INT16, INT32, INT64, STRING, UUID
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "UpdateMetadataBroker",
    "UpdateMetadataEndpoint",
    "UpdateMetadataPartitionState",
    "UpdateMetadataRequest",
    "UpdateMetadataResponse",
    "UpdateMetadataTopicState",
]


@struct
class UpdateMetadataPartitionState(Struct):
    topic_name: str = field(STRING, "0-4", ignorable=True)
    partition_index: int = field(INT32, "0+")
    controller_epoch: int = field(INT32, "0+")
    leader: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "0+")
    isr: tuple[int, ...] = field([INT32], "0+")
    zk_version: int = field(INT32, "0+")
    replicas: tuple[int, ...] = field([INT32], "0+")
    offline_replicas: tuple[int, ...] = field([INT32], "4+", ignorable=True)


@struct
class UpdateMetadataTopicState(Struct):
    topic_name: str = field(STRING, "5+")
    topic_id: uuid.UUID = field(UUID, "7+", ignorable=True)
    partition_states: tuple[UpdateMetadataPartitionState, ...] = field([UpdateMetadataPartitionState], "5+")


@struct
class UpdateMetadataEndpoint(Struct):
    port: int = field(INT32, "1+")
    host: str = field(STRING, "1+")
    listener: str = field(STRING, "3+", ignorable=True)
    security_protocol: int = field(INT16, "1+")


@struct
class UpdateMetadataBroker(Struct):
    id: int = field(INT32, "0+")
    v0_host: str = field(STRING, "0", ignorable=True)
    v0_port: int = field(INT32, "0", ignorable=True)
    endpoints: tuple[UpdateMetadataEndpoint, ...] = field([UpdateMetadataEndpoint], "1+", ignorable=True)
    rack: str | None = field(STRING, "2+", nullable="0+", ignorable=True)


@request(api_key=6, versions="0-8", flexible="6+")
class UpdateMetadataRequest(Message):
    controller_id: int = field(INT32, "0+")
    is_kraft_controller: bool = field(BOOL, "8+")
    type: int = field(INT8, "8+", tag=0, tagged="8+")
    controller_epoch: int = field(INT32, "0+")
    broker_epoch: int = field(INT64, "5+", default=-1, ignorable=True)
    ungrouped_partition_states: tuple[UpdateMetadataPartitionState, ...] = field([UpdateMetadataPartitionState], "0-4")
    topic_states: tuple[UpdateMetadataTopicState, ...] = field([UpdateMetadataTopicState], "5+")
    live_brokers: tuple[UpdateMetadataBroker, ...] = field([UpdateMetadataBroker], "0+")


@response(api_key=6, versions="0-8", flexible="6+")
class UpdateMetadataResponse(Message):
    error_code: int = field(INT16, "0+")
