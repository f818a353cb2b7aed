"""PL: concurrent operations on one partition (section 14 of docs/controller-semantics.md; rules 9.11, 9.48-9.59).

Kafka guards a partition with a lock, and tests that appends and fetches rarely wait for it. Here nothing awaits while
it reads or changes a partition, so there is no lock; these tests check that.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce import wire
from kce.broker_stub import TopicPartition
from kce.wire import ErrorCode
from kce.zookeeper.model import LeaderAndIsr
from tests.broker_stub.conformance.host import EPOCH, Host, host
from tests.broker_stub.replication.support import batch, fetch_request, values_of
from tests.broker_stub.support import (
    Node,
    lai_state,
    leader_and_isr,
    umr_state,
    update_metadata,
)

kafka = pytest.mark.kafka
A0 = TopicPartition("a", 0)
PRODUCERS, BATCHES = 3, 5
RECORDS = PRODUCERS * BATCHES * 2
ROUNDS = 200
REFUSALS = [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_SERVER_ERROR]


class Load:
    """Three producers append five batches each, two followers fetch a batch at a time, and the ISR is checked."""

    def __init__(self, node: Host, clock: MockClock) -> None:
        self.node = node
        self._clock = clock
        self.appended = 0
        self.fetched = [0, 0]
        self.checks = 0

    async def run(self, *, followers_stop_before: int, seconds_between_checks: float) -> None:
        """Until all is appended and fetched; every operation gives way to the others after each step."""
        with trio.fail_after(3600):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._check, seconds_between_checks)
                async with trio.open_nursery() as others:
                    for _ in range(PRODUCERS):
                        others.start_soon(self._append)
                    for follower in (2, 3):
                        others.start_soon(self._fetch, follower, RECORDS - followers_stop_before)
                async with trio.open_nursery() as others:
                    for follower in (2, 3):
                        others.start_soon(self._fetch, follower, RECORDS)
                nursery.cancel_scope.cancel()

    async def _append(self) -> None:
        for _ in range(BATCHES):
            assert (await self.node.produce(batch(b"v1", b"v2"))).error_code == ErrorCode.NONE
            self.appended += 2
            await trio.lowlevel.checkpoint()

    async def _fetch(self, follower: int, until: int) -> None:
        while (offset := self.fetched[follower - 2]) < until:
            data = await self.node.fetch(offset, replica=follower, epoch=EPOCH, partition_max_bytes=1, max_bytes=1)
            assert data.error_code == ErrorCode.NONE
            assert data.diverging_epoch.epoch == -1
            found = len(values_of(data))
            assert found in (0, 2)  # a batch
            self.fetched[follower - 2] += found
            await trio.lowlevel.checkpoint()

    async def _check(self, seconds: float) -> None:
        while True:
            self._clock.jump(seconds)
            self.node.shrink()
            self.checks += 1
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    "checks_isr", [pytest.param(False, marks=kafka("PL-1")), pytest.param(True, marks=kafka("PL-2"))]
)
async def test_appends_and_fetches_do_not_wait_for_each_other(checks_isr: bool, mock_clock: MockClock) -> None:
    """The last append waits for followers, which go on; so it ends, too."""
    async with host() as node, trio.open_nursery() as nursery:
        await node.become(isr=(1, 2, 3), replicas=(1, 2, 3), is_new=True)
        load = Load(node, mock_clock)
        if not checks_isr:
            node.shrink = lambda: None  # type: ignore[method-assign]
        await load.run(followers_stop_before=2, seconds_between_checks=0)
        answers: list[int] = []

        async def append_last() -> None:
            answers.append((await node.produce(batch(b"v1", b"v2"), acks=-1, timeout_ms=60_000)).error_code)

        nursery.start_soon(append_last)
        await wait_all_tasks_blocked()
        assert answers == []
        for follower in (2, 3):
            for offset in (RECORDS, RECORDS + 2):
                assert (await node.fetch(offset, replica=follower, epoch=EPOCH)).error_code == ErrorCode.NONE
        await wait_all_tasks_blocked()
        assert answers == [ErrorCode.NONE]
        assert (load.appended, load.fetched) == (RECORDS, [RECORDS, RECORDS])
        assert load.checks > 0
        assert node.submitter.proposed == []


@kafka("PL-3")
async def test_appends_and_fetches_go_on_while_the_isr_changes(mock_clock: MockClock) -> None:  # rule 9.48
    """Time passes between the checks, so that followers fall out; nobody answers the proposal."""
    async with host() as node:
        await node.become(isr=(1, 2, 3), replicas=(1, 2, 3), is_new=True)
        load = Load(node, mock_clock)
        await load.run(followers_stop_before=0, seconds_between_checks=10)
        assert (load.appended, load.fetched, node.log.log_end_offset) == (RECORDS, [RECORDS, RECORDS], RECORDS)
        assert len(node.submitter.proposed) == node.in_flight == 1
        assert node.a0.isr == (1, 2, 3)


async def leading(isr: tuple[int, ...]) -> Node:
    node = Node()
    await node.ask(update_metadata(umr_state(isr=isr), alive=(1, 2, 3)))
    await node.ask(leader_and_isr(lai_state(isr=isr, leader_epoch=5, partition_epoch=7)))
    await node.ask(update_metadata(umr_state(isr=isr), alive=(1, 2, 3)))
    return node


class Environment:
    """A controller that changes the partition and answers proposals, and brokers that start and stop."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node = node
        self.random = Random(seed)
        #: the controller's last request, or the last accepted proposal
        self.leader_epoch, self.partition_epoch = 5, 7
        self.replicas: tuple[int, ...] = (1, 2, 3)
        self.isr: tuple[int, ...] = (1,)
        self.accepted = 0

    def some(self, of: tuple[int, ...]) -> tuple[int, ...]:
        """The first, and a random choice of the others."""
        return of[:1] + tuple(i for i in of[1:] if self.random.random() < 0.5)

    async def send_leader_and_isr(self) -> None:
        self.leader_epoch += 1
        self.partition_epoch += 1
        self.replicas = self.some((1, 2, 3, 4, 5))
        self.isr = self.some(self.replicas)
        state = lai_state(
            leader_epoch=self.leader_epoch, partition_epoch=self.partition_epoch, isr=self.isr, replicas=self.replicas
        )
        answer = await self.node.ask(leader_and_isr(state))
        assert answer.error_code == ErrorCode.NONE

    async def answer_proposal(self) -> None:
        """Like a controller, accept only proposals based on the current state."""
        await trio.lowlevel.checkpoint()
        if A0 not in self.node.submitter.unanswered:
            return
        item, _ = self.node.submitter.submitted[-1]
        wanted = item.leader_and_isr
        current = (wanted.leader_epoch, wanted.partition_epoch) == (self.leader_epoch, self.partition_epoch)
        if not current:
            self.node.submitter.answer(A0, ErrorCode.FENCED_LEADER_EPOCH)
        elif self.random.random() < 0.3:
            self.node.submitter.answer(A0, self.random.choice(REFUSALS))
        else:
            self.partition_epoch += 1
            self.accepted += 1
            self.isr = wanted.isr
            accepted = LeaderAndIsr(1, wanted.isr, self.leader_epoch, partition_epoch=self.partition_epoch)
            self.node.submitter.answer(A0, accepted)

    async def change_brokers(self) -> None:
        await self.node.ask(update_metadata(umr_state(isr=(1,)), alive=self.some((1, 2, 3, 4, 5))))

    async def follow(self) -> None:
        """One of the brokers fetches everything; it need not have a replica."""
        await self.node.ask(fetch_request(0, replica=self.random.choice((2, 3, 4, 5))), 12)


