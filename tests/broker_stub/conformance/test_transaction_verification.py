"""ReplicaManagerTest and PartitionTest of Kafka: transactional records are verified first (TRM).

Covers: broker_stub/transactions/verification.py.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kce.broker_stub.errors import InvalidTxnState, Refused
from kce.broker_stub.log import Appended, Origin
from kce.broker_stub.log.verification import VerificationGuard
from kce.broker_stub.replication.delayed import Produced
from kce.broker_stub.transactions.verification import TransactionVerification, Verified, Writer
from kce.broker_stub.transactions.verifier import Errors, OnVerified
from kce.wire import ErrorCode as E
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.log.support import produced
from tests.broker_stub.replication.support import A0, RecordNode, a_node
from tests.broker_stub.support import lai_state, leader_and_isr, umr_state, update_metadata

case = pytest.mark.kafka
A1 = TopicPartition("a", 1)
ID, PID, EPOCH = "txn1", 24, 0
Results = Mapping[TopicPartition, tuple[Produced, E]]


class Questions:
    """Keeps them. ``answer`` answers the last one."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self._on_done: list[OnVerified] = []

    def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: list[TopicPartition],
        on_done: OnVerified, *, knows_abortable: bool,
    ) -> None:  # fmt: skip
        self.asked.append((transactional_id, producer_id, producer_epoch, partitions, knows_abortable))
        self._on_done.append(on_done)

    def answer(self, errors: Errors | None = None) -> None:
        self._on_done[-1](errors or {})


class Host:
    """Broker 1 with verification on. It leads a-0 and a-1, if it ``leads``."""

    def __init__(self, node: RecordNode) -> None:
        self.node = node
        self.appends = node.replication.appends
        self.questions = Questions()
        self.verification = TransactionVerification(self.appends, self.questions)

    def produce(self, records: Mapping[TopicPartition, bytes]) -> list[Results]:
        """It has one result once there is an answer."""
        results: list[Results] = []
        self.verification.append(records, ID, 1, 1000, results.append, knows_abortable=True)
        return results

    def guard(self, partition: TopicPartition = A0) -> VerificationGuard | None:
        entry = self.node.record_logs.logs[partition].producers.verifications.get(PID)
        return None if entry is None else entry.guard

    @property
    def is_open(self) -> bool:
        return self.node.log.producers.has_open_transaction(PID)


def records(sequence: int = 0, *, pid: int = PID, transactional: bool = True) -> bytes:
    return produced(pid, sequence, epoch=EPOCH, transactional=transactional)


@asynccontextmanager
async def running(*, leads: bool = True, enabled: bool = True) -> AsyncIterator[Host]:
    properties = {"transaction.partition.verification.enable": str(enabled).lower()}
    async with a_node(**properties) as node:
        states: Any = {"isr": (1,), "replicas": (1,)} if leads else {"leader": 2, "isr": (2,), "replicas": (1, 2)}
        topic: Any = {"topic": "a", "topic_id": uuid.UUID(int=1)}
        await node.ask(update_metadata(*(umr_state(n, **states) for n in (0, 1)), **topic))
        await node.ask(leader_and_isr(*(lai_state(n, is_new=True, **states) for n in (0, 1)), **topic))
        yield Host(node)


@case("TRM-3")
async def test_only_transactional_records_are_verified() -> None:  # rules T10.2, T10.4
    async with running() as host:
        host.appends.append({A0: records(transactional=False)}, 1, 1000, lambda results: None)
        assert host.questions.asked == []
        assert host.guard() is None
        host.produce({A0: records(1), A1: records(transactional=False)})
        assert host.questions.asked == [(ID, PID, EPOCH, [A0], True)]
        assert host.guard(A0) is not None
        assert host.guard(A1) is None
        host.questions.answer()
        assert host.node.log.log_end_offset == 2


@case("TRM-4")
@pytest.mark.parametrize("origin", [Origin.CLIENT, Origin.COORDINATOR])
async def test_verified_at_the_second_try(origin: Origin) -> None:  # rules T10.1, T10.13, T10.14
    async with running() as host:

        def produce() -> list[Results]:
            if origin is Origin.CLIENT:
                return host.produce({A0: records(6)})
            results: list[Results] = []

            def verified(result: Verified) -> None:
                refused = {partition: (Refused(code), code) for partition, code in result.errors.items()}
                if refused:
                    results.append(refused)
                else:
                    host.appends.append({A0: records(6)}, 1, 1000, results.append, origin=origin, guards=result.guards)

            host.verification.start(Writer(ID, PID, EPOCH, knows_abortable=True), {A0: 6}, verified)
            return results

        results = produce()
        assert host.questions.asked == [(ID, PID, EPOCH, [A0], True)]
        guard = host.guard()
        assert guard is not None
        assert results == []
        host.questions.answer({A0: E.INVALID_TXN_STATE})
        assert results[0][A0][1] is E.INVALID_TXN_STATE
        assert host.guard() is guard
        assert host.node.log.log_end_offset == 0
        results = produce()
        assert len(host.questions.asked) == 2
        assert host.guard() is guard
        host.questions.answer()
        assert results[0][A0][1] is E.NONE
        assert host.guard() is None
        assert host.is_open


