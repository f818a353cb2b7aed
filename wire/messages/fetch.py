"""Fetch (key 1), versions 0-17."""

import uuid

from kce.wire.primitives import INT8, INT16, INT32, INT64, RECORDS, STRING, UUID
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = [
    "AbortedTransaction",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchResponseEpochEndOffset",
    "FetchResponseLeaderIdAndEpoch",
    "FetchResponseNodeEndpoint",
    "FetchResponsePartitionData",
    "FetchTopic",
    "FetchableTopicResponse",
    "ForgottenTopic",
    "ReplicaState",
    "SnapshotId",
]


@struct
class ReplicaState(Struct):
    replica_id: int = field(INT32, "15+", default=-1)
    replica_epoch: int = field(INT64, "15+", default=-1)


@struct
class FetchPartition(Struct):
    partition: int = field(INT32, "0+")
    current_leader_epoch: int = field(INT32, "9+", default=-1, ignorable=True)
    fetch_offset: int = field(INT64, "0+")
    last_fetched_epoch: int = field(INT32, "12+", default=-1)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    partition_max_bytes: int = field(INT32, "0+")
    replica_directory_id: uuid.UUID = field(UUID, "17+", ignorable=True, tag=0, tagged="17+")


@struct
class FetchTopic(Struct):
    topic: str = field(STRING, "0-12", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "13+", ignorable=True)
    partitions: tuple[FetchPartition, ...] = field([FetchPartition], "0+")


@struct
class ForgottenTopic(Struct):
    topic: str = field(STRING, "7-12", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "13+", ignorable=True)
    partitions: tuple[int, ...] = field([INT32], "7+")


@request(api_key=1, versions="0-17", flexible="12+")
class FetchRequest(Message):
    cluster_id: str | None = field(STRING, "12+", default=None, nullable="12+", ignorable=True, tag=0, tagged="12+")
    replica_id: int = field(INT32, "0-14", default=-1)
    replica_state: ReplicaState = field(ReplicaState, "15+", tag=1, tagged="15+")
    max_wait_ms: int = field(INT32, "0+")
    min_bytes: int = field(INT32, "0+")
    max_bytes: int = field(INT32, "3+", default=2147483647, ignorable=True)
    isolation_level: int = field(INT8, "4+", ignorable=True)
    session_id: int = field(INT32, "7+", ignorable=True)
    session_epoch: int = field(INT32, "7+", default=-1, ignorable=True)
    topics: tuple[FetchTopic, ...] = field([FetchTopic], "0+")
    forgotten_topics_data: tuple[ForgottenTopic, ...] = field([ForgottenTopic], "7+")
    rack_id: str = field(STRING, "11+", ignorable=True)


@struct
class FetchResponseEpochEndOffset(Struct):
    epoch: int = field(INT32, "12+", default=-1)
    end_offset: int = field(INT64, "12+", default=-1)


@struct
class FetchResponseLeaderIdAndEpoch(Struct):
    leader_id: int = field(INT32, "12+", default=-1)
    leader_epoch: int = field(INT32, "12+", default=-1)


@struct
class SnapshotId(Struct):
    end_offset: int = field(INT64, "0+", default=-1)
    epoch: int = field(INT32, "0+", default=-1)


@struct
class AbortedTransaction(Struct):
    producer_id: int = field(INT64, "4+")
    first_offset: int = field(INT64, "4+")


@struct
class FetchResponsePartitionData(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    high_watermark: int = field(INT64, "0+")
    last_stable_offset: int = field(INT64, "4+", default=-1, ignorable=True)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    diverging_epoch: FetchResponseEpochEndOffset = field(FetchResponseEpochEndOffset, "12+", tag=0, tagged="12+")
    current_leader: FetchResponseLeaderIdAndEpoch = field(FetchResponseLeaderIdAndEpoch, "12+", tag=1, tagged="12+")
    snapshot_id: SnapshotId = field(SnapshotId, "12+", tag=2, tagged="12+")
    aborted_transactions: tuple[AbortedTransaction, ...] | None = field(
        [AbortedTransaction], "4+", nullable="4+", ignorable=True
    )
    preferred_read_replica: int = field(INT32, "11+", default=-1)
    records: bytes | None = field(RECORDS, "0+", nullable="0+")


@struct
class FetchableTopicResponse(Struct):
    topic: str = field(STRING, "0-12", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "13+", ignorable=True)
    partitions: tuple[FetchResponsePartitionData, ...] = field([FetchResponsePartitionData], "0+")


@struct
class FetchResponseNodeEndpoint(Struct):
    node_id: int = field(INT32, "16+")
    host: str = field(STRING, "16+")
    port: int = field(INT32, "16+")
    rack: str | None = field(STRING, "16+", default=None, nullable="16+")


@response(api_key=1, versions="0-17", flexible="12+")
class FetchResponse(Message):
    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16, "7+", ignorable=True)
    session_id: int = field(INT32, "7+")
    responses: tuple[FetchableTopicResponse, ...] = field([FetchableTopicResponse], "0+")
    node_endpoints: tuple[FetchResponseNodeEndpoint, ...] = field(
        [FetchResponseNodeEndpoint], "16+", tag=0, tagged="16+"
    )
