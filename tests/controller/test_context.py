"""What the controller's context says of brokers, replicas, leaders and deletions (section 5 of
docs/controller-semantics.md)."""

from __future__ import annotations

import uuid

import pytest

from kce.controller.context import ControllerContext
from kce.controller.states import PartitionState, ReplicaState
from kce.zookeeper.errors import IllegalState
from kce.zookeeper.model import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderAndIsr,
    Leadership,
    ReplicaAssignment,
    TopicPartition,
)
from tests.controller.support import broker, put_replica_state

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(b) for b in brokers)


def led(leader: int, *isr: int, epoch: int = 3) -> Leadership:
    return Leadership(LeaderAndIsr(BrokerId(leader), ids(*(isr or (leader,))), epoch), ControllerEpoch(1))


def cluster() -> ControllerContext:
    """Brokers 1 and 2 are alive, 3 is shutting down, 4 is dead. t is on 1 and 2, and on 2 and 3; u is on 4 and 1."""
    made = ControllerContext()
    made.add_live_brokers((broker(b), BrokerEpoch(b)) for b in (1, 2, 3))
    made.shutting_down = {BrokerId(3)}
    made.set_topics(["t", "u"])
    for tp, replicas in ((T0, (1, 2)), (T1, (2, 3)), (U0, (4, 1))):
        made.set_assignment(tp, ReplicaAssignment(ids(*replicas)))
    return made


@pytest.fixture
def context() -> ControllerContext:
    return cluster()


def test_which_replicas_are_online(context: ControllerContext) -> None:  # rule 5.11
    def online(tp: TopicPartition, **more: bool) -> list[int]:
        return [b for b in (-1, 1, 2, 3, 4) if context.is_replica_online(BrokerId(b), tp, **more)]

    assert online(T0) == [1, 2]
    assert online(T0, include_shutting_down=True) == [1, 2, 3]
    context.replicas_on_offline_dirs[BrokerId(2)] = {T0}
    assert online(T0, include_shutting_down=True) == [1, 3]
    assert online(T1) == [1, 2]


@pytest.mark.parametrize("with_offline_dirs", [False, True])
def test_offline_replicas(context: ControllerContext, with_offline_dirs: bool) -> None:  # rule 5.11
    if with_offline_dirs:
        context.replicas_on_offline_dirs[BrokerId(1)] = {U0}
    of = context.offline_replicas()
    for _ in range(2):
        assert of(T0, ids(1, 2)) == ()
        assert of(T1, ids(2, 3)) == (3,)
        assert of(U0, ids(4, 1)) == ((4, 1) if with_offline_dirs else (4,))
    assert context.topics_with_offline_replicas() == {"t", "u"}
    online, offline = context.replicas_by_broker(context.assignments)
    of_u = {BrokerId(4): [U0]} | ({BrokerId(1): [U0]} if with_offline_dirs else {})
    assert offline == {BrokerId(3): [T1], **of_u}
    assert online == {BrokerId(1): [T0] if with_offline_dirs else [T0, U0], BrokerId(2): [T0, T1]}
    context.shutting_down.clear()
    assert context.topics_with_offline_replicas() == {"u"}


def test_whether_replicas_are_offline(context: ControllerContext) -> None:  # rule 5.11
    assert context.has_replicas_offline()  # on 3 and 4
    context.shutting_down.clear()
    assert context.has_replicas_offline()
    context.set_assignment(U0, ReplicaAssignment(ids(1)))
    assert not context.has_replicas_offline()
    context.replicas_on_offline_dirs[BrokerId(1)] = {U0}
    assert context.has_replicas_offline()


@pytest.mark.parametrize("with_offline_dirs", [False, True])
def test_states_of_new_replicas(context: ControllerContext, with_offline_dirs: bool) -> None:  # rule 6.32
    context.shutting_down.clear()
    context.set_assignment(U0, context.assignment(T0))
    if with_offline_dirs:
        context.replicas_on_offline_dirs[BrokerId(2)] = {T0}
    context.set_replica_states([T0, U0])
    on_2 = ReplicaState.DELETION_INELIGIBLE if with_offline_dirs else ReplicaState.ONLINE
    assert context.replica_states.on(BrokerId(1), [T0, U0]) == [ReplicaState.ONLINE] * 2
    assert context.replica_states.on(BrokerId(2), [T0, U0]) == [on_2, ReplicaState.ONLINE]
    assert context.replica_states.on(BrokerId(3), [T0, T1]) == [ReplicaState.NON_EXISTENT] * 2


def test_states_change_by_broker(context: ControllerContext) -> None:  # rule 6.18
    context.set_assignment(U0, context.assignment(T0))
    context.set_replica_states([T0, U0])
    context.replica_states.put(BrokerId(1), [T0], ReplicaState.OFFLINE)
    assert context.replica_states.on(BrokerId(1), [T0, U0]) == [ReplicaState.OFFLINE, ReplicaState.ONLINE]
    assert context.replica_states.on(BrokerId(2), [T0, U0]) == [ReplicaState.ONLINE] * 2
    for gone in (1, 2):
        context.replica_states.put(BrokerId(gone), [T0, U0, T1], ReplicaState.NON_EXISTENT)
        assert context.replica_states.on(BrokerId(gone), [T0, U0]) == [ReplicaState.NON_EXISTENT] * 2
    assert list(context.replica_states) == []  # nothing is kept of partitions without replicas


