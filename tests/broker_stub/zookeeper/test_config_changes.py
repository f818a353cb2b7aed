"""Configuration changes at run time and their effect on the controller (rules 1.34-1.36, 7.4, 11.69)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio
from trio.testing import MockClock

from kce.broker_stub.zookeeper.config_changes import ConfigChangeListener
from kce.broker_stub.zookeeper.notifications import CHANGE_EXPIRATION_MS
from kce.zookeeper import cluster_nodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import Create, SetData, value
from tests.controller.support import World, world


async def configure(w: World, entity_type: str, entity: str, setting: str | None) -> None:
    """Like `kafka-configs`: write the configuration, then the notification."""
    path = f"/config/{entity_type}/{entity}"
    await w.zk.ensure_paths([path])
    config = {} if setting is None else {"unclean.leader.election.enable": setting}
    await w.store.write([SetData(path, cluster_nodes.encode_config(config))])
    await notify(w, f'{{"version":2,"entity_path":"{entity_type}/{entity}"}}'.encode())


async def notify(w: World, content: bytes) -> None:
    value((await w.store.write([Create("/config/changes/config_change_", content, sequential=True)]))[0])
    await w.settle()


async def offline_partition(w: World, topic: str = "t") -> None:
    """A partition on [2, 3] with ISR [2]; 2 is dead, 3 alive."""
    await w.create_topic(topic, {0: [2, 3]})
    for gone in (3, 2):
        await w.stop_broker(gone)
        await w.settle()
    await w.start_broker(3)
    await w.settle()


@pytest.mark.parametrize("version_1", [True, False])
async def test_a_topic_setting_enables_unclean_election(autojump_clock: MockClock, version_1: bool) -> None:  # 11.69
    async with world() as w:
        await w.start_controller(1)
        await offline_partition(w)
        await w.create_topic("u", {0: [2]})
        assert await w.state("t") == (-1, 2, (2,))
        await configure(w, "topics", "t", "false")
        assert await w.state("t") == (-1, 2, (2,))
        if version_1:
            await w.store.write(
                [SetData("/config/topics/t", cluster_nodes.encode_config({"unclean.leader.election.enable": "true"}))]
            )
            await notify(w, b'{"version":1,"entity_type":"topics","entity_name":"t"}')
        else:
            await configure(w, "topics", "t", "true")
        assert await w.state("t") == (3, 3, (3,))


@pytest.mark.parametrize("entity", ["<default>", "1"])
async def test_a_broker_setting_enables_unclean_election(autojump_clock: MockClock, entity: str) -> None:  # rule 11.69
    async with world() as w:
        await w.start_controller(1)
        await offline_partition(w)
        await configure(w, "brokers", "2", "true")  # another broker's setting
        await configure(w, "brokers", entity, "nonsense")
        assert await w.state("t") == (-1, 2, (2,))
        await configure(w, "brokers", entity, "true")
        assert await w.state("t") == (3, 3, (3,))


async def test_the_brokers_own_setting_overrides_the_default(autojump_clock: MockClock) -> None:  # rule 7.4
    async with world() as w:
        for entity, setting in (("<default>", "true"), ("1", "false")):
            await configure(w, "brokers", entity, setting)
        await w.start_controller(1, unclean_leader_election_enable=True)
        await offline_partition(w)
        assert await w.state("t") == (-1, 2, (2,))
        await configure(w, "brokers", "1", None)
        assert await w.state("t") == (3, 3, (3,))


async def test_an_unreadable_setting_fails_the_election(autojump_clock: MockClock) -> None:  # rule 7.4
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


async def test_notifications_are_applied_once_and_bad_ones_skipped(autojump_clock: MockClock) -> None:  # 1.35, 1.36
    async with world(brokers=()) as w:
        enabled: list[str | None] = []
        configs = ConfigChangeListener(w.zk, 1, static_unclean=False, on_unclean_election_enabled=enabled.append)
        for name in ("a", "b"):
            await configure(w, "topics", name, "true")
        for bad in (b"", b"[]", b'{"version":3,"entity_path":"topics/a"}', b'{"version":2,"entity_path":"topics"}'):
            await notify(w, bad)
        await notify(w, b'{"version":1,"entity_type":"users","entity_name":"a"}')
        await configure(w, "brokers", "<default>", "true")
        await configure(w, "users", "u", "true")
        await configure(w, "topics", "c", "true")
        await configs.read()
        assert enabled == ["a", "b", "c"]  # the default had been read before its notification, so nothing changed
        await configure(w, "brokers", "1", "false")
        await configs.read_notifications()
        assert enabled == ["a", "b", "c"]
        await configure(w, "brokers", "1", "true")
        await configs.read_notifications()
        assert enabled == ["a", "b", "c", None]


@pytest.mark.kafka("NCL-1")
async def test_notifications_are_applied_as_they_come(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:  # rule 1.36
    async with world(brokers=()) as w:
        followed: list[str] = []
        configs = ConfigChangeListener(
            w.zk, 1, static_unclean=False, on_client_config=lambda kind, name, config: followed.append(name)
        )
        await nursery.start(configs.run)
        names = [f"client-{number}" for number in range(10)]
        for sent in (names[:1], names[1:2], names[2:]):
            before = len(followed)
            for name in sent:
                await configure(w, "clients", name, "true")
            assert followed[before:] == sent
        assert followed == names
        nursery.cancel_scope.cancel()


async def test_old_notifications_are_removed(autojump_clock: MockClock) -> None:  # rule 1.36
    async with world(brokers=()) as w:
        for name in ("a", "b"):
            await configure(w, "topics", name, "true")
        stats = await w.store.exists([f"/config/changes/config_change_{n:010d}" for n in range(2)])
        oldest = stats[0]
        assert oldest is not None
        for now, left in ((oldest.ctime + CHANGE_EXPIRATION_MS, 2), (oldest.ctime + CHANGE_EXPIRATION_MS + 10**6, 0)):
            late = KafkaZkClient(w.store, now_ms=lambda now=now: now)  # type: ignore[misc]
            enabled: list[str | None] = []
            configs = ConfigChangeListener(late, 1, static_unclean=False, on_unclean_election_enabled=enabled.append)
            await configs.read()
            assert len(await w.zk.get_children("/config/changes")) == left
            await configs.read_notifications()  # the rest has been seen
            assert enabled == ["a", "b"]


@pytest.mark.kafka("NCL-2")
async def test_a_change_that_cannot_be_applied_is_skipped(
    autojump_clock: MockClock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:  # rule 1.36
    async with world(brokers=()) as w:
        followed: list[str] = []

        def follow(kind: str, name: str, config: Mapping[str, str]) -> None:
            followed.append(name)
            if name == "bad":
                raise RuntimeError("broken for the test")

        configs = ConfigChangeListener(w.zk, 1, static_unclean=False, on_client_config=follow)
        await nursery.start(configs.run)
        for name in ("one", "bad", "two"):
            await configure(w, "clients", name, "true")
        assert followed == ["one", "bad", "two"]
        assert "could not apply the configuration change in /config/changes/config_change_0000000001" in caplog.text
        await configs.read_notifications()
        assert followed == ["one", "bad", "two"]
        nursery.cancel_scope.cancel()


async def test_a_new_session_watches_again(autojump_clock: MockClock) -> None:  # rule 1.36
    async with world() as w:
        await w.start_controller(1)
        await offline_partition(w)
        w.server.expire(w.nodes[1].store)
        await w.settle()
        assert (await w.state("t"))[0] == -1
        await configure(w, "topics", "t", "true")
        assert (await w.state("t"))[0] == 3


async def test_the_brokers_own_settings_override_the_defaults(autojump_clock: MockClock) -> None:  # rule B1.52
    async with world() as w:
        await w.start_controller(1)
        followed: list[tuple[Mapping[str, str], ...]] = []
        addresses: list[tuple[str, str]] = []
        configs = ConfigChangeListener(
            w.zk,
            1,
            static_unclean=False,
            on_broker_config=lambda *both: followed.append(both),
            on_client_config=lambda kind, name, config: addresses.append((kind, name)),
        )
        await configs.read()
        assert followed == []
        for kind, name, config in (
            ("brokers", "<default>", {"max.connections": "5", "max.connections.per.ip": "2"}),
            ("brokers", "1", {"max.connections": "7"}),
            ("brokers", "2", {"max.connections": "9"}),
            ("ips", "10.0.0.1", {"connection_creation_rate": "3"}),
        ):
            await w.zk.change_config(kind, name, config)
        await configs.read_notifications()
        default = {"max.connections": "5", "max.connections.per.ip": "2"}
        assert followed == [({}, default), ({"max.connections": "7"}, default)]
        assert addresses == [("ips", "10.0.0.1")]
