"""When a leader proposes an ISR change, and how it handles the response (rules 9.47-9.49, 9.58, 9.59).

Broker 1 leads a-0 with replicas 1, 2, 3. The tests answer the proposals instead of a controller.

Covers: broker_stub/partition.py.
"""

from __future__ import annotations

import pytest
from trio.testing import wait_all_tasks_blocked

from kce import wire
from kce.broker_stub import TopicPartition
from kce.broker_stub.alter_partition_manager import AlterPartitionManager
from kce.broker_stub.isr import LiveReplicasJoin
from kce.wire import ErrorCode
from kce.wire.metadata_version import LATEST
from kce.zookeeper.model import BrokerId, LeaderAndIsr
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


async def _tell(node: Node, *states, alive, **more) -> None:
    """Both requests, as a controller sends them (rule 8.5)."""
    await node.ask(leader_and_isr(*states, **more))
    await node.ask(update_metadata(alive=alive))


async def _node(*, alive=(1, 2, 3), isr=(1,), isr_policy=LiveReplicasJoin, **state) -> Node:
    node = Node(isr_policy=isr_policy)
    await node.ask(update_metadata(alive=alive))
    await _tell(node, lai_state(isr=isr, leader_epoch=5, partition_epoch=7, **state), alive=alive)
    return node


def _written(isr=(1, 2, 3), *, leader_epoch=5, partition_epoch=8) -> LeaderAndIsr:
    return LeaderAndIsr(leader=BrokerId(1), isr=isr, leader_epoch=leader_epoch, partition_epoch=partition_epoch)


@pytest.mark.kafka("PT-9")
async def test_a_returned_broker_rejoins() -> None:
    node = await _node(alive=(1, 2), isr=(1, 2))
    assert node.submitter.proposed == []
    await node.ask(update_metadata(alive=(1, 2, 3)))
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
    assert (node.isr_policy.expands, node.isr_policy.failures) == (1, 0)
    assert len(node.submitter.submitted) == 1


async def test_live_replicas_join_in_the_order_of_the_assignment() -> None:  # rule 9.49
    node = await _node(alive=(2, 3, 1, 5), isr=(1, 2), replicas=(5, 1, 3, 2, 4))
    assert node.submitter.proposed == [(1, 2, 5, 3)]


@pytest.mark.parametrize(
    "not_eligible",
    [
        pytest.param({"alive": (1,)}, marks=pytest.mark.kafka("PT-12"), id="dead"),
        pytest.param({"alive": (1, 2), "offline": (2,)}, marks=pytest.mark.kafka("PT-13"), id="shutting down"),
    ],
)
async def test_a_refused_replica_joins_when_it_is_eligible_again(not_eligible) -> None:  # rules 9.47, 9.58
    def known() -> tuple[object, ...]:
        partition = node.partition()
        return partition.isr, partition.maximal_isr, partition.pending is not None, len(node.submitter.unanswered)

    def learns(*, alive=(1, 2), offline=()):
        return node.ask(update_metadata(umr_state(isr=(1,), offline_replicas=offline), alive=alive))

    node = await _node(alive=(1, 2))
    assert known() == ((1,), (1, 2), True, 1)
    node.submitter.answer(A0, ErrorCode.INELIGIBLE_REPLICA)
    assert known() == ((1,), (1,), False, 0)
    await learns(**not_eligible)
    assert known() == ((1,), (1,), False, 0)
    await learns()
    assert known() == ((1,), (1, 2), True, 1)
    node.submitter.answer(A0, _written((1, 2)))
    assert known() == ((1, 2), (1, 2), False, 0)


async def test_dead_and_unassigned_brokers_do_not_join() -> None:  # rule 9.47
    node = await _node(alive=(1, 4), isr=(1,))
    assert node.submitter.proposed == []


async def test_a_dead_leader_does_not_join_its_successors_isr() -> None:  # rule 8.5
    node = Node()
    await node.ask(update_metadata(alive=(1, 2, 3)))
    await node.ask(leader_and_isr(lai_state(leader=2, isr=(2, 1, 3), leader_epoch=5, partition_epoch=7)))
    await node.ask(update_metadata(alive=(1, 2, 3)))
    await node.ask(leader_and_isr(lai_state(isr=(1, 3), leader_epoch=6, partition_epoch=8)))
    assert node.submitter.proposed == []  # no UpdateMetadata yet: 2 seems alive, and Kafka 2.8 would accept it
    await node.ask(update_metadata(alive=(1, 3)))
    assert node.submitter.proposed == []
    await node.ask(update_metadata(alive=(1, 2, 3)))
    assert node.submitter.proposed == [(1, 3, 2)]


