"""ElectLeaders (key 43), versions 0-2: decided by the controller, answered when seen here (rules 11.30-11.36)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import trio

from kce.broker_stub.errors import Refused
from kce.broker_stub.handlers.admin import wait_for
from kce.broker_stub.handlers.base import Handler, Services, answering_later
from kce.broker_stub.metadata_cache import MetadataSnapshot
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import (
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ElectLeadersResponse,
    ErrorCode,
    Message,
    PartitionResult,
    ReplicaElectionResult,
)
from kce.wire.vocabulary import ElectionType, TopicPartition

#: an error code and its message
_Error: TypeAlias = tuple[int, str | None]

#: the leader was elected, but this broker does not know it yet
_TIMED_OUT: Final[_Error] = ErrorCode.REQUEST_TIMED_OUT, None


async def respond(message: ElectLeadersRequest, context: RequestContext, services: Services) -> ElectLeadersResponse:
    """Raises Refused."""
    try:
        ElectionType(message.election_type)
    except ValueError as e:
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, str(e)) from None
    for_all = message.topic_partitions is None
    message = _with_partitions(message, services)
    errors: dict[TopicPartition, _Error] = {}
    leaders: dict[TopicPartition, int] = {}
    async for tp, error in context.paced(await _elected(message, context.api_version, services)):
        errors[tp] = error
        if error[0] == ErrorCode.NONE:
            leaders[tp] = services.controller.leader(tp)

    def is_known(now: MetadataSnapshot, tp: TopicPartition) -> bool:
        state = now.partition(tp)
        return state is not None and state.leader == leaders[tp]

    await wait_for(services, message.timeout_ms, lambda now: all(is_known(now, tp) for tp in leaders))
    snapshot = services.metadata_cache.snapshot
    final: dict[TopicPartition, _Error] = {}
    async for tp, error in context.paced(errors.items()):
        if tp in leaders:
            final[tp] = error if is_known(snapshot, tp) else _TIMED_OUT  # rule 11.36
        elif not (for_all and error[0] == ErrorCode.ELECTION_NOT_NEEDED):  # rule 11.35
            final[tp] = error
    results: dict[str, list[PartitionResult]] = {}
    async for (topic, number), error in context.paced(final.items()):
        results.setdefault(topic, []).append(_result(number, error))
    return ElectLeadersResponse(
        replica_election_results=tuple(
            [
                ReplicaElectionResult(topic=topic, partition_result=tuple(partitions))
                async for topic, partitions in context.paced(results.items())
            ]
        )
    )


def _with_partitions(message: ElectLeadersRequest, services: Services) -> ElectLeadersRequest:
    """The request; with all partitions that this broker knows if it has none (rule 11.35)."""
    if message.topic_partitions is not None:
        return message
    topics = services.metadata_cache.snapshot.topics
    partitions = tuple(ElectLeadersRequestTopicPartitions(topic=t, partitions=tuple(ps)) for t, ps in topics.items())
    return dataclasses.replace(message, topic_partitions=partitions)


async def _elected(
    message: ElectLeadersRequest, api_version: int, services: Services
) -> Iterable[tuple[TopicPartition, _Error]]:
    """The controller's error for each partition.

    Waits without a timeout: the client has its own (rules 3.38, 11.31).
    """
    send, receive = trio.open_memory_channel[Message | None](math.inf)
    services.controller.submit(message, api_version, send.send_nowait)
    response = await receive.receive()
    if response is None:
        return _errors(message, ErrorCode.NOT_CONTROLLER)
    assert isinstance(response, ElectLeadersResponse)
    return (
        (TopicPartition(result.topic, partition.partition_id), (partition.error_code, partition.error_message))
        for result in response.replica_election_results
        for partition in result.partition_result
    )


def _errors(message: ElectLeadersRequest, error: ErrorCode) -> Iterator[tuple[TopicPartition, _Error]]:
    """The same error for every partition of the request."""
    for topic in message.topic_partitions or ():
        for number in topic.partitions:
            yield TopicPartition(topic.topic, number), (error, None)


def _result(number: int, error: _Error) -> PartitionResult:
    code, text = error
    return PartitionResult(partition_id=number, error_code=code, error_message=text)


def error_response(message: ElectLeadersRequest, context: RequestContext, error: ErrorCode) -> ElectLeadersResponse:
    """The error for every partition, as often as it was named, and at the top level in versions that have one
    (rule 11.35)."""
    refused = error, None
    return ElectLeadersResponse(
        error_code=error if context.api_version > 0 else ErrorCode.NONE,
        replica_election_results=tuple(
            ReplicaElectionResult(
                topic=topic.topic, partition_result=tuple(_result(number, refused) for number in topic.partitions)
            )
            for topic in message.topic_partitions or ()
        ),
    )


HANDLER: Final = Handler(ElectLeadersRequest, answering_later(respond), error_response, needs=Operation.ALTER)
