"""A controller-only node of ours beside real brokers: they reach it for AlterPartition, and it gets no replicas."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.interop.operations import NODE, peers
from tests.interop.tools import TOPICS

pytestmark = pytest.mark.slow


async def test_real_brokers_under_it(zookeeper: str, tmp_path: Path) -> None:
    async with peers(f"{zookeeper}/controller-only", tmp_path, ours=True, ids=[1, 2]) as p:
        await p.tool(TOPICS, "--create", "--topic", "t", "--partitions", "6", "--replication-factor", "2")
        consumer = Consumer({"bootstrap.servers": p.bootstrap, "group.id": "g", "log_level": 0})
        try:
            consumer.subscribe(["t"])
            consumer.poll(1)  # the brokers ask the controller for __consumer_offsets
            await p.cluster.wait_until(lambda: _exists(p.cluster, "__consumer_offsets"), "__consumer_offsets")
        finally:
            consumer.close()
        topics = await p.cluster.describe_topics()
        assert {topic.name for topic in topics} == {"t", "__consumer_offsets"}
        assert {b for topic in topics for q in topic.partitions for b in q.assignment.replicas} <= {1, 2}
        assert await p.cluster.registered() == {1, 2, NODE}
        p.brokers[2].kill()

        async def shrunk() -> bool:
            (topic,) = await p.cluster.describe_topics(["t"])
            return all(q.state is not None and q.state.isr == (1,) for q in topic.partitions)

        await p.cluster.wait_until(shrunk, "ISRs of the survivor alone")
        await p.brokers[2].start()

        async def expanded() -> bool:  # by AlterPartition of the leaders, sent to our node
            (topic,) = await p.cluster.describe_topics(["t"])
            return all(q.state is not None and set(q.state.isr) == {1, 2} for q in topic.partitions)

        await p.cluster.wait_until(expanded, "ISRs of both brokers")


async def _exists(cluster, topic: str) -> bool:  # type: ignore[no-untyped-def]
    return topic in {found.name for found in await cluster.describe_topics()}
