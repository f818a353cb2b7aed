"""When a leader proposes another ISR, and what it makes of the answer (rules 9.47-9.49, 9.58, 9.59).

Broker 1 leads a-0 with replicas 1, 2, 3; each test answers the proposals by hand, in the place of the controller.
"""

from __future__ import annotations

import pytest

from broker_stub import TopicPartition
from broker_stub.alter_partition_manager import LeaderAndIsr
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
from wire import ErrorCode

A0 = TopicPartition("a", 0)


async def _tell(node: Node, *states, alive, **more) -> None:
    """Both requests, as a controller sends them (rule 8.5)."""
    await node.ask(leader_and_isr(*states, **more))
    await node.ask(update_metadata(alive=alive))


async def _node(*, alive=(1, 2, 3), isr=(1,), **state) -> Node:
    node = Node()
    await node.ask(update_metadata(alive=alive))
    await _tell(node, lai_state(isr=isr, leader_epoch=5, partition_epoch=7, **state), alive=alive)
    return node


def _written(isr=(1, 2, 3), *, leader_epoch=5, partition_epoch=8) -> LeaderAndIsr:
    return LeaderAndIsr(
        leader=1, leader_epoch=leader_epoch, isr=isr, leader_recovery_state=0, partition_epoch=partition_epoch
    )


@pytest.mark.kafka("PT-9")
async def test_a_returned_broker_rejoins() -> None:
    node = await _node(alive=(1, 2), isr=(1, 2))
    assert node.submitter.proposed == []
    await node.ask(update_metadata(alive=(1, 2, 3)))
    ((item, _),) = node.submitter.submitted
    assert (item.partition, item.topic_id, item.isr) == (A0, ID_A, (1, 2, 3))
    assert (item.leader_epoch, item.partition_epoch, item.leader_recovery_state) == (5, 7, 0)  # rule 9.49
    node.submitter.answer(A0, _written())
    partition = node.partition()
    assert (partition.isr, partition.partition_epoch, partition.leader_epoch, partition.pending) == (
        (1, 2, 3),
        8,
        5,
        None,
    )


async def test_live_replicas_join_in_the_order_of_the_assignment() -> None:  # rule 9.49
    node = await _node(alive=(2, 3, 1, 5), isr=(1, 2), replicas=(5, 1, 3, 2, 4))
    assert node.submitter.proposed == [(1, 2, 5, 3)]


@pytest.mark.kafka("PT-12")
async def test_dead_and_unassigned_brokers_do_not_join() -> None:  # rule 9.47
    node = await _node(alive=(1, 4), isr=(1,))
    assert node.submitter.proposed == []


async def test_a_leader_that_died_does_not_join_its_successors_isr() -> None:  # rule 8.5
    node = Node()
    await node.ask(update_metadata(alive=(1, 2, 3)))
    await node.ask(leader_and_isr(lai_state(leader=2, isr=(2, 1, 3), leader_epoch=5, partition_epoch=7)))
    await node.ask(update_metadata(alive=(1, 2, 3)))
    await node.ask(leader_and_isr(lai_state(isr=(1, 3), leader_epoch=6, partition_epoch=8)))
    assert node.submitter.proposed == []  # that 2 is dead has not been said yet, and 2.8 would take it in
    await node.ask(update_metadata(alive=(1, 3)))
    assert node.submitter.proposed == []
    await node.ask(update_metadata(alive=(1, 2, 3)))
    assert node.submitter.proposed == [(1, 3, 2)]


async def test_a_replica_that_shuts_down_joins_when_it_is_back() -> None:  # rules 5.11, 8.8
    node = await _node(alive=(1, 2, 3), isr=(1, 2, 3))
    await node.ask(leader_and_isr(lai_state(isr=(1, 3), leader_epoch=6, partition_epoch=8)))
    shutting_down = umr_state(isr=(1, 3), offline_replicas=(2,))
    await node.ask(update_metadata(shutting_down, alive=(1, 2, 3)))
    await node.ask(update_metadata(alive=(1, 2, 3)))
    assert node.submitter.proposed == []
    await node.ask(update_metadata(umr_state(isr=(1, 3)), alive=(1, 2, 3)))
    assert node.submitter.proposed == [(1, 3, 2)]
    await node.ask(update_metadata(shutting_down, alive=(1, 2, 3)))
    node.submitter.answer(A0, ErrorCode.INELIGIBLE_REPLICA)
    await node.ask(update_metadata(umr_state(isr=(1, 3)), alive=(1, 2, 3)))
    assert node.submitter.proposed == [(1, 3, 2), (1, 3, 2)]


