"""ListPartitionReassignments (key 46), version 0: handed to this node's controller (rule 3.24)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker_stub.handlers.admin import by_topic
from broker_stub.handlers.base import Handler, Services, replying
from broker_stub.ports import Outcome, Reassignment
from broker_stub.reactor import Request, RequestContext
from wire import (
    ErrorCode,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from wire.vocabulary import TopicPartition


async def handle(request: Request, message: ListPartitionReassignmentsRequest, services: Services) -> None:
    asked = message.topics
    partitions = None if asked is None else {TopicPartition(t.name, p) for t in asked for p in t.partition_indexes}
    reply = replying(request)

    def answer(result: Mapping[TopicPartition, Reassignment] | Outcome) -> None:
        if isinstance(result, tuple):
            code, why = result
            reply(ListPartitionReassignmentsResponse(error_code=code, error_message=why or None))
        else:
            reply(_response(result))

    services.controller.list_partition_reassignments(partitions, answer)


def _response(found: Mapping[TopicPartition, Reassignment]) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=tuple(
            OngoingTopicReassignment(
                name=topic,
                partitions=tuple(
                    OngoingPartitionReassignment(
                        partition_index=number,
                        replicas=tuple(one.replicas),
                        adding_replicas=tuple(one.adding),
                        removing_replicas=tuple(one.removing),
                    )
                    for number, one in partitions.items()
                ),
            )
            for topic, partitions in by_topic(found).items()
        ),
    )


def error_response(
    message: ListPartitionReassignmentsRequest, context: RequestContext, error: ErrorCode
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_code=error, error_message=None)


HANDLER: Final = Handler(ListPartitionReassignmentsRequest, handle, error_response)