async def test_a_replica_that_shut_down_joins_after_its_return() -> None:  # rules 5.11, 8.8
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


async def test_a_full_isr_is_not_changed_and_dead_members_stay() -> None:
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
async def test_one_proposal_is_in_flight() -> None:  # rule 9.48
    node = await _node(alive=(1, 2))
    await node.ask(update_metadata(alive=(1, 2, 3)))
    assert node.submitter.proposed == [(1, 2)]
    assert node.partition().isr == (1,)
    assert node.partition().maximal_isr == (1, 2)
    node.submitter.answer(A0, _written((1, 2)))
    assert node.submitter.proposed == [(1, 2), (1, 2, 3)]  # brokers that started meanwhile follow at once
    assert node.submitter.submitted[1][0].leader_and_isr.partition_epoch == 8


@pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
async def test_a_refused_replica_is_proposed_again_after_it_was_gone(error) -> None:  # rule 9.58
    node = await _node(alive=(1, 2))
    node.submitter.answer(A0, error)
    assert (node.partition().pending, node.partition().isr) == (None, (1,))
    for _ in range(3):  # the UpdateMetadata that a refusal causes (rule 11.79) triggers no retry
        await node.ask(update_metadata(umr_state(isr=(1,)), alive=(1, 2)))
    assert node.submitter.proposed == [(1, 2)]
    await node.ask(update_metadata(alive=(1,)))
    assert node.submitter.proposed == [(1, 2)]
    await node.ask(update_metadata(alive=(1, 2)))  # it was gone and returned
    assert node.submitter.proposed == [(1, 2), (1, 2)]


async def test_a_refused_replica_does_not_block_others() -> None:
    node = await _node(alive=(1, 2))
    node.submitter.answer(A0, ErrorCode.INELIGIBLE_REPLICA)
    await node.ask(update_metadata(alive=(1, 2, 3)))
    assert node.submitter.proposed == [(1, 2), (1, 3)]


async def test_a_replica_that_left_and_returned_during_its_proposal_is_proposed_again() -> None:
    node = await _node(alive=(1, 2))
    await node.ask(update_metadata(alive=(1,)))
    await node.ask(update_metadata(alive=(1, 2)))  # overtakes the response, which is from before its return
    node.submitter.answer(A0, ErrorCode.INELIGIBLE_REPLICA)
    assert node.submitter.proposed == [(1, 2), (1, 2)]
    node.submitter.answer(A0, ErrorCode.INELIGIBLE_REPLICA)
    assert node.submitter.proposed == [(1, 2), (1, 2)]


async def test_a_new_controller_epoch_allows_another_proposal() -> None:  # rule 11.46
    node = await _node(alive=(1, 2))
    node.submitter.answer(A0, ErrorCode.INELIGIBLE_REPLICA)
    await node.ask(update_metadata(alive=(1, 2), controller_epoch=2))
    assert node.submitter.proposed == [(1, 2), (1, 2)]


async def test_a_new_leader_epoch_allows_another_proposal() -> None:
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
        pytest.param(ErrorCode.INVALID_UPDATE_VERSION, marks=pytest.mark.kafka("PT-10"), id="of an expansion"),
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
    assert (node.isr_policy.expands, node.isr_policy.failures) == (0, 1)
    await _tell(node, lai_state(isr=(1,), leader_epoch=6, partition_epoch=9), alive=(1, 2, 3))
    assert node.submitter.proposed == [(1, 2, 3), (1, 2, 3)]
    assert node.submitter.submitted[1][0].leader_and_isr.leader_epoch == 6


@pytest.mark.kafka("PT-24")
@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT, 999])
async def test_other_errors_are_retried_until_committed(error) -> None:  # rule 9.58
    node = await _node()
    node.submitter.answer(A0, error)
    assert node.submitter.proposed == [(1, 2, 3), (1, 2, 3)]
    assert (node.partition().isr, node.partition().maximal_isr) == ((1,), (1, 2, 3))
    node.submitter.answer(A0, _written())
    assert node.partition().isr == (1, 2, 3)