def test_partitions_without_leadership(context: ControllerContext) -> None:
    assert set(context.partitions_without_leadership()) == {T0, T1, U0}
    context.put_leadership(T1, led(1))
    assert set(context.partitions_without_leadership()) == {T0, U0}
    context.put_all_leadership(dict.fromkeys((U0, T0), led(1)))
    assert not context.partitions_without_leadership()  # whatever their order
    context.clear_leadership()
    context.put_all_leadership(dict.fromkeys((T0, T1, U0), led(1)), are_new=True)
    assert not context.partitions_without_leadership()


def test_offline_dirs_part_partitions_with_the_same_replicas(context: ControllerContext) -> None:  # rule 5.11
    context.set_assignment(T1, ReplicaAssignment(ids(1, 2)))
    context.replicas_on_offline_dirs[BrokerId(1)] = {T1}
    of = context.offline_replicas()
    assert (of(T0, ids(1, 2)), of(T1, ids(1, 2))) == ((), (1,))


def test_replicas_of_brokers(context: ControllerContext) -> None:
    assert context.partitions_on_broker(BrokerId(1)) == [T0, U0]
    assert context.partitions_by_broker(ids(1, 3, 9)) == {1: [T0, U0], 3: [T1]}


def test_leaders_and_those_that_are_offline(context: ControllerContext) -> None:  # rules 5.14, 5.15
    for tp, leader in ((T0, 1), (T1, 3), (U0, -1)):
        context.put_leadership(tp, led(leader))
    assert context.partitions_with_leaders == [T0, T1, U0]
    assert context.partitions_with_offline_leader == [T1, U0]
    context.queue_for_deletion(["t"])
    assert context.partitions_with_leaders == [U0]
    assert context.partitions_with_offline_leader == [U0]


def test_the_epoch_that_a_replica_is_stopped_with(context: ControllerContext) -> None:  # rule 5.13
    assert context.leader_epoch_for_stop_replica(T0) == -1
    context.put_leadership(T0, led(1))
    assert context.leader_epoch_for_stop_replica(T0) == 3
    context.queue_for_deletion(["t"])
    assert context.leader_epoch_for_stop_replica(T0) == -2


def test_assigned_partitions(context: ControllerContext) -> None:
    assert context.is_assigned(T0)
    assert not context.is_assigned(TopicPartition("t", 9))
    assert not context.is_assigned(TopicPartition("nope", 0))
    context.remove_topic("t")
    assert not context.is_assigned(T0)
    assert context.is_assigned(U0)


def test_the_id_of_a_removed_topic_is_free(context: ControllerContext) -> None:  # rules 5.5, 5.17
    topic_id = uuid.uuid4()
    context.add_topic_id("t", topic_id)
    context.remove_topic("u")  # it never had one
    context.remove_topic("t")
    assert (context.topic_ids, context.topic_names) == ({}, {})
    context.set_topics(["new"])
    context.add_topic_id("new", topic_id)


def test_an_assignment_that_changes_changes_the_imbalance(context: ControllerContext) -> None:  # rule 5.20
    context.set_assignment(T1, ReplicaAssignment(ids(3, 2)))  # without leadership it does not count
    assert context.preferred_replica_imbalance_count == 0
    context.put_leadership(T0, led(1))
    context.set_assignment(T0, ReplicaAssignment(ids(2, 1)))
    assert context.preferred_replica_imbalance_count == 1
    context.set_assignment(T0, ReplicaAssignment(ids(1, 2)))
    assert context.preferred_replica_imbalance_count == 0
    context.queue_for_deletion(["t"])
    context.set_assignment(T0, ReplicaAssignment(ids(2, 1)))
    assert context.preferred_replica_imbalance_count == 0


def test_a_removed_topic_takes_its_imbalance_along(context: ControllerContext) -> None:  # rule 5.20
    context.put_leadership(T0, led(2))
    context.put_leadership(U0, led(1))
    assert context.preferred_replica_imbalance_count == 2
    context.remove_topic("t")
    assert context.preferred_replica_imbalance_count == 1
    assert T0 not in context.leadership


@pytest.mark.parametrize(
    ("leader", "isr", "imbalanced"), [(1, (1, 2), 0), (1, (1, 2, 5), 1), (5, (1, 2, 5), 1), (2, (1, 2), 0)]
)
def test_a_preferred_replica_that_is_being_added(
    context: ControllerContext, leader: int, isr: tuple[int, ...], imbalanced: int
) -> None:  # rule 5.21
    context.set_assignment(T0, ReplicaAssignment(ids(5, 1, 2), adding=ids(5)))
    context.put_leadership(T0, led(leader, *isr))
    assert context.preferred_replica_imbalance_count == imbalanced


