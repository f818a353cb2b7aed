"""Metadata (key 3), versions 0-12."""

import uuid

from kce.wire.primitives import BOOL, INT16, INT32, STRING, UUID
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "MetadataRequest",
    "MetadataRequestTopic",
    "MetadataResponse",
    "MetadataResponseBroker",
    "MetadataResponsePartition",
    "MetadataResponseTopic",
]


@struct
class MetadataRequestTopic(Struct):
    topic_id: uuid.UUID = field(UUID, "10+", ignorable=True)
    name: str | None = field(STRING, "0+", nullable="10+")


@request(api_key=3, versions="0-12", flexible="9+")
class MetadataRequest(Message):
    topics: tuple[MetadataRequestTopic, ...] | None = field([MetadataRequestTopic], "0+", nullable="1+")
    allow_auto_topic_creation: bool = field(BOOL, "4+", default=True)
    include_cluster_authorized_operations: bool = field(BOOL, "8-10")
    include_topic_authorized_operations: bool = field(BOOL, "8+")


@struct
class MetadataResponseBroker(Struct):
    node_id: int = field(INT32, "0+")
    host: str = field(STRING, "0+")
    port: int = field(INT32, "0+")
    rack: str | None = field(STRING, "1+", default=None, nullable="1+", ignorable=True)


@struct
class MetadataResponsePartition(Struct):
    error_code: int = field(INT16, "0+")
    partition_index: int = field(INT32, "0+")
    leader_id: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "7+", default=-1, ignorable=True)
    replica_nodes: tuple[int, ...] = field([INT32], "0+")
    isr_nodes: tuple[int, ...] = field([INT32], "0+")
    offline_replicas: tuple[int, ...] = field([INT32], "5+", ignorable=True)


@struct
class MetadataResponseTopic(Struct):
    error_code: int = field(INT16, "0+")
    name: str | None = field(STRING, "0+", nullable="12+")
    topic_id: uuid.UUID = field(UUID, "10+", ignorable=True)
    is_internal: bool = field(BOOL, "1+", ignorable=True)
    partitions: tuple[MetadataResponsePartition, ...] = field([MetadataResponsePartition], "0+")
    topic_authorized_operations: int = field(INT32, "8+", default=-2147483648)


@response(api_key=3, versions="0-12", flexible="9+")
class MetadataResponse(Message):
    throttle_time_ms: int = field(INT32, "3+", ignorable=True)
    brokers: tuple[MetadataResponseBroker, ...] = field([MetadataResponseBroker], "0+")
    cluster_id: str | None = field(STRING, "2+", default=None, nullable="2+", ignorable=True)
    controller_id: int = field(INT32, "1+", default=-1, ignorable=True)
    topics: tuple[MetadataResponseTopic, ...] = field([MetadataResponseTopic], "0+")
    cluster_authorized_operations: int = field(INT32, "8-10", default=-2147483648)
