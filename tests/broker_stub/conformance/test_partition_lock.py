"""PL: concurrent operations on one partition (section 14 of docs/controller-semantics.md; rules 9.11, 9.48-9.59).

Kafka guards a partition with a lock, and tests that appends and fetches rarely wait for it. Here nothing awaits while
it reads or changes a partition, so there is no lock; these tests check that. The concurrent operations are control
requests, Metadata requests, followers' fetches and ISR changes.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import trio

from kce import wire
from kce.broker_stub import TopicPartition
from kce.wire import ErrorCode
from kce.zookeeper.model import LeaderAndIsr
from tests.broker_stub.replication.support import fetch_request
from tests.broker_stub.support import (
    Node,
    answer_of,
    lai_state,
    leader_and_isr,
    stop_replica,
    umr_state,
    update_metadata,
)

A0 = TopicPartition("a", 0)
ROUNDS = 200
REFUSALS = [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_SERVER_ERROR]


def immediate_response(node: Node, message: wire.Message) -> Any:
    """The response; the handler must not wait for anything."""
    version = message.__versions__.last
    request, captured = node.request(message, version)
    assert node.apis.handle(request) is None
    return answer_of(captured, message.__api_key__, version)


def send_all_requests(node: Node, partition_epoch: int) -> None:
    """Send one request of each kind; none waits."""
    state = lai_state(isr=(1,), leader_epoch=5, partition_epoch=partition_epoch)
    assert immediate_response(node, leader_and_isr(state)).error_code == ErrorCode.NONE
    assert immediate_response(node, update_metadata(umr_state(isr=(1,)), alive=(1, 2, 3))).error_code == ErrorCode.NONE
    assert immediate_response(node, stop_replica((1, 0, False))).error_code == ErrorCode.NONE
    (topic,) = immediate_response(node, wire.MetadataRequest(topics=None)).topics
    assert topic.partitions[0].leader_id == 1
    (topic,) = immediate_response(node, fetch_request(0, replica=2, version=17)).responses
    assert topic.partitions[0].error_code == ErrorCode.NONE


async def leading(isr: tuple[int, ...]) -> Node:
    node = Node()
    await node.ask(update_metadata(umr_state(isr=isr), alive=(1, 2, 3)))
    await node.ask(leader_and_isr(lai_state(isr=isr, leader_epoch=5, partition_epoch=7)))
    await node.ask(update_metadata(umr_state(isr=isr), alive=(1, 2, 3)))
    return node


@pytest.mark.kafka("PL-1")
async def test_requests_do_not_wait_for_a_partition() -> None:
    node = await leading((1, 2, 3))
    for _ in range(ROUNDS):
        send_all_requests(node, 7)
    assert node.submitter.proposed == []


@pytest.mark.kafka("PL-2")
async def test_requests_do_not_wait_for_a_proposed_isr() -> None:  # rule 9.48
    node = await leading((1,))
    for _ in range(ROUNDS):
        send_all_requests(node, 7)  # each fetch checks the ISR again
    assert node.submitter.proposed == [(1, 2)]
    partition = node.partition()
    assert (partition.isr, partition.maximal_isr) == ((1,), (1, 2))
    node.submitter.answer(A0, ErrorCode.INELIGIBLE_REPLICA)
    assert partition.pending is None


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


@pytest.mark.kafka("PL-3")
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

    await concurrently(
        environment.send_leader_and_isr,
        environment.answer_proposal,
        environment.change_brokers,
        environment.follow,
        describe,
    )
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


@pytest.mark.kafka("PL-4")
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
