"""Markers to the leaders of partitions: who gets which, and what an answer means (section 6 of the transaction rules).

With the cases of TransactionMarkerChannelManagerTest and TransactionMarkerRequestCompletionHandlerTest (TMC, TMH).
"""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.internal_topics import TRANSACTION_STATE_TOPIC
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.transactions.markers import RETRY_SECONDS, Marker, MarkerSender
from kce.wire import ErrorCode as E
from kce.wire.transport import ConnectionLost
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.fake_nodes import FakeNodes
from tests.broker_stub.support import config, umr_broker, umr_state, update_metadata

case = pytest.mark.kafka
A0, A1, GONE = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Transaction:
    """What `Ending` asks for."""

    def __init__(self, name: str, *partitions: TopicPartition, producer_id: int = 10, state_partition: int = 0) -> None:
        self.transactional_id = name
        self.state_partition = state_partition
        self.producer_id = producer_id
        self.producer_epoch = 3
        self.committed = True
        self.coordinator_epoch = 7
        self.is_current = True
        self.remaining = set(partitions)
        self.times_finished = 0
        self.done = trio.Event()

    def marker_written(self, partition: TopicPartition) -> None:
        self.remaining.remove(partition)

    def finished(self) -> None:
        self.times_finished += 1
        self.done.set()


class Leaders(FakeNodes):
    """Brokers 2 and 3. ``codes``: what the next answers say of a partition; NONE after that."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: dict[TopicPartition, list[E]] = {}
        self.forgets: set[int] = set()
        self.losses = 0
        #: when each request came
        self.times: list[float] = []
        self.released: trio.Event | None = None
        for broker_id in (2, 3):
            self.nodes[f"host{broker_id}", 9001 + 10 * broker_id] = self._write

    async def _write(self, header: wire.Header, message: Any) -> wire.Message:
        self.times.append(trio.current_time())
        if self.released is not None:
            await self.released.wait()
        if self.losses:
            self.losses -= 1
            raise ConnectionLost("closed for the test")
        return wire.WriteTxnMarkersResponse(
            markers=tuple(
                wire.WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=tuple(
                        wire.WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=tuple(
                                wire.WritableTxnMarkerPartitionResult(
                                    partition_index=number, error_code=self._code(TopicPartition(topic.name, number))
                                )
                                for number in topic.partition_indexes
                            ),
                        )
                        for topic in marker.topics
                    ),
                )
                for marker in message.markers
                if marker.producer_id not in self.forgets
            )
        )

    def _code(self, partition: TopicPartition) -> E:
        codes = self.codes.get(partition)
        return codes.pop(0) if codes else E.NONE

    @property
    def sent(self) -> list[tuple[str, list[tuple[int, list[int]]]]]:
        """Of each request: broker, and for each marker producer id and partitions of topic a."""
        return [
            (host, [(m.producer_id, [n for t in m.topics for n in t.partition_indexes]) for m in message.markers])
            for host, _, message in self.requests  # type: ignore[attr-defined]
        ]


class Host:
    """A sender on broker 1; a-0 is led by 2, a-1 by 3."""

    def __init__(self, **properties: str) -> None:
        self.leaders = Leaders()
        self.cache = MetadataCache(1)
        self.learn()
        self.learn_own()
        self.sender = MarkerSender(config(**properties), self.cache, self.leaders.dial)

    def learn_own(self) -> None:
        """The partition that makes it the coordinator."""
        self.cache.update(update_metadata(umr_state(), topic=TRANSACTION_STATE_TOPIC, topic_id=uuid.UUID(int=77)))

    def learn(self, first: int = 2, second: int = 3, alive: tuple[int, ...] = (1, 2, 3)) -> None:
        states = umr_state(0, leader=first), umr_state(1, leader=second)
        self.cache.update(update_metadata(*states, alive=tuple(map(umr_broker, alive))))


@asynccontextmanager
async def running(**properties: str) -> AsyncIterator[Host]:
    host = Host(**properties)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.sender.run)
        yield host
        nursery.cancel_scope.cancel()
    assert not host.leaders.open


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked()


@case("TMC-5")
@case("TMC-9")
@case("TMH-3")
async def test_one_request_per_broker(autojump_clock: MockClock) -> None:  # rules T6.1 to T6.3
    async with running() as host:
        one, other = Transaction("t", A0, A1), Transaction("u", A0, producer_id=11)
        for transaction in (one, other):
            host.sender.send(transaction)
        await one.done.wait()
        await other.done.wait()
        assert sorted(host.leaders.sent) == [("host2", [(10, [0]), (11, [0])]), ("host3", [(10, [1])])]
        _, header, request = host.leaders.requests[0]
        assert (header.api_version, header.client_id) == (1, "broker-1-txn-marker-sender")
        marker = request.markers[0]  # type: ignore[attr-defined]
        assert (marker.producer_epoch, marker.transaction_result, marker.coordinator_epoch) == (3, True, 7)
        await settled()
        assert (one.times_finished, other.times_finished, len(host.leaders.requests)) == (1, 1, 2)
        assert host.sender._endings == {}


@pytest.mark.parametrize(("protocol", "version"), [("2.7", 0), ("2.8-IV0", 1)])
async def test_the_version_of_an_old_protocol(
    protocol: str, version: int, autojump_clock: MockClock
) -> None:  # rule T6.2
    async with running(inter_broker_protocol_version=protocol) as host:
        transaction = Transaction("t", A0)
        host.sender.send(transaction)
        await transaction.done.wait()
        assert host.leaders.requests[0][1].api_version == version


@case("TMC-4")
async def test_without_partitions_nothing_is_sent() -> None:  # rule T5.11
    async with running() as host:
        transaction = Transaction("t")
        host.sender.send(transaction)
        assert transaction.times_finished == 1
        await settled()
        assert not host.leaders.dialled


async def test_what_waits_for_its_request_goes_together(autojump_clock: MockClock) -> None:  # rule T6.2
    async with running() as host:
        host.leaders.released = trio.Event()
        transactions = [Transaction(f"t{i}", A0, producer_id=i) for i in range(4)]
        for transaction in transactions:
            host.sender.send(transaction)
            await settled()
        host.leaders.released.set()
        for transaction in transactions:
            await transaction.done.wait()
        assert host.leaders.sent == [("host2", [(0, [0])]), ("host2", [(1, [0]), (2, [0]), (3, [0])])]


@case("TMC-6")
async def test_a_partition_that_is_gone_needs_no_marker(autojump_clock: MockClock) -> None:  # rules T6.4, T13.2
    async with running() as host:
        transaction = Transaction("t", A0, GONE)
        host.sender.send(transaction)
        assert transaction.remaining == {A0}
        await transaction.done.wait()
        only_gone = Transaction("u", GONE)
        host.sender.send(only_gone)
        assert only_gone.times_finished == 1


async def test_nothing_is_gone_while_metadata_is_behind(autojump_clock: MockClock) -> None:
    """A failover's LeaderAndIsr comes before its UpdateMetadata: then the marker is sent, not dropped."""
    async with running() as host:
        host.cache = host.sender._metadata_cache = MetadataCache(1)
        transaction = Transaction("t", A0)
        host.sender.send(transaction)
        await settled()
        assert (transaction.remaining, host.sender.unknown_destinations) == ({A0}, 1)
        host.learn()
        host.learn_own()
        await transaction.done.wait()
        assert host.leaders.sent == [("host2", [(10, [0])])]


