"""DescribeLogDirs (key 35), versions 0-4 (rule B7.22)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.handlers.base import Handler, Services, answering_later
from kce.broker_stub.log import Log
from kce.broker_stub.log.directory import LogDirectory
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    ErrorCode,
)
from kce.wire.vocabulary import TopicPartition, by_topic

UNKNOWN_LAG: Final = -1


async def respond(
    message: DescribeLogDirsRequest, context: RequestContext, services: Services
) -> DescribeLogDirsResponse:
    logs = services.log_manager
    wanted: set[TopicPartition] | None = None
    if message.topics is not None:  # which may be very many
        named = (TopicPartition(topic.topic, number) for topic in message.topics for number in topic.partitions)
        wanted = {tp async for tp in context.paced(named) if tp in logs.logs or tp in logs.future.logs}

    def lag(log: Log, is_future: bool) -> int:
        """-1 of a replica that no controller has placed here yet, or that is offline."""
        hosted = services.replica_manager.partitions.get(log.partition)
        if hosted is None or (current := hosted.log) is None:
            return UNKNOWN_LAG
        if is_future:
            return current.log_end_offset - log.log_end_offset
        return max(current.high_watermark - log.log_end_offset, 0)

    return DescribeLogDirsResponse(
        results=tuple(
            _result(
                directory,
                {
                    partition: DescribeLogDirsPartition(
                        partition_index=partition.partition,
                        partition_size=log.size,
                        offset_lag=lag(log, is_future),
                        is_future_key=is_future,
                    )
                    for is_future, known in ((False, logs.logs), (True, logs.future.logs))
                    for partition, log in known.items()
                    if log.context is directory and (wanted is None or partition in wanted)
                },
            )
            for directory in logs.directories
        )
    )


def _result(
    directory: LogDirectory, described: dict[TopicPartition, DescribeLogDirsPartition]
) -> DescribeLogDirsResult:
    if directory.is_offline:
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.path)
    total, usable = directory.space()
    return DescribeLogDirsResult(
        log_dir=directory.path,
        topics=tuple(
            DescribeLogDirsTopic(
                name=topic,
                partitions=tuple(numbered.values()),
            )
            for topic, numbered in by_topic(described).items()
        ),
        total_bytes=total,
        usable_bytes=usable,
    )


def error_response(
    message: DescribeLogDirsRequest, context: RequestContext, error: ErrorCode
) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(error_code=error)


HANDLER: Final = Handler(DescribeLogDirsRequest, answering_later(respond), error_response, needs=Operation.DESCRIBE)
