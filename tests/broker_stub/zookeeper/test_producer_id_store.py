"""Blocks of producer ids that brokers allocate themselves (rules B3.59, 1.43)."""

from __future__ import annotations

import pytest
import trio

import kce
from kce.broker_stub.zookeeper.producer_id_store import ZkProducerIds
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import Create, value
from kce.zookeeper.store.memory import MemoryZooKeeper
from tests.clusters import node


@pytest.mark.parametrize("ibp", ["2.8", "3.0-IV0"])
async def test_below_3_0_a_broker_takes_its_first_block_at_its_start(ibp: str) -> None:
    """From 3.0 on, the controller allocates a block when the first producer comes."""
    async with kce.Cluster(2, world=kce.memory(seed=1), properties={"inter.broker.protocol.version": ibp}) as cluster:
        await cluster.wait_for_controller()

        async def last() -> int:
            (found,) = await cluster.store.get_data([znodes.PRODUCER_ID_BLOCK])
            data = value(found).data
            return cluster_nodes.decode_producer_id_block(data).last if data else -1

        async def next_id(node_id: int) -> int:
            while True:
                found = node(cluster, node_id).broker.producer_ids.next_id()
                if found is not None:
                    return found
                await trio.sleep(0.1)

        await trio.sleep(1)
        assert await last() == (1999 if ibp == "2.8" else -1)
        ids = [await next_id(1), await next_id(2), await next_id(1)]
        assert ids[2] == ids[0] + 1
        assert sorted(ids[:2]) == [0, 1000]
        assert await last() == 1999
        assert bool(cluster.history.events(api="AllocateProducerIds")) == (ibp != "2.8")


async def test_a_block_that_cannot_be_allocated_is_asked_for_again() -> None:
    zookeeper = MemoryZooKeeper()
    zk = KafkaZkClient(zookeeper.connect(), now_ms=lambda: 0)
    await zk.store.write([Create(znodes.PRODUCER_ID_BLOCK, b"malformed")])
    ids = ZkProducerIds(zk, 7)
    assert await ids.allocate() is None
