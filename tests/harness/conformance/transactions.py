"""Clusters in memory, and what a Java client of transactions would ask of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from kce import wire
from kce.harness import Cluster
from kce.harness.world import memory
from kce.harness.world.memory_world import MemoryClusterWorld
from kce.wire import ErrorCode as E
from tests.harness.test_transactions import TransactionalClient

ONE, TWO = "topic1", "topic2"
PROPERTIES = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "3", "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "2", "auto.leader.rebalance.enable": "false",
    "group.initial.rebalance.delay.ms": "0", "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "zookeeper.session.timeout.ms": "2000",
}  # fmt: skip


class World:
    def __init__(self, cluster: Cluster, world: MemoryClusterWorld) -> None:
        self.cluster = cluster
        self._world = world

    def client(self, transactional_id: str = "transactional-producer") -> TransactionalClient:
        return TransactionalClient(self.cluster, self._world, transactional_id)

    async def producer(self, transactional_id: str = "transactional-producer") -> TransactionalClient:
        made = self.client(transactional_id)
        await made.init()
        return made


@asynccontextmanager
async def running(
    seed: int, brokers: int = 3, *, nodes: Mapping[int, Mapping[str, str]] | None = None, **properties: str
) -> AsyncIterator[World]:
    """Topics of four partitions, on all brokers. ``nodes``: settings of one."""
    world = memory(seed)
    more = {name.replace("_", "."): value for name, value in properties.items()}
    async with Cluster(brokers, world=world, properties={**PROPERTIES, **more}, nodes=nodes or {}) as cluster:
        for name in (ONE, TWO):
            await cluster.create_topic(name, partitions=4, replication_factor=brokers)
        yield World(cluster, world)


async def eventually(holds: Callable[[], Awaitable[bool]], seconds: float = 120) -> None:
    """Of the cluster's time."""
    with trio.fail_after(seconds):
        while not await holds():  # noqa: ASYNC110 - only the brokers know
            await trio.sleep(0.1)


async def send(client: TransactionalClient, *where: tuple[str, int, bytes]) -> None:
    for topic, partition, value in where:
        assert await client.add(partition, topic=topic) == E.NONE
        assert await client.produce(partition, value, topic=topic) == E.NONE


async def finish(client: TransactionalClient, *, commit: bool) -> None:
    assert await client.end(commit=commit) == E.NONE
    await client.wait_for("CompleteCommit" if commit else "CompleteAbort")


async def everything(client: TransactionalClient, *topics: str, committed: bool = True, count: int = 4) -> list[bytes]:
    """Of all partitions."""
    return [
        value
        for name in topics
        for i in range(count)
        for value in await client.read(i, topic=name, committed=committed)
    ]


async def active_producers(client: TransactionalClient, topic: str, partition: int) -> list[Any]:
    """As DescribeProducers shows them."""
    asked = wire.TopicRequest(name=topic, partition_indexes=(partition,))

    def found(answer: Any) -> Any:
        return answer.topics[0].partitions[0]

    request = wire.DescribeProducersRequest(topics=(asked,))
    answer = await client.of_leader(topic, partition, request, 0, lambda answer: found(answer).error_code)
    assert found(answer).error_code == E.NONE
    return list(found(answer).active_producers)
