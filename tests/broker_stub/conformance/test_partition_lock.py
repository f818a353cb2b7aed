"""PL: what goes on around one partition at once (section 14 of docs/controller-semantics.md; rules 9.11, 9.48-9.59).

Kafka guards a partition with a lock, and tests that appends and fetches seldom wait for it. Here the one lock is that
nothing awaits while it looks at a partition or changes it; that is what these tests hold on to. What they do at once
is what this broker does with a partition: answer control requests and Metadata about it, and change its ISR.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import trio

import wire
from broker_stub import TopicPartition
from broker_stub.alter_partition_manager import LeaderAndIsr
from tests.broker_stub.support import (
    Node,
    answer_of,
    lai_state,
    leader_and_isr,
    stop_replica,
    umr_state,
    update_metadata,
)
from wire import ErrorCode

A0 = TopicPartition("a", 0)
ROUNDS = 200
REFUSALS = [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_SERVER_ERROR]


def asked(node: Node, message: wire.Message) -> Any:
    """The answer, which must come without the handler waiting for anything."""
    version = message.__versions__.last
    request, captured = node.request(message, version)
    handling: Any = node.apis.handle(request)
    with pytest.raises(StopIteration):
        handling.send(None)
    return answer_of(captured, message.__api_key__, version)


def everything_about_it(node: Node, partition_epoch: int) -> None:
    """One request of each kind, none of which waits."""
    state = lai_state(isr=(1,), leader_epoch=5, partition_epoch=partition_epoch)
    assert asked(node, leader_and_isr(state)).error_code == ErrorCode.NONE
    assert asked(node, update_metadata(umr_state(isr=(1,)), alive=(1, 2, 3))).error_code == ErrorCode.NONE
    assert asked(node, stop_replica((1, 0, False))).error_code == ErrorCode.NONE
    (topic,) = asked(node, wire.MetadataRequest(topics=None)).topics
    assert topic.partitions[0].leader_id == 1


async def leading(isr: tuple[int, ...]) -> Node:
    node = Node()
    await node.ask(update_metadata(umr_state(isr=isr), alive=(1, 2, 3)))
    await node.ask(leader_and_isr(lai_state(isr=isr, leader_epoch=5, partition_epoch=7)))
    await node.ask(update_metadata(umr_state(isr=isr), alive=(1, 2, 3)))
    return node


@pytest.mark.kafka("PL-1")
async def test_nothing_waits_for_a_partition() -> None:
    node = await leading((1, 2, 3))
    for _ in range(ROUNDS):
        everything_about_it(node, 7)
    assert node.submitter.proposed == []


@pytest.mark.kafka("PL-2")
async def test_nothing_waits_for_the_answer_to_a_proposed_isr() -> None:  # rule 9.48
    node = await leading((1,))
    assert node.submitter.proposed == [(1, 2, 3)]
    for _ in range(ROUNDS):
        everything_about_it(node, 7)  # each UpdateMetadata has the ISR checked once more
    assert node.submitter.proposed == [(1, 2, 3)]
    partition = node.partition()
    assert (partition.isr, partition.maximal_isr) == ((1,), (1, 2, 3))
    node.submitter.answer(A0, ErrorCode.INELIGIBLE_REPLICA)
    assert partition.pending is None


class Around:
    """A controller that moves the partition about, one that answers proposals, and brokers that come and go."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node = node
        self.random = Random(seed)
        #: what the controller has said last, or has accepted since
        self.leader_epoch, self.partition_epoch = 5, 7
        self.replicas: tuple[int, ...] = (1, 2, 3)
        self.isr: tuple[int, ...] = (1,)
        self.accepted = 0

    def some(self, of: tuple[int, ...]) -> tuple[int, ...]:
        """The first, and whoever else."""
        return of[:1] + tuple(i for i in of[1:] if self.random.random() < 0.5)

    async def decides(self) -> None:
        self.leader_epoch += 1
        self.partition_epoch += 1
        self.replicas = self.some((1, 2, 3, 4, 5))
        self.isr = self.some(self.replicas)
        state = lai_state(
            leader_epoch=self.leader_epoch, partition_epoch=self.partition_epoch, isr=self.isr, replicas=self.replicas
        )
        answer = await self.node.ask(leader_and_isr(state))
        assert answer.error_code == ErrorCode.NONE

    async def answers(self) -> None:
        """As the controller does: it accepts what was proposed to its current state, and nothing else."""
        await trio.lowlevel.checkpoint()
        if A0 not in self.node.submitter.unanswered:
            return
        item, _ = self.node.submitter.submitted[-1]
        current = (item.leader_epoch, item.partition_epoch) == (self.leader_epoch, self.partition_epoch)
        if not current:
            self.node.submitter.answer(A0, ErrorCode.FENCED_LEADER_EPOCH)
        elif self.random.random() < 0.3:
            self.node.submitter.answer(A0, self.random.choice(REFUSALS))
        else:
            self.partition_epoch += 1
            self.accepted += 1
            self.isr = item.isr
            accepted = LeaderAndIsr(
                leader=1,
                leader_epoch=self.leader_epoch,
                isr=item.isr,
                leader_recovery_state=0,
                partition_epoch=self.partition_epoch,
            )
            self.node.submitter.answer(A0, accepted)

    async def brokers_change(self) -> None:
        await self.node.ask(update_metadata(alive=self.some((1, 2, 3, 4, 5))))


