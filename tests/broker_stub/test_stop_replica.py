"""StopReplica, partition by partition (rules 9.30-9.34)."""

from __future__ import annotations

from typing import Any

import pytest

from kce import wire
from kce.broker_stub import TopicPartition
from kce.wire import ErrorCode
from tests.broker_stub.logs import FailingLogManager
from tests.broker_stub.support import Node, codes, lai_state, leader_and_isr, stop_replica, update_metadata

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
CURRENT = 5


async def _node() -> Node:
    """Leads a-0 in leader epoch 5."""
    node = Node(log_manager=FailingLogManager())
    await node.ask(update_metadata())
    await node.ask(leader_and_isr(lai_state(leader_epoch=CURRENT, partition_epoch=8)))
    return node


def epochs(*cases: str | None) -> list[Any]:
    """Epochs with the expected code, each marked with the upstream case that it ports."""
    newer, equal, older, not_given, deleting = (() if case is None else pytest.mark.kafka(case) for case in cases)
    return [
        pytest.param(CURRENT + 1, ErrorCode.NONE, marks=newer),
        pytest.param(CURRENT, ErrorCode.NONE, marks=equal),
        pytest.param(CURRENT - 1, ErrorCode.FENCED_LEADER_EPOCH, marks=older),
        pytest.param(0, ErrorCode.FENCED_LEADER_EPOCH),
        pytest.param(-1, ErrorCode.NONE, marks=not_given),
        pytest.param(-2, ErrorCode.NONE, marks=deleting),
        pytest.param(-3, ErrorCode.FENCED_LEADER_EPOCH),
    ]


@pytest.mark.parametrize(("epoch", "expected"), epochs("RMT-16", "RMT-18", "RMT-17", "RMT-20", "RMT-19"))
async def test_leader_epochs_are_checked(epoch, expected) -> None:  # rules 9.30, 9.31, 9.34
    await _leader_epochs_are_checked(epoch, expected, delete=False)


@pytest.mark.parametrize(("epoch", "expected"), epochs(None, None, "RMT-23", None, None))
async def test_leader_epochs_are_checked_before_a_deletion(epoch, expected) -> None:  # rules 9.30, 9.31, 9.34
    await _leader_epochs_are_checked(epoch, expected, delete=True)


async def _leader_epochs_are_checked(epoch, expected, *, delete) -> None:
    node = await _node()
    answer = await node.ask(stop_replica((0, epoch, delete)))
    assert answer.error_code == ErrorCode.NONE
    assert codes(answer) == {("a", 0): expected}
    if delete and expected is ErrorCode.NONE:
        assert A0 not in node.replicas.partitions
        assert not node.logs.has_log(A0)
    else:  # the entry stays, and so does its leader epoch
        assert (node.partition().leader_epoch, node.partition().partition_epoch) == (CURRENT, 8)
        assert node.logs.has_log(A0)


async def test_an_unknown_partition_is_accepted() -> None:  # rule 9.30
    node = await _node()
    assert codes(await node.ask(stop_replica((1, 3, False)))) == {("a", 1): 0}
    assert A1 not in node.replicas.partitions


@pytest.mark.parametrize(
    ("delete", "fails", "expected"),
    [
        pytest.param(False, False, ErrorCode.NONE, marks=pytest.mark.kafka("RMT-13")),
        pytest.param(True, False, ErrorCode.NONE, marks=pytest.mark.kafka("RMT-14")),
        pytest.param(True, True, ErrorCode.KAFKA_STORAGE_ERROR, marks=pytest.mark.kafka("RMT-15")),
    ],
)
async def test_the_left_over_log_of_an_unknown_partition(delete, fails, expected) -> None:  # rules 9.30, 9.32
    node = await _node()
    node.logs.get_or_create_log(A1, is_new=True, topic_id=None)
    if fails:
        node.logs.broken.add(A1)
    answer = await node.ask(stop_replica((1, 1, delete)))
    assert (answer.error_code, codes(answer)) == (ErrorCode.NONE, {("a", 1): expected})
    assert node.logs.has_log(A1) is not delete
    assert A1 not in node.replicas.partitions


@pytest.mark.kafka("RMT-22")
async def test_a_log_that_cannot_be_deleted_is_a_storage_error() -> None:  # rule 9.32
    node = await _node()
    node.logs.broken.add(A0)
    answer = await node.ask(stop_replica((0, CURRENT + 1, True)))
    assert (answer.error_code, codes(answer)) == (0, {("a", 0): ErrorCode.KAFKA_STORAGE_ERROR})
    assert A0 not in node.replicas.partitions


async def test_other_deletion_failures_are_unknown_errors_of_the_partition(monkeypatch) -> None:  # rule 9.32
    node = await _node()

    def fail(partition) -> None:
        raise OSError("no such device")

    monkeypatch.setattr(node.logs, "delete_log", fail)
    answer = await node.ask(stop_replica((0, -1, True), (1, -1, False)))
    assert codes(answer) == {("a", 0): ErrorCode.UNKNOWN_SERVER_ERROR, ("a", 1): 0}


@pytest.mark.kafka("RMT-12")
async def test_an_offline_partition_is_a_storage_error() -> None:  # rule 9.30
    node = await _node()
    node.replicas.mark_offline(A0)
    answer = await node.ask(stop_replica((0, CURRENT, False)))
    assert (answer.error_code, codes(answer)) == (ErrorCode.NONE, {("a", 0): ErrorCode.KAFKA_STORAGE_ERROR})


async def test_deleting_twice_gets_the_same_response() -> None:
    node = await _node()
    await node.ask(leader_and_isr(lai_state(1)))
    node.replicas.mark_offline(A1)
    for _ in range(2):
        answer = await node.ask(stop_replica((0, CURRENT, True), (1, CURRENT, True)))
        assert answer.error_code == ErrorCode.NONE
        assert codes(answer) == {("a", 0): ErrorCode.NONE, ("a", 1): ErrorCode.KAFKA_STORAGE_ERROR}


@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize("version", range(5))
async def test_every_version_is_accepted_and_answered_flat(version, delete) -> None:  # rules 13.23-13.25
    node = await _node()
    if version == 0:
        partition = wire.StopReplicaPartitionV0(topic_name="a", partition_index=0)
        fields = {"ungrouped_partitions": (partition,), "delete_partitions": delete}
    elif version < 3:
        topic = wire.StopReplicaTopicV1(name="a", partition_indexes=(0,))
        fields = {"topics": (topic,), "delete_partitions": delete}
    else:
        state = wire.StopReplicaPartitionState(partition_index=0, leader_epoch=CURRENT, delete_partition=delete)
        fields = {"topic_states": (wire.StopReplicaTopicState(topic_name="a", partition_states=(state,)),)}
    answer = await node.ask(wire.StopReplicaRequest(controller_epoch=1, **fields), version)
    assert codes(answer) == {("a", 0): 0}
    assert (A0 in node.replicas.partitions) is not delete


async def test_delete_and_stop_in_one_request() -> None:  # rule 8.22
    node = await _node()
    await node.ask(leader_and_isr(lai_state(1)))
    assert codes(await node.ask(stop_replica((0, CURRENT, True), (1, CURRENT, False)))) == {("a", 0): 0, ("a", 1): 0}
    assert set(node.replicas.partitions) == {A1}
