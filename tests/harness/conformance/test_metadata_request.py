"""MDR-14: what every broker answers of a partition whose replica was away (section 12 of docs/broker-semantics.md).

The rest of the suite is in tests/broker_stub/test_metadata_request.py.
"""

from __future__ import annotations

import pytest

from kce import wire
from kce.harness import Cluster
from kce.wire.messages.metadata import MetadataRequestTopic
from tests.clusters import request

pytestmark = pytest.mark.slow


@pytest.mark.kafka("MDR-14")
async def test_isr_after_a_broker_was_stopped_and_started(zookeeper: str) -> None:
    async with Cluster(3, zookeeper=f"{zookeeper}/isr-after-shutdown") as cluster:
        await cluster.create_topic("t", replication_factor=3)
        await cluster.restart(3)

        async def every_broker_has_all() -> bool:
            asked = wire.MetadataRequest(topics=(MetadataRequestTopic(name="t"),))
            answers = [await request(member.addresses["DATA"], asked, 9) for member in cluster.members]
            assert all(isinstance(answer, wire.MetadataResponse) for answer in answers)
            return all(
                {frozenset(p.isr_nodes) for topic in answer.topics for p in topic.partitions} == {frozenset({1, 2, 3})}
                for answer in answers
                if isinstance(answer, wire.MetadataResponse)
            )

        await cluster.wait_until(every_broker_has_all, "every broker to answer the whole ISR")
