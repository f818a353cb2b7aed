"""AddPartitionsToTxn (key 24), versions 0-5: 0-3 of clients, 4-5 of brokers (rules T5.1 to T5.6, T10.9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from kce.broker_stub.authorization import Authorization
from kce.broker_stub.handlers.base import Answer, Handler, Services, answer_later, respond_to
from kce.broker_stub.handlers.long_answers import Arrays, encoded_by_topic, is_long, parts
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
from kce.wire.steps import Steps
from kce.wire.vocabulary import TopicPartition, by_topic

_FIRST_VERSION_OF_BROKERS: Final = 4
_FENCED_SINCE: Final = 2
_TOPICS: Final = Arrays("v3_and_below_topics", "results_by_topic_v3_and_below")
_PARTITIONS: Final = Arrays("partitions", "results_by_partition")
_Answered = Callable[[AddPartitionsToTxnTransaction, Mapping[TopicPartition, ErrorCode]], None]


def handle(request: Request, message: AddPartitionsToTxnRequest, services: Services) -> Awaitable[None] | None:
    """Raises Refused."""
    check_supported(services)
    version = request.context.header.api_version
    is_client = version < _FIRST_VERSION_OF_BROKERS
    if is_client and is_long(message, _TOPICS, _PARTITIONS):
        return _handle_in_turns(request, message, services)
    if not is_client:
        services.authorization.check_cluster(request.context, Operation.CLUSTER_ACTION)
    transactions = (_of_client(message),) if is_client else message.transactions
    results: list[AddPartitionsToTxnResult] = []

    def answered(transaction: AddPartitionsToTxnTransaction, codes: Mapping[TopicPartition, ErrorCode]) -> None:
        topics = _results({partition: known_to(code, version, _FENCED_SINCE) for partition, code in codes.items()})
        results.append(AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=topics))
        if len(results) == len(transactions):
            respond_to(request, response)

    def response() -> AddPartitionsToTxnResponse:
        if is_client:
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0].topic_results)
        return AddPartitionsToTxnResponse(results_by_transaction=tuple(results))

    if not transactions:  # rule T5.5
        respond_to(request, response)
    for transaction in transactions:
        denied = _denied(transaction, request.context, services.authorization) if is_client else ()
        _ask(transaction, answered, denied, services, is_client=is_client)
    return None


async def _handle_in_turns(request: Request, message: AddPartitionsToTxnRequest, services: Services) -> None:
    """What ``handle`` does, for very many partitions. Raises Refused."""
    transaction = _of_client(message)
    denied = _denied(transaction, request.context, services.authorization)
    partitions: dict[TopicPartition, None] = {}
    refused: dict[TopicPartition, ErrorCode] = {}

    def check() -> Steps[None]:
        for part in parts(message, _TOPICS, _PARTITIONS):
            asked = _partitions(part.v3_and_below_topics)
            partitions.update(dict.fromkeys(asked))
            refused.update(_refused(asked, denied, services, is_client=True))
            yield

    def answered(codes: Callable[[TopicPartition], ErrorCode]) -> None:
        answer_later(request, partial(_long_answer, request, partitions, codes), services)

    await request.in_turns(check())
    if refused:  # rule T5.3
        answered(lambda partition: refused.get(partition, ErrorCode.OPERATION_NOT_ATTEMPTED))
        return
    services.transactions.add_partitions(
        transaction.transactional_id, transaction.producer_id, transaction.producer_epoch, partitions,
        lambda code: answered(lambda _: code),
    )  # fmt: skip


async def _long_answer(
    request: Request, partitions: Iterable[TopicPartition], codes: Callable[[TopicPartition], ErrorCode]
) -> Answer:
    header = request.context.header
    errors = Counter[int]()

    def values() -> Iterator[tuple[TopicPartition, ErrorCode]]:
        for partition in partitions:
            yield partition, known_to(codes(partition), header.api_version, _FENCED_SINCE)

    def of_partition(number: int, code: ErrorCode) -> AddPartitionsToTxnPartitionResult:
        errors[code] += 1
        return AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)

    def of_topic(name: str, results: Any) -> AddPartitionsToTxnTopicResult:
        return AddPartitionsToTxnTopicResult(name=name, results_by_partition=results)

    topics: Any = await request.in_turns(encoded_by_topic(values(), of_partition, of_topic, header))
    return Answer(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics), errors)


def _of_client(message: AddPartitionsToTxnRequest) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=message.v3_and_below_transactional_id,
        producer_id=message.v3_and_below_producer_id,
        producer_epoch=message.v3_and_below_producer_epoch,
        verify_only=False,
        topics=message.v3_and_below_topics,
    )


def _partitions(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]


def _denied(
    transaction: AddPartitionsToTxnTransaction, context: RequestContext, authorization: Authorization
) -> Container[str]:
    """The topics that the client may not write. Raises Refused if the transaction is not its own."""
    authorization.check(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transaction.transactional_id)
    topics = (topic.name for topic in transaction.topics if topic.name not in INTERNAL_TOPICS)
    return authorization.denied_topics(context, Operation.WRITE, topics)


def _ask(
    transaction: AddPartitionsToTxnTransaction,
    answered: _Answered,
    denied: Container[str],
    services: Services,
    *,
    is_client: bool,
) -> None:
    partitions = _partitions(transaction.topics)
    refused = _refused(partitions, denied, services, is_client=is_client)
    if refused:  # rule T5.3
        answered(transaction, {p: refused.get(p, ErrorCode.OPERATION_NOT_ATTEMPTED) for p in partitions})
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
) -> dict[TopicPartition, ErrorCode]:
    refused = {}
    for partition in partitions:
        if is_client and (partition.topic in INTERNAL_TOPICS or partition.topic in denied):  # rule T1.5
            refused[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif services.metadata_cache.snapshot.partition(partition) is None:
            refused[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return refused


def _results(codes: Mapping[TopicPartition, ErrorCode]) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    return tuple(
        AddPartitionsToTxnTopicResult(
            name=topic,
            results_by_partition=tuple(
                AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)
                for number, code in of_topic.items()
            ),
        )
        for topic, of_topic in by_topic(codes).items()
    )


def error_response(
    message: AddPartitionsToTxnRequest, context: RequestContext, error: ErrorCode
) -> AddPartitionsToTxnResponse:
    """Rule T14.3."""
    if context.header.api_version >= _FIRST_VERSION_OF_BROKERS:
        return AddPartitionsToTxnResponse(error_code=error)
    codes = dict.fromkeys(_partitions(message.v3_and_below_topics), error)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(codes))


HANDLER: Final = Handler(AddPartitionsToTxnRequest, handle, error_response)
