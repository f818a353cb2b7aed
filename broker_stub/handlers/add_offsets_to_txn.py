"""AddOffsetsToTxn (key 25), versions 0-4 (rules T5.7, G7.23)."""

from __future__ import annotations

from typing import Final

from kce.broker_stub.handlers.base import Handler, Services, respond_to
from kce.broker_stub.handlers.transactions import check_supported, known_to
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.wire import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, ErrorCode
from kce.wire.vocabulary import TopicPartition

_FENCED_SINCE: Final = 2


def handle(request: Request, message: AddOffsetsToTxnRequest, services: Services) -> None:
    """The partition of the group joins the transaction; it need not exist. Raises Refused."""
    check_supported(services)
    context, authorization = request.context, services.authorization
    authorization.check(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, message.transactional_id)
    authorization.check(context, Operation.READ, ResourceType.GROUP, message.group_id)

    def respond(code: ErrorCode) -> None:
        code = known_to(code, request.context.header.api_version, _FENCED_SINCE)
        respond_to(request, lambda: AddOffsetsToTxnResponse(error_code=code))

    partition = TopicPartition(GROUP_METADATA_TOPIC, services.groups.manager.partition_of(message.group_id))
    services.transactions.add_partitions(
        message.transactional_id, message.producer_id, message.producer_epoch, (partition,), respond
    )


def error_response(
    message: AddOffsetsToTxnRequest, context: RequestContext, error: ErrorCode
) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=error)


HANDLER: Final = Handler(AddOffsetsToTxnRequest, handle, error_response)
