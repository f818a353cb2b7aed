"""TxnOffsetCommit (key 28), versions 0-4 (section 7b of the group rules)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import chain
from typing import Final

from kce.broker_stub.groups.coordinator import Committer
from kce.broker_stub.groups.manager import Producer
from kce.broker_stub.groups.records import CommittedOffset
from kce.broker_stub.handlers.base import Handler, Services, after_steps
from kce.broker_stub.handlers.long_answers import respond_by_topic
from kce.broker_stub.handlers.transactions import check_supported
from kce.broker_stub.log.verification import VerificationGuard
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.broker_stub.transactions.verification import Verified, Writer
from kce.wire import (
    ErrorCode,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kce.wire.record import NO_PRODUCER
from kce.wire.steps import STEP_MASK, Steps
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

_LOAD_IN_PROGRESS_SINCE: Final = 2
#: rule T10.10
_ABORTABLE_SINCE: Final = 4


def handle(request: Request, message: TxnOffsetCommitRequest, services: Services) -> Awaitable[None] | None:
    """Rule G7.17. Raises Refused, EncodeError."""
    check_supported(services)
    context, authorization = request.context, services.authorization
    authorization.check(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, message.transactional_id)
    authorization.check(context, Operation.READ, ResourceType.GROUP, message.group_id)
    return after_steps(
        request, _checked(message, context, services), lambda checked: _commit(request, message, services, *checked)
    )


def _checked(
    message: TxnOffsetCommitRequest, context: RequestContext, services: Services
) -> Steps[tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, ErrorCode]]]:
    """What may be committed, and the errors of the rest."""
    names = (topic.name for topic in message.topics)
    denied = yield from services.authorization.denied_in_steps(context, Operation.READ, ResourceType.TOPIC, names)
    snapshot = services.metadata_cache.snapshot
    now_ms = services.groups.manager.now_ms()
    refused: dict[TopicPartition, ErrorCode] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for i, (partition, entry) in enumerate(_entries(message), 1):
        if partition.topic in denied:
            refused[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif snapshot.partition(partition) is None:
            refused[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            offsets[partition] = CommittedOffset(
                offset=entry.committed_offset,
                commit_timestamp=now_ms,
                metadata=entry.committed_metadata or "",
                leader_epoch=entry.committed_leader_epoch,
            )
        if not i & STEP_MASK:
            yield
    return offsets, refused


def _commit(
    request: Request,
    message: TxnOffsetCommitRequest,
    services: Services,
    offsets: dict[TopicPartition, CommittedOffset],
    refused: Mapping[TopicPartition, ErrorCode],
) -> None:
    def respond(committed: Mapping[TopicPartition, ErrorCode]) -> None:
        codes = ((p, _known_to(code, request.context.header.api_version)) for p, code in committed.items())
        respond_by_topic(
            request, chain(refused.items(), codes), len(refused) + len(committed),
            _partition, _topic, TxnOffsetCommitResponse, services,
        )  # fmt: skip

    def verify(partition: TopicPartition, done: Callable[[ErrorCode, VerificationGuard | None], None]) -> None:
        def verified(result: Verified) -> None:
            try:
                done(result.errors.get(partition, ErrorCode.NONE), result.guards.get(partition))
            except Exception as e:  # whoever verified is not concerned
                log.exception("%r failed", request)
                request.fail(e)

        knows_abortable = request.context.header.api_version >= _ABORTABLE_SINCE
        writer = Writer(message.transactional_id, message.producer_id, message.producer_epoch, knows_abortable)
        services.verification.start(writer, {partition: NO_PRODUCER}, verified)

    if offsets:
        committer = Committer(message.generation_id, message.member_id, message.group_instance_id)
        producer = Producer(message.producer_id, message.producer_epoch)
        services.groups.verify_and_commit(message.group_id, committer, offsets, respond, producer, verify)
    else:
        respond({})


def _known_to(code: ErrorCode, api_version: int) -> ErrorCode:
    is_old = api_version < _LOAD_IN_PROGRESS_SINCE
    is_loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if is_old and is_loading else code


def _entries(message: TxnOffsetCommitRequest) -> Iterator[tuple[TopicPartition, TxnOffsetCommitRequestPartition]]:
    for topic in message.topics:
        for entry in topic.partitions:
            yield TopicPartition(topic.name, entry.partition_index), entry


def _partition(number: int, code: ErrorCode) -> TxnOffsetCommitResponsePartition:
    return TxnOffsetCommitResponsePartition(partition_index=number, error_code=code)


def _topic(name: str, partitions: tuple[TxnOffsetCommitResponsePartition, ...]) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(name=name, partitions=partitions)


def error_response(
    message: TxnOffsetCommitRequest, context: RequestContext, error: ErrorCode
) -> TxnOffsetCommitResponse:
    """The error for every partition, as often as it was named."""
    return TxnOffsetCommitResponse(
        topics=tuple(
            _topic(topic.name, tuple(_partition(entry.partition_index, error) for entry in topic.partitions))
            for topic in message.topics
        )
    )


HANDLER: Final = Handler(TxnOffsetCommitRequest, handle, error_response)
