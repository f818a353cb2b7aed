"""MDR: what the brokers of a cluster answer as brokers come and go (section 12 of docs/broker-semantics.md).

What one broker answers is in tests/broker_stub/test_metadata_request.py.
"""

from __future__ import annotations

import pytest

from kce import wire
from kce.harness import Cluster
from kce.wire import ErrorCode
from kce.wire.messages.metadata import MetadataRequestTopic
from tests.clusters import request

pytestmark = pytest.mark.slow

T = (MetadataRequestTopic(name="t"),)
Topics = tuple[MetadataRequestTopic, ...] | None


async def answers(cluster: Cluster, topics: Topics, version: int) -> list[wire.MetadataResponse]:
    """The answers of every running broker."""
    found = []
    for member in cluster.members:
        if member.id in await cluster.registered():
            answer = await request(member.addresses["DATA"], wire.MetadataRequest(topics=topics), version)
            assert isinstance(answer, wire.MetadataResponse)
            found.append(answer)
    return found


@pytest.mark.kafka("MDR-14")
async def test_isr_after_a_broker_was_stopped_and_started(zookeeper: str) -> None:
    async with Cluster(3, zookeeper=f"{zookeeper}/isr-after-shutdown") as cluster:
        await cluster.create_topic("t", replication_factor=3)
        await cluster.restart(3)

        async def every_broker_has_all() -> bool:
            isrs = [
                frozenset(p.isr_nodes)
                for answer in await answers(cluster, T, 9)
                for topic in answer.topics
                for p in topic.partitions
            ]
            return isrs == [frozenset({1, 2, 3})] * 3

        await cluster.wait_until(every_broker_has_all, "every broker to answer the whole ISR")


@pytest.mark.kafka("MDR-3")
@pytest.mark.kafka("MDR-12")
@pytest.mark.kafka("MDR-13")
@pytest.mark.kafka("MDR-15")
async def test_brokers_leaders_and_controller(zookeeper: str) -> None:
    async with Cluster(3, zookeeper=f"{zookeeper}/metadata-of-all") as cluster:
        assignment = {0: [1, 2, 3], 1: [2, 3, 1]}
        await cluster.create_topic("t", assignment=assignment)

        async def placed() -> bool:
            return all(
                {p.partition_index: (p.leader_id, list(p.replica_nodes), list(p.isr_nodes)) for p in topic.partitions}
                == {index: (replicas[0], replicas, replicas) for index, replicas in assignment.items()}
                for answer in await answers(cluster, T, 9)
                for topic in answer.topics
            )

        await cluster.wait_until(placed, "every broker to answer the preferred leaders")
        old = await cluster.wait_for_controller()
        assert {answer.controller_id for answer in await answers(cluster, None, 1)} == {old.id}
        await cluster.stop(old.id)
        new = await cluster.wait_for_controller(other_than=old)
        assert new.id != old.id
        left = {1, 2, 3} - {old.id}

        async def all_answer(brokers: set[int]) -> bool:
            return all(
                ({b.node_id for b in answer.brokers}, answer.controller_id) == (brokers, new.id)
                for answer in await answers(cluster, None, 1)
            )

        await cluster.wait_until(lambda: all_answer(left), "every broker to know who left")
        for version, code, replicas in ((0, ErrorCode.REPLICA_NOT_AVAILABLE, 2), (1, ErrorCode.NONE, 3)):
            for answer in await answers(cluster, T, version):
                assert {b.node_id for b in answer.brokers} == left
                (topic,) = answer.topics
                assert topic.error_code == ErrorCode.NONE
                assert [(p.error_code, len(p.replica_nodes)) for p in topic.partitions] == [(code, replicas)] * 2
        await cluster.start(old.id)
        await cluster.wait_until(lambda: all_answer({1, 2, 3}), "every broker to know who came back")
