"""StopReplica (key 5), versions 0-4: fenced by broker epoch here, then by the replica manager (rules 9.30-9.34)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kce.broker_stub.control_requests import stop_replica_states
from kce.broker_stub.handlers.base import Answer, Handler, Later, Services, answering_in_steps, log_answer
from kce.broker_stub.handlers.long_answers import answer_in_steps
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import ErrorCode, StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from kce.wire.steps import STEP_MASK, Steps, finish
from kce.wire.vocabulary import TopicPartition


def respond(message: StopReplicaRequest, context: RequestContext, services: Services) -> Steps[Answer | Later]:
    error: ErrorCode = ErrorCode.STALE_BROKER_EPOCH
    codes: Mapping[TopicPartition, ErrorCode] = {}  # rule 9.6: without partitions, unlike the generic error
    if not services.is_stale_broker_epoch(message.broker_epoch):
        states = yield from stop_replica_states(message)
        error, codes = services.replica_manager.stop_replicas(message.controller_id, message.controller_epoch, states)
    log_answer(message, error, context, services)
    return (yield from answer_in_steps((yield from _response(error, codes)), context))


def error_response(message: StopReplicaRequest, context: RequestContext, error: ErrorCode) -> StopReplicaResponse:
    """The error at the top level and for every partition (rule 9.4)."""
    return finish(_errors(message, context, error))


def _errors(message: StopReplicaRequest, context: RequestContext, error: ErrorCode) -> Steps[StopReplicaResponse]:
    return (yield from _response(error, dict.fromkeys((yield from stop_replica_states(message)), error)))


def _response(error: ErrorCode, codes: Mapping[TopicPartition, ErrorCode]) -> Steps[StopReplicaResponse]:
    """Flat in every version (rule 13.25)."""
    errors = []
    for i, (p, code) in enumerate(codes.items(), 1):
        errors.append(StopReplicaPartitionError(topic_name=p.topic, partition_index=p.partition, error_code=code))
        if not i & STEP_MASK:
            yield
    return StopReplicaResponse(error_code=error, partition_errors=tuple(errors))


HANDLER: Final = Handler(
    StopReplicaRequest,
    answering_in_steps(respond),
    error_response,
    needs=Operation.CLUSTER_ACTION,
    has_errors_of_parts=False,  # a partition has one
    errors_in_steps=_errors,
)
