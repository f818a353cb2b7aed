"""CTX: the controller's context (section 14 of docs/controller-semantics.md; rules of section 5)."""

from __future__ import annotations

from typing import Any

import pytest

from kce.controller.context import ControllerContext
from kce.zookeeper.model import BrokerEpoch, Leadership, ReplicaAssignment, TopicPartition
from tests.controller.conformance.bench import broker, ids, leadership

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def context() -> ControllerContext:
    """Three brokers; t has two partitions, u has one."""
    made = ControllerContext()
    made.add_live_brokers((broker(b), BrokerEpoch(b)) for b in (1, 2, 3))
    made.set_topics(["t", "u"])
    made.set_assignment(T0, ReplicaAssignment(ids(1, 2, 3)))
    made.set_assignment(T1, ReplicaAssignment(ids(2, 3, 1)))
    made.set_assignment(U0, ReplicaAssignment(ids(3, 1, 2)))
    return made


@pytest.mark.kafka("CTX-1")
def test_a_full_assignment_is_given_back() -> None:
    made = context()
    before = made.assignment(T1)
    moving = ReplicaAssignment(ids(4, 1, 2, 3), adding=ids(4), removing=ids(3))
    made.set_assignment(T0, moving)
    assert made.assignment(T0) == moving
    assert made.replicas(T0) == (4, 1, 2, 3)
    assert made.assignment(T1) == before


@pytest.mark.kafka("CTX-2")
def test_unknown_partitions_have_no_replicas() -> None:  # rule 5.12
    for unknown in (TopicPartition("t", 9), TopicPartition("nope", 0)):
        assert context().replicas(unknown) == ()


@pytest.mark.kafka("CTX-3")
def test_unknown_partitions_have_an_empty_assignment() -> None:  # rule 5.12
    for unknown in (TopicPartition("t", 9), TopicPartition("nope", 0)):
        assert context().assignment(unknown) == ReplicaAssignment((), (), ())


@pytest.mark.kafka("CTX-4")
def test_unknown_topics_have_no_assignments() -> None:  # rule 5.12
    assert context().topic_assignments("nope") == {}


@pytest.mark.kafka("CTX-5")
def test_assignments_of_a_topic() -> None:
    assert context().topic_assignments("t") == {0: ReplicaAssignment(ids(1, 2, 3)), 1: ReplicaAssignment(ids(2, 3, 1))}


@pytest.mark.kafka("CTX-6")
def test_what_an_assignment_says_of_a_move() -> None:  # rules 5.6, 5.7
    moving = ReplicaAssignment(ids(4, 5, 6, 1, 2, 3), adding=ids(4, 5, 6), removing=ids(1, 2, 3))
    assert (moving.origin, moving.target, moving.is_being_reassigned) == ((1, 2, 3), (4, 5, 6), True)
    adding = ReplicaAssignment(ids(1, 2, 3), adding=ids(3))
    assert (adding.origin, adding.target, adding.is_being_reassigned) == ((1, 2), (1, 2, 3), True)
    removing = ReplicaAssignment(ids(1, 2, 3), removing=ids(1))
    assert (removing.origin, removing.target, removing.is_being_reassigned) == ((1, 2, 3), (2, 3), True)
    still = ReplicaAssignment(ids(3, 1, 2))
    assert (still.origin, still.target, still.is_being_reassigned) == ((3, 1, 2), (3, 1, 2), False)
    for replicas, added, removed, target in (
        ((1, 2, 3, 4, 5, 6), (2, 3, 4), (1, 5, 6), (2, 3, 4)),
        ((1, 2, 3, 4), (), (1, 4), (2, 3)),
        ((1, 2, 3, 4), (4,), (2,), (1, 3, 4)),
        ((1, 2, 3, 4, 5, 6), (), (), (1, 2, 3, 4, 5, 6)),
    ):
        assignment = ReplicaAssignment(ids(*replicas), ids(*added), ids(*removed))
        assert (assignment.target, assignment.is_being_reassigned) == (target, bool(added or removed))
    for before, target, after in (
        (ReplicaAssignment(ids(1, 2, 3)), (4, 5, 6), moving),
        (ReplicaAssignment(ids(1, 2, 3, 4)), (4, 2, 5, 3), ReplicaAssignment(ids(4, 2, 5, 3, 1), ids(5), ids(1))),
        (ReplicaAssignment(ids(1, 2, 3)), (3, 1, 2), ReplicaAssignment(ids(3, 1, 2))),
        (ReplicaAssignment(ids(1, 2)), (1, 2, 3), ReplicaAssignment(ids(1, 2, 3), adding=ids(3))),
        (ReplicaAssignment(ids(1, 2, 3)), (2,), ReplicaAssignment(ids(2, 1, 3), removing=ids(1, 3))),
    ):
        assert before.reassign_to(ids(*target)) == after
        assert (after.target, after.is_being_reassigned) == (target, bool(after.adding or after.removing))