@pytest.mark.kafka("PT-25")
async def test_a_refused_request_is_sent_again_and_committed(nursery) -> None:  # rule 9.58
    sent = []

    class Channel:
        async def request(self, api_key, max_version, build, error_codes):
            (topic,) = build(max_version).topics
            (partition,) = topic.partitions
            sent.append(partition)
            written = wire.AlterPartitionResponsePartitionData(
                partition_index=0,
                error_code=ErrorCode.UNKNOWN_SERVER_ERROR if len(sent) == 1 else ErrorCode.NONE,
                leader_id=1,
                leader_epoch=partition.leader_epoch,
                isr=tuple(member.broker_id for member in partition.new_isr_with_epochs),
                partition_epoch=partition.partition_epoch + 1,
            )
            answered = wire.AlterPartitionResponseTopicData(topic_id=topic.topic_id, partitions=(written,))
            return wire.AlterPartitionResponse(topics=(answered,))

    manager = AlterPartitionManager(1, lambda: 70, Channel(), LATEST)
    nursery.start_soon(manager.run)
    node = await _node(isr=(1, 2), isr_policy=lambda cache, _: LiveReplicasJoin(cache, manager))
    await wait_all_tasks_blocked()
    partition = node.partition()
    assert (partition.isr, partition.partition_epoch, partition.pending) == ((1, 2, 3), 8, None)
    assert len(sent) == 2


@pytest.mark.kafka("PT-17")
async def test_a_leader_and_isr_supersedes_an_older_proposal() -> None:  # rule 9.59
    node = await _node(alive=(1, 2))
    await _tell(node, lai_state(isr=(1, 3), leader_epoch=6, partition_epoch=9), alive=(1, 2))
    assert node.submitter.proposed == [(1, 2)]  # the new state's own proposal waits (rule 9.51)
    assert node.partition().pending is None
    node.submitter.answer(A0, _written((1, 2)))
    assert (node.partition().isr, node.partition().partition_epoch) == ((1, 3), 9)
    assert node.submitter.proposed == [(1, 2), (1, 3, 2)]
    assert node.partition().pending is not None


async def test_a_response_for_a_deleted_partition_does_not_change_its_successor() -> None:
    node = await _node(alive=(1, 2))
    old = node.partition()
    await node.ask(stop_replica((0, -2, True)))
    await _tell(node, lai_state(isr=(1,)), topic_id=ID_B, alive=(1, 2))
    node.submitter.answer(A0, _written((1, 2)))
    assert node.partition() is not old
    assert (node.partition().isr, node.partition().partition_epoch) == ((1,), 0)
    assert [item.topic_id for item, _ in node.submitter.submitted] == [ID_A, ID_B]


@pytest.mark.parametrize("how", ["deleted", "offline"])
async def test_a_partition_that_is_no_longer_hosted_proposes_nothing(how) -> None:
    node = await _node(alive=(1,))
    if how == "deleted":
        await node.ask(stop_replica((0, -2, True)))
    else:
        partition = node.partition()
        node.replicas.mark_offline(A0)
        assert (partition.is_leader, partition.isr, partition.pending) == (False, (), None)
    assert (await node.ask(update_metadata())).error_code == ErrorCode.NONE
    assert node.submitter.proposed == []


async def test_a_leader_that_became_a_follower_ignores_the_response() -> None:  # rule 9.59
    node = await _node()
    await node.ask(leader_and_isr(lai_state(leader=2, leader_epoch=6, partition_epoch=9)))
    node.submitter.answer(A0, _written())
    assert (node.partition().leader, node.partition().isr, node.partition().partition_epoch) == (2, (), 9)
    assert len(node.submitter.proposed) == 1


@pytest.mark.parametrize(("leader_epoch", "partition_epoch"), [(4, 8), (6, 8), (5, 6)])
async def test_a_success_with_other_epochs_is_ignored(leader_epoch, partition_epoch) -> None:  # rule 9.59
    node = await _node()
    node.submitter.answer(A0, _written(leader_epoch=leader_epoch, partition_epoch=partition_epoch))
    assert (node.partition().isr, node.partition().partition_epoch) == ((1,), 7)


async def test_an_equal_partition_epoch_is_an_idempotent_success() -> None:  # rules 9.59, 11.74
    node = await _node()
    node.submitter.answer(A0, _written(partition_epoch=7))
    assert (node.partition().isr, node.partition().partition_epoch) == ((1, 2, 3), 7)


async def test_the_controller_may_commit_another_isr_than_proposed() -> None:
    node = await _node(alive=(1, 2))
    node.submitter.answer(A0, _written((1,)))
    assert node.partition().isr == (1,)
    assert node.submitter.proposed == [(1, 2), (1, 2)]


async def test_a_response_changes_only_its_partition() -> None:
    node = Node()
    states = (lai_state(0, isr=(1,)), lai_state(1, isr=(1, 2, 3)), lai_state(2, isr=(1,)))
    await _tell(node, *states, alive=(1, 2))
    assert [item.partition.partition for item, _ in node.submitter.submitted] == [0, 2]
    node.submitter.answer(TopicPartition("a", 2), _written((1, 2), leader_epoch=0, partition_epoch=1))
    assert [node.partition(i).isr for i in range(3)] == [(1,), (1, 2, 3), (1, 2)]
