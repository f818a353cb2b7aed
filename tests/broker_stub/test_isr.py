"""When a leader proposes an ISR change, and how it handles the response (rules 9.47-9.49, 9.58, 9.59).

Broker 1 leads a-0 with replicas 1, 2, 3. The tests answer the proposals instead of a controller. No log has records, so
a follower has everything with its first fetch.

Covers: broker_stub/partition.py.
"""

from __future__ import annotations

import pytest

from kce.broker_stub import TopicPartition
from kce.wire import ErrorCode
from kce.zookeeper.model import BrokerId, LeaderAndIsr
from tests.broker_stub.replication.support import fetch_request
from tests.broker_stub.support import (
    ID_A,
    ID_B,
    Node,
    lai_state,
    leader_and_isr,
    stop_replica,
    umr_state,
    update_metadata,
)

A0 = TopicPartition("a", 0)


async def _fetches(node: Node, replica: int, *, epoch: int = 5) -> ErrorCode:
    answer = await node.ask(fetch_request(0, replica=replica, epoch=epoch), 12)
    return ErrorCode(answer.responses[0].partitions[0].error_code)


async def _learns(node: Node, *, alive=(1, 2, 3), **more) -> None:
    """Which brokers are alive, by UpdateMetadata."""
    await node.ask(update_metadata(umr_state(isr=(1,)), alive=alive, **more))


async def _node(*, alive=(1, 2, 3), isr=(1,), submitter=None, **state) -> Node:
    node = Node(submitter=submitter)
    await _learns(node, alive=alive)
    await node.ask(leader_and_isr(lai_state(isr=isr, leader_epoch=5, partition_epoch=7, **state)))
    return node


async def _proposing() -> Node:
    """It has proposed that 2 joins."""
    node = await _node()
    assert await _fetches(node, 2) == ErrorCode.NONE
    assert node.submitter.proposed == [(1, 2)]
    return node


def _written(isr=(1, 2, 3), *, leader_epoch=5, partition_epoch=8) -> LeaderAndIsr:
    return LeaderAndIsr(leader=BrokerId(1), isr=isr, leader_epoch=leader_epoch, partition_epoch=partition_epoch)


async def test_a_follower_that_has_everything_joins() -> None:
    node = await _node(isr=(1, 2))
    assert node.submitter.proposed == []
    await _fetches(node, 3)
    ((item, _),) = node.submitter.submitted
    assert (item.partition, item.topic_id) == (A0, ID_A)
    assert item.leader_and_isr == LeaderAndIsr(BrokerId(1), (1, 2, 3), leader_epoch=5, partition_epoch=7)  # rule 9.49
    assert (node.partition().isr, node.partition().maximal_isr) == ((1, 2), (1, 2, 3))
    node.submitter.answer(A0, _written())
    partition = node.partition()
    assert (partition.isr, partition.partition_epoch, partition.leader_epoch, partition.pending) == (
        (1, 2, 3),
        8,
        5,
        None,
    )
    assert partition.maximal_isr == (1, 2, 3)
    assert (node.replication.isr.expands, node.replication.isr.failures) == (1, 0)
    await _fetches(node, 3)
    assert len(node.submitter.submitted) == 1


async def test_the_joining_replica_is_appended() -> None:  # rule 9.49
    node = await _node(alive=(1, 2, 3, 5), isr=(1, 2), replicas=(5, 1, 3, 2, 4))
    await _fetches(node, 5)
    assert node.submitter.proposed == [(1, 2, 5)]


async def test_a_broker_without_a_replica_does_not_join() -> None:  # rules 9.47, B4.10
    node = await _node(alive=(1, 4))
    assert await _fetches(node, 4) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert node.submitter.proposed == []


async def test_the_fetch_of_an_older_leader_epoch_does_not_count() -> None:
    node = await _node()
    assert await _fetches(node, 2, epoch=4) == ErrorCode.FENCED_LEADER_EPOCH
    assert node.submitter.proposed == []


async def test_dead_members_stay() -> None:
    node = await _node(isr=(1, 2, 3))
    await _learns(node, alive=(1,))
    assert node.submitter.proposed == []
    assert node.partition().isr == (1, 2, 3)


async def test_a_follower_proposes_nothing() -> None:
    node = Node()
    await _learns(node)
    await node.ask(leader_and_isr(lai_state(leader=2, isr=(2,))))
    assert await _fetches(node, 3, epoch=0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert node.submitter.proposed == []


async def test_one_proposal_is_in_flight() -> None:  # rule 9.48
    node = await _proposing()
    await _fetches(node, 3)
    assert node.submitter.proposed == [(1, 2)]
    assert node.partition().isr == (1,)
    assert node.partition().maximal_isr == (1, 2)
    node.submitter.answer(A0, _written((1, 2)))
    await _fetches(node, 3)
    assert node.submitter.proposed == [(1, 2), (1, 2, 3)]
    assert node.submitter.submitted[1][0].leader_and_isr.partition_epoch == 8


@pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
async def test_a_refused_replica_is_proposed_again_with_its_next_fetch(error) -> None:  # rule 9.58
    node = await _proposing()
    node.submitter.answer(A0, error)
    assert (node.partition().pending, node.partition().isr) == (None, (1,))
    await _learns(node)  # the UpdateMetadata that a refusal causes (rule 11.79) triggers no retry
    assert node.submitter.proposed == [(1, 2)]
    await _fetches(node, 2)
    assert node.submitter.proposed == [(1, 2), (1, 2)]


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    ],
)
async def test_some_errors_leave_the_change_pending_until_a_leader_and_isr_comes(error) -> None:  # rule 9.58
    node = await _proposing()
    node.submitter.answer(A0, error)
    await _fetches(node, 3)
    assert node.submitter.proposed == [(1, 2)]
    assert node.partition().isr == (1,)
    assert node.partition().maximal_isr == (1, 2)
    assert (node.replication.isr.expands, node.replication.isr.failures) == (0, 1)
    await node.ask(leader_and_isr(lai_state(isr=(1,), leader_epoch=6, partition_epoch=9)))
    await _fetches(node, 2, epoch=6)
    assert node.submitter.proposed == [(1, 2), (1, 2)]
    assert node.submitter.submitted[1][0].leader_and_isr.leader_epoch == 6


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT, 999])
async def test_other_errors_are_retried_until_committed(error) -> None:  # rule 9.58
    node = await _proposing()
    node.submitter.answer(A0, error)
    assert node.submitter.proposed == [(1, 2), (1, 2)]
    assert (node.partition().isr, node.partition().maximal_isr) == ((1,), (1, 2))
    node.submitter.answer(A0, _written((1, 2)))
    assert node.partition().isr == (1, 2)


