"""Configuration that changes at run time, and what the controller does about it (rules 1.34-1.36, 7.4, 11.69)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from trio.testing import MockClock

from controller import zk_data
from controller.config_changes import CHANGE_EXPIRATION_MS, ConfigChanges
from controller.events import (
    ConfigChangesNotified,
    ControllerEvent,
    TopicUncleanLeaderElectionEnabled,
    UncleanLeaderElectionEnabled,
)
from controller.kafka_zk_client import KafkaZkClient
from controller.model import BrokerId
from controller.store import Create, SetData, value
from tests.controller.support import World, world


async def configure(w: World, entity_type: str, entity: str, setting: str | None) -> None:
    """As `kafka-configs` does: the node, then the notification."""
    path = f"/config/{entity_type}/{entity}"
    await w.zk.ensure_paths([path])
    config = {} if setting is None else {"unclean.leader.election.enable": setting}
    await w.store.write([SetData(path, zk_data.encode_config(config))])
    await notify(w, f'{{"version":2,"entity_path":"{entity_type}/{entity}"}}'.encode())


async def notify(w: World, content: bytes) -> None:
    value((await w.store.write([Create("/config/changes/config_change_", content, sequential=True)]))[0])
    await w.settle()


async def offline_partition(w: World, topic: str = "t") -> None:
    """[2, 3] with ISR [2], of which 2 is dead and 3 lives."""
    await w.create_topic(topic, {0: [2, 3]})
    for gone in (3, 2):
        await w.stop_broker(gone)
        await w.settle()
    await w.start_broker(3)
    await w.settle()


@pytest.mark.parametrize("version_1", [True, False])
async def test_a_topic_allows_unclean_election(autojump_clock: MockClock, version_1: bool) -> None:  # 11.69, 1.35
    async with world() as w:
        await w.start_controller(1)
        await offline_partition(w)
        await w.create_topic("u", {0: [2]})
        assert await w.state("t") == (-1, 2, (2,))
        await configure(w, "topics", "t", "false")
        assert await w.state("t") == (-1, 2, (2,))
        if version_1:
            await w.store.write(
                [SetData("/config/topics/t", zk_data.encode_config({"unclean.leader.election.enable": "true"}))]
            )
            await notify(w, b'{"version":1,"entity_type":"topics","entity_name":"t"}')
        else:
            await configure(w, "topics", "t", "true")
        assert await w.state("t") == (3, 3, (3,))


@pytest.mark.parametrize("entity", ["<default>", "1"])
async def test_the_broker_allows_unclean_election(autojump_clock: MockClock, entity: str) -> None:  # rule 11.69
    async with world() as w:
        await w.start_controller(1)
        await offline_partition(w)
        await configure(w, "brokers", "2", "true")  # another broker's own
        await configure(w, "brokers", entity, "nonsense")
        assert await w.state("t") == (-1, 2, (2,))
        await configure(w, "brokers", entity, "true")
        assert await w.state("t") == (3, 3, (3,))


async def test_the_brokers_own_setting_wins_over_the_default(autojump_clock: MockClock) -> None:  # rule 7.4
    async with world() as w:
        for entity, setting in (("<default>", "true"), ("1", "false")):
            await configure(w, "brokers", entity, setting)
        await w.start_controller(1, unclean_leader_election_enable=True)
        await offline_partition(w)
        assert await w.state("t") == (-1, 2, (2,))
        await configure(w, "brokers", "1", None)
        assert await w.state("t") == (3, 3, (3,))


async def test_a_setting_that_cannot_be_read_fails_the_election(autojump_clock: MockClock) -> None:  # rule 7.4
    async with world() as w:
        await w.start_controller(1, unclean_leader_election_enable=True)
        await w.create_topic("t", {0: [2, 3]})
        await configure(w, "topics", "t", "maybe")
        for gone in (3, 2):
            await w.stop_broker(gone)
            await w.settle()
        await w.start_broker(3)
        await w.settle()
        assert await w.state("t") == (-1, 2, (2,))


async def test_notifications_are_seen_once_and_bad_ones_passed_over(autojump_clock: MockClock) -> None:  # 1.35, 1.36
    async with world(brokers=()) as w:
        put: list[ControllerEvent] = []
        configs = ConfigChanges(w.zk, BrokerId(1), static=False, put=put.append)
        for name in ("a", "b"):
            await configure(w, "topics", name, "true")
        for bad in (b"", b"[]", b'{"version":3,"entity_path":"topics/a"}', b'{"version":2,"entity_path":"topics"}'):
            await notify(w, bad)
        await notify(w, b'{"version":1,"entity_type":"users","entity_name":"a"}')
        await configure(w, "brokers", "<default>", "true")
        await configure(w, "users", "u", "true")
        await configure(w, "topics", "c", "true")
        await configs.start()
        topics = [TopicUncleanLeaderElectionEnabled(name) for name in ("a", "b", "c")]
        assert put == topics  # the broker's default was read before its notification: it did not change
        put.clear()
        await configure(w, "brokers", "1", "false")
        assert put == [ConfigChangesNotified()]
        await configs.notified()
        await configure(w, "brokers", "1", "true")
        await configs.notified()
        assert put[-1] == UncleanLeaderElectionEnabled()


@pytest.mark.kafka("NCL-1")
async def test_old_notifications_are_removed(autojump_clock: MockClock) -> None:  # rule 1.36
    async with world(brokers=()) as w:
        for name in ("a", "b"):
            await configure(w, "topics", name, "true")
        stats = await w.store.exists([f"/config/changes/config_change_{n:010d}" for n in range(2)])
        oldest = stats[0]
        assert oldest is not None
        for now, left in ((oldest.ctime + CHANGE_EXPIRATION_MS, 2), (oldest.ctime + CHANGE_EXPIRATION_MS + 10**6, 0)):
            late = KafkaZkClient(w.store, now_ms=lambda now=now: now)  # type: ignore[misc]
            put: list[ControllerEvent] = []
            configs = ConfigChanges(late, BrokerId(1), static=False, put=put.append)
            await configs.start()
            assert len(await w.zk.get_children("/config/changes")) == left
            await configs.notified()  # what is left has been seen
            followed = [event for event in put if event != ConfigChangesNotified()]
            assert followed == [TopicUncleanLeaderElectionEnabled(name) for name in ("a", "b")]


@pytest.mark.kafka("NCL-2")
async def test_a_change_that_cannot_be_followed_is_passed_over(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:  # rule 1.36
    async with world(brokers=()) as w:
        followed: list[str] = []

        def follow(kind: str, name: str, config: Mapping[str, str]) -> None:
            if name == "bad":
                raise RuntimeError("broken for the test")
            followed.append(name)

        configs = ConfigChanges(w.zk, BrokerId(1), static=False, put=lambda _: None, on_client_config=follow)
        await configs.start()
        for name in ("one", "bad", "two"):
            await configure(w, "clients", name, "true")
        await configs.notified()
        assert followed == ["one", "two"]
        assert "config_change_0000000001 could not be followed" in caplog.text
        await configs.notified()
        assert followed == ["one", "two"]


async def test_a_new_session_listens_again(autojump_clock: MockClock) -> None:  # rule 1.36
    async with world() as w:
        await w.start_controller(1)
        await offline_partition(w)
        w.server.expire(w.nodes[1].store)
        await w.settle()
        assert (await w.state("t"))[0] == -1
        await configure(w, "topics", "t", "true")
        assert (await w.state("t"))[0] == 3
