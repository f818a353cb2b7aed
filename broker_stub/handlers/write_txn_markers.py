"""WriteTxnMarkers (key 27), versions 0-1: the side of the partitions' leader (section 7 of the transaction rules)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Final

from kce.broker_stub.errors import Refused
from kce.broker_stub.handlers.base import (
    Answer,
    Handler,
    Services,
    after_steps,
    answer_later,
    respond_to,
    with_settings,
)
from kce.broker_stub.handlers.long_answers import results_by_topic
from kce.broker_stub.handlers.transactions import check_supported
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC
from kce.broker_stub.log import Origin
from kce.broker_stub.partition import ALL
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.replication.delayed import Produced
from kce.broker_stub.security.operations import Operation
from kce.wire import (
    ErrorCode,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kce.wire.record import NO_PRODUCER, EndTransactionMarker
from kce.wire.record_batch import write_values
from kce.wire.steps import STEP_MASK, Steps, finish
from kce.wire.vocabulary import TopicPartition

#: by producer id
Codes = dict[int, dict[TopicPartition, ErrorCode]]


def handle(request: Request, message: WriteTxnMarkersRequest, services: Services) -> Awaitable[None] | None:
    """Answered when every append has ended (rules T7.3, T7.7). Raises Refused."""
    check_supported(services)
    context, authorization = request.context, services.authorization
    if not authorization.allows_on_cluster(context, Operation.ALTER, log_denied=False):
        authorization.check_cluster(context, Operation.CLUSTER_ACTION)
    codes: Codes = {}
    waiting = len(message.markers)

    def respond() -> None:
        steps = _response(codes)
        if sum(map(len, codes.values()), len(codes)) > STEP_MASK:
            answer_later(request, partial(_made, request, steps), services)
        else:
            respond_to(request, lambda: finish(steps))

    def done(marker: WritableTxnMarker, result: Mapping[TopicPartition, ErrorCode]) -> None:
        nonlocal waiting
        if result:
            codes.setdefault(marker.producer_id, {}).update(result)
        waiting -= 1
        if not waiting:
            respond()

    def write() -> Steps[None]:
        for i, marker in enumerate(message.markers, 1):
            yield from _write(marker, services, done)
            if not i & STEP_MASK:
                yield

    if not message.markers:
        respond()
    return after_steps(request, write(), lambda _: None)


async def _made(request: Request, steps: Steps[WriteTxnMarkersResponse]) -> Answer:
    return Answer(await request.in_turns(steps))


def _partitions(marker: WritableTxnMarker) -> Iterator[TopicPartition]:
    for topic in marker.topics:
        for number in topic.partition_indexes:
            yield TopicPartition(topic.name, number)


def _write(
    marker: WritableTxnMarker,
    services: Services,
    done: Callable[[WritableTxnMarker, Mapping[TopicPartition, ErrorCode]], None],
) -> Steps[None]:
    """Rules T7.2, T7.6. Raises Refused."""
    writable: dict[TopicPartition, None] = {}
    refused: dict[TopicPartition, ErrorCode] = {}
    for i, partition in enumerate(_partitions(marker), 1):
        hosted = services.replica_manager.partitions.get(partition)
        if hosted is None or hosted.log is None:
            refused[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif hosted.log.config.record_version < 2:
            refused[partition] = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        else:
            writable[partition] = None
        if not i & STEP_MASK:
            yield
    if writable and NO_PRODUCER in (marker.producer_id, marker.producer_epoch):
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "a marker without producer id or epoch")

    def appended(results: Mapping[TopicPartition, tuple[Produced, ErrorCode]]) -> None:
        codes = {partition: code for partition, (_, code) in results.items()}
        groups = [
            partition.partition
            for partition, code in codes.items()
            if code is ErrorCode.NONE and partition.topic == GROUP_METADATA_TOPIC
        ]
        if groups:
            services.groups.manager.transaction_ended(marker.producer_id, groups, committed=marker.transaction_result)
        done(marker, {**refused, **codes})

    if writable:
        yield from services.appends.files_made(writable)
        records = dict.fromkeys(writable, _batch(marker, services.log_manager.now_ms()))
        timeout_ms = services.config.request_timeout_ms
        services.appends.append(records, ALL, timeout_ms, appended, origin=Origin.COORDINATOR)
    else:
        done(marker, refused)


def _batch(marker: WritableTxnMarker, now_ms: int) -> bytes:
    """Rule T12.1."""
    end = EndTransactionMarker(committed=marker.transaction_result, coordinator_epoch=marker.coordinator_epoch)
    record = end.to_record(offset=0, timestamp=now_ms)
    assert record.key is not None
    return write_values(
        [(record.key, record.value)],
        now_ms,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def _response(codes: Codes) -> Steps[WriteTxnMarkersResponse]:
    markers = []
    for i, (producer_id, of_producer) in enumerate(codes.items(), 1):
        topics = yield from results_by_topic(of_producer.items(), _partition, _topic)
        markers.append(WritableTxnMarkerResult(producer_id=producer_id, topics=topics))
        if not i & STEP_MASK:
            yield
    return WriteTxnMarkersResponse(markers=tuple(markers))


def _partition(number: int, code: ErrorCode) -> WritableTxnMarkerPartitionResult:
    return WritableTxnMarkerPartitionResult(partition_index=number, error_code=code)


def _topic(name: str, partitions: tuple[WritableTxnMarkerPartitionResult, ...]) -> WritableTxnMarkerTopicResult:
    return WritableTxnMarkerTopicResult(name=name, partitions=partitions)


def error_response(
    message: WriteTxnMarkersRequest, context: RequestContext, error: ErrorCode
) -> WriteTxnMarkersResponse:
    """The error for every partition."""
    return finish(_errors(message, context, error))


def _errors(
    message: WriteTxnMarkersRequest, context: RequestContext, error: ErrorCode
) -> Steps[WriteTxnMarkersResponse]:
    codes: Codes = {}
    count = 0
    for marker in message.markers:
        of_producer = codes[marker.producer_id] = {}
        for partition in _partitions(marker):
            of_producer[partition] = error
            count += 1
            if not count & STEP_MASK:
                yield
    return (yield from _response(codes))


HANDLER: Final = Handler(
    WriteTxnMarkersRequest,
    with_settings(handle, lambda message: (topic.name for marker in message.markers for topic in marker.topics)),
    error_response,
    has_errors_of_parts=False,  # a producer has one
    errors_in_steps=_errors,
)