@case("TMC-7")
async def test_a_leader_that_is_not_alive(autojump_clock: MockClock) -> None:  # rule T6.5
    async with running() as host:
        host.learn(first=-1, second=3, alive=(1, 2))
        transaction = Transaction("t", A0, A1)
        host.sender.send(transaction)
        assert host.sender.unknown_destinations == 2 - 1
        await trio.sleep(5)
        assert not host.leaders.requests
        host.learn(first=3, second=2)
        await transaction.done.wait()
        assert sorted(host.leaders.sent) == [("host2", [(10, [1])]), ("host3", [(10, [0])])]


@case("TMH-1")
async def test_a_lost_connection(autojump_clock: MockClock) -> None:  # rule T6.6
    async with running() as host:
        host.leaders.losses = 2
        transaction = Transaction("t", A0)
        host.sender.send(transaction)
        await transaction.done.wait()
        assert len(host.leaders.dialled) == 3


async def test_a_silent_leader(autojump_clock: MockClock) -> None:  # rule T6.6
    async with running(request_timeout_ms="5000") as host:

        async def silent(header: wire.Header, message: wire.Message) -> None:
            return None

        host.leaders.nodes["host2", 9021] = silent
        transaction = Transaction("t", A0)
        host.sender.send(transaction)
        await settled()
        host.learn(first=3)
        await trio.sleep(4.9)
        assert not transaction.times_finished
        await transaction.done.wait()
        assert host.leaders.sent[-1][0] == "host3", "its leader is looked up anew"
        assert trio.current_time() < 6


