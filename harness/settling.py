"""Whether a cluster has come to rest: what happened has been noticed, and all that can follow has followed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kce.harness.members import Member
from kce.harness.node import NodeStatus
from kce.harness.world import ClusterWorld
from kce.zookeeper.admin import TopicDescription
from kce.zookeeper.client_config import ZooKeeperClientConfig
from kce.zookeeper.store import Session


@dataclass(frozen=True, slots=True)
class ActiveController:
    """The active controller: the owner of /controller, and the controller epoch."""

    id: int
    epoch: int


class RunningCluster(Protocol):
    """The part of `Cluster` that this module and `interventions` use."""

    store: Session

    @property
    def world(self) -> ClusterWorld: ...
    @property
    def members(self) -> Sequence[Member]: ...
    @property
    def zookeeper_config(self) -> ZooKeeperClientConfig: ...

    def member(self, node_id: int) -> Member: ...
    async def registered(self) -> set[int]: ...
    async def controller(self) -> ActiveController | None: ...
    async def node_status(self, node_id: int) -> NodeStatus: ...
    async def describe_topics(self, topics: Sequence[str] | None = None) -> list[TopicDescription]: ...
    async def wait_until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None: ...


async def unsettled(cluster: RunningCluster) -> str | None:
    """Why the cluster is not at rest, None if it is.

    At rest, exactly the nodes that run and reach ZooKeeper are registered, the controller has finished its failover,
    its control requests to live brokers are answered, every partition with a live replica in its ISR has a live leader,
    and no topic whose replicas all live waits for its deletion.
    """
    members = {m.id: m for m in cluster.members}
    expected = {m.id for m in members.values() if m.state == "running" and not cluster.world.is_cut(m.id)}
    registered = await cluster.registered()
    if (ours := registered & members.keys()) != expected:
        return f"the nodes {sorted(ours)} are registered, not {sorted(expected)}"
    active = await cluster.controller()
    if active is None:
        return "there is no controller"
    for topic in await cluster.describe_topics():
        for p in topic.partitions:
            if topic.marked_for_deletion:
                if set(p.assignment.replicas) <= registered:
                    return f"topic {topic.name} is not deleted"
            elif p.state is None or (p.state.leader not in registered and registered & set(p.state.isr)):
                return f"{topic.name}-{p.partition} has no leader: {p.state}"
    if active.id in members:  # last: a state is written before it is sent
        status = await cluster.node_status(active.id)
        if status.controller_epoch != active.epoch:
            return f"node {active.id} has not finished its failover"
        if pending := {broker: size for broker, size in status.unanswered.items() if size and broker in registered}:
            return f"control requests of node {active.id} are pending: {pending}"
    return None
