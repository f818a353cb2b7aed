"""AddPartitionsToTxnManagerTest of Kafka: coordinators are asked about partitions (docs/transaction-semantics.md, APT).

Covers: broker_stub/transactions/verifier.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce import wire
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.transactions.verifier import Errors, PartitionVerifier
from kce.wire import ErrorCode as E
from kce.wire.transport import AuthenticationRefused, ConnectionLost
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.fake_nodes import FakeNodes, serves
from tests.broker_stub.support import config, umr_broker, umr_state, update_metadata

case = pytest.mark.kafka
FOO = [TopicPartition("foo", number) for number in (1, 2, 3)]
API = 24
#: id -> its partition of `__transaction_state`
PARTITIONS = {"txn1": 0, "txn2": 1, "txn3": 0, "txn4": 7}
PRODUCERS = {"txn1": 0, "txn2": 1, "txn3": 2, "txn4": 3}


class Coordinators(FakeNodes):
    """Brokers 2 and 3. ``answer``: what they say of an id's partitions, or to a request; all is well without."""

    def __init__(self) -> None:
        super().__init__()
        self.newest = 5
        self.answer: Mapping[str, Mapping[int, E]] | E | Exception = {}
        self.released: trio.Event | None = None
        for broker_id in (2, 3):
            self.nodes[f"host{broker_id}", 9001 + 10 * broker_id] = self._answer

    async def _answer(self, header: wire.Header, message: Any) -> wire.Message:
        if isinstance(message, wire.ApiVersionsRequest):
            return serves(API, 0, self.newest)
        answer = self.answer
        if self.released is not None:
            await self.released.wait()
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, E):
            return wire.AddPartitionsToTxnResponse(error_code=answer)
        return wire.AddPartitionsToTxnResponse(
            results_by_transaction=tuple(
                _result(t.transactional_id, answer.get(t.transactional_id, {}))
                for t in message.transactions
                if t.transactional_id != "forgotten"
            )
        )

    @property
    def asked(self) -> list[tuple[str, int, list[tuple[str, int, int]]]]:
        """Host, version, and of each transaction id, producer id and epoch."""
        return [
            (host, header.api_version, [(t.transactional_id, t.producer_id, t.producer_epoch) for t in m.transactions])
            for host, header, m in self.requests
            if isinstance(m, wire.AddPartitionsToTxnRequest)
        ]


def _result(transactional_id: str, codes: Mapping[int, E]) -> wire.AddPartitionsToTxnResult:
    partitions = tuple(
        wire.AddPartitionsToTxnPartitionResult(
            partition_index=p.partition, partition_error_code=codes.get(p.partition, 0)
        )
        for p in FOO
    )
    topic = wire.AddPartitionsToTxnTopicResult(name="foo", results_by_partition=partitions)
    return wire.AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=(topic,))


class Host:
    """A verifier of broker 1. Ids txn1 and txn3 are coordinated by broker 2, txn2 by 3."""

    def __init__(self) -> None:
        self.coordinators = Coordinators()
        self.cache = MetadataCache(1)
        self.learn()
        self.verifier = PartitionVerifier(
            config(), self.cache, lambda name: PARTITIONS.get(name, 0), self.coordinators.dial
        )

    def learn(self, first: int = 2, second: int = 3, alive: tuple[int, ...] = (1, 2, 3)) -> None:
        states = umr_state(0, leader=first), umr_state(1, leader=second)
        brokers = tuple(map(umr_broker, alive))
        self.cache.update(update_metadata(*states, alive=brokers, topic="__transaction_state"))

    def verify(self, name: str, epoch: int = 0, *, knows_abortable: bool = True) -> list[Errors]:
        """It has one element once there is an answer."""
        answers: list[Errors] = []
        self.verifier.verify(name, PRODUCERS.get(name, 9), epoch, FOO, answers.append, knows_abortable=knows_abortable)
        return answers