@case("TMH-14")
@case("TMH-15")
@case("TMH-16")
@case("TMH-17")
@case("TMH-18")
@pytest.mark.parametrize(
    "code",
    [
        E.UNKNOWN_TOPIC_OR_PARTITION, E.NOT_LEADER_OR_FOLLOWER, E.REQUEST_TIMED_OUT, E.NOT_ENOUGH_REPLICAS,
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.KAFKA_STORAGE_ERROR,
    ],
)  # fmt: skip
async def test_a_marker_is_sent_again(code: E, autojump_clock: MockClock) -> None:  # rule T6.7
    async with running() as host:
        host.learn(second=2)
        host.leaders.codes = {A0: [code, code]}
        transaction = Transaction("t", A0, A1)
        host.sender.send(transaction)
        await transaction.done.wait()
        assert host.leaders.sent == [("host2", [(10, [0, 1])]), *[("host2", [(10, [0])])] * 2]
        assert transaction.times_finished == 1


@case("TMH-19")
@pytest.mark.parametrize("code", [E.UNSUPPORTED_FOR_MESSAGE_FORMAT, E.UNSUPPORTED_VERSION])
async def test_a_partition_without_data_of_transactions(code: E, autojump_clock: MockClock) -> None:  # rule T6.9
    async with running() as host:
        host.leaders.codes = {A0: [code]}
        transaction = Transaction("t", A0)
        host.sender.send(transaction)
        await transaction.done.wait()
        assert len(host.leaders.requests) == 1


