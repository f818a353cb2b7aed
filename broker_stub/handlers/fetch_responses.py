"""The responses to Fetch (rules B4.18-B4.22, B4.46, B4.47)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from kce import wire
from kce.broker_stub.disk import Slice, content
from kce.broker_stub.handlers.base import Services
from kce.broker_stub.handlers.leaders import current_leader, endpoints
from kce.broker_stub.partition import Partition
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.replication.fetch_session import Requested
from kce.broker_stub.replication.reading import PartitionFetch, Read
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
    errors,
    single_fetch,
)
from kce.wire.control import NO_TOPIC_ID
from kce.wire.down_conversion import UnsupportedCodec, down_converted
from kce.wire.long_messages import SHORT, encoded_in_steps
from kce.wire.record import Codec
from kce.wire.steps import STEP_MASK, Steps, finish

_ZSTD_SINCE: Final = 10
_FLEXIBLE_SINCE: Final = 12

#: what was asked of a partition, and what was read
Told = tuple[Requested, Read]


def full_response(
    session_id: int,
    told: Sequence[Told],
    context: RequestContext,
    services: Services,
    *,
    is_consumer: bool,
) -> FetchResponse:
    """Rules B4.18, B4.19, B4.21, B4.47."""
    return finish(response_in_steps(session_id, told, context, services, is_consumer=is_consumer))


def response_in_steps(
    session_id: int,
    told: Sequence[Told],
    context: RequestContext,
    services: Services,
    *,
    is_consumer: bool,
) -> Steps[FetchResponse]:
    """``full_response`` with pauses."""
    version = context.header.api_version
    leaders: set[int] = set()
    topics: list[FetchableTopicResponse] = []
    count = 0
    for (topic, topic_id), group in itertools.groupby(told, key=_topic_of):
        partitions = []
        for requested, read in group:
            data = _partition_data(requested.fetch, read, version, services, is_consumer=is_consumer)
            if data.current_leader.leader_id >= 0:
                leaders.add(data.current_leader.leader_id)
            partitions.append(data)
            count += 1
            if not count & STEP_MASK:
                yield
        made = FetchableTopicResponse(topic=topic, topic_id=topic_id or NO_TOPIC_ID, partitions=tuple(partitions))
        topics.append(made)
    return FetchResponse(
        session_id=session_id,
        responses=tuple(topics),
        node_endpoints=tuple(
            FetchResponseNodeEndpoint(
                node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
            )
            for broker, endpoint in endpoints(services, context.listener, leaders)
        ),
    )


def _topic_of(told: Told) -> tuple[str, UUID | None]:
    wanted = told[0].wanted
    return ("" if wanted.topic_id is not None else wanted.topic), wanted.topic_id


def _partition_data(
    fetch: PartitionFetch, read: Read, version: int, services: Services, *, is_consumer: bool
) -> FetchResponsePartitionData:
    code, records = read.error, read.records
    hosted = services.replica_manager.partitions.get(fetch.partition)
    if code == ErrorCode.NONE and version < _ZSTD_SINCE:
        code, converted, count = _for_old_versions(hosted, fetch.offset, records, version, is_consumer=is_consumer)
        if count:
            services.data_plane.stats.of(fetch.partition.topic).fetch_conversions += count
        if converted is None:
            return FetchResponsePartitionData(
                partition_index=fetch.partition.partition, error_code=code, high_watermark=-1
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
        preferred_read_replica=read.preferred_replica,
        records=records,  # type: ignore[arg-type]  # what is no bytes is sent as it is
    )


def _for_old_versions(
    hosted: Partition | None, offset: int, records: Slice, version: int, *, is_consumer: bool
) -> tuple[ErrorCode, Slice | None, int]:
    """Convert records to the format of the version; how many. An error returns no records (rule B4.20)."""
    found = None if hosted is None else hosted.log
    if found is not None and found.config.compression_type is Codec.ZSTD:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, None, 0
    stored = 2 if found is None else found.config.record_version
    asked = 2 if version > 3 else 1 if version >= 2 else 0
    if stored <= asked or not records:
        return ErrorCode.NONE, records, 0
    if is_consumer and found is not None and not found.config.message_downconversion_enable:
        return ErrorCode.UNSUPPORTED_VERSION, None, 0
    try:
        return ErrorCode.NONE, *down_converted(content(records), magic=asked, first_offset=offset)
    except UnsupportedCodec:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, None, 0
    except (errors.CorruptRecord, errors.LimitExceeded):
        return ErrorCode.CORRUPT_MESSAGE, None, 0


def response_of_one_topic(session_id: int, told: Sequence[Told], context: RequestContext) -> wire.Payload | None:
    """The response, if it has one topic and nothing but records."""
    if not 0 < len(told) <= single_fetch.MOST or context.header.api_version not in single_fetch.RESPONSES:
        return None
    topic_id = told[0][0].wanted.topic_id
    if topic_id is None:
        return None
    found = []
    for requested, read in told:
        wanted = requested.wanted
        if read.error or read.diverging is not None or read.aborted or wanted.topic_id != topic_id:
            return None
        found.append(
            single_fetch.Found(
                wanted.partition, read.high_watermark, read.last_stable_offset, read.log_start_offset, read.records,
                read.aborted is not None, read.preferred_replica,
            )
        )  # fmt: skip
    return single_fetch.encode_response(context.header.correlation_id, session_id, topic_id.bytes, found)


def size_of(message: FetchResponse, context: RequestContext) -> Steps[int]:
    """In bytes, with 4 for its length. The records, which may be many, are not copied."""
    version, records, count = context.api_version, 0, 0
    topics = []
    for topic in message.responses:
        partitions = []
        for data in topic.partitions:
            size = len(data.records or b"")
            records += size + (_varint_size(size + 1) - 1 if version >= _FLEXIBLE_SINCE else 0)
            partitions.append(replace(data, records=b""))
            count += 1
            if not count & STEP_MASK:
                yield
        topics.append(replace(topic, partitions=tuple(partitions)))
    whole = replace(message, responses=tuple(topics))
    if count > SHORT:
        whole, _ = yield from encoded_in_steps(whole, api_version=version)
    rest = wire.encode_response(whole, api_version=version, correlation_id=0)
    return len(rest) - (1 if version >= _FLEXIBLE_SINCE else 0) + records


def _varint_size(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def error_response(
    message: FetchRequest | single_fetch.SingleFetch, context: RequestContext, error: ErrorCode
) -> FetchResponse:
    """Rules B4.22, B4.46."""
    if context.header.api_version >= 13 or isinstance(message, single_fetch.SingleFetch):
        return FetchResponse(error_code=error, session_id=message.session_id)
    return FetchResponse(
        error_code=error,
        session_id=message.session_id,
        responses=tuple(
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=tuple(
                    FetchResponsePartitionData(partition_index=entry.partition, error_code=error, high_watermark=-1)
                    for entry in topic.partitions
                ),
            )
            for topic in message.topics
        ),
    )
