"""Asks coordinators whether partitions are in a transaction: AddPartitionsToTxn, verify only (rules T10.6 to T10.12).

One task and one request in flight for each coordinator; meanwhile, questions for it are collected.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import trio

from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.internal_topics import TRANSACTION_STATE_TOPIC
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.transactions.connection import BrokerConnection, UnsupportedByBroker
from kce.metrics import Histogram
from kce.wire import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    ErrorCode,
    WireError,
)
from kce.wire.transport import AuthenticationRefused, Dial
from kce.wire.vocabulary import Endpoint, TopicPartition, by_topic

log = logging.getLogger(__name__)

#: the first version of AddPartitionsToTxn that can verify
FIRST_VERSION: Final = 4

Errors: TypeAlias = Mapping[TopicPartition, ErrorCode]
#: what became of those partitions that were not verified
OnVerified: TypeAlias = Callable[[Errors], None]


@dataclass(slots=True)
class Question:
    """About one transactional id. ``asked_at``: of ``trio.current_time``."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    on_done: OnVerified
    asked_at: float

    def for_wire(self) -> AddPartitionsToTxnTransaction:
        topics = by_topic(dict.fromkeys(self.partitions))
        return AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            verify_only=True,
            topics=tuple(
                AddPartitionsToTxnTopic(name=topic, partitions=tuple(numbers)) for topic, numbers in topics.items()
            ),
        )


@dataclass(slots=True)
class Collected:
    """By transactional id. ``knows_abortable``: of the first question, used for all (rule T10.11)."""

    knows_abortable: bool
    questions: dict[str, Question] = field(default_factory=dict)


