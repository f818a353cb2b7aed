"""DescribeCluster (key 60), versions 0-1, from the metadata cache (rule B7.21)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.handlers.base import Handler, Services, answering
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import NO_OPERATIONS
from kce.wire import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse, ErrorCode

_BROKERS, _CONTROLLERS = 1, 2  # endpoint types


def respond(message: DescribeClusterRequest, context: RequestContext, services: Services) -> DescribeClusterResponse:
    if message.endpoint_type != _BROKERS:
        known = message.endpoint_type == _CONTROLLERS
        error = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        return DescribeClusterResponse(
            error_code=error if context.api_version > 0 else ErrorCode.INVALID_REQUEST,
            error_message=f"this listener serves brokers, not endpoint type {message.endpoint_type}",
        )
    snapshot = services.metadata_cache.snapshot
    brokers = tuple(
        DescribeClusterBroker(broker_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker, endpoint in snapshot.reachable_brokers(context.listener)
    )
    listed = snapshot.controller_id in {broker.broker_id for broker in brokers}
    include_operations = message.include_cluster_authorized_operations
    return DescribeClusterResponse(
        cluster_id=services.cluster_id,
        controller_id=snapshot.controller_id if listed and snapshot.controller_id is not None else -1,
        brokers=brokers,
        cluster_authorized_operations=(
            services.authorization.cluster_operations(context) if include_operations else NO_OPERATIONS
        ),
    )


def error_response(
    message: DescribeClusterRequest, context: RequestContext, error: ErrorCode
) -> DescribeClusterResponse:
    return DescribeClusterResponse(error_code=error)


HANDLER: Final = Handler(DescribeClusterRequest, answering(respond), error_response)