@case("TRM-5")
async def test_a_later_batch_does_not_overtake() -> None:  # rule T10.17
    async with running() as host:
        results = host.produce({A0: records(6)})
        guard = host.guard()
        host.questions.answer({A0: E.INVALID_PRODUCER_ID_MAPPING})
        assert results[0][A0][1] is E.INVALID_PRODUCER_ID_MAPPING
        assert host.guard() is guard
        results = host.produce({A0: records(7)})
        assert len(host.questions.asked) == 2
        assert host.guard() is guard
        host.questions.answer()
        assert results[0][A0][1] is E.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert host.guard() is guard


@case("TRM-6")
async def test_two_partitions_at_once() -> None:
    async with running() as host:
        results = host.produce({A0: records(), A1: records()})
        assert host.questions.asked == [(ID, PID, EPOCH, [A0, A1], True)]
        host.questions.answer()
        assert {partition: code for partition, (_, code) in results[0].items()} == {A0: E.NONE, A1: E.NONE}


@case("TRM-7")
async def test_records_of_two_producers() -> None:  # rule T10.3
    async with running() as host:
        with pytest.raises(Refused) as refused:
            host.produce({A0: records(), A1: records(pid=PID + 1)})
        assert refused.value.code is E.INVALID_PRODUCER_ID_MAPPING
        assert host.questions.asked == []


async def test_transactional_records_without_a_producer() -> None:  # rule T10.3
    async with running() as host:
        results = host.produce({A0: records(-1, pid=-1)})
        assert results[0][A0][1] is E.NONE
        assert not host.questions.asked


@case("TRM-8")
@case("TRM-12")
async def test_a_partition_that_is_not_led_here() -> None:  # rule T10.4
    async with running(leads=False) as host:
        (results,) = host.produce({A0: records(6)})
        assert results[A0][1] is E.NOT_LEADER_OR_FOLLOWER
        found: list[Verified] = []
        host.verification.start(Writer(ID, PID, EPOCH, knows_abortable=True), {A0: 0}, found.append)
        assert found == [Verified({A0: E.NOT_LEADER_OR_FOLLOWER}, {})]
        assert host.questions.asked == []


@case("TRM-9")
async def test_verification_that_is_turned_on() -> None:  # rules T10.2, T10.19
    async with running(enabled=False) as host:
        (results,) = host.produce({A0: records()})
        assert results[A0][1] is E.NONE
        assert host.guard() is None
        host.appends.verifies_transactions = True
        (results,) = host.produce({A0: records(1)})
        assert results[A0][1] is E.NONE
        assert host.questions.asked == []
        assert host.guard() is None
        assert host.is_open


@case("TRM-10")
async def test_verification_that_is_turned_off() -> None:  # rule T10.19
    async with running() as host:
        results = host.produce({A0: records(6)})
        guard = host.guard()
        host.appends.verifies_transactions = False
        host.questions.answer({A0: E.INVALID_TXN_STATE})
        assert results[0][A0][1] is E.INVALID_TXN_STATE
        assert host.guard() is guard is not None
        (results_again,) = host.produce({A0: records(6)})
        assert results_again[A0][1] is E.NONE
        assert len(host.questions.asked) == 1
        assert host.guard() is None
        assert host.is_open


@case("TRM-11")
@pytest.mark.parametrize(
    "code",
    [
        E.NOT_COORDINATOR, E.CONCURRENT_TRANSACTIONS, E.NETWORK_EXCEPTION, E.COORDINATOR_LOAD_IN_PROGRESS,
        E.COORDINATOR_NOT_AVAILABLE,
    ],
)  # fmt: skip
async def test_codes_that_old_clients_repeat(code: E) -> None:  # rule T10.13
    async with running() as host:
        results = host.produce({A0: records()})
        host.questions.answer({A0: code})
        failure, answered = results[0][A0]
        assert answered is E.NOT_ENOUGH_REPLICAS
        assert str(failure) == (
            f"Unable to verify the partition has been added to the transaction. Underlying error: {code.name}"
        )


@case("TRM-13")
async def test_a_partition_and_its_guard() -> None:  # rules T10.5, T10.15
    async with running() as host:
        partition = host.appends.plane.partition(A0)
        partition.append(produced(PID, 0, 3), 1, guard=None)
        data = produced(PID, 3, 3, transactional=True)
        with pytest.raises(InvalidTxnState):
            partition.append(data, 1, guard=None)
        guard = partition.start_verification(PID, EPOCH, 3)
        assert guard is not None
        with pytest.raises(InvalidTxnState):
            partition.append(data, 1, guard=VerificationGuard())
        assert partition.start_verification(PID, EPOCH, 3) is guard
        assert isinstance(partition.append(data, 1, guard=guard), Appended)
        assert partition.start_verification(PID, EPOCH, 3) is None
        partition.append(data, 1, guard=None)


async def test_some_partitions_are_verified() -> None:  # rules T10.4, T10.13
    async with running() as host:
        results = host.produce({A0: records(), A1: records()})
        host.questions.answer({A1: E.INVALID_TXN_STATE})
        assert {partition: code for partition, (_, code) in results[0].items()} == {
            A0: E.NONE, A1: E.INVALID_TXN_STATE,
        }  # fmt: skip
        assert str(results[0][A1][0]) == "Partition was not added to the transaction"
