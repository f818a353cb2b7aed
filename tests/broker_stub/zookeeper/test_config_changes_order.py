"""What a listener to configuration changes reads, in which order, and when ZooKeeper refuses it (rules 1.34 to 1.36).

Covers: broker_stub/zookeeper/config_changes.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kce.broker_stub.zookeeper.config_changes import ConfigChangeListener
from kce.broker_stub.zookeeper.notifications import CHANGE_EXPIRATION_MS
from kce.zookeeper import cluster_nodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import (
    Check,
    Create,
    Delete,
    NoAuth,
    NodeData,
    NoNode,
    Op,
    OpResult,
    SessionExpired,
    SessionState,
    SetData,
    StoreError,
    value,
)
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper

CHANGES = "/config/changes"


class Refusing(MemoryStore):
    """Fails the next operations of a kind with these errors, and records what is deleted."""

    def __init__(self, server: MemoryZooKeeper) -> None:
        super().__init__(server, 77)
        self.errors: dict[type[Any], list[type[Any]]] = {Delete: [], NodeData: []}
        self.deleted: list[str] = []
        self.lost = False

    async def get_data(
        self, paths: Sequence[str], *, watch: Sequence[bool] | bool = False
    ) -> list[NodeData | StoreError]:
        if self.lost:
            raise SessionExpired("gone")
        found = await super().get_data(paths, watch=watch)
        errors = self.errors[NodeData]
        return [errors.pop(0)(path) if errors else answer for path, answer in zip(paths, found, strict=True)]

    async def write(self, ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
        self.deleted += [op.path for op in ops if isinstance(op, Delete)]
        errors = self.errors[Delete]
        if errors and ops and isinstance(ops[0], Delete):
            return [errors.pop(0)(op.path) for op in ops]
        return await super().write(ops, fence=fence)


class Fixture:
    """Broker 1, whose clock stands still; ``told`` has each call, in order."""

    def __init__(self) -> None:
        self.now_ms = 10**9
        self.server = MemoryZooKeeper(lambda: self.now_ms)
        self.store = Refusing(self.server)
        self.zk = KafkaZkClient(self.store, now_ms=lambda: self.now_ms)
        self.told: list[tuple[Any, ...]] = []
        self.listener = ConfigChangeListener(
            self.zk,
            1,
            static_unclean=False,
            on_unclean_election_enabled=lambda topic: self.told.append(("unclean", topic)),
            on_client_config=lambda kind, name, config: self.told.append((kind, name, dict(config))),
            on_broker_config=lambda own, default: self.told.append(("broker", {**default, **own})),
            on_topic_config=lambda topic, config: self.told.append(("topic", topic, dict(config))),
        )

    async def put(self, path: str, config: Mapping[str, str] | None = None) -> None:
        await self.zk.ensure_paths([path.rpartition("/")[0]])
        data = b"" if config is None else cluster_nodes.encode_config(config)
        value((await self.store.write([Create(path, data)]))[0])

    async def notify(self, name: str, kind: str, entity: str) -> None:
        change = cluster_nodes.encode_config_change(kind, entity)
        value((await self.store.write([Create(f"{CHANGES}/{name}", change)]))[0])


@pytest.fixture
async def f() -> Fixture:
    made = Fixture()
    await made.zk.create_top_level_paths()
    return made


async def test_what_is_read_at_startup(f: Fixture) -> None:
    await f.put("/config/brokers/1", {"max.connections": "7"})
    await f.put("/config/brokers/2", {"max.connections": "8"})
    await f.put("/config/clients/c", {"a": "1"})
    await f.put("/config/users/u", {"b": "2"})
    await f.put("/config/users/u/clients/d", {"c": "3"})
    await f.put("/config/users/v/clients/e", {"d": "4"})
    await f.put("/config/ips/10.0.0.1", {"e": "5"})
    await f.put("/config/ips/10.0.0.2")
    await f.put("/config/topics/t", {"f": "6"})
    await f.listener.read()
    assert f.told[0] == ("broker", {"max.connections": "7"})
    assert sorted(f.told[1:], key=str) == sorted(
        [
            ("clients", "c", {"a": "1"}),
            ("users", "u", {"b": "2"}),
            ("users", "v", {}),
            ("users", "u/clients/d", {"c": "3"}),
            ("users", "v/clients/e", {"d": "4"}),
            ("ips", "10.0.0.1", {"e": "5"}),
            ("ips", "10.0.0.2", {}),
        ],
        key=str,
    )
    f.told.clear()
    await f.store.write([SetData("/config/clients/c", b"rubbish")])
    await f.listener.read()  # of the broker nothing is new
    assert ("clients", "c", {}) in f.told
    assert not any(what[0] == "broker" for what in f.told)


async def test_clients_come_before_notifications(f: Fixture) -> None:
    await f.put("/config/clients/c", {"a": "1"})
    await f.put("/config/topics/t", {"retention.ms": "1"})
    await f.notify("config_change_0000000000", "topics", "t")
    await f.listener.read()
    assert f.told == [("clients", "c", {"a": "1"}), ("topic", "t", {"retention.ms": "1"})]


async def test_notifications_go_by_their_numbers(f: Fixture) -> None:
    for name in "abcd":
        await f.put(f"/config/topics/{name}", {"unclean.leader.election.enable": "TRUE" if name == "d" else "false"})
    for name, topic in (
        ("x_0000000002", "c"), ("y_0000000000", "a"), ("config_change_0000000001", "b"), ("no number", "d"),
    ):  # fmt: skip
        await f.notify(name, "topics", topic)
    await f.listener.read_notifications()
    assert [topic for what, topic, *_ in f.told if what == "topic"] == ["a", "b", "c"]
    f.told.clear()
    await f.notify("z_0000000002", "topics", "d")  # no greater than the last
    await f.listener.read_notifications()
    assert f.told == []
    await f.notify("z_0000000003", "topics", "d")
    await f.notify("z_0000000004", "topics", "unknown")
    await f.notify("z_0000000005", "brokers", "2")
    await f.notify("z_0000000006", "things", "x")
    await f.notify("z_0000000007", "clients", "c")
    await f.listener.read_notifications()
    assert f.told == [
        ("topic", "d", {"unclean.leader.election.enable": "TRUE"}), ("unclean", "d"), ("topic", "unknown", {}),
        ("clients", "c", {}),
    ]  # fmt: skip


async def test_which_notifications_are_removed(f: Fixture, caplog: pytest.LogCaptureFixture) -> None:
    begun = f.now_ms
    await f.notify("x_0000000000", "topics", "a")
    f.now_ms += 1
    await f.notify("x_0000000001", "topics", "a")
    f.now_ms = begun + CHANGE_EXPIRATION_MS
    await f.listener.read()
    assert f.store.deleted == []
    f.now_ms += 1
    await f.listener.read()
    assert f.store.deleted == [f"{CHANGES}/x_0000000000"]
    f.now_ms += 1
    f.store.errors[Delete] = [NoNode]  # another broker was first
    await f.listener.read()
    assert caplog.text == ""
    f.store.errors[Delete] = [NoAuth]
    await f.listener.read()
    assert "the configuration in ZooKeeper could not be read" in caplog.text
    assert f.store.deleted == [f"{CHANGES}/x_0000000000", *[f"{CHANGES}/x_0000000001"] * 2]


async def test_the_default_and_the_brokers_own_settings(f: Fixture) -> None:  # rule 7.4
    def setting(enabled: str) -> dict[str, str]:
        return {"unclean.leader.election.enable": enabled}

    async def after(number: int, entity: str, config: dict[str, str]) -> tuple[bool, list[tuple[Any, ...]]]:
        f.told.clear()
        await f.store.write([SetData(f"/config/brokers/{entity}", cluster_nodes.encode_config(config))])
        await f.notify(f"x_{number:010d}", "brokers", entity)
        await f.listener.read_notifications()
        return f.listener.unclean_leader_election_enable, list(f.told)

    for entity in ("1", "<default>"):
        await f.put(f"/config/brokers/{entity}", {})
    yes, no = setting("true"), setting("false")
    assert await after(0, "<default>", yes) == (True, [("broker", yes), ("unclean", None)])
    assert await after(1, "1", no) == (False, [("broker", no)])
    assert await after(2, "1", setting("perhaps")) == (False, [("broker", setting("perhaps"))])
    assert await after(3, "1", {}) == (True, [("broker", yes), ("unclean", None)])
    assert await after(4, "1", yes) == (True, [("broker", yes)])
    assert await after(5, "<default>", {}) == (True, [("broker", yes)])
    assert await after(6, "1", {}) == (False, [("broker", {})])
    assert await after(7, "1", {}) == (False, [])


async def test_it_goes_on_after_errors(f: Fixture, nursery: trio.Nursery) -> None:
    await f.put("/config/topics/t", {"a": "1"})
    await nursery.start(f.listener.run)
    f.store.lost = True
    await f.notify("x_0000000000", "topics", "t")
    await wait_all_tasks_blocked()
    assert f.told == []
    f.store.lost = False
    await f.put("/config/clients/c", {"a": "1"})
    f.listener.session_changed(SessionState.CONNECTED)
    await wait_all_tasks_blocked()
    assert f.told == []
    f.listener.session_changed(SessionState.ESTABLISHED)
    await wait_all_tasks_blocked()
    assert f.told == [("clients", "c", {"a": "1"}), ("topic", "t", {"a": "1"})]
    f.told.clear()
    await f.notify("x_0000000001", "topics", "t")
    await wait_all_tasks_blocked()
    assert f.told == [("topic", "t", {"a": "1"})]
    f.store.errors[NodeData] = [NoAuth] * 3  # each notification
    await f.notify("x_0000000002", "topics", "t")
    await wait_all_tasks_blocked()
    assert len(f.told) == 1
    await f.listener.read_notifications()
    assert len(f.told) == 2  # read again
    nursery.cancel_scope.cancel()