@pytest.mark.kafka("CTX-7")
def test_a_move_to_its_own_target_changes_nothing() -> None:  # rule 5.7
    for assignment in (
        ReplicaAssignment(ids(1, 2, 3)),
        ReplicaAssignment(ids(4, 5, 6, 1, 2, 3), ids(4, 5, 6), ids(1, 2, 3)),
        ReplicaAssignment(ids(1, 2, 3), adding=ids(3)),
        ReplicaAssignment(ids(2, 1, 3), removing=ids(1, 3)),
        ReplicaAssignment(ids(4, 2, 3, 1), ids(4), ids(1)),
    ):
        assert assignment.reassign_to(assignment.target) == assignment


@pytest.mark.kafka("CTX-8")
def test_moves_one_after_the_other_and_back() -> None:  # rule 5.7
    still = ReplicaAssignment(ids(1, 2, 3))
    first = still.reassign_to(ids(4, 5, 6))
    assert first == ReplicaAssignment(ids(4, 5, 6, 1, 2, 3), ids(4, 5, 6), ids(1, 2, 3))
    assert first.reassign_to(ids(1, 2, 3)) == still
    second = first.reassign_to(ids(7, 8, 9))
    assert second == ReplicaAssignment(ids(7, 8, 9, 1, 2, 3), ids(7, 8, 9), ids(1, 2, 3))
    assert still.reassign_to(ids(7, 8, 9)) == second
    assert second.reassign_to(ids(1, 2, 3)) == ReplicaAssignment(ids(1, 2, 3))
    overlapping = ReplicaAssignment(ids(1, 2, 3)).reassign_to(ids(3, 4, 2))
    assert overlapping == ReplicaAssignment(ids(3, 4, 2, 1), ids(4), ids(1))
    assert overlapping.reassign_to(overlapping.origin) == ReplicaAssignment(ids(3, 2, 1))  # rule 11.19: not 1, 2, 3


def led(leader: int, isr: tuple[int, ...] = (1, 2, 3)) -> Leadership:
    return leadership(leader, isr)


@pytest.mark.kafka("CTX-9")
def test_imbalance_follows_leaders_assignments_and_deletion() -> None:  # rule 5.20
    made = context()
    for tp in (T0, T1, U0):
        made.set_assignment(tp, ReplicaAssignment(ids(1, 2, 3)))
    assert made.preferred_replica_imbalance_count == 0
    for tp, leader, imbalanced in ((T0, 1, 0), (T1, 2, 1), (U0, 3, 2)):
        made.put_leadership(tp, led(leader))
        assert made.preferred_replica_imbalance_count == imbalanced
    made.set_assignment(T0, ReplicaAssignment(ids(2, 3, 1)))
    assert made.preferred_replica_imbalance_count == 3
    made.set_assignment(T1, ReplicaAssignment(ids(2, 3, 1)))
    assert made.preferred_replica_imbalance_count == 2
    made.queue_for_deletion(["u"])
    assert made.preferred_replica_imbalance_count == 1
    made.put_leadership(U0, led(1))  # its topic counts no more
    assert made.preferred_replica_imbalance_count == 1
    for topic in ("t", "u"):
        made.remove_topic(topic)
    assert made.preferred_replica_imbalance_count == 0


def test_imbalance_is_counted() -> None:  # rule 5.20
    made = context()
    for tp, leader, imbalanced in ((T0, 1, 0), (T1, 2, 0), (U0, 3, 0), (T0, 2, 1), (T1, 3, 2), (U0, 1, 3), (U0, 3, 2)):
        made.put_leadership(tp, led(leader))
        assert made.preferred_replica_imbalance_count == imbalanced
    made.queue_for_deletion(["t"])
    assert made.preferred_replica_imbalance_count == 0
    made.put_leadership(T0, led(3))  # its topic counts no more
    assert made.preferred_replica_imbalance_count == 0
    made.put_leadership(U0, led(2))
    assert made.preferred_replica_imbalance_count == 1
    made.remove_topic("t")
    assert made.preferred_replica_imbalance_count == 1


@pytest.mark.kafka("CTX-10")
def test_a_topic_that_goes_offline_in_its_deletion_counts_no_more() -> None:  # rule 5.20
    made = context()
    made.queue_for_deletion(["t"])
    made.put_leadership(T0, led(-1))
    assert made.preferred_replica_imbalance_count == 0
    made.queue_for_deletion(["t", "u"])  # its marker is there until it is gone
    assert made.preferred_replica_imbalance_count == 0


def test_queueing_again_does_not_count_twice() -> None:  # rule 5.20
    made = context()
    for tp, leader in ((T0, 2), (T1, 2), (U0, 1)):
        made.put_leadership(tp, led(leader))
    assert made.preferred_replica_imbalance_count == 2
    for _ in range(2):
        made.queue_for_deletion(["t"])
        assert made.preferred_replica_imbalance_count == 1
    made.queue_for_deletion(["t", "u"])
    assert made.preferred_replica_imbalance_count == 0


def test_a_move_to_very_many_replicas_is_compared_once_with_each() -> None:
    """A client may name any: comparing all with all took minutes, in which the node did nothing else."""
    comparisons = 0

    class Counted(int):
        def __eq__(self, other: object) -> bool:
            nonlocal comparisons
            comparisons += 1
            return int(self) == other

        __hash__ = int.__hash__

    target: list[Any] = [Counted(number) for number in range(2000)]
    assert len(ReplicaAssignment(ids(1, 2, 5000)).reassign_to(target).adding) == 1998
    assert comparisons < 10_000
