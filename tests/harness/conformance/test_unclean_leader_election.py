"""ULE: unclean leader election, and what it loses (section 14 of docs/controller-semantics.md; rules 7.3-7.8, 11.69).

Brokers 1 and 2 have replicas, node 3 is the controller. 2 leaves with the first record, 1 dies with both, 2 returns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import trio

from kce import wire
from kce.wire import ErrorCode
from tests.harness.conformance.records import TOPIC, Clients, clients

kafka = pytest.mark.kafka
UNCLEAN = "unclean.leader.election.enable"


@asynccontextmanager
async def cluster(*, by_broker: bool, by_topic: str | None = None) -> AsyncIterator[Clients]:
    """Who leads t-0 has one record, which both replicas have."""
    properties = {UNCLEAN: str(by_broker).lower()}
    async with clients(2, controllers=1, properties=properties) as c:
        config: Mapping[str, str] = {} if by_topic is None else {UNCLEAN: by_topic}
        await c.create({0: [1, 2]}, config)
        assert await c.produce(1, b"first") == ErrorCode.NONE
        assert await c.consume(1) == (ErrorCode.NONE, [b"first"])
        yield c


def unclean_elections(c: Clients) -> int:
    return c.node(3).controller._runtime.partitions.unclean_elections


async def only_the_stale_replica_lives(c: Clients) -> None:
    await c.cluster.stop(2)
    assert await c.produce(1, b"second") == ErrorCode.NONE
    assert await c.consume(1) == (ErrorCode.NONE, [b"first", b"second"])
    assert unclean_elections(c) == 0
    await c.cluster.stop(1)
    await c.cluster.start(2)


async def led_uncleanly(c: Clients) -> None:
    await c.wait_for_leader(2)
    assert unclean_elections(c) == 1
    assert await c.produce(2, b"third") == ErrorCode.NONE
    assert await c.consume(2) == (ErrorCode.NONE, [b"first", b"third"])


async def led_by_nobody(c: Clients) -> None:
    async def is_known() -> bool:
        cached = c.cached(2)
        return cached is not None and (cached.leader, cached.isr) == (-1, (1,))

    await c.cluster.wait_until(is_known, "nobody to lead")
    assert unclean_elections(c) == 0
    assert await c.produce(2, b"third") == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await c.consume(2) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])


async def led_by_those_who_have_everything(c: Clients) -> None:
    await led_by_nobody(c)
    await c.cluster.start(1)
    await c.wait_for_leader(1)
    assert await c.produce(1, b"third") == ErrorCode.NONE

    async def has_joined() -> bool:
        cached = c.cached(2)
        return cached is not None and 2 in cached.isr

    await c.cluster.wait_until(has_joined, "2 to join the ISR")
    await c.cluster.stop(1)
    await c.wait_for_leader(2)
    assert await c.consume(2) == (ErrorCode.NONE, [b"first", b"second", b"third"])
    assert unclean_elections(c) == 0


@pytest.mark.parametrize(
    ("by_broker", "by_topic"),
    [pytest.param(True, None, marks=kafka("ULE-1")), pytest.param(False, "true", marks=kafka("ULE-3"))],
)
async def test_enabled(by_broker: bool, by_topic: str | None) -> None:
    async with cluster(by_broker=by_broker, by_topic=by_topic) as c:
        await only_the_stale_replica_lives(c)
        await led_uncleanly(c)


@pytest.mark.parametrize(
    ("by_broker", "by_topic"),
    [pytest.param(False, None, marks=kafka("ULE-2")), pytest.param(True, "false", marks=kafka("ULE-4"))],
)
async def test_disabled(by_broker: bool, by_topic: str | None) -> None:
    async with cluster(by_broker=by_broker, by_topic=by_topic) as c:
        await only_the_stale_replica_lives(c)
        await led_by_those_who_have_everything(c)


@kafka("ULE-5")
async def test_an_invalid_topic_setting() -> None:  # rule 10.5
    async with clients(1) as c:
        await c.wait_for_metadata(1)
        config = wire.CreatableTopicConfig(name=UNCLEAN, value="invalid")
        topic = wire.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, configs=(config,))
        answer = await c.ask(1, wire.CreateTopicsRequest(topics=(topic,), timeout_ms=5000), 7)
        (created,) = answer.topics
        assert created.error_code == ErrorCode.INVALID_CONFIG
        assert "invalid" in created.error_message
        assert await c.cluster.describe_topics() == []


@kafka("ULE-6")
async def test_enabled_for_a_topic_while_it_has_no_leader() -> None:  # rule 11.69
    async with cluster(by_broker=False) as c:
        for setting in ("true", "false"):
            await c.change_config(unclean_leader_election_enable=setting)
            await trio.sleep(1)
            assert await c.leadership() == (1, (1, 2))
        await only_the_stale_replica_lives(c)
        await led_by_nobody(c)
        await c.change_config(2, unclean_leader_election_enable="true")
        await led_uncleanly(c)
