"""ElectLeaders (key 43), versions 0-2: decided by the controller, answered when seen here (rules 11.30-11.36)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import trio

from broker_stub.errors import InvalidRequest
from broker_stub.handlers.admin import by_topic, wait_for
from broker_stub.handlers.base import Handler, Services, answering_later
from broker_stub.metadata_cache import MetadataSnapshot
from broker_stub.ports import Outcome
from broker_stub.reactor import RequestContext
from wire import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ErrorCode,
    PartitionResult,
    ReplicaElectionResult,
)
from wire.vocabulary import ElectionType, TopicPartition

_TIMED_OUT: Final[Outcome] = ErrorCode.REQUEST_TIMED_OUT, "the leader is elected, but this broker has not heard of it"
_DONE: Final[Outcome] = ErrorCode.NONE, ""


async def respond(message: ElectLeadersRequest, context: RequestContext, services: Services) -> ElectLeadersResponse:
    """Raises InvalidRequest."""
    try:
        kind = ElectionType(message.election_type)
    except ValueError:
        raise InvalidRequest(f"there is no election of type {message.election_type}") from None
    for_all = message.topic_partitions is None
    outcomes = dict(await _elected(_asked(message, services), kind, services))
    leaders = {tp: leader for tp, leader in outcomes.items() if isinstance(leader, int)}

    def is_known(now: MetadataSnapshot, tp: TopicPartition) -> bool:
        state = now.partition(tp)
        return state is not None and state.leader == leaders[tp]

    await wait_for(services, message.timeout_ms, lambda now: all(is_known(now, tp) for tp in leaders))
    snapshot = services.metadata_cache.snapshot
    final: dict[TopicPartition, Outcome] = {}
    for tp, outcome in outcomes.items():
        if isinstance(outcome, int):
            final[tp] = _DONE if is_known(snapshot, tp) else _TIMED_OUT  # rule 11.36
        elif not (for_all and outcome[0] == ErrorCode.ELECTION_NOT_NEEDED):  # rule 11.35
            final[tp] = outcome
    return ElectLeadersResponse(replica_election_results=_results(final))


def _asked(message: ElectLeadersRequest, services: Services) -> set[TopicPartition]:
    if message.topic_partitions is None:
        topics = services.metadata_cache.snapshot.topics
        return {TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers}
    return {TopicPartition(topic.topic, number) for topic in message.topic_partitions for number in topic.partitions}


async def _elected(
    partitions: set[TopicPartition], kind: ElectionType, services: Services
) -> Mapping[TopicPartition, int | Outcome]:
    """Waits for as long as it takes: whoever asked times out by itself (rules 3.38, 11.31)."""
    send, receive = trio.open_memory_channel[Mapping[TopicPartition, int | Outcome]](math.inf)
    services.controller.elect_leaders(partitions, kind, send.send_nowait)
    return await receive.receive()


def _results(outcomes: Mapping[TopicPartition, Outcome]) -> tuple[ReplicaElectionResult, ...]:
    return tuple(
        ReplicaElectionResult(
            topic=topic,
            partition_result=tuple(
                PartitionResult(partition_id=number, error_code=code, error_message=why or None)
                for number, (code, why) in partitions.items()
            ),
        )
        for topic, partitions in by_topic(outcomes).items()
    )


def error_response(message: ElectLeadersRequest, context: RequestContext, error: ErrorCode) -> ElectLeadersResponse:
    """At the top, where the version has a place for it, and on every partition (rule 11.35)."""
    outcomes = {
        TopicPartition(topic.topic, number): (error, "")
        for topic in message.topic_partitions or ()
        for number in topic.partitions
    }
    return ElectLeadersResponse(
        error_code=error if context.api_version > 0 else ErrorCode.NONE, replica_election_results=_results(outcomes)
    )


HANDLER: Final = Handler(ElectLeadersRequest, answering_later(respond), error_response)
