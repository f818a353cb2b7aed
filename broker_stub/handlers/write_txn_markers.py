"""WriteTxnMarkers (key 27), versions 0-1: the side of the partitions' leader (section 7 of the transaction rules)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from kce.broker_stub.errors import Refused
from kce.broker_stub.handlers.base import Handler, Services, respond_to, with_settings
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
from kce.wire.vocabulary import TopicPartition, by_topic

#: by producer id
Codes = dict[int, dict[TopicPartition, ErrorCode]]


def handle(request: Request, message: WriteTxnMarkersRequest, services: Services) -> None:
    """Answered when every append has ended (rules T7.3, T7.7). Raises Refused."""
    check_supported(services)
    context, authorization = request.context, services.authorization
    if not authorization.allows_on_cluster(context, Operation.ALTER, log_denied=False):
        authorization.check_cluster(context, Operation.CLUSTER_ACTION)
    codes: Codes = {}
    waiting = len(message.markers)

    def respond() -> None:
        respond_to(request, lambda: _response(codes))

    def done(marker: WritableTxnMarker, result: Mapping[TopicPartition, ErrorCode]) -> None:
        nonlocal waiting
        if result:
            codes.setdefault(marker.producer_id, {}).update(result)
        waiting -= 1
        if not waiting:
            respond()

    if not message.markers:
        respond()
    for marker in message.markers:
        _write(marker, services, done)


def _partitions(marker: WritableTxnMarker) -> Iterator[TopicPartition]:
    for topic in marker.topics:
        for number in topic.partition_indexes:
            yield TopicPartition(topic.name, number)


def _write(
    marker: WritableTxnMarker,
    services: Services,
    done: Callable[[WritableTxnMarker, Mapping[TopicPartition, ErrorCode]], None],
) -> None:
    """Rules T7.2, T7.6. Raises Refused."""
    writable: list[TopicPartition] = []
    refused: dict[TopicPartition, ErrorCode] = {}
    for partition in _partitions(marker):
        hosted = services.replica_manager.partitions.get(partition)
        if hosted is None or hosted.log is None:
            refused[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif hosted.log.config.record_version < 2:
            refused[partition] = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        else:
            writable.append(partition)
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
        records = dict.fromkeys(writable, _batch(marker, services.log_manager.now_ms()))
        timeout_ms = services.config.request_timeout_ms
        services.data_plane.append(records, ALL, timeout_ms, appended, origin=Origin.COORDINATOR)
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


def _response(codes: Codes) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=tuple(
            WritableTxnMarkerResult(
                producer_id=producer_id,
                topics=tuple(
                    WritableTxnMarkerTopicResult(
                        name=topic,
                        partitions=tuple(
                            WritableTxnMarkerPartitionResult(partition_index=number, error_code=code)
                            for number, code in of_topic.items()
                        ),
                    )
                    for topic, of_topic in by_topic(of_producer).items()
                ),
            )
            for producer_id, of_producer in codes.items()
        )
    )


def error_response(
    message: WriteTxnMarkersRequest, context: RequestContext, error: ErrorCode
) -> WriteTxnMarkersResponse:
    """The error for every partition."""
    codes: Codes = {}
    for marker in message.markers:
        codes[marker.producer_id] = dict.fromkeys(_partitions(marker), error)
    return _response(codes)


HANDLER: Final = Handler(
    WriteTxnMarkersRequest,
    with_settings(handle, lambda message: (topic.name for marker in message.markers for topic in marker.topics)),
    error_response,
)
