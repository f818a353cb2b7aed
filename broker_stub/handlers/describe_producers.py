"""DescribeProducers (key 61), version 0 (rule B7.24)."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from kce.broker_stub.errors import ApiException
from kce.broker_stub.handlers.base import Handler, Services
from kce.broker_stub.handlers.long_answers import Arrays, answering_each
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ErrorCode,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kce.wire.vocabulary import TopicPartition, is_valid_topic_name


def respond(
    message: DescribeProducersRequest, context: RequestContext, services: Services
) -> DescribeProducersResponse:
    topics = [topic.name for topic in message.topics if is_valid_topic_name(topic.name)]
    denied = services.authorization.denied_topics(context, Operation.READ, topics)
    return _response(message, lambda partition: _partition(partition, denied, services))


def _response(
    message: DescribeProducersRequest, of: Callable[[TopicPartition], PartitionResponse]
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=tuple(
            TopicResponse(
                name=topic.name,
                partitions=tuple(of(TopicPartition(topic.name, number)) for number in topic.partition_indexes),
            )
            for topic in message.topics
        )
    )


def _partition(partition: TopicPartition, denied: Container[str], services: Services) -> PartitionResponse:
    def refused(code: ErrorCode) -> PartitionResponse:
        return PartitionResponse(partition_index=partition.partition, error_code=code)

    if not is_valid_topic_name(partition.topic):
        return refused(ErrorCode.INVALID_TOPIC_EXCEPTION)
    if partition.topic in denied:
        return refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if partition.topic not in services.metadata_cache.snapshot.topics:
        return refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        log = services.data_plane.partition(partition).log
    except ApiException as e:
        return refused(e.code)
    if log is None:
        return refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return PartitionResponse(
        partition_index=partition.partition,
        active_producers=tuple(
            ProducerState(
                producer_id=producer_id,
                producer_epoch=state.epoch,
                last_sequence=state.last_sequence,
                last_timestamp=state.last_timestamp,
                coordinator_epoch=state.coordinator_epoch,
                current_txn_start_offset=-1 if state.transaction is None else state.transaction,
            )
            for producer_id, state in log.known_producers().items()
        ),
    )


def error_response(
    message: DescribeProducersRequest, context: RequestContext, error: ErrorCode
) -> DescribeProducersResponse:
    return _response(
        message, lambda partition: PartitionResponse(partition_index=partition.partition, error_code=error)
    )


_answer_each: Final = answering_each(respond, Arrays("topics", "topics"), Arrays("partition_indexes", "partitions"))
HANDLER: Final = Handler(DescribeProducersRequest, _answer_each, error_response)