@asynccontextmanager
async def running() -> AsyncIterator[Host]:
    host = Host()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.verifier.run)
        yield host
        nursery.cancel_scope.cancel()
    assert not host.coordinators.open


def of_all(code: E) -> Errors:
    return dict.fromkeys(FOO, code)


@case("APT-1")
async def test_questions_are_collected_by_coordinator() -> None:  # rules T10.7, T10.8
    host = Host()
    first, second, third = host.verify("txn1"), host.verify("txn2"), host.verify("txn3")
    same_epoch = host.verify("txn1")
    assert first == [of_all(E.NETWORK_EXCEPTION)]
    newer = host.verify("txn1", 1)
    assert same_epoch == [of_all(E.INVALID_PRODUCER_EPOCH)]
    older = host.verify("txn1", 0)
    assert older == [of_all(E.INVALID_PRODUCER_EPOCH)]
    assert second == third == newer == []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.verifier.run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sorted(host.coordinators.asked) == [
        ("host2", 5, [("txn3", 2, 0), ("txn1", 0, 1)]), ("host3", 5, [("txn2", 1, 0)]),
    ]  # fmt: skip
    assert second == third == newer == [{}]
    (request,) = [m for host, _, m in host.coordinators.requests if host == "host3" and m.__api_key__ == API]
    assert isinstance(request, wire.AddPartitionsToTxnRequest)
    assert request.transactions[0].verify_only
    assert request.transactions[0].topics == (wire.AddPartitionsToTxnTopic(name="foo", partitions=(1, 2, 3)),)


@case("APT-2")
async def test_one_request_in_flight() -> None:  # rule T10.7
    async with running() as host:
        host.coordinators.released = trio.Event()
        host.coordinators.answer = ConnectionLost("closed for the test")
        first, second = host.verify("txn1"), host.verify("txn2")
        await wait_all_tasks_blocked()
        assert sorted(host.coordinators.asked) == [("host2", 5, [("txn1", 0, 0)]), ("host3", 5, [("txn2", 1, 0)])]
        again = host.verify("txn2")
        await wait_all_tasks_blocked()
        assert len(host.coordinators.asked) == 2
        assert first == second == again == []
        host.coordinators.answer = {}
        host.coordinators.released.set()
        await wait_all_tasks_blocked()
        assert first == second == [of_all(E.NETWORK_EXCEPTION)]
        assert host.coordinators.asked[2:] == [("host3", 5, [("txn2", 1, 0)])]
        assert again == [{}]
        assert host.coordinators.dialled.count(("host3", 9031)) == 2


@case("APT-3")
async def test_without_a_coordinator() -> None:  # rule T10.6
    async with running() as host:
        assert host.verify("txn4") == [of_all(E.COORDINATOR_NOT_AVAILABLE)]
        host.learn(first=-1)
        assert host.verify("txn1") == [of_all(E.COORDINATOR_NOT_AVAILABLE)]
        host.learn(first=2, alive=(1, 3))
        assert host.verify("txn1") == [of_all(E.COORDINATOR_NOT_AVAILABLE)]


async def _both(host: Host, *, knows_abortable: bool = True) -> list[Errors]:
    first, third = (host.verify(name, knows_abortable=knows_abortable) for name in ("txn1", "txn3"))
    await wait_all_tasks_blocked()
    return [*first, *third]