class PartitionVerifier:
    """``run`` asks, with a task for each coordinator that was ever needed.

    ``failures`` counts partitions, ``times`` are milliseconds (rule T10.20).
    """

    def __init__(
        self, config: BrokerConfig, metadata_cache: MetadataCache, partition_of: Callable[[str], int], dial: Dial
    ) -> None:
        """``partition_of``: the partition of `__transaction_state` that has an id."""
        self._config = config
        self._metadata_cache = metadata_cache
        self._partition_of = partition_of
        self._dial = dial
        self._waiting: dict[int, Collected] = {}
        self._came: defaultdict[int, trio.Event] = defaultdict(trio.Event)
        self._new_broker = trio.Event()
        self.failures = 0
        self.times = Histogram()

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        on_done: OnVerified,
        *,
        knows_abortable: bool,
    ) -> None:
        """``knows_abortable``: the client understands TRANSACTION_ABORTABLE. ``on_done``: at once or later."""
        coordinator = self._coordinator(transactional_id)
        if coordinator is None:
            on_done(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        new = Question(transactional_id, producer_id, producer_epoch, tuple(partitions), on_done, trio.current_time())
        waiting = self._waiting.get(coordinator)
        if waiting is None:
            waiting = self._waiting[coordinator] = Collected(knows_abortable)
        old = waiting.questions.get(transactional_id)
        if old is not None and old.producer_epoch > producer_epoch:  # rule T10.8
            self._fail(new, ErrorCode.INVALID_PRODUCER_EPOCH)
            return
        waiting.questions.pop(transactional_id, None)
        waiting.questions[transactional_id] = new
        if coordinator not in self._came:
            self._new_broker.set()
        self._came[coordinator].set()
        if old is not None:
            is_retry = old.producer_epoch == producer_epoch
            self._fail(old, ErrorCode.NETWORK_EXCEPTION if is_retry else ErrorCode.INVALID_PRODUCER_EPOCH)

    def _coordinator(self, transactional_id: str) -> int | None:
        """Its broker, if it is alive."""
        partition = TopicPartition(TRANSACTION_STATE_TOPIC, self._partition_of(transactional_id))
        state = self._metadata_cache.snapshot.partition(partition)
        return None if state is None or self._endpoint(state.leader) is None else state.leader

    def _endpoint(self, broker_id: int) -> Endpoint | None:
        return self._metadata_cache.snapshot.endpoint(broker_id, self._config.inter_broker_listener_name)

    def _done(self, question: Question, errors: Errors) -> None:
        self.failures += len(errors)
        self.times.update((trio.current_time() - question.asked_at) * 1000)
        try:
            question.on_done(errors)
        except Exception:  # the questions of others are not concerned
            log.exception("the verification of %r could not be processed", question.transactional_id)

    def _fail(self, question: Question, code: ErrorCode) -> None:
        self._done(question, dict.fromkeys(question.partitions, code))

    async def run(self) -> None:
        """Until cancelled."""
        started: set[int] = set()
        async with trio.open_nursery() as nursery:
            while True:
                self._new_broker = trio.Event()
                for broker_id in self._came.keys() - started:
                    started.add(broker_id)
                    nursery.start_soon(self._ask_broker, broker_id)
                await self._new_broker.wait()

    async def _ask_broker(self, broker_id: int) -> None:
        client_id = f"AddPartitionsManager-client-{self._config.broker_id}"
        connection = BrokerConnection(broker_id, self._dial, client_id, self._config.request_timeout_ms)
        try:
            while True:
                await self._came[broker_id].wait()
                self._came[broker_id] = trio.Event()
                await self._ask(connection, self._waiting.pop(broker_id))
        finally:
            await connection.aclose()

    async def _ask(self, connection: BrokerConnection, collected: Collected) -> None:
        answers = await self._answers(connection, collected)
        for i, (transactional_id, question) in enumerate(collected.questions.items()):
            if i:
                await trio.lowlevel.checkpoint()  # each appends records
            answer = answers if isinstance(answers, ErrorCode) else answers.get(transactional_id)
            if answer is None:
                log.error("broker %d does not answer about %r", connection.broker_id, transactional_id)
                answer = ErrorCode.NETWORK_EXCEPTION
            if not isinstance(answer, ErrorCode):
                self._done(question, answer)
            elif answer is ErrorCode.NONE:
                self._done(question, {})
            else:
                self._fail(question, answer)

    async def _answers(self, connection: BrokerConnection, collected: Collected) -> ErrorCode | dict[str, Errors]:
        """By transactional id; or one for all, NONE if they are not to be verified."""
        broker_id = connection.broker_id
        request = AddPartitionsToTxnRequest(
            transactions=tuple(question.for_wire() for question in collected.questions.values())
        )
        try:
            if (endpoint := self._endpoint(broker_id)) is None:
                raise ConnectionRefusedError(f"broker {broker_id} is not alive")
            response = await connection.request_newest(endpoint, request, FIRST_VERSION)
        except UnsupportedByBroker as e:  # rule T10.12
            log.warning("partitions of transactions are not verified: %s", e)
            return ErrorCode.NONE
        except AuthenticationRefused as e:
            log.error("broker %d cannot be asked to verify partitions: %s", broker_id, e)
            return ErrorCode(e.code)
        except (OSError, trio.TooSlowError, WireError) as e:
            log.warning("broker %d did not verify partitions: %r", broker_id, e)
            return ErrorCode.NETWORK_EXCEPTION
        assert isinstance(response, AddPartitionsToTxnResponse)
        if response.error_code != ErrorCode.NONE:
            code = ErrorCode(response.error_code)
            log.error("broker %d refuses to verify partitions: %s", broker_id, code.name)
            return ErrorCode.INVALID_TXN_STATE if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else code
        return {
            result.transactional_id: _unverified(result, knows_abortable=collected.knows_abortable)
            for result in response.results_by_transaction
        }


def _unverified(result: AddPartitionsToTxnResult, *, knows_abortable: bool) -> Errors:
    """Rule T10.10."""
    known = {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}
    if not knows_abortable:
        known[ErrorCode.TRANSACTION_ABORTABLE] = ErrorCode.INVALID_TXN_STATE
    return {
        TopicPartition(topic.name, entry.partition_index): known.get(code, code)
        for topic in result.topic_results
        for entry in topic.results_by_partition
        if (code := ErrorCode(entry.partition_error_code)) is not ErrorCode.NONE
    }
