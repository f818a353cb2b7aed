"""Fetch (key 1), versions 0-17, without sessions: every fetch is a full one (section 4, rule B4.36)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Final

from kce.broker_stub.disk import Buffer
from kce.broker_stub.handlers.base import Handler, Services, respond_to
from kce.broker_stub.handlers.leaders import current_leader, endpoints
from kce.broker_stub.partition import Partition
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.replication.data_plane import isolation_of
from kce.broker_stub.replication.reading import FetchParams, PartitionFetch, Read
from kce.wire import (
    AbortedTransaction,
    ErrorCode,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponseLeaderIdAndEpoch,
    FetchResponseNodeEndpoint,
    FetchResponsePartitionData,
    FetchTopic,
)
from kce.wire.control import NO_TOPIC_ID
from kce.wire.down_conversion import UnsupportedCodec, down_converted
from kce.wire.record import Codec
from kce.wire.vocabulary import TopicPartition

_NO_SESSION: Final = 0
_FULL_FETCHES: Final = (0, -1)
_ZSTD_SINCE: Final = 10
_MAX_BYTES_SINCE: Final = 3

#: the topic as requested, the fetch of one partition, and its answer where it needs no read
RequestedPartition = tuple[FetchTopic, PartitionFetch, Read | None]


def handle(request: Request, message: FetchRequest, services: Services) -> None:
    context = request.context
    version = context.header.api_version
    if message.session_id != _NO_SESSION and message.session_epoch not in _FULL_FETCHES:  # rule B4.27
        request.respond(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
        return
    replica_id = message.replica_state.replica_id if version >= 15 else message.replica_id
    max_bytes = min(message.max_bytes, services.config.fetch_max_bytes) if replica_id < 0 else message.max_bytes
    params = FetchParams(
        replica_id=replica_id,
        max_wait_ms=message.max_wait_ms,
        min_bytes=min(message.min_bytes, max_bytes),
        max_bytes=max_bytes,
        isolation=isolation_of(replica_id, message.isolation_level),
        leader_only=replica_id >= 0 or version < 11,  # rule B4.9
        hard_limit=version < _MAX_BYTES_SINCE,
    )
    requested = list(_requested_partitions(message, version, services))
    known = [fetch for _, fetch, answer in requested if answer is None]

    def respond(reads: Sequence[Read]) -> None:
        rest = iter(reads)
        answers = [answer if answer is not None else next(rest) for _, _, answer in requested]
        respond_to(request, lambda: _response(requested, answers, context, services, is_consumer=replica_id < 0))

    services.data_plane.fetch(params if len(known) == len(requested) else _now(params), known, respond)


def _now(params: FetchParams) -> FetchParams:
    """``params`` without waiting, for when some partitions already have an answer (rule B2.18)."""
    return FetchParams(
        replica_id=params.replica_id,
        max_wait_ms=0,
        min_bytes=params.min_bytes,
        max_bytes=params.max_bytes,
        isolation=params.isolation,
        leader_only=params.leader_only,
        hard_limit=params.hard_limit,
    )


def _requested_partitions(message: FetchRequest, version: int, services: Services) -> Iterator[RequestedPartition]:
    """Rules B4.2, B4.3."""
    snapshot = services.metadata_cache.snapshot
    for topic in message.topics:
        name: str | None = topic.topic
        topic_id: uuid.UUID | None = None
        if version >= 13:
            topic_id = topic.topic_id
            name = snapshot.topic_names.get(topic_id)
        for entry in topic.partitions:
            fetch = PartitionFetch(
                TopicPartition(name or "", entry.partition),
                topic_id,
                entry.fetch_offset,
                entry.partition_max_bytes,
                entry.log_start_offset,
                entry.current_leader_epoch,
                entry.last_fetched_epoch,
            )
            answer = None
            if name is None:
                answer = Read(ErrorCode.UNKNOWN_TOPIC_ID)
            elif snapshot.partition(fetch.partition) is None:
                answer = Read(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            yield topic, fetch, answer


def _response(
    requested: Sequence[RequestedPartition],
    answers: Sequence[Read],
    context: RequestContext,
    services: Services,
    *,
    is_consumer: bool,
) -> FetchResponse:
    """Rules B4.18, B4.19, B4.21, B4.47."""
    version = context.header.api_version
    leaders: set[int] = set()
    topics: list[FetchableTopicResponse] = []
    partitions: list[FetchResponsePartitionData] = []
    for i, ((topic, fetch, _), read) in enumerate(zip(requested, answers, strict=True)):
        data = _partition_data(fetch, read, version, services, is_consumer=is_consumer)
        if version >= 16 and data.current_leader.leader_id >= 0:
            leaders.add(data.current_leader.leader_id)
        partitions.append(data)
        if i + 1 == len(requested) or requested[i + 1][0] is not topic:
            name = topic.topic if version < 13 else ""
            topics.append(FetchableTopicResponse(topic=name, topic_id=topic.topic_id, partitions=tuple(partitions)))
            partitions = []
    return FetchResponse(
        session_id=_NO_SESSION,
        responses=tuple(topics),
        node_endpoints=tuple(
            FetchResponseNodeEndpoint(
                node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
            )
            for broker, endpoint in endpoints(services, context.listener, leaders)
        ),
    )


def _partition_data(
    fetch: PartitionFetch, read: Read, version: int, services: Services, *, is_consumer: bool
) -> FetchResponsePartitionData:
    code, records = read.error, read.records
    hosted = services.replica_manager.partitions.get(fetch.partition)
    if code == ErrorCode.NONE and version < _ZSTD_SINCE:
        code, converted = _for_old_versions(hosted, records, version, is_consumer=is_consumer)
        if converted is None:
            return FetchResponsePartitionData(
                partition_index=fetch.partition.partition, error_code=code, high_watermark=-1, records=None
            )
        records = converted
    if version <= 5 and code == ErrorCode.KAFKA_STORAGE_ERROR:  # rule B4.18
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader = FetchResponseLeaderIdAndEpoch()
    if version >= 16 and code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
        leader_id, leader_epoch = current_leader(services, fetch.partition)
        leader = FetchResponseLeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)
    diverging = FetchResponseEpochEndOffset()
    if read.diverging is not None:
        diverging = FetchResponseEpochEndOffset(epoch=read.diverging.epoch, end_offset=read.diverging.end_offset)
    aborted = None
    if read.aborted is not None:
        aborted = tuple(
            AbortedTransaction(producer_id=transaction.producer_id, first_offset=transaction.first_offset)
            for transaction in read.aborted
        )
    return FetchResponsePartitionData(
        partition_index=fetch.partition.partition,
        error_code=code,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        diverging_epoch=diverging,
        current_leader=leader,
        aborted_transactions=aborted,
        records=records,  # type: ignore[arg-type]  # a memoryview is written as it is
    )


def _for_old_versions(
    hosted: Partition | None, records: Buffer, version: int, *, is_consumer: bool
) -> tuple[ErrorCode, Buffer | None]:
    """Convert records to the format of the version; an error returns no records (rule B4.20)."""
    found = None if hosted is None else hosted.log
    if found is not None and found.config.compression_type is Codec.ZSTD:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, None
    if version > 3 or not records:
        return ErrorCode.NONE, records
    if is_consumer and found is not None and not found.config.message_downconversion_enable:
        return ErrorCode.UNSUPPORTED_VERSION, None
    try:
        return ErrorCode.NONE, down_converted(records, magic=1 if version >= 2 else 0)
    except UnsupportedCodec:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, None


def error_response(message: FetchRequest, context: RequestContext, error: ErrorCode) -> FetchResponse:
    """Rules B4.22, B4.46."""
    if context.header.api_version >= 13:
        return FetchResponse(error_code=error)
    return FetchResponse(
        error_code=error,
        responses=tuple(
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=NO_TOPIC_ID,
                partitions=tuple(
                    FetchResponsePartitionData(
                        partition_index=entry.partition, error_code=error, high_watermark=-1, records=None
                    )
                    for entry in topic.partitions
                ),
            )
            for topic in message.topics
        ),
    )


HANDLER: Final = Handler(FetchRequest, handle, error_response)
