"""Produce (key 0), versions 0-11 (section 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Container, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final, TypeAlias

from kce import wire
from kce.broker_stub.authorization import Authorization
from kce.broker_stub.disk import Buffer
from kce.broker_stub.errors import ApiException, CorruptMessage, InvalidRecord, Refused, VerificationFailed
from kce.broker_stub.handlers.base import Answer, Handler, Services, answer_by, answer_later, with_settings
from kce.broker_stub.handlers.leaders import current_leader, endpoints
from kce.broker_stub.handlers.long_answers import Arrays, encoded_by_topic, is_long, parts
from kce.broker_stub.internal_topics import INTERNAL_TOPICS
from kce.broker_stub.partition import ALL
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.reactor.request import Sharing
from kce.broker_stub.replication.delayed import Produced
from kce.broker_stub.security.operations import WRITE, ResourceType
from kce.wire import (
    BatchIndexAndErrorMessage,
    ErrorCode,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceResponseLeaderIdAndEpoch,
    ProduceResponseNodeEndpoint,
    TopicProduceResponse,
    produce_response,
)
from kce.wire.batch_header import begins_transactional, is_one_batch, read_headers
from kce.wire.errors import NO_ERROR, CorruptRecord
from kce.wire.record import Codec
from kce.wire.steps import STEP_MASK, Steps
from kce.wire.vocabulary import TopicPartition, by_topic

ADMIN_CLIENT: Final = "__admin_client"
_ACKS: Final = (-1, 0, 1)
#: of requests that are in progress together: so much is appended within a slice of time
SHARED_BYTES: Final = 65536
_TOPICS: Final = Arrays("topic_data", "responses")
_PARTITIONS: Final = Arrays("partition_data", "partition_responses")

Refusals: TypeAlias = Mapping[TopicPartition, ErrorCode]

_UNKNOWN_LEADER: Final = ProduceResponseLeaderIdAndEpoch()
#: rule T10.10
_ABORTABLE_SINCE: Final = 11
#: an answer with one of these has no log start offset (rule B3.22)
_WITHOUT_LOG_START: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


def handle(request: Request, message: ProduceRequest, services: Services) -> Awaitable[None] | None:
    """Raises Refused."""
    if is_long(message, _TOPICS, _PARTITIONS):
        return _append_in_turns(request, message, services)
    denied = _denied(message, request.context, services.authorization, is_transactional=_is_transactional(message))
    records: dict[TopicPartition, Buffer] = {}
    refused: dict[TopicPartition, ErrorCode] = {}
    _sort(message, denied, records, refused, request.context, services)
    if len(records) > 1 and services.appends.lack_files(records):
        return _append_first(request, message, services, records, refused)
    _append(request, message, services, records, refused)
    return None


async def _append_first(
    request: Request,
    message: ProduceRequest,
    services: Services,
    records: Mapping[TopicPartition, Buffer],
    refused: Refusals,
) -> None:
    """To several logs that have no files yet: control requests do not wait for the flushes of all."""
    await request.in_turns(services.appends.files_made(records))
    _append(request, message, services, records, refused)


async def _append_in_turns(request: Request, message: ProduceRequest, services: Services) -> None:
    """Raises Refused."""
    records: dict[TopicPartition, Buffer] = {}
    refused: dict[TopicPartition, ErrorCode] = {}

    def sort() -> Steps[None]:
        is_transactional = False
        for part in parts(message, _TOPICS, _PARTITIONS):
            is_transactional = is_transactional or _is_transactional(part)
            yield
        denied = _denied(message, request.context, services.authorization, is_transactional=is_transactional)
        for part in parts(message, _TOPICS, _PARTITIONS):
            _sort(part, denied, records, refused, request.context, services)
            yield

    await request.in_turns(sort())
    await _append_first(request, message, services, records, refused)


def _sort(
    message: ProduceRequest,
    denied: Container[str],
    records: dict[TopicPartition, Buffer],
    refused: dict[TopicPartition, ErrorCode],
    context: RequestContext,
    services: Services,
) -> None:
    """Into ``records`` what may be appended, into ``refused`` what may not."""
    for topic in message.topic_data:
        for data in topic.partition_data:
            partition = TopicPartition(topic.name, data.index)
            try:
                if topic.name in denied:
                    raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                records[partition] = _checked(partition, data.records or b"", message, context, services)
            except ApiException as e:
                refused[partition] = e.code


def _append(
    request: Request,
    message: ProduceRequest,
    services: Services,
    records: Mapping[TopicPartition, Buffer],
    refused: Refusals,
) -> None:
    context = request.context

    def respond(results: Mapping[TopicPartition, tuple[Produced, ErrorCode]]) -> None:
        if message.acks != 0:
            answer_by(request, lambda: _answer_all(request, results, refused, services))
            return
        if services.quotas.produce.enabled:  # rule B8.7
            request.exempt()
            request.throttle(services.quotas.charge_produce(request))
        if refused or any(code for _, code in results.values()):  # rule B3.36
            request.close_connection()
        else:
            request.no_response()

    if records and message.transactional_id is not None:
        services.verification.append(
            records, message.transactional_id, message.acks, message.timeout_ms, respond,
            knows_abortable=context.header.api_version >= _ABORTABLE_SINCE,
        )  # fmt: skip
    elif records:
        services.appends.append(records, message.acks, message.timeout_ms, respond)
    else:
        respond({})


def _answer_all(
    request: Request,
    results: Mapping[TopicPartition, tuple[Produced, ErrorCode]],
    refused: Refusals,
    services: Services,
) -> None:
    if len(refused) > STEP_MASK:
        answer_later(request, partial(_long_answer, request, results, refused, services), services)
        return
    payload = None
    if not refused and not services.quotas.produce.enabled and not request.is_timed:
        payload = _all_appended(results, request.context)
    if payload is None:
        request.respond(_throttled(response(results, refused, request.context, services), request, services))
    else:
        request.respond_payload(payload, {NO_ERROR: len(results)})


def _all_appended(
    results: Mapping[TopicPartition, tuple[Produced, ErrorCode]], context: RequestContext
) -> wire.Payload | None:
    """The response, if all records were appended."""
    if context.header.api_version not in produce_response.RESPONSES or not 0 < len(results) <= produce_response.MOST:
        return None
    appended: list[produce_response.Appended] = []
    for (topic, number), (produced, code) in results.items():
        if code or isinstance(produced, ApiException):
            return None
        appended.append(
            (topic, number, produced.first_offset, produced.log_append_time, produced.log_start_offset)
        )  # fmt: skip
    return produce_response.encode_response(context.header.correlation_id, appended)


async def _long_answer(
    request: Request,
    results: Mapping[TopicPartition, tuple[Produced, ErrorCode]],
    refused: Refusals,
    services: Services,
) -> Answer:
    """The answer if many partitions are refused, made in turns with other requests."""
    answer = response(results, {}, request.context, services)
    errors = Counter(wire.error_counts(answer))
    known = ((TopicPartition(topic.name, p.index), p) for topic in answer.responses for p in topic.partition_responses)
    all_of_them: Iterable[tuple[TopicPartition, PartitionProduceResponse | ErrorCode]] = chain(known, refused.items())

    def of_partition(number: int, made: PartitionProduceResponse | ErrorCode) -> PartitionProduceResponse:
        return made if isinstance(made, PartitionProduceResponse) else _refusal(number, made)

    def of_topic(name: str, partitions: Any) -> TopicProduceResponse:
        return TopicProduceResponse(name=name, partition_responses=partitions)

    made = encoded_by_topic(all_of_them, of_partition, of_topic, request.context.header)
    responses: Any = await request.in_turns(made)
    errors.update(refused.values())
    return Answer(_throttled(replace(answer, responses=responses), request, services), errors)


def _refusal(number: int, code: ErrorCode) -> PartitionProduceResponse:
    return PartitionProduceResponse(index=number, error_code=code, base_offset=-1, log_start_offset=-1)


def _throttled(answer: ProduceResponse, request: Request, services: Services) -> ProduceResponse:
    """Rule B8.5."""
    ms = services.quotas.charge_produce(request) if services.quotas.produce.enabled else 0
    return replace(answer, throttle_time_ms=ms) if ms else answer


def _denied(
    message: ProduceRequest, context: RequestContext, authorization: Authorization, *, is_transactional: bool
) -> Container[str]:
    """The topics that the client may not write. Raises Refused (rules B3.1, T14.4)."""
    name = message.transactional_id
    if is_transactional:
        if name is None:
            raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        authorization.check(context, WRITE, ResourceType.TRANSACTIONAL_ID, name)
    return authorization.denied_topics(context, WRITE, (topic.name for topic in message.topic_data))


def _is_transactional(message: ProduceRequest) -> bool:
    """Whether the first batch for any partition is. Raises CorruptMessage for one that cannot be a batch."""
    try:
        for topic in message.topic_data:
            for data in topic.partition_data:
                if begins_transactional(data.records or b""):
                    return True
    except CorruptRecord as e:
        raise CorruptMessage(str(e)) from None
    return False


def _checked(
    partition: TopicPartition, records: Buffer, message: ProduceRequest, context: RequestContext, services: Services
) -> Buffer:
    """Rules B3.1 to B3.9. Raises ApiException."""
    if services.metadata_cache.snapshot.partition(partition) is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if context.header.api_version < 7 or not is_one_batch(records):
        _check_shape(records, context.header.api_version)
    if message.acks not in _ACKS:
        raise Refused(ErrorCode.INVALID_REQUIRED_ACKS)
    if partition.topic in INTERNAL_TOPICS and context.header.client_id != ADMIN_CLIENT:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION)
    return records


def _check_shape(records: Buffer, api_version: int) -> None:
    """Rule B3.9. Raises ApiException."""
    if api_version < 3:
        return
    try:
        headers = [header for _, header in read_headers(records)]
        is_new = bool(headers) and headers[0].magic == 2
        if is_new and api_version < 7 and headers[0].codec is Codec.ZSTD:  # also where another batch follows
            raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if not is_new or len(headers) > 1:
            raise InvalidRecord(f"version {api_version} takes one batch of magic 2")
    except CorruptRecord as e:
        raise CorruptMessage(str(e)) from None


def response(
    results: Mapping[TopicPartition, tuple[Produced, ErrorCode]],
    refused: Refusals,
    context: RequestContext,
    services: Services,
) -> ProduceResponse:
    """Rules B3.39 to B3.43. ``refused`` never reached a log."""
    tells_leaders = context.header.api_version >= 10
    leaders = {
        partition: current_leader(services, partition)
        for partition, (_, code) in results.items()
        if tells_leaders and code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    }
    answers = {
        partition: _answer(partition, produced, code, leaders.get(partition), services)
        for partition, (produced, code) in results.items()
    } | {partition: _refusal(partition.partition, code) for partition, code in refused.items()}
    nodes = endpoints(services, context.listener, [leader for leader, _ in leaders.values()])
    return ProduceResponse(
        responses=tuple(
            [
                TopicProduceResponse(name=topic, partition_responses=tuple(partitions.values()))
                for topic, partitions in by_topic(answers).items()
            ]
        ),
        node_endpoints=tuple(
            ProduceResponseNodeEndpoint(
                node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
            )
            for broker, endpoint in nodes
        ),
    )


def _answer(
    partition: TopicPartition,
    produced: Produced,
    code: ErrorCode,
    leader: tuple[int, int] | None,
    services: Services,
) -> PartitionProduceResponse:
    current = _UNKNOWN_LEADER
    if leader is not None:
        current = ProduceResponseLeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
    if not isinstance(produced, ApiException):
        return PartitionProduceResponse(
            index=partition.partition,
            error_code=code,
            base_offset=produced.first_offset,
            log_append_time_ms=produced.log_append_time,
            log_start_offset=produced.log_start_offset,
            current_leader=current,
        )
    if isinstance(produced, VerificationFailed):
        return PartitionProduceResponse(
            index=partition.partition, error_code=code, base_offset=-1, error_message=produced.text,
            current_leader=current,
        )  # fmt: skip
    records = produced.records if isinstance(produced, InvalidRecord) else ()
    return PartitionProduceResponse(
        index=partition.partition,
        error_code=code,
        base_offset=-1,
        log_start_offset=-1 if code in _WITHOUT_LOG_START else _log_start(partition, services),
        record_errors=tuple(
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text) for index, text in records
        ),
        error_message=str(produced) if isinstance(produced, InvalidRecord) else None,
        current_leader=current,
    )


def _log_start(partition: TopicPartition, services: Services) -> int:
    hosted = services.replica_manager.partitions.get(partition)
    return -1 if hosted is None or hosted.log is None else hosted.log.log_start_offset


def error_response(message: ProduceRequest, context: RequestContext, error: ErrorCode) -> ProduceResponse | None:
    """The response with ``error`` for every partition; None with acks=0 (rule B1.41)."""
    if message.acks == 0:
        return None
    return ProduceResponse(
        responses=tuple(
            TopicProduceResponse(
                name=topic.name,
                partition_responses=tuple(
                    PartitionProduceResponse(index=data.index, error_code=error, base_offset=-1)
                    for data in topic.partition_data
                ),
            )
            for topic in message.topic_data
        )
    )


def _sharing(services: Services) -> Sharing:
    """The replicas fetch their records together."""

    def may(message: ProduceRequest) -> bool:
        if message.acks != ALL or message.transactional_id is not None or len(message.topic_data) != 1:
            return False
        (topic,) = message.topic_data
        is_read = topic.name not in services.topic_settings.unread
        return is_read and len(topic.partition_data) == 1 and not services.quotas.produce.enabled

    return Sharing(services.appends.together, SHARED_BYTES, may)


HANDLER: Final = Handler(
    ProduceRequest, with_settings(handle, lambda message: (topic.name for topic in message.topic_data)), error_response,
    sharing=_sharing,
)  # fmt: skip
