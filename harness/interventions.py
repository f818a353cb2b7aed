"""Faults of a `Cluster` that are more than a rule: a session that expires, a follower that lags."""

from __future__ import annotations

from kce.harness.errors import HarnessError
from kce.harness.node import Lag
from kce.harness.settling import RunningCluster
from kce.wire.vocabulary import TopicPartition
from kce.zookeeper import znodes


async def expire_session(cluster: RunningCluster, node_id: int) -> None:
    """Raises HarnessError for a node that is not registered."""
    cluster.member(node_id)
    session = await _session(cluster, node_id)
    if session is None:
        raise HarnessError(f"node {node_id} is not registered in ZooKeeper: it has no session to expire")
    await cluster.world.expire(node_id, session, cluster.zookeeper_config.tls)

    async def is_gone() -> bool:
        return await _session(cluster, node_id) != session

    await cluster.wait_until(is_gone, f"session {session:#x} of node {node_id} to expire")


async def _session(cluster: RunningCluster, node_id: int) -> int | None:
    """The session that owns the node's registration."""
    (stat,) = await cluster.store.exists([znodes.broker_path(node_id)])
    return None if stat is None else stat.ephemeral_owner


async def shrink_isr(cluster: RunningCluster, lag: Lag) -> None:
    """Raises HarnessError for a broker that leads the partition, or has no replica of it."""
    cluster.member(lag.broker)
    leader, replicas, _ = await _state(cluster, lag.partition)
    if lag.broker not in replicas:
        raise HarnessError(f"broker {lag.broker} has no replica of {lag.partition}; {_listed(replicas)} have")
    if lag.broker == leader:
        raise HarnessError(f"broker {lag.broker} leads {lag.partition}: a leader is always in its ISR")
    for member in cluster.members:
        await member.lag(lag, True)

    async def has_left() -> bool:
        return lag.broker not in (await _state(cluster, lag.partition))[2]

    await cluster.wait_until(has_left, f"broker {lag.broker} to leave the ISR of {lag.partition}")


def _listed(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids))


async def _state(cluster: RunningCluster, partition: TopicPartition) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Leader, replicas and ISR, as ZooKeeper has them. Raises HarnessError."""
    (topic,) = await cluster.describe_topics([partition.topic])
    found = {p.partition: p for p in topic.partitions}.get(partition.partition)
    if found is None:
        raise HarnessError(f"there is no partition {partition.partition} in topic {partition.topic}")
    if found.state is None:
        raise HarnessError(f"{partition} has never had a leader")
    return found.state.leader, tuple(found.assignment.replicas), tuple(found.state.isr)
