"""Transactional records are appended only where the coordinator knows of the transaction (section 10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from kce.broker_stub.disk import Buffer
from kce.broker_stub.errors import ApiException, Refused, VerificationFailed
from kce.broker_stub.log.verification import VerificationGuard
from kce.broker_stub.replication.appends import Appends
from kce.broker_stub.replication.delayed import Produced
from kce.broker_stub.transactions.verifier import Errors, OnVerified
from kce.wire import ErrorCode
from kce.wire.batch_header import BatchHeader, read_headers
from kce.wire.vocabulary import TopicPartition

#: what old clients repeat with one that makes them repeat it (rule T10.13)
_RETRIED: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Verifier(Protocol):
    """Asks coordinators: see `PartitionVerifier`."""

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: list[TopicPartition],
        on_done: OnVerified,
        *,
        knows_abortable: bool,
    ) -> None: ...


class Writer(NamedTuple):
    """Who writes. ``knows_abortable``: the client understands TRANSACTION_ABORTABLE."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    knows_abortable: bool


class Verified(NamedTuple):
    """``errors`` of those partitions that must not be written, ``guards`` of those that had to be verified."""

    errors: Errors
    guards: Mapping[TopicPartition, VerificationGuard]


class TransactionVerification:
    """Its switch is ``Appends.verifies_transactions`` (rule T10.2)."""

    def __init__(self, appends: Appends, verifier: Verifier) -> None:
        self._appends = appends
        self._verifier = verifier

    def start(
        self, writer: Writer, sequences: Mapping[TopicPartition, int], on_done: Callable[[Verified], None]
    ) -> None:
        """``sequences``: of the first batch for each partition. ``on_done``: at once or later (rules T10.1 to T10.5).

        Whoever has an open transaction in a partition is not asked about.
        """
        if not self._appends.verifies_transactions:
            on_done(Verified({}, {}))
            return
        errors: dict[TopicPartition, ErrorCode] = {}
        guards: dict[TopicPartition, VerificationGuard] = {}
        for topic_partition, sequence in sequences.items():
            try:
                partition = self._appends.plane.partition(topic_partition)
                guard = partition.start_verification(writer.producer_id, writer.producer_epoch, sequence)
            except ApiException as e:
                errors[topic_partition] = e.code
            else:
                if guard is not None:
                    guards[topic_partition] = guard
        if not guards:
            on_done(Verified(errors, {}))
            return
        self._verifier.verify(
            writer.transactional_id, writer.producer_id, writer.producer_epoch, list(guards),
            lambda unverified: on_done(Verified({**errors, **unverified}, guards)),
            knows_abortable=writer.knows_abortable,
        )  # fmt: skip

    def append(
        self,
        records: Mapping[TopicPartition, Buffer],
        transactional_id: str,
        acks: int,
        timeout_ms: int,
        respond: Callable[[Mapping[TopicPartition, tuple[Produced, ErrorCode]]], None],
        *,
        knows_abortable: bool,
    ) -> None:
        """As ``Appends.append``. Raises Refused (rule T10.3)."""
        first: dict[TopicPartition, BatchHeader] = {}
        producers: set[tuple[int, int]] = set()
        for topic_partition, data in records.items():
            headers = [header for _, header in read_headers(data)]
            transactional = {
                (h.producer_id, h.producer_epoch) for h in headers if h.is_transactional and h.has_producer
            }
            if transactional:
                producers |= transactional
                first[topic_partition] = headers[0]
        if len(producers) > 1:
            raise Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "transactional records of more than one producer")
        if not producers:
            self._appends.append(records, acks, timeout_ms, respond)
            return

        def verified(result: Verified) -> None:
            refused: dict[TopicPartition, tuple[Produced, ErrorCode]] = {}
            for topic_partition, code in result.errors.items():
                failure = _failure(code)
                refused[topic_partition] = failure, failure.code
            self._appends.append(
                {topic_partition: data for topic_partition, data in records.items() if topic_partition not in refused},
                acks,
                timeout_ms,
                lambda produced: respond({**refused, **produced}),
                guards=result.guards,
            )

        ((producer_id, epoch),) = producers
        writer = Writer(transactional_id, producer_id, epoch, knows_abortable)
        self.start(writer, {partition: header.base_sequence for partition, header in first.items()}, verified)


def _failure(code: ErrorCode) -> VerificationFailed:
    """Rule T10.13."""
    if code is ErrorCode.INVALID_TXN_STATE:
        return VerificationFailed(code, "Partition was not added to the transaction")
    if code in _RETRIED:
        text = f"Unable to verify the partition has been added to the transaction. Underlying error: {code.name}"
        return VerificationFailed(ErrorCode.NOT_ENOUGH_REPLICAS, text)
    return VerificationFailed(code)