@case("TMH-2")
@case("TMH-7")
@case("TMH-8")
@case("TMH-9")
@case("TMH-10")
@case("TMH-11")
@case("TMH-12")
@case("TMH-13")
@pytest.mark.parametrize(
    "code",
    [
        E.INVALID_PRODUCER_EPOCH, E.TRANSACTION_COORDINATOR_FENCED, E.UNKNOWN_SERVER_ERROR, E.CORRUPT_MESSAGE,
        E.MESSAGE_TOO_LARGE, E.RECORD_LIST_TOO_LARGE, E.INVALID_REQUIRED_ACKS, None,
    ],
)  # fmt: skip
async def test_a_marker_that_is_given_up(
    code: E | None, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:  # rules T6.8, T6.10
    caplog.set_level("INFO")
    async with running() as host:
        if code is None:
            host.leaders.forgets = {10}
        else:
            host.leaders.codes = {A0: [code]}
        transaction = Transaction("t", A0)
        host.sender.send(transaction)
        await trio.sleep(5)
        assert (transaction.times_finished, len(host.leaders.requests)) == (0, 1)
    level = "INFO" if code in (E.INVALID_PRODUCER_EPOCH, E.TRANSACTION_COORDINATOR_FENCED) else "ERROR"
    assert [record.levelname for record in caplog.records if "is not marked" in record.getMessage()] == [level]


@case("TMH-4")
@case("TMH-5")
@case("TMH-6")
@case("TMC-8")
async def test_what_another_broker_coordinates(autojump_clock: MockClock) -> None:  # rules T6.11, T6.15
    async with running() as host:
        host.leaders.released = trio.Event()
        moved = Transaction("t", A0)
        stale = Transaction("u", A0, producer_id=11, state_partition=1)
        kept = Transaction("v", A0, producer_id=12, state_partition=1)
        for transaction in (moved, stale, kept):
            host.sender.send(transaction)
        await settled()
        late = Transaction("w", A0, producer_id=13)
        host.sender.send(late)
        host.sender.forget(0)
        stale.is_current = False
        host.leaders.released.set()
        await kept.done.wait()
        await settled()
        assert [t.times_finished for t in (moved, stale, late)] == [0] * 3
        assert len(host.leaders.requests) == 1


@case("TMC-3")
async def test_a_newer_sending_replaces_an_older(autojump_clock: MockClock) -> None:  # rule T6.14
    async with running() as host:
        host.leaders.released = trio.Event()
        old, new = Transaction("t", A0), Transaction("t", A0)
        host.sender.send(old)
        await settled()
        host.sender.send(new)
        host.leaders.released.set()
        await new.done.wait()
        assert (old.times_finished, new.times_finished, len(host.leaders.requests)) == (0, 1, 2)


@case("TMC-11")
async def test_a_completion_is_tried_again(autojump_clock: MockClock) -> None:  # rule T6.13
    async with running() as host:
        transaction = Transaction("t")
        host.sender.send(transaction)
        host.sender.finish_later(transaction)
        assert transaction.times_finished == 1
        await trio.sleep(1)
        assert transaction.times_finished == 2
        host.sender.finish_later(transaction)
        host.sender.forget(0)
        await trio.sleep(1)
        assert transaction.times_finished == 2


async def test_what_is_sent_again_waits_a_moment_together(mock_clock: MockClock) -> None:  # rules T6.5, T6.7
    async with running() as host:
        host.leaders.codes = {A0: [E.NOT_LEADER_OR_FOLLOWER]}
        first, second = Transaction("t", A0), Transaction("u", A0, producer_id=11)
        host.sender.send(first)
        await settled()
        assert (host.leaders.times, host.sender.unknown_destinations) == ([0], 1)
        mock_clock.jump(RETRY_SECONDS / 2)
        await settled()
        host.learn(first=-1)
        host.sender.send(second)
        host.learn()
        await settled()
        assert (host.leaders.times, host.sender.unknown_destinations) == ([0], 2)
        mock_clock.jump(RETRY_SECONDS / 2)
        await first.done.wait()
        await second.done.wait()
        assert host.leaders.times == [0, RETRY_SECONDS]
        assert host.leaders.sent[1:] == [("host2", [(10, [0]), (11, [0])])]
        await settled()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf, "nothing waits"


async def test_what_waits_is_counted(mock_clock: MockClock) -> None:  # rules T6.15, T6.16
    async with running() as host:
        host.learn(first=-1, second=-1)
        homeless = [Transaction(str(i), A0, A1, producer_id=i, state_partition=i) for i in range(3)]
        for transaction in homeless:
            host.sender.send(transaction)
        unwritten = [Transaction(f"u{i}", state_partition=i) for i in range(2)]
        for transaction in unwritten:
            host.sender.finish_later(transaction)
        assert (host.sender.unknown_destinations, host.sender.appends_to_retry) == (3, 2)
        host.sender.forget(1)
        assert (host.sender.unknown_destinations, host.sender.appends_to_retry) == (2, 1)
        homeless[2].is_current = False
        await settled()
        mock_clock.jump(RETRY_SECONDS)
        await settled()
        assert (host.sender.unknown_destinations, host.sender.appends_to_retry) == (1, 0)
        assert [t.times_finished for t in (*homeless, *unwritten)] == [0, 0, 0, 1, 0]


async def test_only_what_is_lost_is_given_up(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:  # rules T6.8, T6.10
    async with running() as host:
        host.learn(second=2)
        host.leaders.codes = {A0: [E.CORRUPT_MESSAGE], A1: [E.NONE]}
        transaction = Transaction("t", A0, A1)
        host.sender.send(transaction)
        await settled()
        assert (transaction.remaining, transaction.times_finished) == ({A0}, 0)
        assert caplog.messages == ["the end of the transaction of 't' is not marked: {'a-0': 'CORRUPT_MESSAGE'}"]
        host.learn(second=-1)
        host.leaders.codes = {A0: [E.CORRUPT_MESSAGE]}
        host.sender.send(Transaction("u", A0, A1))
        host.learn()
        await trio.sleep(1)
        assert host.leaders.sent[1:] == [("host2", [(10, [0])])]
        assert host.sender.unknown_destinations == 0


async def test_a_connection_is_kept(autojump_clock: MockClock) -> None:
    async with running() as host:
        for i in range(3):
            transaction = Transaction(str(i), A0, A1)
            host.sender.send(transaction)
            await transaction.done.wait()
        assert sorted(host.leaders.sent) == [("host2", [(10, [0])])] * 3 + [("host3", [(10, [1])])] * 3
        assert len(host.leaders.dialled) == 2


def test_what_a_marker_says() -> None:  # rule T6.3
    partitions = [TopicPartition(*p) for p in (("b", 2), ("a", 1), ("b", 0))]
    transaction = Transaction("t", *partitions)
    for committed in (True, False):
        transaction.committed = committed
        assert Marker(transaction, frozenset(partitions)).for_wire() == wire.WritableTxnMarker(
            producer_id=10,
            producer_epoch=3,
            transaction_result=committed,
            topics=(
                wire.WritableTxnMarkerTopic(name="a", partition_indexes=(1,)),
                wire.WritableTxnMarkerTopic(name="b", partition_indexes=(0, 2)),
            ),
            coordinator_epoch=7,
        )
