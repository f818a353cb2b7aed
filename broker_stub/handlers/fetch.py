"""Fetch (key 1), versions 0-17 (section 4)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from kce import wire
from kce.broker_stub.authorization import Authorization
from kce.broker_stub.disk import Slice, content
from kce.broker_stub.errors import Refused
from kce.broker_stub.handlers import in_sync
from kce.broker_stub.handlers.base import Handler, Services, answer_by, respond_to
from kce.broker_stub.handlers.leaders import current_leader, endpoints
from kce.broker_stub.partition import Partition
from kce.broker_stub.quotas.client_quotas import client
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.replication.data_plane import Asked, isolation_of
from kce.broker_stub.replication.delayed import SessionWait
from kce.broker_stub.replication.fetch_sessions import (
    FINAL_EPOCH,
    NO_SESSION,
    FetchContext,
    Key,
    Requested,
    Wanted,
)
from kce.broker_stub.replication.read_replica import Consumer
from kce.broker_stub.replication.reading import FetchParams, PartitionFetch, Read
from kce.broker_stub.security.operations import Operation, ResourceType
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
    single_fetch,
)
from kce.wire.control import NO_TOPIC_ID
from kce.wire.down_conversion import UnsupportedCodec, down_converted
from kce.wire.record import Codec
from kce.wire.vocabulary import TopicPartition

_IDS_SINCE: Final = 13
_ZSTD_SINCE: Final = 10
_RACK_SINCE: Final = 11
_MAX_BYTES_SINCE: Final = 3
_FLEXIBLE_SINCE: Final = 12


def handle(request: Request, message: FetchRequest | single_fetch.SingleFetch, services: Services) -> None:
    """Raises Refused for a session that is not known, or is at another epoch (rule B4.27)."""
    context, plane = request.context, services.data_plane
    if isinstance(message, single_fetch.SingleFetch):
        if in_sync.park(request, message, services, _asked):
            return
        message = message.message()
    version = context.header.api_version
    replica_id = message.replica_state.replica_id if version >= 15 else message.replica_id
    try:
        fetching = plane.sessions.context(
            message.session_id if version >= 7 else NO_SESSION,
            message.session_epoch if version >= 7 else FINAL_EPOCH,
            replica_id,
            list(_wanted(message, version)),
            _forgotten(message, version),
            uses_topic_ids=version >= _IDS_SINCE,
        )
    except Refused as e:
        request.respond(FetchResponse(error_code=e.code))
        return
    denied = _Denied(context, services.authorization, is_follower=replica_id >= 0)
    requested = list(_requested(fetching, fetching.wanted(), denied, services))
    session = fetching.session.id if fetching.session is not None and fetching.has_idle else None
    plane.fetch(*_asked(request, message, replica_id, fetching, requested, session, services))


def _asked(
    request: Request,
    message: FetchRequest,
    replica_id: int,
    fetching: FetchContext,
    requested: list[Requested],
    session_id: int | None,
    services: Services,
) -> Asked:
    """``session_id``: if it has idle partitions, which may have something to read later."""
    context, version = request.context, request.context.header.api_version
    max_bytes = message.max_bytes if replica_id >= 0 else _max_bytes(message, context, services)
    known = [one.fetch for one in requested if one.answer is None]
    is_complete = len(known) == len(requested)
    params = FetchParams(
        replica_id=replica_id,
        max_wait_ms=message.max_wait_ms if is_complete else 0,  # rule B2.18
        min_bytes=min(message.min_bytes, max_bytes),
        max_bytes=max_bytes,
        isolation=isolation_of(replica_id, message.isolation_level),
        leader_only=replica_id >= 0 or version < 11,  # rule B4.9
        hard_limit=version < _MAX_BYTES_SINCE,
        consumer=_consumer(replica_id, message, context, services),
    )

    def more() -> tuple[Sequence[PartitionFetch], bool]:
        touched = fetching.touched(requested)
        if not touched:
            return (), True
        denied = _Denied(context, services.authorization, is_follower=replica_id >= 0)
        added = list(_requested(fetching, touched, denied, services))
        requested.extend(added)
        fetches = [one.fetch for one in added if one.answer is None]
        return fetches, len(fetches) == len(added)

    def respond(reads: Sequence[Read]) -> None:
        rest = iter(reads)
        answers = [(one, one.answer if one.answer is not None else next(rest)) for one in requested]
        if replica_id >= 0:
            _record(answers, replica_id, services)
            request.exempt()  # rule B4.45
        elif (quotas := services.quotas).fetch.enabled or quotas.request.enabled:
            respond_to(request, lambda: _maybe_throttled(request, fetching, answers, services))
            return
        answer_by(request, lambda: _answer(request, fetching, answers, services, is_consumer=replica_id < 0))

    return Asked(params, known, respond, None if session_id is None else SessionWait(session_id, more))


def _max_bytes(message: FetchRequest, context: RequestContext, services: Services) -> int:
    """Of a consumer: no more than its quota allows in one window, which would always be throttled (rule B4.5)."""
    max_bytes, quota = min(message.max_bytes, services.config.fetch_max_bytes), services.quotas.fetch
    return int(min(max_bytes, quota.max_in_window(*client(context)))) if quota.enabled else max_bytes


def _consumer(replica_id: int, message: FetchRequest, context: RequestContext, services: Services) -> Consumer | None:
    """Who may be sent to a follower (rule B4.37)."""
    has_rack = context.header.api_version >= _RACK_SINCE and replica_id < 0 and message.rack_id
    if not has_rack or services.config.replica_selector_class is None:
        return None
    return Consumer(message.rack_id, context.listener)


def _wanted(message: FetchRequest, version: int) -> Iterator[Wanted]:
    for topic in message.topics:
        topic_id = topic.topic_id if version >= _IDS_SINCE else None
        for entry in topic.partitions:
            yield Wanted(
                topic.topic,
                topic_id,
                entry.partition,
                entry.fetch_offset,
                entry.partition_max_bytes,
                entry.log_start_offset,
                entry.current_leader_epoch,
                entry.last_fetched_epoch,
            )


def _forgotten(message: FetchRequest, version: int) -> list[Key]:
    return [
        (topic.topic_id.int if version >= _IDS_SINCE else topic.topic, number)
        for topic in message.forgotten_topics_data
        for number in topic.partitions
    ]


class _Denied:
    """Whether the topic may be fetched: each is judged once in a request."""

    def __init__(self, context: RequestContext, authorization: Authorization, *, is_follower: bool) -> None:
        self._context = context
        self._authorization = authorization
        self._judged: dict[str, bool] = {}
        self.whole = (
            is_follower
            and authorization.is_on
            and not authorization.allows_on_cluster(context, Operation.CLUSTER_ACTION)
        )
        self.by_topic = authorization.is_on and not is_follower

    def __call__(self, topic: str) -> bool:
        denied = self._judged.get(topic)
        if denied is None:
            denied = not self._authorization.allows(self._context, Operation.READ, ResourceType.TOPIC, topic)
            self._judged[topic] = denied
        return denied


def _requested(
    fetching: FetchContext, wanted: Iterable[Wanted], denied: _Denied, services: Services
) -> Iterator[Requested]:
    """Rules B4.2, B4.3."""
    snapshot = services.metadata_cache.snapshot
    for one in wanted:
        name: str | None = one.topic
        if not name and one.topic_id is not None:
            name = snapshot.topic_names.get(one.topic_id)
            if name is not None:
                fetching.resolved(one, name)
        fetch = PartitionFetch(
            TopicPartition(name or "", one.partition),
            one.topic_id,
            one.offset,
            one.max_bytes,
            one.log_start_offset,
            one.leader_epoch,
            one.last_fetched_epoch,
        )
        answer = None
        if denied.whole:
            answer = Read(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        elif name is None:
            answer = Read(ErrorCode.UNKNOWN_TOPIC_ID)
        elif denied.by_topic and denied(name):
            answer = Read(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        elif snapshot.partition(fetch.partition) is None:
            answer = Read(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        yield Requested(one, fetch, answer)


def _record(answers: Sequence[tuple[Requested, Read]], replica_id: int, services: Services) -> None:
    """All that followers take of throttled partitions counts (rule B8.11), and what a reassignment moves."""
    quota, hosted = services.leader_quota, services.replica_manager.partitions
    for one, read in answers:
        partition = hosted.get(one.fetch.partition) if read.records else None
        if partition is not None and replica_id in partition.adding_replicas:
            services.data_plane.reassignment_bytes_out += len(read.records)
    size = sum(len(read.records) for one, read in answers if quota.is_throttled(one.fetch.partition))
    if size:
        quota.record(size)


def _maybe_throttled(
    request: Request, fetching: FetchContext, answers: Sequence[tuple[Requested, Read]], services: Services
) -> FetchResponse:
    """To a consumer; without partitions if its quotas are exceeded (rule B8.7)."""
    context, size = request.context, 0
    if services.quotas.fetch.enabled:
        size = _size(_message(NO_SESSION, fetching.told(answers), context, services, is_consumer=True), context)
    ms = services.quotas.charge_fetch(request, size)
    if not ms:
        return _response(fetching, answers, context, services)
    try:
        return FetchResponse(throttle_time_ms=ms, session_id=fetching.throttled())
    except Refused as e:
        session_id = NO_SESSION if fetching.session is None else fetching.session.id
        return FetchResponse(throttle_time_ms=ms, error_code=e.code, session_id=session_id)


def _size(message: FetchResponse, context: RequestContext) -> int:
    """In bytes, with 4 for its length. The records, which may be many, are not copied."""
    version, records = context.api_version, 0
    topics = []
    for topic in message.responses:
        partitions = []
        for data in topic.partitions:
            size = len(data.records or b"")
            records += size + (_varint_size(size + 1) - 1 if version >= _FLEXIBLE_SINCE else 0)
            partitions.append(replace(data, records=b""))
        topics.append(replace(topic, partitions=tuple(partitions)))
    rest = wire.encode_response(replace(message, responses=tuple(topics)), api_version=version, correlation_id=0)
    return len(rest) - (1 if version >= _FLEXIBLE_SINCE else 0) + records


def _varint_size(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def _topic_of(told: tuple[Requested, Read]) -> tuple[str, UUID | None]:
    wanted = told[0].wanted
    return ("" if wanted.topic_id is not None else wanted.topic), wanted.topic_id


def _answer(
    request: Request,
    fetching: FetchContext,
    answers: Sequence[tuple[Requested, Read]],
    services: Services,
    *,
    is_consumer: bool,
) -> None:
    session_id = NO_SESSION if fetching.session is None else fetching.session.id
    try:
        told = fetching.answered(answers)
    except Refused as e:
        request.respond(FetchResponse(error_code=e.code, session_id=session_id))
        return
    context = request.context
    payload = None if request.is_timed else _of_one_topic(session_id, told, context)
    if payload is None:
        request.respond(_message(session_id, told, context, services, is_consumer=is_consumer))
    else:
        request.respond_payload(payload, single_fetch.errors_of(len(told)))


def _of_one_topic(
    session_id: int, told: Sequence[tuple[Requested, Read]], context: RequestContext
) -> wire.Payload | None:
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


def _response(
    fetching: FetchContext,
    answers: Sequence[tuple[Requested, Read]],
    context: RequestContext,
    services: Services,
) -> FetchResponse:
    """To a consumer."""
    session_id = NO_SESSION if fetching.session is None else fetching.session.id
    try:
        told = fetching.answered(answers)
    except Refused as e:
        return FetchResponse(error_code=e.code, session_id=session_id)
    return _message(session_id, told, context, services, is_consumer=True)


def _message(
    session_id: int,
    told: Sequence[tuple[Requested, Read]],
    context: RequestContext,
    services: Services,
    *,
    is_consumer: bool,
) -> FetchResponse:
    """Rules B4.18, B4.19, B4.21, B4.47."""
    version = context.header.api_version
    leaders: set[int] = set()
    topics: list[FetchableTopicResponse] = []
    for (topic, topic_id), group in itertools.groupby(told, key=_topic_of):
        partitions = tuple(
            _partition_data(requested.fetch, read, version, services, is_consumer=is_consumer)
            for requested, read in group
        )
        leaders.update(data.current_leader.leader_id for data in partitions if data.current_leader.leader_id >= 0)
        topics.append(FetchableTopicResponse(topic=topic, topic_id=topic_id or NO_TOPIC_ID, partitions=partitions))
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


def _partition_data(
    fetch: PartitionFetch, read: Read, version: int, services: Services, *, is_consumer: bool
) -> FetchResponsePartitionData:
    code, records = read.error, read.records
    hosted = services.replica_manager.partitions.get(fetch.partition)
    if code == ErrorCode.NONE and version < _ZSTD_SINCE:
        code, converted, count = _for_old_versions(hosted, fetch.offset, records, version, is_consumer=is_consumer)
        if count:
            services.data_plane.fetch_conversions[fetch.partition.topic] += count
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


def error_response(
    message: FetchRequest | single_fetch.SingleFetch, context: RequestContext, error: ErrorCode
) -> FetchResponse:
    """Rules B4.22, B4.46."""
    if context.header.api_version >= 13 or isinstance(message, single_fetch.SingleFetch):
        return FetchResponse(error_code=error)
    return FetchResponse(
        error_code=error,
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


def _decode(frame: bytes, max_elements: int) -> tuple[wire.Header, Any]:
    return single_fetch.decode_request(frame) or wire.decode_request(frame, max_elements)


HANDLER: Final = Handler(FetchRequest, handle, error_response, decode=_decode)
