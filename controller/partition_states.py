"""Writes of partition states that tolerate a lost answer (rule 1.52).

A write that a connection loss interrupted is sent again: what its second answer complains of may be its own work.
"""

from __future__ import annotations

from collections.abc import Mapping

from kce.zookeeper.kafka_zk_client import KafkaZkClient, UpdateResult
from kce.zookeeper.model import ControllerEpoch, EpochZkVersion, LeaderAndIsr, Leadership, TopicPartition
from kce.zookeeper.store import NodeExists, StoreError


async def create_partition_states(
    zk: KafkaZkClient, states: Mapping[TopicPartition, Leadership], expected: EpochZkVersion
) -> dict[TopicPartition, StoreError | None]:
    """Create partition states: an existing one that equals ours is ours."""
    created = await zk.create_partition_states(states, expected)
    present = [tp for tp, error in created.items() if isinstance(error, NodeExists)]
    if present:
        for tp, known in (await zk.get_partition_states(present)).items():
            if known == states[tp]:
                created[tp] = None
    return created


def with_epoch(
    states: Mapping[TopicPartition, LeaderAndIsr], controller_epoch: ControllerEpoch
) -> dict[TopicPartition, Leadership]:
    """Equal states become one object: what is sent of them is encoded once."""
    made: dict[LeaderAndIsr, Leadership] = {}
    by_id: dict[int, Leadership] = {}  # hashing a state takes longer than all the rest
    for number, state in {id(state): state for state in states.values()}.items():
        by_id[number] = made.setdefault(state, Leadership(state, controller_epoch))
    return {tp: by_id[id(state)] for tp, state in states.items()}


async def update_leader_and_isr(
    zk: KafkaZkClient,
    states: Mapping[TopicPartition, LeaderAndIsr],
    controller_epoch: ControllerEpoch,
    expected: EpochZkVersion,
) -> UpdateResult:
    """Write states at their versions: a state of the next version that equals ours is ours."""
    result = await zk.update_leader_and_isr(states, controller_epoch, expected)
    refused, result.retry[:] = list(result.retry), []
    for tp, known in (await zk.get_partition_states(refused)).items() if refused else ():
        written = states[tp].with_partition_epoch(states[tp].partition_epoch + 1)
        if known == Leadership(written, controller_epoch):
            result.updated[tp] = written
        else:
            result.retry.append(tp)
    return result
