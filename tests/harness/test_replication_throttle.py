"""Replication quotas in a cluster in memory (rule B8.11): where rates come from, and what they do to a reassignment.

DCC: section 14 of docs/controller-semantics.md.
"""

from __future__ import annotations

import math

import pytest
import trio

from kce.wire import ErrorCode
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.store import Create
from tests.harness.conformance.records import T0, TOPIC, Clients, clients

UNLIMITED = math.inf
NAMES = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)


async def set_rates(c: Clients, broker: str, rate: int | None) -> None:
    await c.cluster.wait_for_controller()
    await c.cluster.zk.change_config("brokers", broker, {} if rate is None else dict.fromkeys(NAMES, str(rate)))


async def wait_for_rates(c: Clients, *rates: float) -> None:
    """Of each broker, all three."""

    async def is_applied() -> bool:
        quotas = [c.node(number).broker.replication.quotas for number in range(1, len(rates) + 1)]
        return [(q.leader.rate, q.follower.rate, q.log_dirs.rate) for q in quotas] == [(rate,) * 3 for rate in rates]

    await c.cluster.wait_until(is_applied, f"the rates to be {rates}")


@pytest.mark.kafka("DCC-18")
async def test_a_broker_has_rates_and_loses_them() -> None:
    async with clients(2) as c:
        await set_rates(c, "1", 100_000)
        await wait_for_rates(c, 100_000, UNLIMITED)
        await set_rates(c, "1", None)
        await wait_for_rates(c, UNLIMITED, UNLIMITED)


@pytest.mark.kafka("DCC-19")
async def test_all_brokers_have_rates_and_lose_them() -> None:
    async with clients(2) as c:
        await set_rates(c, znodes.DEFAULT_ENTITY, 100_000)
        await wait_for_rates(c, 100_000, 100_000)
        await set_rates(c, znodes.DEFAULT_ENTITY, None)
        await wait_for_rates(c, UNLIMITED, UNLIMITED)


@pytest.mark.kafka("DCC-20")
async def test_the_rates_of_a_broker_win_over_those_of_all() -> None:
    async with clients(2) as c:
        await set_rates(c, "1", 100_000)
        await set_rates(c, znodes.DEFAULT_ENTITY, 200_000)
        await wait_for_rates(c, 100_000, 200_000)


@pytest.mark.kafka("AZC-8")
async def test_rates_reach_their_brokers_and_are_kept() -> None:
    async with clients(3) as c:
        for rate in (1_000_000, 2_000_000):
            for broker in ("1", "2", "3"):
                await set_rates(c, broker, rate)
            await wait_for_rates(c, rate, rate, rate)
        for broker in ("1", "2", "3"):
            assert await c.cluster.zk.get_config("brokers", broker) == dict.fromkeys(NAMES, "2000000")
        for broker in ("1", "2", "3"):
            await set_rates(c, broker, None)
        await wait_for_rates(c, UNLIMITED, UNLIMITED, UNLIMITED)


async def test_a_node_that_starts_knows_what_is_throttled() -> None:
    async with clients(1) as c:
        await c.create({0: [1]}, config={"leader.replication.throttled.replicas": "0:1"})
        await set_rates(c, "1", 100_000)
        await c.cluster.restart(1)
        await wait_for_rates(c, 100_000)
        assert c.node(1).broker.replication.quotas.leader.is_throttled(T0)


RATE = 10_000
#: of 20 kB each
RECORDS = 10


@pytest.mark.parametrize("side", ["leader", "follower"])
async def test_a_throttled_reassignment(side: str) -> None:
    async with clients(2, properties={"replica.fetch.max.bytes": "20000"}) as c:
        await c.create({0: [1]})
        for _ in range(RECORDS):
            assert await c.produce(1, b"x" * 20_000) == ErrorCode.NONE
        zk, broker = c.cluster.zk, "1" if side == "leader" else "2"
        await zk.change_config("brokers", broker, {f"{side}.replication.throttled.rate": str(RATE)})
        await zk.change_config("topics", TOPIC, {f"{side}.replication.throttled.replicas": f"0:{broker}"})

        async def is_applied() -> bool:
            quotas = c.node(int(broker)).broker.replication.quotas
            quota = quotas.leader if side == "leader" else quotas.follower
            return quota.rate == RATE and quota.is_throttled(T0)

        await c.cluster.wait_until(is_applied, "the throttle")
        began = trio.current_time()
        plan = cluster_nodes.encode_partition_reassignment({T0: [1, 2]})
        await zk.store.write([Create(znodes.REASSIGN_PARTITIONS, plan)])

        async def is_in_sync() -> bool:
            return (await c.leadership())[1] == (1, 2)

        await c.cluster.wait_until(is_in_sync, "the new replica", timeout_s=120)
        assert 15 < trio.current_time() - began < 40  # 200 kB, less the first second's burst
        assert c.log(2).log_end_offset == RECORDS
