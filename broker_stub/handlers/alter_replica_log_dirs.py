"""AlterReplicaLogDirs (key 34), versions 0-2 (rule B7.23)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kce.broker_stub.handlers.base import Answer, Handler, Later, Services, answering_in_steps
from kce.broker_stub.handlers.long_answers import answer_in_steps, results_by_topic
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    ErrorCode,
)
from kce.wire.steps import STEP_MASK, Steps
from kce.wire.vocabulary import TopicPartition

#: replicas of one step, plus one; each is logged that does not move
_MOVES_MASK: Final = 15


def respond(message: AlterReplicaLogDirsRequest, context: RequestContext, services: Services) -> Steps[Answer | Later]:
    wanted: dict[TopicPartition, str] = {}
    for i, (partition, path) in enumerate(_wanted(message), 1):
        wanted[partition] = path  # the last counts
        if not i & STEP_MASK:
            yield
    codes = {}
    for i, (partition, path) in enumerate(wanted.items(), 1):
        codes[partition] = _alter(partition, path, services)
        if not i & _MOVES_MASK:
            yield
    results = yield from results_by_topic(codes.items(), _partition, _topic)
    return (yield from answer_in_steps(AlterReplicaLogDirsResponse(results=results), context))


def _alter(partition: TopicPartition, path: str, services: Services) -> ErrorCode:
    code = services.log_dir_moves.alter(partition, path)
    if code is ErrorCode.REPLICA_NOT_AVAILABLE and services.metadata_cache.snapshot.partition(partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return code


def _wanted(message: AlterReplicaLogDirsRequest) -> Iterator[tuple[TopicPartition, str]]:
    """Where each is to be."""
    for directory in message.dirs:
        for topic in directory.topics:
            for number in topic.partitions:
                yield TopicPartition(topic.name, number), directory.path


def _partition(number: int, code: ErrorCode) -> AlterReplicaLogDirPartitionResult:
    return AlterReplicaLogDirPartitionResult(partition_index=number, error_code=code)


def _topic(name: str, partitions: tuple[AlterReplicaLogDirPartitionResult, ...]) -> AlterReplicaLogDirTopicResult:
    return AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)


def error_response(
    message: AlterReplicaLogDirsRequest, context: RequestContext, error: ErrorCode
) -> AlterReplicaLogDirsResponse:
    """The error for every partition, as often as it was named."""
    return AlterReplicaLogDirsResponse(
        results=tuple(
            _topic(topic.name, tuple(_partition(number, error) for number in topic.partitions))
            for directory in message.dirs
            for topic in directory.topics
        )
    )


HANDLER: Final = Handler(
    AlterReplicaLogDirsRequest, answering_in_steps(respond), error_response, needs=Operation.ALTER, levels_left_out=1
)