async def test_a_leader_and_isr_supersedes_an_older_proposal() -> None:  # rule 9.59
    node = await _proposing()
    await node.ask(leader_and_isr(lai_state(isr=(1, 3), leader_epoch=6, partition_epoch=9)))
    await _fetches(node, 2, epoch=6)
    assert node.submitter.proposed == [(1, 2)]  # the new state's own proposal waits (rule 9.51)
    assert node.partition().pending is None
    node.submitter.answer(A0, _written((1, 2)))
    assert (node.partition().isr, node.partition().partition_epoch) == ((1, 3), 9)
    await _fetches(node, 2, epoch=6)
    assert node.submitter.proposed == [(1, 2), (1, 3, 2)]
    assert node.partition().pending is not None


async def test_a_response_for_a_deleted_partition_does_not_change_its_successor() -> None:
    node = await _proposing()
    old = node.partition()
    await node.ask(stop_replica((0, -2, True)))
    await node.ask(leader_and_isr(lai_state(isr=(1,)), topic_id=ID_B))
    node.submitter.answer(A0, _written((1, 2)))
    assert node.partition() is not old
    assert (node.partition().isr, node.partition().partition_epoch) == ((1,), 0)
    await _fetches(node, 2, epoch=0)
    assert [item.topic_id for item, _ in node.submitter.submitted] == [ID_A, ID_B]


@pytest.mark.parametrize("how", ["deleted", "offline"])
async def test_a_partition_that_is_no_longer_hosted_proposes_nothing(how) -> None:
    node = await _node()
    if how == "deleted":
        await node.ask(stop_replica((0, -2, True)))
    else:
        partition = node.partition()
        node.replicas.mark_offline(A0)
        assert (partition.is_leader, partition.isr, partition.pending) == (False, (), None)
    await _learns(node)
    refused = ErrorCode.NOT_LEADER_OR_FOLLOWER if how == "deleted" else ErrorCode.KAFKA_STORAGE_ERROR
    assert await _fetches(node, 2) == refused
    assert node.submitter.proposed == []


async def test_a_leader_that_became_a_follower_ignores_the_response() -> None:  # rule 9.59
    node = await _proposing()
    await node.ask(leader_and_isr(lai_state(leader=2, leader_epoch=6, partition_epoch=9)))
    node.submitter.answer(A0, _written())
    assert (node.partition().leader, node.partition().isr, node.partition().partition_epoch) == (2, (), 9)
    assert len(node.submitter.proposed) == 1


@pytest.mark.parametrize(("leader_epoch", "partition_epoch"), [(4, 8), (6, 8), (5, 6)])
async def test_a_success_with_other_epochs_is_ignored(leader_epoch, partition_epoch) -> None:  # rule 9.59
    node = await _proposing()
    node.submitter.answer(A0, _written(leader_epoch=leader_epoch, partition_epoch=partition_epoch))
    assert (node.partition().isr, node.partition().partition_epoch) == ((1,), 7)


async def test_an_equal_partition_epoch_is_an_idempotent_success() -> None:  # rules 9.59, 11.74
    node = await _proposing()
    node.submitter.answer(A0, _written(partition_epoch=7))
    assert (node.partition().isr, node.partition().partition_epoch) == ((1, 2, 3), 7)


async def test_the_controller_may_commit_another_isr_than_proposed() -> None:
    node = await _proposing()
    node.submitter.answer(A0, _written((1,)))
    assert node.partition().isr == (1,)
    await _fetches(node, 2)
    assert node.submitter.proposed == [(1, 2), (1, 2)]


async def test_a_response_changes_only_its_partition() -> None:
    node = Node()
    states = (lai_state(0, isr=(1,)), lai_state(1, isr=(1, 2, 3)), lai_state(2, isr=(1,)))
    await node.ask(update_metadata(*(umr_state(i) for i in range(3))))
    await node.ask(leader_and_isr(*states))
    await node.ask(fetch_request(0, replica=2, partitions=(0, 1, 2)), 12)
    assert [item.partition.partition for item, _ in node.submitter.submitted] == [0, 2]
    node.submitter.answer(TopicPartition("a", 2), _written((1, 2), leader_epoch=0, partition_epoch=1))
    assert [node.partition(i).isr for i in range(3)] == [(1,), (1, 2, 3), (1, 2)]