async def test_a_full_isr_proposes_nothing_and_a_dead_member_is_not_removed() -> None:
    node = await _node(isr=(1, 2, 3))
    await node.ask(update_metadata(alive=(1,)))
    await node.ask(update_metadata(alive=(1, 2, 3)))
    assert node.submitter.proposed == []
    assert node.partition().isr == (1, 2, 3)


async def test_a_follower_proposes_nothing() -> None:
    node = Node()
    await node.ask(update_metadata())
    await node.ask(leader_and_isr(lai_state(leader=2, isr=(2,))))
    await node.ask(update_metadata())
    assert node.submitter.proposed == []


@pytest.mark.kafka("PT-26")
async def test_one_change_at_a_time() -> None:  # rule 9.48
    node = await _node(alive=(1, 2))
    await node.ask(update_metadata(alive=(1, 2, 3)))
    assert node.submitter.proposed == [(1, 2)]
    assert node.partition().isr == (1,)
    assert node.partition().maximal_isr == (1, 2)
    node.submitter.answer(A0, _written((1, 2)))
    assert node.submitter.proposed == [(1, 2), (1, 2, 3)]  # who came meanwhile follows at once
    assert node.submitter.submitted[1][0].partition_epoch == 8


@pytest.mark.kafka("PT-13")
@pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
async def test_a_refused_replica_is_proposed_again_when_the_answer_can_be_another(error) -> None:  # rule 9.58
    node = await _node(alive=(1, 2))
    node.submitter.answer(A0, error)
    assert (node.partition().pending, node.partition().isr) == (None, (1,))
    for _ in range(3):  # what the refusal itself brings about (rule 11.79) is no reason to ask again
        await node.ask(update_metadata(umr_state(isr=(1,)), alive=(1, 2)))
    assert node.submitter.proposed == [(1, 2)]
    await node.ask(update_metadata(alive=(1,)))
    assert node.submitter.proposed == [(1, 2)]
    await node.ask(update_metadata(alive=(1, 2)))  # it was gone and is back
    assert node.submitter.proposed == [(1, 2), (1, 2)]


async def test_a_refused_replica_does_not_keep_others_out() -> None:
    node = await _node(alive=(1, 2))
    node.submitter.answer(A0, ErrorCode.INELIGIBLE_REPLICA)
    await node.ask(update_metadata(alive=(1, 2, 3)))
    assert node.submitter.proposed == [(1, 2), (1, 3)]


async def test_a_replica_that_was_gone_and_back_while_it_was_proposed_is_proposed_again() -> None:
    node = await _node(alive=(1, 2))
    await node.ask(update_metadata(alive=(1,)))
    await node.ask(update_metadata(alive=(1, 2)))  # overtakes the answer, which is from when it was gone
    node.submitter.answer(A0, ErrorCode.INELIGIBLE_REPLICA)
    assert node.submitter.proposed == [(1, 2), (1, 2)]
    node.submitter.answer(A0, ErrorCode.INELIGIBLE_REPLICA)
    assert node.submitter.proposed == [(1, 2), (1, 2)]


async def test_another_controller_epoch_may_think_otherwise() -> None:  # rule 11.46
    node = await _node(alive=(1, 2))
    node.submitter.answer(A0, ErrorCode.INELIGIBLE_REPLICA)
    await node.ask(update_metadata(alive=(1, 2), controller_epoch=2))
    assert node.submitter.proposed == [(1, 2), (1, 2)]


async def test_another_leader_epoch_may_bring_another_answer() -> None:
    node = await _node(alive=(1, 2))
    node.submitter.answer(A0, ErrorCode.INELIGIBLE_REPLICA)
    await _tell(node, lai_state(isr=(1,), leader_epoch=6, partition_epoch=8), alive=(1, 2))
    assert node.submitter.proposed == [(1, 2), (1, 2)]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, marks=pytest.mark.kafka("PT-22")),
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        pytest.param(ErrorCode.INVALID_UPDATE_VERSION, marks=pytest.mark.kafka("PT-23")),
        pytest.param(ErrorCode.INVALID_REQUEST, marks=pytest.mark.kafka("PT-8")),
        pytest.param(ErrorCode.NEW_LEADER_ELECTED, marks=pytest.mark.kafka("PT-21")),
    ],
)
async def test_some_errors_leave_the_change_pending_until_a_leader_and_isr_comes(error) -> None:  # rule 9.58
    node = await _node()
    node.submitter.answer(A0, error)
    await node.ask(update_metadata())
    assert node.submitter.proposed == [(1, 2, 3)]
    assert node.partition().isr == (1,)
    assert node.partition().maximal_isr == (1, 2, 3)
    await _tell(node, lai_state(isr=(1,), leader_epoch=6, partition_epoch=9), alive=(1, 2, 3))
    assert node.submitter.proposed == [(1, 2, 3), (1, 2, 3)]
    assert node.submitter.submitted[1][0].leader_epoch == 6