async def at_once(*things: Callable[[], Any]) -> None:
    """Each `ROUNDS` times, in any order."""

    async def often(thing: Callable[[], Any]) -> None:
        for _ in range(ROUNDS):
            await thing()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for thing in things:
                nursery.start_soon(often, thing)


@pytest.mark.kafka("PL-3")
@pytest.mark.parametrize("seed", range(5))
async def test_isr_changes_among_all_else(seed: int) -> None:  # rules 9.48, 9.49, 9.58, 9.59
    node = await leading((1,))
    around = Around(node, seed)
    epochs: list[tuple[int, int]] = []

    async def is_asked() -> None:
        partition = node.partition()
        epochs.append((partition.leader_epoch, partition.partition_epoch))
        assert len(node.submitter.unanswered) <= 1
        if partition.pending is not None:  # what is proposed is what was ISR, and more
            assert partition.pending.isr[: len(partition.isr)] == partition.isr
            assert partition.pending.leader_epoch == partition.leader_epoch
            assert partition.maximal_isr == partition.pending.isr
        else:
            assert partition.maximal_isr == partition.isr
        await node.ask(wire.MetadataRequest(topics=None))

    await at_once(around.decides, around.answers, around.brokers_change, is_asked)
    assert epochs == sorted(epochs)
    assert around.accepted > 0
    for _ in range(3):  # whatever is left of proposals
        await around.answers()
    await around.decides()
    while node.submitter.unanswered:
        await around.answers()
    partition = node.partition()
    assert (partition.leader_epoch, partition.partition_epoch) == (around.leader_epoch, around.partition_epoch)
    assert partition.isr == around.isr


@pytest.mark.kafka("PL-4")
async def test_a_partition_that_changes_is_looked_up() -> None:
    """Replicas, ISR and epochs that are read at one time are of one decision."""
    node = await leading((1,))
    around = Around(node, 0)
    decided = {(5, 7): ((1, 2, 3), (1,))}
    looked_up: set[tuple[int, int]] = set()

    async def decides() -> None:
        await around.decides()
        decided[around.leader_epoch, around.partition_epoch] = around.replicas, around.isr

    async def is_looked_up() -> None:
        partition = node.replicas.partitions[A0]
        epochs = partition.leader_epoch, partition.partition_epoch
        found = partition.replicas, partition.isr
        await trio.lowlevel.checkpoint()  # the controller's own note of it may come a moment later
        if epochs in decided:
            assert found == decided[epochs]
            looked_up.add(epochs)

    await at_once(decides, is_looked_up, is_looked_up)
    assert len(looked_up) > ROUNDS / 10
