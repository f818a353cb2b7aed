"""StopReplica (key 5), versions 0-4: fenced by broker epoch here, then by the replica manager (rules 9.30-9.34)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kce.broker_stub.control_requests import stop_replica_states
from kce.broker_stub.handlers.base import Handler, Services, answering, logged
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import ErrorCode, StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from kce.wire.vocabulary import TopicPartition


def respond(message: StopReplicaRequest, context: RequestContext, services: Services) -> StopReplicaResponse:
    if services.is_stale_broker_epoch(message.broker_epoch):  # rule 9.6: without partitions, unlike the generic error
        return StopReplicaResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    error, codes = services.replica_manager.stop_replicas(
        message.controller_id, message.controller_epoch, stop_replica_states(message)
    )
    return _response(error, codes)


def error_response(message: StopReplicaRequest, context: RequestContext, error: ErrorCode) -> StopReplicaResponse:
    """The error at the top level and for every partition (rule 9.4)."""
    return _response(error, dict.fromkeys(stop_replica_states(message), error))


def _response(error: ErrorCode, codes: Mapping[TopicPartition, ErrorCode]) -> StopReplicaResponse:
    """Flat in every version (rule 13.25)."""
    errors = tuple(
        StopReplicaPartitionError(topic_name=p.topic, partition_index=p.partition, error_code=code)
        for p, code in codes.items()
    )
    return StopReplicaResponse(error_code=error, partition_errors=errors)


HANDLER: Final = Handler(
    StopReplicaRequest,
    answering(logged(respond)),
    error_response,
    needs=Operation.CLUSTER_ACTION,
    has_errors_of_parts=False,  # a partition has one
)
