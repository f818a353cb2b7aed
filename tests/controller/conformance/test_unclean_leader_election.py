"""ULE: unclean leader election in a cluster (section 14 of docs/controller-semantics.md; rules 7.3-7.8, 11.69).

Replicas [1, 2]: 2 falls out of the ISR, 1 dies, 2 returns without what only 1 has."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.zookeeper.admin_manager import ZkAdminManager
from kce.wire import ErrorCode
from tests.controller.conformance.bench import put_config
from tests.controller.conformance.cluster import change_topic_config, propose_isr, start, stop
from tests.controller.support import World, world

UNCLEAN = "unclean.leader.election.enable"
LED_UNCLEANLY = (2, 3, (2,))
LEADERLESS = (-1, 2, (1,))


async def only_the_stale_replica_lives(
    w: World, *, by_broker: bool, by_topic: str | None = None, meanwhile: Sequence[str] = ()
) -> None:
    """``meanwhile``: the topic's setting takes these values while the leader lives, which elects nobody."""
    controller = await w.start_controller(0, unclean_leader_election_enable=by_broker)
    await w.create_topic("t", {0: [1, 2]})
    for setting in meanwhile:
        await change_topic_config(w, "t", {UNCLEAN: setting})
        assert await w.state("t") == (1, 0, (1, 2))
    if by_topic is not None:
        await put_config(w, "t", unclean_leader_election_enable=by_topic)
    await stop(w, 2)
    assert await w.state("t") == (1, 1, (1,))
    assert unclean_elections(w) == 0
    await stop(w, 1)
    assert await w.state("t") == LEADERLESS
    await start(w, 2)
    assert controller.is_active


async def led_uncleanly(w: World) -> None:
    assert await w.state("t") == LED_UNCLEANLY
    assert unclean_elections(w) == 1


async def led_by_nobody_but_the_old_leader(w: World) -> None:
    """Nobody leads; the old leader does when it returns; when the other has caught up, it leads in its turn."""
    assert await w.state("t") == LEADERLESS
    assert unclean_elections(w) == 0
    await start(w, 1)
    assert await w.state("t") == (1, 3, (1,))
    await propose_isr(w, w.nodes[0].controller, [1, 2])
    assert await w.state("t") == (1, 3, (1, 2))
    await stop(w, 1)
    assert await w.state("t") == (2, 4, (2,))
    assert unclean_elections(w) == 0


def unclean_elections(w: World) -> int:
    return w.nodes[0].controller._runtime.partitions.unclean_elections


@pytest.mark.kafka("ULE-1")
async def test_enabled(autojump_clock: MockClock) -> None:
    async with world([1, 2]) as w:
        await only_the_stale_replica_lives(w, by_broker=True)
        await led_uncleanly(w)


@pytest.mark.kafka("ULE-2")
async def test_disabled(autojump_clock: MockClock) -> None:
    async with world([1, 2]) as w:
        await only_the_stale_replica_lives(w, by_broker=False)
        await led_by_nobody_but_the_old_leader(w)


@pytest.mark.kafka("ULE-3")
async def test_enabled_by_topic(autojump_clock: MockClock) -> None:
    async with world([1, 2]) as w:
        await only_the_stale_replica_lives(w, by_broker=False, by_topic="true")
        await led_uncleanly(w)


@pytest.mark.kafka("ULE-4")
async def test_disabled_by_topic(autojump_clock: MockClock) -> None:
    async with world([1, 2]) as w:
        await only_the_stale_replica_lives(w, by_broker=True, by_topic="false")
        await led_by_nobody_but_the_old_leader(w)


@pytest.mark.kafka("ULE-5")
async def test_an_invalid_topic_setting(autojump_clock: MockClock) -> None:  # rule 10.5
    async with world([1]) as w:
        config = wire.CreatableTopicConfig(name=UNCLEAN, value="invalid")
        topic = wire.CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=(config,))
        answer = await ZkAdminManager(w.zk, w.ibp, Random(1)).create_topic(topic, {1: None}, validate_only=False)
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "invalid" in (answer.error_message or "")
        assert await w.zk.get_topics() == set()


@pytest.mark.kafka("ULE-6")
async def test_enabled_for_a_topic_while_it_has_no_leader(autojump_clock: MockClock) -> None:  # rule 11.69
    async with world([1, 2]) as w:
        await only_the_stale_replica_lives(w, by_broker=False, meanwhile=("true", "false"))
        assert await w.state("t") == LEADERLESS
        assert unclean_elections(w) == 0
        await change_topic_config(w, "t", {UNCLEAN: "true"})
        await led_uncleanly(w)
