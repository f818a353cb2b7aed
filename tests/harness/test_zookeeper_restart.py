"""A real ZooKeeper that is restarted while the controller writes: sessions survive, and pending writes complete.

`tests/controller/test_crash_points.py` does this at every operation, with ZooKeeper's twin in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from kce.harness import Cluster
from kce.harness.embedded_zookeeper import embedded_zookeeper, free_port
from kce.harness.node import Node
from kce.harness.world.tcp_proxy import TcpProxy
from kce.wire.vocabulary import ElectionType
from kce.zookeeper.model import BrokerId, LeaderAndIsr, ReplicaAssignment, TopicPartition
from kce.zookeeper.store import MultiFailed, Op, OpResult
from tests.clusters import node
from tests.controller import requests

pytestmark = pytest.mark.slow

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
T_STATE = "/brokers/topics/t/partitions/0/state"
PROPERTIES = {"zookeeper.session.timeout.ms": "6000"}


class ZooKeeper:
    """One that can be gone for a while, with the same data afterwards. Nobody gets through to it before it is up, when
    a connection would break it (see harness.zookeeper)."""

    def __init__(self, folder: Path, proxy: TcpProxy, port: int) -> None:
        self._folder, self.proxy, self._port = folder, proxy, port
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        await self._stack.enter_async_context(embedded_zookeeper(self._folder, port=self._port))
        self.proxy.heal()

    async def stop(self) -> None:
        self.proxy.cut()
        await self._stack.aclose()


@pytest.fixture
async def zookeeper(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[ZooKeeper]:
    port = free_port()
    proxy = TcpProxy("127.0.0.1", port)
    await nursery.start(proxy.run)
    made = ZooKeeper(tmp_path / "zookeeper", proxy, port)
    await made.start()
    yield made
    await made.stop()


def restart_at(node: Node, zookeeper: ZooKeeper, when: str, path: str) -> trio.Event:
    """ZooKeeper goes away before or after the node's next write of ``path``.

    Afterwards the answer is lost with it, so that the batch is sent again (rule 1.52).
    """
    store = node.store
    assert store is not None
    multi, struck = type(store).multi.__get__(store), trio.Event()

    async def struck_multi(groups: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed]:
        if struck.is_set() or not any(op.path == path for group in groups for op in group):
            return await multi(groups)
        if when == "after":
            await multi(groups)
        async with trio.open_nursery() as nursery:
            await zookeeper.stop()
            nursery.start_soon(zookeeper.start)
            answers = await multi(groups)
        struck.set()
        return answers

    store.multi = struck_multi  # type: ignore[method-assign]
    return struck


class Operations:
    """What is done to topics t and u, each with the znode at whose write ZooKeeper is restarted."""

    def __init__(self, cluster: Cluster, active: int) -> None:
        self.cluster, self.active = cluster, active
        self.other, self.third = sorted({1, 2, 3} - {active})
        self.all: list[tuple[str, str, Callable[[], Awaitable[None]]]] = [
            ("after", T_STATE, self.create),
            ("before", T_STATE, self.reassign),
            ("after", T_STATE, self.elect),
            ("before", T_STATE, self.shut_down),
            ("after", "/brokers/topics/u/partitions", self.delete),
        ]

    def node(self, node_id: int) -> Node:
        return node(self.cluster, node_id)

    async def create(self) -> None:
        await self.cluster.create_topic("t", assignment={0: [self.active, self.other]})
        await self.settles([self.active, self.other], leader=self.active)

    async def reassign(self) -> None:
        controller = self.node(self.active).controller
        requests.alter_partition_reassignments(controller, {T0: [self.third, self.active]}, lambda _: None)
        await self.settles([self.third, self.active], leader=self.active)

    async def elect(self) -> None:
        requests.elect_leaders(self.node(self.active).controller, [T0], ElectionType.PREFERRED, lambda _: None)
        await self.settles([self.third, self.active], leader=self.third)

    async def shut_down(self) -> None:
        await self.cluster.stop(self.third)
        await self.settles([self.third, self.active], leader=self.active, isr=[self.active])

    async def delete(self) -> None:
        await self.cluster.delete_topic("u")
        assert all(U0 not in self.node(n).broker.replica_manager.partitions for n in (self.active, self.other))

    async def settles(self, replicas: Sequence[int], *, leader: int, isr: Sequence[int] | None = None) -> None:
        """Wait until ZooKeeper and every broker in the ISR have it."""
        members = replicas if isr is None else isr

        async def settled() -> bool:
            (described,) = await self.cluster.describe_topics(["t"])
            (partition,) = described.partitions
            state = partition.state
            assert state is not None
            return (
                partition.assignment == ReplicaAssignment(tuple(BrokerId(r) for r in replicas))
                and (state.leader, set(state.isr)) == (leader, set(members))
                and all(self._goes_by(n, state) for n in members)
            )

        await self.cluster.wait_until(settled, f"replicas {replicas} led by {leader}")

    def _goes_by(self, node_id: int, state: LeaderAndIsr) -> bool:
        hosted = self.node(node_id).broker.replica_manager.partitions.get(T0)
        return hosted is not None and (hosted.leader, hosted.leader_epoch) == (state.leader, state.leader_epoch)


async def test_a_restart_in_every_operation(zookeeper: ZooKeeper) -> None:
    async with Cluster(3, zookeeper=f"127.0.0.1:{zookeeper.proxy.port}", properties=PROPERTIES) as cluster:
        controller = await cluster.wait_for_controller()
        operations = Operations(cluster, controller.id)
        await cluster.create_topic("u", assignment={0: [operations.active, operations.other]})
        active = operations.node(controller.id)
        for when, path, operation in operations.all:
            struck = restart_at(active, zookeeper, when, path)
            await operation()
            assert struck.is_set(), operation
        assert await cluster.controller() == controller
        assert not active.controller.loop.failures