@case("APT-4")
async def test_what_an_answer_means() -> None:  # rules T10.10 to T10.12
    async with running() as host:
        coordinators = host.coordinators
        coordinators.answer = AuthenticationRefused(E.SASL_AUTHENTICATION_FAILED, "wrong password")
        assert await _both(host) == [of_all(E.SASL_AUTHENTICATION_FAILED)] * 2
        coordinators.newest = 3
        assert await _both(host) == [{}, {}]
        assert len(coordinators.asked) == 1
        assert coordinators.open == 1
        coordinators.answer = ConnectionLost("closed for the test")
        coordinators.newest = 5
        host.learn(first=3)
        assert await _both(host) == [of_all(E.NETWORK_EXCEPTION)] * 2
        coordinators.answer = E.CLUSTER_AUTHORIZATION_FAILED
        assert await _both(host) == [of_all(E.INVALID_TXN_STATE)] * 2
        coordinators.answer = E.UNKNOWN_SERVER_ERROR
        assert await _both(host) == [of_all(E.UNKNOWN_SERVER_ERROR)] * 2
        coordinators.answer = {"txn1": dict.fromkeys((1, 2, 3), E.PRODUCER_FENCED), "txn3": {2: E.INVALID_TXN_STATE}}
        assert await _both(host) == [of_all(E.INVALID_PRODUCER_EPOCH), {FOO[1]: E.INVALID_TXN_STATE}]
        abortable = E.TRANSACTION_ABORTABLE
        coordinators.answer = {"txn1": dict.fromkeys((1, 2, 3), abortable), "txn3": {2: abortable}}
        assert await _both(host, knows_abortable=False) == [
            of_all(E.INVALID_TXN_STATE), {FOO[1]: E.INVALID_TXN_STATE},
        ]  # fmt: skip
        assert await _both(host) == [of_all(abortable), {FOO[1]: abortable}]


async def test_the_first_question_says_what_clients_know() -> None:  # rule T10.11
    async with running() as host:
        host.coordinators.answer = {"txn3": {2: E.TRANSACTION_ABORTABLE}}
        host.verify("txn1", knows_abortable=False)
        third = host.verify("txn3", knows_abortable=True)
        await wait_all_tasks_blocked()
        assert third == [{FOO[1]: E.INVALID_TXN_STATE}]


async def test_no_answer(autojump_clock: MockClock) -> None:  # rule T10.10
    async with running() as host:
        host.coordinators.released = trio.Event()
        answers = host.verify("txn1")
        await trio.sleep(29.9)
        assert answers == []
        await trio.sleep(0.2)
        assert answers == [of_all(E.NETWORK_EXCEPTION)]
        host.coordinators.released.set()
        forgotten = host.verify("forgotten")
        await wait_all_tasks_blocked()
        assert forgotten == [of_all(E.NETWORK_EXCEPTION)]


@case("APT-5")
async def test_how_long_it_takes_and_what_fails(autojump_clock: MockClock) -> None:  # rule T10.20
    async with running() as host:
        host.coordinators.released = trio.Event()
        host.coordinators.answer = AuthenticationRefused(E.SASL_AUTHENTICATION_FAILED, "wrong password")
        host.verify("txn1")
        host.verify("txn2")
        await trio.sleep(0.2)
        host.coordinators.released.set()
        await wait_all_tasks_blocked()
        assert host.verifier.times.count == 2
        assert host.verifier.times.max == pytest.approx(200)
        assert host.verifier.failures == 6


async def test_others_work_between_two_answers() -> None:
    """Each appends records."""
    order: list[str] = []
    answered = trio.Event()

    async def other() -> None:
        await answered.wait()
        order.append("other")

    def done(name: str) -> None:
        order.append(name)
        answered.set()

    async with running() as host, trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for name in "abc":
            host.verifier.verify(name, 1, 0, FOO, lambda errors, name=name: done(name), knows_abortable=True)  # type: ignore[misc]
        await wait_all_tasks_blocked()
    assert order.index("other") < 3
    assert [name for name in order if name != "other"] == ["a", "b", "c"]


async def test_an_answer_that_cannot_be_processed_does_not_concern_others(caplog: pytest.LogCaptureFixture) -> None:
    def fails(errors: Errors) -> None:
        raise ValueError("of a producer")

    async with running() as host:
        host.verifier.verify("txn1", 0, 0, FOO, fails, knows_abortable=True)
        third = host.verify("txn3")
        await wait_all_tasks_blocked()
        assert third == [{}]
        assert caplog.messages == ["the verification of 'txn1' could not be processed"]