def test_a_preferred_replica_that_was_there_before(context: ControllerContext) -> None:  # rule 5.21
    context.set_assignment(T0, ReplicaAssignment(ids(1, 5, 2), adding=ids(5)))
    context.put_leadership(T0, led(1, 1, 2))
    assert context.preferred_replica_imbalance_count == 0
    context.put_leadership(T0, led(2, 1, 2))
    assert context.preferred_replica_imbalance_count == 1


def test_a_partition_without_replicas_is_not_imbalanced(context: ControllerContext) -> None:  # rule 5.21
    context.put_leadership(TopicPartition("t", 9), led(1))
    assert context.preferred_replica_imbalance_count == 0


def test_states_of_partitions(context: ControllerContext) -> None:  # rules 5.19, 6.1
    states = {T0: PartitionState.OFFLINE, T1: PartitionState.NEW, U0: PartitionState.OFFLINE}
    for tp, state in states.items():
        context.put_partition_state(tp, state)
    assert context.partitions_in_state(PartitionState.OFFLINE) == [T0, U0]
    assert context.offline_partition_count == 2
    context.topics_with_deletion_started.add("u")
    context.put_partition_state(U0, PartitionState.NON_EXISTENT)
    context.put_partition_state(T0, PartitionState.OFFLINE)
    assert context.offline_partition_count == 2
    assert list(context.partition_states) == [T0, T1]
    assert context.partition_state(U0) is PartitionState.NON_EXISTENT


@pytest.mark.parametrize("known_before", [(), (T0,), (T0, T1, U0)])
@pytest.mark.parametrize("deleting", [False, True])
def test_many_at_once_are_each(known_before: list[TopicPartition], deleting: bool) -> None:
    """Rules 5.19, 5.20: what is put at once, and the counts of it, are as if it was put one by one."""

    assigned = {
        "t": {0: ReplicaAssignment(ids(2, 1)), 1: ReplicaAssignment(ids(1, 2))},
        "v": {7: ReplicaAssignment(ids(3))},
    }
    found = {T0: led(1), T1: led(1), U0: led(4)}
    states = {T0: PartitionState.OFFLINE, T1: PartitionState.OFFLINE, U0: PartitionState.NEW}
    context, each = cluster(), cluster()
    for one in (context, each):
        for tp in known_before:
            one.put_leadership(tp, led(2))
            one.put_partition_state(tp, PartitionState.OFFLINE)
        if deleting:
            one.topics_with_deletion_started.add("t")
            one.queue_for_deletion(["t"])
    added = [tp for topic, partitions in assigned.items() for tp in context.add_topic(topic, partitions)]
    context.put_all_leadership(found)
    context.put_partition_states(dict(states))
    for tp in added:
        each.set_assignment(tp, assigned[tp.topic][tp.partition])
    for tp, known in found.items():
        each.put_leadership(tp, known)
    for tp, state in states.items():
        each.put_partition_state(tp, state)
    assert added == [T0, T1, TopicPartition("v", 7)]
    assert {**vars(context), "replica_states": dict(context.replica_states)} == {
        **vars(each), "replica_states": dict(each.replica_states)
    }  # fmt: skip


def test_a_topic_that_is_added_anew_keeps_its_partitions() -> None:
    """A partition is the same object wherever it is a key."""
    context = cluster()
    before = context.partitions_of("t")
    added = context.add_topic("t", {0: ReplicaAssignment(ids(2)), 1: ReplicaAssignment(ids(2))})
    assert all(one is known for one, known in zip(added, before, strict=True))


def test_states_of_replicas(context: ControllerContext) -> None:  # rules 5.23, 6.18
    replicas = context.replicas_of_topic("t")
    with pytest.raises(KeyError):
        context.any_replica_in_state("t", ReplicaState.ONLINE)
    assert context.replica_states_of_topic("t") == {None}
    for replica in replicas:
        put_replica_state(context, replica, ReplicaState.ONLINE)
    assert context.replica_states_of_topic("t") == {ReplicaState.ONLINE}
    assert context.all_replicas_in_state("t", ReplicaState.ONLINE)
    assert not context.any_replica_in_state("t", ReplicaState.OFFLINE)
    put_replica_state(context, replicas[1], ReplicaState.OFFLINE)
    assert not context.all_replicas_in_state("t", ReplicaState.ONLINE)
    assert context.any_replica_in_state("t", ReplicaState.ONLINE)
    assert context.replicas_in_state("t", ReplicaState.OFFLINE) == [replicas[1]]
    assert context.replica_states_of_topic("t") == {ReplicaState.ONLINE, ReplicaState.OFFLINE}


def test_topic_ids_do_not_change_hands() -> None:  # rule 5.5
    context = ControllerContext()
    context.set_topics(["a", "b"])
    one, two = uuid.UUID(int=1), uuid.UUID(int=2)
    context.add_topic_id("a", one)
    context.add_topic_id("a", one)
    for topic, topic_id in (("a", two), ("b", one), ("c", two)):
        with pytest.raises(IllegalState):
            context.add_topic_id(topic, topic_id)
