"""CreateTopics (key 19), versions 0-7."""

import uuid

from kce.wire.primitives import BOOL, INT8, INT16, INT32, STRING, UUID
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "CreatableReplicaAssignment",
    "CreatableTopic",
    "CreatableTopicConfig",
    "CreatableTopicConfigs",
    "CreatableTopicResult",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
]


@struct
class CreatableReplicaAssignment(Struct):
    partition_index: int = field(INT32, "0+")
    broker_ids: tuple[int, ...] = field([INT32], "0+")


@struct
class CreatableTopicConfig(Struct):
    name: str = field(STRING, "0+")
    value: str | None = field(STRING, "0+", nullable="0+")


@struct
class CreatableTopic(Struct):
    name: str = field(STRING, "0+")
    num_partitions: int = field(INT32, "0+")
    replication_factor: int = field(INT16, "0+")
    assignments: tuple[CreatableReplicaAssignment, ...] = field([CreatableReplicaAssignment], "0+")
    configs: tuple[CreatableTopicConfig, ...] = field([CreatableTopicConfig], "0+")


@request(api_key=19, versions="0-7", flexible="5+")
class CreateTopicsRequest(Message):
    topics: tuple[CreatableTopic, ...] = field([CreatableTopic], "0+")
    timeout_ms: int = field(INT32, "0+", default=60000)
    validate_only: bool = field(BOOL, "1+")


@struct
class CreatableTopicConfigs(Struct):
    name: str = field(STRING, "5+")
    value: str | None = field(STRING, "5+", nullable="5+")
    read_only: bool = field(BOOL, "5+")
    config_source: int = field(INT8, "5+", default=-1, ignorable=True)
    is_sensitive: bool = field(BOOL, "5+")


@struct
class CreatableTopicResult(Struct):
    name: str = field(STRING, "0+")
    topic_id: uuid.UUID = field(UUID, "7+", ignorable=True)
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "1+", nullable="0+", ignorable=True)
    topic_config_error_code: int = field(INT16, "5+", ignorable=True, tag=0, tagged="5+")
    num_partitions: int = field(INT32, "5+", default=-1, ignorable=True)
    replication_factor: int = field(INT16, "5+", default=-1, ignorable=True)
    configs: tuple[CreatableTopicConfigs, ...] | None = field(
        [CreatableTopicConfigs], "5+", nullable="5+", ignorable=True
    )


@response(api_key=19, versions="0-7", flexible="5+")
class CreateTopicsResponse(Message):
    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    topics: tuple[CreatableTopicResult, ...] = field([CreatableTopicResult], "0+")
