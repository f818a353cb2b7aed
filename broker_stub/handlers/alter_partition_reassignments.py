"""AlterPartitionReassignments (key 45), version 0: handed to this node's controller (rules 11.25-11.28)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker_stub.handlers.admin import by_topic
from broker_stub.handlers.base import Handler, Services, replying
from broker_stub.ports import Outcome
from broker_stub.reactor import Request, RequestContext
from wire import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ErrorCode,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from wire.vocabulary import TopicPartition


async def handle(request: Request, message: AlterPartitionReassignmentsRequest, services: Services) -> None:
    targets = {
        TopicPartition(topic.name, partition.partition_index): partition.replicas
        for topic in message.topics
        for partition in topic.partitions
    }
    reply = replying(request)

    def answer(result: Mapping[TopicPartition, Outcome] | Outcome) -> None:
        if isinstance(result, tuple):
            code, why = result
            reply(AlterPartitionReassignmentsResponse(error_code=code, error_message=why or None))
        else:
            reply(_response(result))

    services.controller.alter_partition_reassignments(targets, answer)


def _response(outcomes: Mapping[TopicPartition, Outcome]) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        error_message=None,
        responses=tuple(
            ReassignableTopicResponse(
                name=topic,
                partitions=tuple(
                    ReassignablePartitionResponse(partition_index=number, error_code=code, error_message=why or None)
                    for number, (code, why) in partitions.items()
                ),
            )
            for topic, partitions in by_topic(outcomes).items()
        ),
    )


def error_response(
    message: AlterPartitionReassignmentsRequest, context: RequestContext, error: ErrorCode
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(error_code=error, error_message=None)


HANDLER: Final = Handler(AlterPartitionReassignmentsRequest, handle, error_response)
