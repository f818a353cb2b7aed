"""OffsetCommit (key 8), versions 0-9 (section 7a of the group rules)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import chain
from typing import Final

from kce import wire
from kce.broker_stub.errors import Refused, error_code
from kce.broker_stub.groups.coordinator import Committer
from kce.broker_stub.groups.manager import Offsets
from kce.broker_stub.groups.records import CommittedOffset
from kce.broker_stub.handlers.base import Handler, Services, after_steps
from kce.broker_stub.handlers.groups import instance_id_error
from kce.broker_stub.handlers.long_answers import respond_by_topic, results_by_topic
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.reactor.request import Sharing
from kce.broker_stub.security.operations import GROUP, READ, TOPIC
from kce.wire import (
    ErrorCode,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kce.wire.steps import STEP_MASK, Steps, finish
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

_FIRST_VERSION_OF_GROUPS: Final = 1
#: of a timestamp and of a retention: none is given
_DEFAULT: Final = -1
#: partitions of a response that is kept
_FEW: Final = 16
#: of requests that are in progress together
SHARED_BYTES: Final = 2048


def handle(request: Request, message: OffsetCommitRequest, services: Services) -> Awaitable[None] | None:
    """Rule G7.1. Raises EncodeError, Refused."""
    context = request.context
    error = instance_id_error(message.group_instance_id, services)
    if error is not None:
        raise Refused(error)
    services.authorization.check(context, READ, GROUP, message.group_id)

    def commit(checked: tuple[Offsets, dict[TopicPartition, ErrorCode]]) -> None:
        offsets, codes = checked

        def respond(committed: Mapping[TopicPartition, ErrorCode]) -> None:
            _respond(request, codes, committed, services)

        if not offsets:
            respond({})
        elif context.header.api_version < _FIRST_VERSION_OF_GROUPS:
            services.spawn(lambda: _commit_to_zookeeper(message.group_id, offsets, services, respond))
        else:
            committer = Committer(message.generation_id_or_member_epoch, message.member_id, message.group_instance_id)
            services.groups.commit(message.group_id, committer, offsets, respond)

    return after_steps(request, _checked(message, context, services), commit)


def _checked(
    message: OffsetCommitRequest, context: RequestContext, services: Services
) -> Steps[tuple[Offsets, dict[TopicPartition, ErrorCode]]]:
    """What may be committed, and the errors of the rest."""
    names = (topic.name for topic in message.topics)
    denied = yield from services.authorization.denied_in_steps(context, READ, TOPIC, names)
    snapshot, now_ms = services.metadata_cache.snapshot, services.groups.manager.now_ms()
    expires = None if message.retention_time_ms == _DEFAULT else now_ms + message.retention_time_ms  # rule G7.15
    offsets, codes = {}, {}
    for i, (partition, entry) in enumerate(_entries(message), 1):
        if partition.topic in denied:
            codes[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif snapshot.partition(partition) is None:
            codes[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            offsets[partition] = CommittedOffset(
                entry.committed_offset,
                now_ms if entry.commit_timestamp == _DEFAULT else entry.commit_timestamp,
                entry.committed_metadata or "",
                entry.committed_leader_epoch,
                expires,
            )
        if not i & STEP_MASK:
            yield
    return offsets, codes


def _entries(message: OffsetCommitRequest) -> Iterator[tuple[TopicPartition, OffsetCommitRequestPartition]]:
    for topic in message.topics:
        for entry in topic.partitions:
            yield TopicPartition(topic.name, entry.partition_index), entry


async def _commit_to_zookeeper(
    group_id: str,
    offsets: Offsets,
    services: Services,
    respond: Callable[[Mapping[TopicPartition, ErrorCode]], None],
) -> None:
    """Rule G7.16."""
    codes = {}
    for partition, committed in offsets.items():
        codes[partition] = ErrorCode.NONE
        if not services.groups.manager.fits(committed.metadata):
            codes[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            continue
        try:
            await services.admin.put_consumer_offset(group_id, partition, committed.offset)
        except Exception as e:
            log.exception("the offset of group %s for %s could not be written", group_id, partition)
            codes[partition] = error_code(e)
    respond(codes)


def _respond(
    request: Request,
    refused: Mapping[TopicPartition, ErrorCode],
    committed: Mapping[TopicPartition, ErrorCode],
    services: Services,
) -> None:
    count = len(refused) + len(committed)
    if request.is_timed or count > _FEW:
        respond_by_topic(
            request, chain(refused.items(), committed.items()), count,
            _partition, _topic, OffsetCommitResponse, services,
        )  # fmt: skip
    else:
        codes = {**refused, **committed} if refused else committed
        request.respond_encoded(*_encoded_response(request.context.header.api_version, tuple(codes.items())))


@functools.lru_cache(maxsize=1024)
def _encoded_response(
    version: int, codes: tuple[tuple[TopicPartition, ErrorCode], ...]
) -> tuple[bytes, Mapping[int, int]]:
    """With the error codes in it. Members commit the same partitions again and again. Raises EncodeError."""
    response = OffsetCommitResponse(topics=finish(results_by_topic(codes, _partition, _topic)))
    return wire.encode_response(response, api_version=version, correlation_id=0), wire.error_counts(response)


def _partition(number: int, code: ErrorCode) -> OffsetCommitResponsePartition:
    return OffsetCommitResponsePartition(partition_index=number, error_code=code)


def _topic(name: str, partitions: tuple[OffsetCommitResponsePartition, ...]) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(name=name, partitions=partitions)


def error_response(message: OffsetCommitRequest, context: RequestContext, error: ErrorCode) -> OffsetCommitResponse:
    """The error for every partition, as often as it was named (rule G7.2)."""
    return OffsetCommitResponse(
        topics=tuple(
            _topic(topic.name, tuple(_partition(entry.partition_index, error) for entry in topic.partitions))
            for topic in message.topics
        )
    )


def _sharing(services: Services) -> Sharing:
    """Their commits for a partition share a batch."""
    return Sharing(services.groups.manager.commits.together, SHARED_BYTES, lambda message: True)


HANDLER: Final = Handler(OffsetCommitRequest, handle, error_response, sharing=_sharing)