@pytest.mark.kafka("PT-24")
@pytest.mark.kafka("PT-25")
@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT, 999])
async def test_any_other_error_is_submitted_again_then_committed(error) -> None:  # rule 9.58
    node = await _node()
    node.submitter.answer(A0, error)
    assert node.submitter.proposed == [(1, 2, 3), (1, 2, 3)]
    node.submitter.answer(A0, _written())
    assert node.partition().isr == (1, 2, 3)


@pytest.mark.kafka("PT-17")
async def test_a_leader_and_isr_makes_the_answer_to_an_older_proposal_irrelevant() -> None:  # rule 9.59
    node = await _node(alive=(1, 2))
    await _tell(node, lai_state(isr=(1, 3), leader_epoch=6, partition_epoch=9), alive=(1, 2))
    assert node.submitter.proposed == [(1, 2)]  # the new state's own proposal waits (rule 9.51)
    assert node.partition().pending is None
    node.submitter.answer(A0, _written((1, 2)))
    assert (node.partition().isr, node.partition().partition_epoch) == ((1, 3), 9)
    assert node.submitter.proposed == [(1, 2), (1, 3, 2)]


async def test_the_answer_to_a_deleted_partition_says_nothing_about_its_successor() -> None:
    node = await _node(alive=(1, 2))
    old = node.partition()
    await node.ask(stop_replica((0, -2, True)))
    await _tell(node, lai_state(isr=(1,)), topic_id=ID_B, alive=(1, 2))
    node.submitter.answer(A0, _written((1, 2)))
    assert node.partition() is not old
    assert (node.partition().isr, node.partition().partition_epoch) == ((1,), 0)
    assert [item.topic_id for item, _ in node.submitter.submitted] == [ID_A, ID_B]


@pytest.mark.parametrize("how", ["deleted", "offline"])
async def test_what_is_hosted_no_more_proposes_nothing_more(how) -> None:
    node = await _node(alive=(1,))
    if how == "deleted":
        await node.ask(stop_replica((0, -2, True)))
    else:
        partition = node.partition()
        node.replicas.mark_offline(A0)
        assert (partition.is_leader, partition.isr, partition.pending) == (False, (), None)
    assert (await node.ask(update_metadata())).error_code == ErrorCode.NONE
    assert node.submitter.proposed == []


async def test_a_leader_that_becomes_a_follower_ignores_the_answer() -> None:  # rule 9.59
    node = await _node()
    await node.ask(leader_and_isr(lai_state(leader=2, leader_epoch=6, partition_epoch=9)))
    node.submitter.answer(A0, _written())
    assert (node.partition().leader, node.partition().isr, node.partition().partition_epoch) == (2, (), 9)
    assert len(node.submitter.proposed) == 1


@pytest.mark.parametrize(("leader_epoch", "partition_epoch"), [(4, 8), (6, 8), (5, 6)])
async def test_a_success_of_other_epochs_is_ignored(leader_epoch, partition_epoch) -> None:  # rule 9.59
    node = await _node()
    node.submitter.answer(A0, _written(leader_epoch=leader_epoch, partition_epoch=partition_epoch))
    assert (node.partition().isr, node.partition().partition_epoch) == ((1,), 7)


async def test_an_equal_partition_epoch_is_an_idempotent_success() -> None:  # rules 9.59, 11.74
    node = await _node()
    node.submitter.answer(A0, _written(partition_epoch=7))
    assert (node.partition().isr, node.partition().partition_epoch) == ((1, 2, 3), 7)


async def test_the_controller_may_write_another_isr_than_was_proposed() -> None:
    node = await _node(alive=(1, 2))
    node.submitter.answer(A0, _written((1,)))
    assert node.partition().isr == (1,)
    assert node.submitter.proposed == [(1, 2), (1, 2)]


async def test_the_expanded_isr_is_that_of_the_right_partition() -> None:
    node = Node()
    states = (lai_state(0, isr=(1,)), lai_state(1, isr=(1, 2, 3)), lai_state(2, isr=(1,)))
    await _tell(node, *states, alive=(1, 2))
    assert [item.partition.partition for item, _ in node.submitter.submitted] == [0, 2]
    node.submitter.answer(TopicPartition("a", 2), _written((1, 2), leader_epoch=0, partition_epoch=1))
    assert [node.partition(i).isr for i in range(3)] == [(1,), (1, 2, 3), (1, 2)]