async def concurrently(*operations: Callable[[], Any]) -> None:
    """Run each `ROUNDS` times, concurrently."""

    async def repeat(operation: Callable[[], Any]) -> None:
        for _ in range(ROUNDS):
            await operation()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for operation in operations:
                nursery.start_soon(repeat, operation)


@pytest.mark.parametrize("seed", range(5))
async def test_isr_changes_interleave_with_requests(seed: int) -> None:  # rules 9.48, 9.49, 9.58, 9.59
    node = await leading((1,))
    environment = Environment(node, seed)
    epochs: list[tuple[int, int]] = []

    async def describe() -> None:
        partition = node.partition()
        epochs.append((partition.leader_epoch, partition.partition_epoch))
        assert len(node.submitter.unanswered) <= 1
        if partition.pending is not None:  # a proposal extends the ISR
            assert partition.pending.leader_and_isr.isr[: len(partition.isr)] == partition.isr
            assert partition.pending.leader_and_isr.leader_epoch == partition.leader_epoch
            assert partition.maximal_isr == partition.pending.leader_and_isr.isr
        else:
            assert partition.maximal_isr == partition.isr
        await node.ask(wire.MetadataRequest(topics=None))

    for _ in range(5):  # once is enough, unless every answer came too late: trio's order is random
        await concurrently(
            environment.send_leader_and_isr,
            environment.answer_proposal,
            environment.change_brokers,
            environment.follow,
            describe,
        )
        if environment.accepted:
            break
    assert epochs == sorted(epochs)
    assert environment.accepted > 0
    for _ in range(3):  # complete the remaining proposals
        await environment.answer_proposal()
    await environment.send_leader_and_isr()
    while node.submitter.unanswered:
        await environment.answer_proposal()
    partition = node.partition()
    assert (partition.leader_epoch, partition.partition_epoch) == (
        environment.leader_epoch,
        environment.partition_epoch,
    )
    assert partition.isr == environment.isr


@kafka("PL-4")
async def test_a_changing_partition_can_be_described() -> None:
    """Replicas, ISR and epochs in one response belong to one decision."""
    node = await leading((1,))
    environment = Environment(node, 0)
    decided = {(5, 7): ((1, 2, 3), (1,))}
    looked_up: set[tuple[int, int]] = set()

    async def send_leader_and_isr() -> None:
        await environment.send_leader_and_isr()
        decided[environment.leader_epoch, environment.partition_epoch] = environment.replicas, environment.isr

    async def describe() -> None:
        partition = node.replicas.partitions[A0]
        epochs = partition.leader_epoch, partition.partition_epoch
        found = partition.replicas, partition.isr
        await trio.lowlevel.checkpoint()  # the test's own state may change a moment later
        if epochs in decided:
            assert found == decided[epochs]
            looked_up.add(epochs)

    await concurrently(send_leader_and_isr, describe, describe)
    assert len(looked_up) > ROUNDS / 10
