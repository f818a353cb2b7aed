"""UpdateMetadata (key 6), versions 0-8: fenced by broker and controller epoch, then cached (rules 9.35-9.42)."""

from __future__ import annotations

from typing import Final

from kce import wire
from kce.broker_stub.handlers.base import Handler, Services, answering, log_answer
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import ErrorCode, UpdateMetadataRequest, UpdateMetadataResponse
from kce.wire.vocabulary import SECURITY_PROTOCOLS

_LISTENERS_BY_PROTOCOL: Final = (1, 2)


def respond(message: UpdateMetadataRequest, context: RequestContext, services: Services) -> UpdateMetadataResponse:
    if services.is_stale_broker_epoch(message.broker_epoch):
        error = ErrorCode.STALE_BROKER_EPOCH
    else:
        error = services.replica_manager.maybe_update_metadata_cache(message, context.header.correlation_id)
    log_answer(message, error, context, services)
    return error_response(message, context, error)


def error_response(message: UpdateMetadataRequest, context: RequestContext, error: ErrorCode) -> UpdateMetadataResponse:
    """Also the response without an error: there is only a top-level code (rule 13.22)."""
    return UpdateMetadataResponse(error_code=error)


def _check(version: int, message: wire.Message) -> None:
    """Raises wire.DecodeError for a security protocol that Kafka looks up as it parses the request."""
    if version in _LISTENERS_BY_PROTOCOL and isinstance(message, UpdateMetadataRequest):
        protocols = {endpoint.security_protocol for broker in message.live_brokers for endpoint in broker.endpoints}
        if unknown := protocols - SECURITY_PROTOCOLS.keys():
            raise wire.DecodeError(f"no security protocol has the number {min(unknown)}")


HANDLER: Final = Handler(
    UpdateMetadataRequest, answering(respond), error_response, check=_check, needs=Operation.CLUSTER_ACTION,
    has_errors_of_parts=False,
)  # fmt: skip
