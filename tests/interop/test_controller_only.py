"""A controller-only node of ours beside real brokers: they reach it for AlterPartition, and it gets no replicas."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from confluent_kafka import Consumer, Producer

from kce import wire
from kce.harness import Cluster
from tests.clusters import leaders_and_isrs, request
from tests.interop.operations import NODE, peers
from tests.interop.real_kafka import real_brokers
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

        async def placed() -> bool:  # a real broker may have put replicas on our node, which it then moves
            topics = await p.cluster.describe_topics()
            replicas = {b for topic in topics for q in topic.partitions for b in q.assignment.replicas}
            return {topic.name for topic in topics} == {"t", "__consumer_offsets"} and replicas <= {1, 2}

        await p.cluster.wait_until(placed, "replicas on the brokers alone")
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


async def test_a_real_controller_takes_it_for_a_broker(zookeeper: str, tmp_path: Path) -> None:
    """As docs/differences.md says: it gets replicas, leads and follows."""
    chroot = f"{zookeeper}/controller-only-follows"
    async with (
        real_brokers([1], chroot, tmp_path, replica_lag_time_max_ms="1000") as brokers,
        Cluster(0, controllers=1, first_id=NODE, zookeeper=chroot) as cluster,
    ):
        assert (await cluster.wait_for_controller()).id == 1
        topic = wire.CreatableTopic(name="t", num_partitions=2, replication_factor=2)
        message = wire.CreateTopicsRequest(topics=(topic,), timeout_ms=30_000)

        async def created() -> bool:
            answer = await request(brokers[1].address, message, 7)
            assert isinstance(answer, wire.CreateTopicsResponse)
            return answer.topics[0].error_code == wire.ErrorCode.NONE  # before, broker 1 does not know of our node

        await cluster.wait_until(created, "the topic to be created on both nodes")

        async def leads_one() -> bool:
            found = await leaders_and_isrs(cluster, "t")
            return sorted(found.values()) == [(1, {1, NODE}), (NODE, {1, NODE})]

        await cluster.wait_until(leads_one, "our node to lead one partition and to follow the other")

        def produce() -> int:
            """How many records are not acknowledged by both nodes."""
            servers = f"{brokers[1].address},{cluster.member(NODE).addresses['DATA']}"
            producer = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 0})
            for partition in (0, 1):
                producer.produce("t", b"x", partition=partition)
            return int(producer.flush(30))

        assert await trio.to_thread.run_sync(produce) == 0
        await cluster.wait_until(leads_one, "both nodes in both ISRs")


async def _exists(cluster, topic: str) -> bool:  # type: ignore[no-untyped-def]
    return topic in {found.name for found in await cluster.describe_topics()}
