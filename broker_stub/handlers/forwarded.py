"""Requests that this node's controller answers, parked until then (rules 3.24, 9.69, 9.70, 11.25-11.28, 11.82).

To forward another request, add it to `HANDLERS` and to the controller's table (controller/dispatch.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kce.broker_stub.handlers.base import Answer, Handler, R, Services, answer_later
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    EncodeError,
    ErrorCode,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    Message,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kce.wire.long_messages import is_long


def forwarded(
    request_type: type[R],
    response: Callable[..., Message],
    needs: Operation,
    *,
    refusal: ErrorCode = ErrorCode.NOT_CONTROLLER,
    error_response: Callable[[Any, ErrorCode], Message] | None = None,
) -> Handler[R]:
    """A handler that submits requests to the controller. ``response`` takes the ``error_code`` of an error response;
    ``needs``: on the cluster; ``refusal`` is the error of a node that is not the controller; ``error_response``: of a
    request that fails as a whole, if it says more."""

    def handle(request: Request, message: R, services: Services) -> None:
        def reply(answer: Message | None) -> None:
            try:
                if answer is not None and is_long(answer):
                    answer_later(request, partial(_given, answer), services)
                else:
                    request.respond(response(error_code=refusal) if answer is None else answer)
            except EncodeError as e:  # must not fail the controller
                request.fail(e)

        services.controller.submit(message, request.context.api_version, reply)

    def failed(message: Any, context: RequestContext, error: ErrorCode) -> Message:
        return response(error_code=error) if error_response is None else error_response(message, error)

    return Handler(request_type, handle, failed, needs=needs)


async def _given(answer: Message) -> Answer:
    return Answer(answer)


def with_message(response: Callable[..., Message]) -> Callable[..., Message]:
    """Build error responses that also carry the error's name as their message."""
    return lambda error_code: response(error_code=error_code, error_message=error_code.name)


def _not_altered(message: AlterPartitionReassignmentsRequest, error: ErrorCode) -> AlterPartitionReassignmentsResponse:
    """The error for every partition, too."""
    return AlterPartitionReassignmentsResponse(
        error_code=error,
        error_message=error.name,
        responses=tuple(
            ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(
                    ReassignablePartitionResponse(
                        partition_index=entry.partition_index, error_code=error, error_message=error.name
                    )
                    for entry in topic.partitions
                ),
            )
            for topic in message.topics
        ),
    )


def _not_listed(message: ListPartitionReassignmentsRequest, error: ErrorCode) -> ListPartitionReassignmentsResponse:
    """With the partitions that were asked for."""
    return ListPartitionReassignmentsResponse(
        error_code=error,
        error_message=error.name,
        topics=tuple(
            OngoingTopicReassignment(
                name=topic.name,
                partitions=tuple(
                    OngoingPartitionReassignment(partition_index=number) for number in topic.partition_indexes
                ),
            )
            for topic in message.topics or ()
        ),
    )


HANDLERS: Final[tuple[Handler[Any], ...]] = (
    forwarded(AllocateProducerIdsRequest, AllocateProducerIdsResponse, Operation.CLUSTER_ACTION),
    forwarded(AlterPartitionRequest, AlterPartitionResponse, Operation.CLUSTER_ACTION),
    forwarded(
        AlterPartitionReassignmentsRequest,
        with_message(AlterPartitionReassignmentsResponse),
        Operation.ALTER,
        error_response=_not_altered,
    ),
    forwarded(  # rules 9.69, 11.41
        ControlledShutdownRequest,
        ControlledShutdownResponse,
        Operation.CLUSTER_ACTION,
        refusal=ErrorCode.STALE_CONTROLLER_EPOCH,
    ),
    forwarded(
        ListPartitionReassignmentsRequest,
        with_message(ListPartitionReassignmentsResponse),
        Operation.DESCRIBE,
        error_response=_not_listed,
    ),
)
