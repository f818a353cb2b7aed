"""Fetch (key 1), versions 0-17 (section 4)."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

from kce import wire
from kce.broker_stub.authorization import Authorization
from kce.broker_stub.errors import Refused
from kce.broker_stub.handlers import in_sync
from kce.broker_stub.handlers.base import Answer, Handler, Services, answer_by, answer_later, respond_to
from kce.broker_stub.handlers.fetch_responses import (
    error_response,
    full_response,
    response_in_steps,
    response_of_one_topic,
    size_of,
)
from kce.broker_stub.quotas.client_quotas import client
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.replication.data_plane import Asked
from kce.broker_stub.replication.delayed import SessionWait
from kce.broker_stub.replication.fetch_session import FINAL_EPOCH, NO_SESSION, Key, Requested, Wanted
from kce.broker_stub.replication.fetch_sessions import FetchContext
from kce.broker_stub.replication.read_replica import Consumer
from kce.broker_stub.replication.reading import FUTURE_LOCAL_REPLICA, FetchParams, PartitionFetch, Read, isolation_of
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.garbage import no_collection
from kce.wire import (
    ErrorCode,
    FetchRequest,
    FetchResponse,
    single_fetch,
)
from kce.wire.long_messages import SHORT
from kce.wire.steps import STEP_MASK, Steps, finish
from kce.wire.vocabulary import NO_EPOCH, TopicPartition

_IDS_SINCE: Final = 13
_RACK_SINCE: Final = 11
_MAX_BYTES_SINCE: Final = 3
_MAX_INT: Final = 2**31 - 1


def handle(
    request: Request, message: FetchRequest | single_fetch.SingleFetch, services: Services
) -> Awaitable[None] | None:
    if isinstance(message, single_fetch.SingleFetch):
        if in_sync.park(request, message, services, _asked):
            return None
        message = message.message()
    if _is_long(message, services):
        return _handle_in_turns(request, message, services)
    finish(_handle(request, message, services))
    return None


def _is_long(message: FetchRequest, services: Services) -> bool:
    """Whether it asks for very many partitions, also as the next of its session, or forgets them."""
    named = sum([len(topic.partitions) for topic in message.topics])
    named += sum([len(topic.partitions) for topic in message.forgotten_topics_data])
    return named > SHORT or (message.session_id > 0 and services.data_plane.sessions.is_long(message.session_id))


async def _handle_in_turns(request: Request, message: FetchRequest, services: Services) -> None:
    with no_collection():
        await request.in_turns(_handle(request, message, services))


def _handle(request: Request, message: FetchRequest, services: Services) -> Steps[None]:
    """Raises Refused for a session that is not known, or is at another epoch (rule B4.27)."""
    context, plane = request.context, services.data_plane
    version = context.header.api_version
    wanted = yield from _wanted(message, version)
    replica_id = message.replica_state.replica_id if version >= 15 else message.replica_id
    try:
        fetching = yield from plane.sessions.context(
            message.session_id if version >= 7 else NO_SESSION,
            message.session_epoch if version >= 7 else FINAL_EPOCH,
            replica_id,
            wanted,
            _forgotten(message, version),
            uses_topic_ids=version >= _IDS_SINCE,
            isolation_level=message.isolation_level,
        )
    except Refused as e:
        request.respond(FetchResponse(error_code=e.code))
        return
    denied = _Denied(context, services.authorization, is_follower=replica_id >= 0)
    requested = []
    for i, one in enumerate(_requested(fetching, fetching.wanted(), denied, services), 1):
        requested.append(one)
        if not i & STEP_MASK:
            yield
    session = fetching.session
    session_id = session.id if session is not None and session.idle else None
    plane.fetch(*_asked(request, message, replica_id, fetching, requested, session_id, services))


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
    max_bytes = min(message.max_bytes, services.config.fetch_max_bytes)
    if replica_id < 0:
        max_bytes = min(max_bytes, _max_in_window(context, services))
    is_consumer = replica_id < 0 and replica_id != FUTURE_LOCAL_REPLICA
    known = [one.fetch for one in requested if one.answer is None]
    may_read = bool(known) or session_id is not None
    params = FetchParams(
        replica_id=replica_id,
        max_wait_ms=message.max_wait_ms,
        min_bytes=min(message.min_bytes, max_bytes),
        max_bytes=max_bytes,
        # judged where there is something to read, now or, of idle partitions, later
        isolation=isolation_of(message.isolation_level if may_read else 0, is_consumer=is_consumer),
        leader_only=replica_id >= 0 or (is_consumer and version < 11),  # rule B4.9
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

    def in_turn() -> Sequence[PartitionFetch]:
        requested.sort(key=fetching.turn)
        return [one.fetch for one in requested if one.answer is None]

    def respond(reads: Sequence[Read]) -> None:
        if len(requested) > SHORT:
            fetching.begins_answer()
            made = partial(_long_answer, request, fetching, requested, reads, services, replica_id)
            answer_later(request, made, services, is_long=True)
            return
        answers = finish(_answers(requested, reads, is_consumer=replica_id < 0))
        if replica_id >= 0:
            finish(_record(answers, replica_id, services))
            request.exempt()  # rule B4.45
        elif _has_quota(services):
            respond_to(request, lambda: finish(_maybe_throttled(request, fetching, answers, services)))
            return
        answer_by(request, lambda: _answer(request, fetching, answers, services, is_consumer=replica_id < 0))

    return Asked(params, known, respond, None if session_id is None else SessionWait(session_id, more, in_turn))


def _max_in_window(context: RequestContext, services: Services) -> int:
    """More than its quota allows a consumer in one window would always be throttled (rule B4.5)."""
    quota = services.quotas.fetch
    return int(quota.max_in_window(*client(context))) if quota.enabled else _MAX_INT


def _consumer(replica_id: int, message: FetchRequest, context: RequestContext, services: Services) -> Consumer | None:
    """Who may be sent to a follower (rule B4.37)."""
    has_rack = context.header.api_version >= _RACK_SINCE and replica_id < 0 and message.rack_id
    if not has_rack or services.config.replica_selector_class is None:
        return None
    return Consumer(message.rack_id, context.listener)


def _wanted(message: FetchRequest, version: int) -> Steps[list[Wanted]]:
    """What is asked of each partition; of one that is there twice the last."""
    wanted: dict[tuple[str, UUID | None, int], Wanted] = {}
    count = 0
    for topic in message.topics:
        topic_id = topic.topic_id if version >= _IDS_SINCE else None
        for entry in topic.partitions:
            count += 1
            if not count & STEP_MASK:
                yield
            wanted[topic.topic, topic_id, entry.partition] = Wanted(
                topic.topic,
                topic_id,
                entry.partition,
                entry.fetch_offset,
                entry.partition_max_bytes,
                entry.log_start_offset,
                max(entry.current_leader_epoch, NO_EPOCH),
                max(entry.last_fetched_epoch, NO_EPOCH),
            )
    return list(wanted.values())


def _forgotten(message: FetchRequest, version: int) -> Iterator[Key]:
    for topic in message.forgotten_topics_data:
        for number in topic.partitions:
            yield (topic.topic_id.int if version >= _IDS_SINCE else topic.topic), number


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
            answer = Read(ErrorCode.TOPIC_AUTHORIZATION_FAILED, aborted=())
        elif name is None:
            answer = Read(ErrorCode.UNKNOWN_TOPIC_ID, aborted=())
        elif denied.by_topic and denied(name):
            answer = Read(ErrorCode.TOPIC_AUTHORIZATION_FAILED, aborted=())
        elif snapshot.partition(fetch.partition) is None:
            answer = Read(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, aborted=())
        yield Requested(one, fetch, answer)


def _answers(
    requested: Sequence[Requested], reads: Sequence[Read], *, is_consumer: bool
) -> Steps[list[tuple[Requested, Read]]]:
    """What was read, then what is refused (rule B4.2), of consumers first for unknown topic ids."""
    rest = iter(reads)
    answers: list[tuple[Requested, Read]] = []
    unknown: list[tuple[Requested, Read]] = []
    refused: list[tuple[Requested, Read]] = []
    for i, one in enumerate(requested, 1):
        if one.answer is None:
            answers.append((one, next(rest)))
        elif is_consumer and one.answer.error is ErrorCode.UNKNOWN_TOPIC_ID:
            unknown.append((one, one.answer))
        else:
            refused.append((one, one.answer))
        if not i & STEP_MASK:
            yield
    return [*answers, *unknown, *refused]


def _record(answers: Sequence[tuple[Requested, Read]], replica_id: int, services: Services) -> Steps[None]:
    """All that followers take of throttled partitions counts (rule B8.11), and what a reassignment moves."""
    quota, hosted = services.leader_quota, services.replica_manager.partitions
    size = 0
    for i, (one, read) in enumerate(answers, 1):
        if read.records:
            partition = hosted.get(one.fetch.partition)
            if partition is not None and replica_id in partition.adding_replicas:
                services.data_plane.stats.reassignment_bytes_out += len(read.records)
            if quota.is_throttled(one.fetch.partition):
                size += len(read.records)
        if not i & STEP_MASK:
            yield
    if size:
        quota.record(size)


def _has_quota(services: Services) -> bool:
    """Whether consumers may have one."""
    return services.quotas.fetch.enabled or services.quotas.request.enabled


def _maybe_throttled(
    request: Request, fetching: FetchContext, answers: Sequence[tuple[Requested, Read]], services: Services
) -> Steps[FetchResponse]:
    """To a consumer; without partitions if its quotas are exceeded (rule B8.7)."""
    context, size = request.context, 0
    if services.quotas.fetch.enabled:
        told = yield from fetching.told(answers)
        whole = yield from response_in_steps(NO_SESSION, told, context, services, is_consumer=True)
        size = yield from size_of(whole, context)
    ms = services.quotas.charge_fetch(request, size)
    if not ms:
        return (yield from _response(fetching, answers, context, services, is_consumer=True))
    try:
        return FetchResponse(throttle_time_ms=ms, session_id=fetching.throttled())
    except Refused as e:
        return FetchResponse(throttle_time_ms=ms, error_code=e.code, session_id=fetching.session_id)


def _answer(
    request: Request,
    fetching: FetchContext,
    answers: Sequence[tuple[Requested, Read]],
    services: Services,
    *,
    is_consumer: bool,
) -> None:
    told = finish(_told(fetching, answers, services, is_consumer=is_consumer))
    if isinstance(told, FetchResponse):
        request.respond(told)
        return
    session_id, context = fetching.session_id, request.context
    payload = None if request.is_timed else response_of_one_topic(session_id, told, context)
    if payload is None:
        request.respond(full_response(session_id, told, context, services, is_consumer=is_consumer))
    else:
        request.respond_payload(payload, single_fetch.errors_of(len(told)))


async def _long_answer(
    request: Request,
    fetching: FetchContext,
    requested: Sequence[Requested],
    reads: Sequence[Read],
    services: Services,
    replica_id: int,
) -> Answer:
    """In turns with other requests."""
    is_consumer = replica_id < 0
    try:
        answers = await request.in_turns(_answers(requested, reads, is_consumer=is_consumer))
        if is_consumer and _has_quota(services):
            return Answer(await request.in_turns(_maybe_throttled(request, fetching, answers, services)))
        if not is_consumer:
            await request.in_turns(_record(answers, replica_id, services))
            request.exempt()  # rule B4.45
        made = _response(fetching, answers, request.context, services, is_consumer=is_consumer)
        return Answer(await request.in_turns(made))
    finally:
        fetching.ends_answer()


def _response(
    fetching: FetchContext,
    answers: Sequence[tuple[Requested, Read]],
    context: RequestContext,
    services: Services,
    *,
    is_consumer: bool,
) -> Steps[FetchResponse]:
    told = yield from _told(fetching, answers, services, is_consumer=is_consumer)
    if isinstance(told, FetchResponse):
        return told
    return (yield from response_in_steps(fetching.session_id, told, context, services, is_consumer=is_consumer))


def _told(
    fetching: FetchContext, answers: Sequence[tuple[Requested, Read]], services: Services, *, is_consumer: bool
) -> Steps[Sequence[tuple[Requested, Read]] | FetchResponse]:
    """What the response has, whose bytes are counted; or one that refuses a session that has gone on meanwhile."""
    try:
        told = yield from fetching.answered(answers)
    except Refused as e:
        return FetchResponse(error_code=e.code, session_id=fetching.session_id)
    stats = services.data_plane.stats
    for i, (one, read) in enumerate(told, 1):
        size = len(read.records)
        if not is_consumer:
            stats.replication_bytes_out += size
        elif size:
            stats.of(one.fetch.partition.topic).bytes_out += size
        if not i & STEP_MASK:
            yield
    return told


def _decode(frame: bytes, max_elements: int) -> tuple[wire.Header, Any]:
    return single_fetch.decode_request(frame) or wire.decode_request(frame, max_elements)


HANDLER: Final = Handler(FetchRequest, handle, error_response, decode=_decode)
