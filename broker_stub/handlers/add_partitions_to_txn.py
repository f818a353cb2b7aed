"""AddPartitionsToTxn (key 24), versions 0-5: 0-3 of clients, 4-5 of brokers (rules T5.1 to T5.6, T10.9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from kce.broker_stub.authorization import Authorization
from kce.broker_stub.handlers.base import Answer, Handler, Services, after_steps, answer_later, respond_to
from kce.broker_stub.handlers.long_answers import results_by_topic
from kce.broker_stub.handlers.transactions import check_supported, known_to
from kce.broker_stub.internal_topics import INTERNAL_TOPICS
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.security.operations import Operation, ResourceType
from kce.wire import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    ErrorCode,
)
from kce.wire.steps import STEP_MASK, Steps, finish
from kce.wire.vocabulary import TopicPartition

_FIRST_VERSION_OF_BROKERS: Final = 4
_FENCED_SINCE: Final = 2
#: transactions of one step, plus one
_TRANSACTIONS_MASK: Final = 15
#: transactional id, and the error of each partition
_Answer: TypeAlias = tuple[str, Mapping[TopicPartition, ErrorCode]]
_Answered = Callable[[AddPartitionsToTxnTransaction, Mapping[TopicPartition, ErrorCode]], None]


def handle(request: Request, message: AddPartitionsToTxnRequest, services: Services) -> Awaitable[None] | None:
    """Raises Refused."""
    check_supported(services)
    version = request.context.header.api_version
    is_client = version < _FIRST_VERSION_OF_BROKERS
    if not is_client:
        services.authorization.check_cluster(request.context, Operation.CLUSTER_ACTION)
    transactions = (_of_client(message),) if is_client else message.transactions
    answers: list[_Answer] = []
    count = 0

    def answered(transaction: AddPartitionsToTxnTransaction, codes: Mapping[TopicPartition, ErrorCode]) -> None:
        nonlocal count
        answers.append((transaction.transactional_id, codes))
        count += 1 + len(codes)
        if len(answers) == len(transactions):
            respond()

    def respond() -> None:
        steps = _response(answers, version, is_client=is_client)
        if count > STEP_MASK:
            answer_later(request, partial(_made, request, steps), services)
        else:
            respond_to(request, lambda: finish(steps))

    def ask() -> Steps[None]:
        for i, transaction in enumerate(transactions, 1):
            denied: Container[str] = ()
            if is_client:
                denied = yield from _denied(transaction, request.context, services.authorization)
            yield from _ask(transaction, answered, denied, services, is_client=is_client)
            if not i & _TRANSACTIONS_MASK:
                yield

    if not transactions:  # rule T5.5
        respond()
    return after_steps(request, ask(), lambda _: None)


def _response(answers: Iterable[_Answer], version: int, *, is_client: bool) -> Steps[AddPartitionsToTxnResponse]:
    results = []
    for i, (name, codes) in enumerate(answers, 1):
        known = ((partition, known_to(code, version, _FENCED_SINCE)) for partition, code in codes.items())
        topics = yield from results_by_topic(known, _partition, _topic)
        if is_client:
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
        results.append(AddPartitionsToTxnResult(transactional_id=name, topic_results=topics))
        if not i & STEP_MASK:
            yield
    return AddPartitionsToTxnResponse(results_by_transaction=tuple(results))


async def _made(request: Request, steps: Steps[AddPartitionsToTxnResponse]) -> Answer:
    return Answer(await request.in_turns(steps))


def _of_client(message: AddPartitionsToTxnRequest) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=message.v3_and_below_transactional_id,
        producer_id=message.v3_and_below_producer_id,
        producer_epoch=message.v3_and_below_producer_epoch,
        verify_only=False,
        topics=message.v3_and_below_topics,
    )


def _partitions(topics: Iterable[AddPartitionsToTxnTopic]) -> Iterator[TopicPartition]:
    for topic in topics:
        for number in topic.partitions:
            yield TopicPartition(topic.name, number)


def _denied(
    transaction: AddPartitionsToTxnTransaction, context: RequestContext, authorization: Authorization
) -> Steps[Container[str]]:
    """The topics that the client may not write. Raises Refused if the transaction is not its own."""
    authorization.check(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transaction.transactional_id)
    topics = (
        partition.topic for partition in _partitions(transaction.topics) if partition.topic not in INTERNAL_TOPICS
    )
    return (yield from authorization.denied_in_steps(context, Operation.WRITE, ResourceType.TOPIC, topics))


def _ask(
    transaction: AddPartitionsToTxnTransaction,
    answered: _Answered,
    denied: Container[str],
    services: Services,
    *,
    is_client: bool,
) -> Steps[None]:
    partitions: dict[TopicPartition, None] = {}
    for i, partition in enumerate(_partitions(transaction.topics), 1):
        partitions[partition] = None
        if not i & STEP_MASK:
            yield
    refused = yield from _refused(partitions, denied, services, is_client=is_client)
    if refused:  # rule T5.3
        codes = {}
        for i, partition in enumerate(partitions, 1):
            codes[partition] = refused.get(partition, ErrorCode.OPERATION_NOT_ATTEMPTED)
            if not i & STEP_MASK:
                yield
        answered(transaction, codes)
        return
    name, producer_id, epoch = transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
    coordinator = services.transactions
    if transaction.verify_only:
        answered(transaction, coordinator.verify_partitions(name, producer_id, epoch, partitions))
        return
    coordinator.add_partitions(
        name, producer_id, epoch, partitions, lambda code: answered(transaction, dict.fromkeys(partitions, code))
    )


def _refused(
    partitions: Iterable[TopicPartition], denied: Container[str], services: Services, *, is_client: bool
) -> Steps[dict[TopicPartition, ErrorCode]]:
    refused = {}
    for i, partition in enumerate(partitions, 1):
        if is_client and (partition.topic in INTERNAL_TOPICS or partition.topic in denied):  # rule T1.5
            refused[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif services.metadata_cache.snapshot.partition(partition) is None:
            refused[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not i & STEP_MASK:
            yield
    return refused


def _partition(number: int, code: ErrorCode) -> AddPartitionsToTxnPartitionResult:
    return AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)


def _topic(name: str, results: Any) -> AddPartitionsToTxnTopicResult:
    return AddPartitionsToTxnTopicResult(name=name, results_by_partition=results)


def error_response(
    message: AddPartitionsToTxnRequest, context: RequestContext, error: ErrorCode
) -> AddPartitionsToTxnResponse:
    """Rule T14.3."""
    if context.header.api_version >= _FIRST_VERSION_OF_BROKERS:
        return AddPartitionsToTxnResponse(error_code=error)
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=tuple(
            _topic(topic.name, tuple(_partition(number, error) for number in topic.partitions))
            for topic in message.v3_and_below_topics
        )
    )


HANDLER: Final = Handler(AddPartitionsToTxnRequest, handle, error_response)
