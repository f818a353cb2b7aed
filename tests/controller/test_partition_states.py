"""Writes of partition states whose answer is lost, and sent again (rule 1.52)."""

from __future__ import annotations

from collections.abc import Mapping

from kce.controller.partition_states import create_partition_states, update_leader_and_isr
from kce.zookeeper import znodes
from kce.zookeeper.model import BrokerId, ControllerEpoch, LeaderAndIsr, Leadership, TopicPartition
from kce.zookeeper.store import NodeExists
from tests.controller.conformance.bench import ids
from tests.zookeeper.conformance.nodes import T0, T1, Fixture, f

__all__ = ["f"]

EPOCH = ControllerEpoch(1)


def states(*leaders: int, epoch: ControllerEpoch = EPOCH) -> dict[TopicPartition, Leadership]:
    return {
        tp: Leadership(LeaderAndIsr(BrokerId(leader), ids(leader, 9)), epoch)
        for tp, leader in zip((T0, T1), leaders, strict=True)
    }


def alone(states: Mapping[TopicPartition, Leadership]) -> dict[TopicPartition, LeaderAndIsr]:
    return {tp: state.leader_and_isr for tp, state in states.items()}


async def test_a_state_that_exists_is_ours_if_it_equals_ours(f: Fixture) -> None:
    await f.zk.ensure_paths([znodes.topic_path("t")])
    assert await create_partition_states(f.zk, states(0, 1), f.fence) == {T0: None, T1: None}
    before = f.tree()
    assert await create_partition_states(f.zk, states(0, 1), f.fence) == {T0: None, T1: None}
    again = await create_partition_states(f.zk, states(0, 2), f.fence)
    assert again[T0] is None
    assert isinstance(again[T1], NodeExists)
    of_the_next_controller = await create_partition_states(f.zk, states(0, 1, epoch=ControllerEpoch(2)), f.fence)
    assert [type(answer) for answer in of_the_next_controller.values()] == [NodeExists, NodeExists]
    assert f.tree() == before


async def test_a_state_of_the_next_version_is_ours_if_it_equals_ours(f: Fixture) -> None:
    await f.zk.ensure_paths([znodes.topic_path("t")])
    await create_partition_states(f.zk, states(0, 1), f.fence)
    written = {tp: state.with_partition_epoch(1) for tp, state in alone(states(2, 3)).items()}
    for _ in range(2):  # the second finds its own
        result = await update_leader_and_isr(f.zk, alone(states(2, 3)), EPOCH, f.fence)
        assert (result.updated, result.retry, result.failed) == (written, [], {})
    result = await update_leader_and_isr(f.zk, alone(states(2, 4)), EPOCH, f.fence)
    assert (result.updated, result.retry) == ({T0: written[T0]}, [T1])
    result = await update_leader_and_isr(f.zk, alone(states(2, 3)), ControllerEpoch(2), f.fence)
    assert (result.updated, result.retry) == ({}, [T0, T1])
