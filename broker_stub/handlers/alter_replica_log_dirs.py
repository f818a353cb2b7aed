"""AlterReplicaLogDirs (key 34), versions 0-2 (rule B7.23)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kce.broker_stub.handlers.base import Handler, Services, answering
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    ErrorCode,
)
from kce.wire.vocabulary import TopicPartition, by_topic


def respond(
    message: AlterReplicaLogDirsRequest, context: RequestContext, services: Services
) -> AlterReplicaLogDirsResponse:
    codes = {partition: _alter(partition, path, services) for partition, path in _wanted(message).items()}
    return AlterReplicaLogDirsResponse(results=tuple(_result(*of_topic) for of_topic in by_topic(codes).items()))


def _alter(partition: TopicPartition, path: str, services: Services) -> ErrorCode:
    code = services.log_dir_moves.alter(partition, path)
    if code is ErrorCode.REPLICA_NOT_AVAILABLE and services.metadata_cache.snapshot.partition(partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return code


def _wanted(message: AlterReplicaLogDirsRequest) -> dict[TopicPartition, str]:
    """Where each is to be; the last counts."""
    return {
        TopicPartition(topic.name, number): directory.path
        for directory in message.dirs
        for topic in directory.topics
        for number in topic.partitions
    }


def _result(topic: str, codes: Mapping[int, ErrorCode]) -> AlterReplicaLogDirTopicResult:
    return AlterReplicaLogDirTopicResult(
        topic_name=topic,
        partitions=tuple(
            AlterReplicaLogDirPartitionResult(partition_index=number, error_code=code) for number, code in codes.items()
        ),
    )


def error_response(
    message: AlterReplicaLogDirsRequest, context: RequestContext, error: ErrorCode
) -> AlterReplicaLogDirsResponse:
    """The error for every partition, as often as it was named."""
    return AlterReplicaLogDirsResponse(
        results=tuple(
            _result(topic.name, dict.fromkeys(topic.partitions, error))
            for directory in message.dirs
            for topic in directory.topics
        )
    )


HANDLER: Final = Handler(AlterReplicaLogDirsRequest, answering(respond), error_response, needs=Operation.ALTER)
