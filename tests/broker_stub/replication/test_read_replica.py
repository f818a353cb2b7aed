"""A consumer is sent to the replica in its rack (KIP-392)."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.config import BrokerConfig
from kce.wire.configuration import ConfigError
from tests.broker_stub.log.support import batch
from tests.broker_stub.replication.support import RecordNode, a_node
from tests.broker_stub.support import umr_broker, umr_state, update_metadata

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@asynccontextmanager
async def leader_in_rack_a(selector: str | None = SELECTOR) -> AsyncIterator[RecordNode]:
    """Broker 1, which leads with followers 2 and 3 in rack b and 4 in c, all in the ISR; two records."""
    properties = {} if selector is None else {"replica_selector_class": selector}
    async with a_node(**properties) as node:
        await node.lead(isr=(1, 2, 3, 4), replicas=(1, 2, 3, 4, 5))
        await brokers(node, {1: "a", 2: "b", 3: "b", 4: "c", 5: "d"})
        await node.produce(batch(b"a", b"b"))
        for follower in (2, 3, 4, 5):
            await node.fetch(2, replica=follower, epoch=0)
        yield node


async def brokers(node: RecordNode, racks: dict[int, str | None], *, without_listener: int | None = None) -> None:
    alive = [
        umr_broker(i, ("CONTROL",) if i == without_listener else ("CONTROL", "DATA"), rack=rack)
        for i, rack in racks.items()
    ]
    replicas = (1, 2, 3, 4, 5)
    await node.ask(update_metadata(umr_state(isr=replicas[:4], replicas=replicas), alive=alive))


async def preferred(node: RecordNode, rack: str, offset: int = 0, version: int = 12) -> int:
    found = await node.fetch(offset, rack_id=rack, version=version)
    assert found.error_code == 0
    assert (found.records == b"") is (found.preferred_read_replica >= 0)  # rule B4.39
    assert (found.high_watermark, found.log_start_offset) == (2, 0 if version >= 5 else -1)
    return found.preferred_read_replica


@pytest.mark.parametrize(
    ("rack", "expected"),
    [
        pytest.param("", -1, id="no rack"),
        pytest.param("a", -1, id="the leader's"),
        pytest.param("b", 3, id="two equal followers: the greater id"),
        pytest.param("c", 4, id="one follower"),
        pytest.param("d", -1, id="a follower out of the ISR"),
        pytest.param("e", -1, id="nobody's"),
    ],
)
async def test_the_replica_for_a_rack(rack: str, expected: int) -> None:  # rule B4.38
    async with leader_in_rack_a() as node:
        assert await preferred(node, rack) == expected


async def test_versions_without_rack() -> None:  # rule B4.37
    async with leader_in_rack_a() as node:
        assert await preferred(node, "c", version=11) == 4
        found = await node.fetch(0, version=10)
        assert (found.preferred_read_replica, bool(found.records)) == (-1, True)


async def test_without_a_selector_consumers_stay_with_the_leader() -> None:
    async with leader_in_rack_a(None) as node:
        assert await preferred(node, "b") == -1


async def test_followers_are_not_sent_elsewhere() -> None:
    async with leader_in_rack_a() as node:
        found = await node.fetch(0, replica=4, epoch=0, rack_id="b")
        assert (found.preferred_read_replica, bool(found.records)) == (-1, True)


async def test_the_follower_has_the_offset_and_is_alive(autojump_clock: MockClock) -> None:  # rules B4.37, B4.38
    async with leader_in_rack_a() as node:
        await node.produce(batch(b"c"))
        assert (await node.fetch(3, rack_id="b")).preferred_read_replica == -1  # neither has it
        await node.fetch(3, replica=3, epoch=0)
        for offset in (0, 3):
            assert (await node.fetch(offset, rack_id="b")).preferred_read_replica == 3  # which has most
        await trio.sleep(0.1)
        await node.fetch(3, replica=2, epoch=0)
        assert (await node.fetch(0, rack_id="b")).preferred_read_replica == 2  # which caught up last
        await node.fetch(3, replica=2, epoch=0, log_start_offset=1)
        assert (await node.fetch(0, rack_id="b")).preferred_read_replica == 3  # 2 has deleted it
        await brokers(node, {1: "a", 2: "b", 4: "c"})
        assert (await node.fetch(1, rack_id="b")).preferred_read_replica == 2
        await brokers(node, {1: "a", 2: "b", 4: "c"}, without_listener=2)
        assert (await node.fetch(1, rack_id="b")).preferred_read_replica == -1


async def test_a_fetch_that_is_sent_elsewhere_does_not_wait(autojump_clock: MockClock) -> None:  # rule B4.39
    async with leader_in_rack_a() as node:
        began = trio.current_time()
        found = await node.fetch(2, rack_id="c", max_wait_ms=5000)
        assert (found.preferred_read_replica, trio.current_time()) == (4, began)
        assert (await node.fetch(2, rack_id="a", max_wait_ms=5000)).preferred_read_replica == -1
        assert trio.current_time() == pytest.approx(began + 5, abs=0.1)


async def test_an_idle_partition_of_a_session_is_sent_elsewhere_when_a_follower_comes() -> None:
    async with leader_in_rack_a() as node:
        await brokers(node, {1: "a"})
        entry = wire.FetchPartition(partition=0, fetch_offset=2, partition_max_bytes=100)
        topic = wire.FetchTopic(topic="a", partitions=(entry,))
        request = wire.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=100, rack_id="c", topics=(topic,))
        first = await node.ask(dataclasses.replace(request, session_epoch=0), 12)
        assert first.responses[0].partitions[0].preferred_read_replica == -1
        more = dataclasses.replace(request, session_id=first.session_id, session_epoch=1, topics=())
        second = await node.ask(more, 12)
        assert second.responses == ()
        await brokers(node, {1: "a", 4: "c"})
        third = await node.ask(dataclasses.replace(more, session_epoch=2), 12)
        assert third.responses[0].partitions[0].preferred_read_replica == 4


def test_another_selector_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"replica\.selector\.class=com\.example\.Mine: .*RackAwareReplicaSelector"):
        BrokerConfig.from_properties({"replica.selector.class": "com.example.Mine"})
