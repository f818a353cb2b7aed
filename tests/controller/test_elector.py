"""Kafka's elector and its contender (E12)."""

from __future__ import annotations

import pytest

from kce.controller.context import ControllerContext
from kce.controller.elector import ControllerContender, ControllerElector, ControllerToken
from kce.zookeeper.client import ChangeHandler
from kce.zookeeper.errors import ControllerMoved
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import BrokerId
from kce.zookeeper.store import Delete, SessionExpired, SetData
from kce.zookeeper.store.memory import MemoryZooKeeper


class Contender(ControllerContender):
    def __init__(self) -> None:
        self.calls: list[object] = []
        self.failure: Exception | None = None

    async def grant_leadership(self, token: ControllerToken) -> None:
        self.calls.append(token.epoch)
        if self.failure is not None:
            raise self.failure

    async def revoke_leadership(self) -> None:
        self.calls.append("revoke")

    async def handle_error(self, error: Exception) -> None:
        self.calls.append(error)


class RegisteredBroker:
    def __init__(self, server: MemoryZooKeeper, broker_id: int) -> None:
        self.changes: list[str] = []
        self.contender = Contender()
        self.zk = KafkaZkClient(server.connect(), now_ms=lambda: 0)
        on_change = ChangeHandler(
            changed=lambda: self.changes.append("changed"), deleted=lambda: self.changes.append("deleted")
        )
        self.elector = ControllerElector(self.zk, BrokerId(broker_id), ControllerContext(), self.contender, on_change)


async def brokers() -> tuple[RegisteredBroker, RegisteredBroker]:
    server = MemoryZooKeeper()
    first, second = RegisteredBroker(server, 1), RegisteredBroker(server, 2)
    await first.zk.create_top_level_paths()
    await first.elector.start()
    await first.elector.maybe_resign()  # as its own creation of the node makes it do, which sets the watch again
    await second.elector.start()
    return first, second


async def test_a_win_is_a_grant_with_the_epoch_for_a_token() -> None:  # E12.4, E12.6
    first, second = await brokers()
    assert (first.contender.calls, second.contender.calls) == ([1], [])
    assert (first.elector.has_leadership, second.elector.has_leadership) == (True, False)
    assert second.elector.active_controller_id == 1


async def test_who_wins_knows_it_at_once() -> None:  # rules 2.5, 2.12
    """Before its own creation of the node wakes it."""
    broker = RegisteredBroker(MemoryZooKeeper(), 1)
    await broker.zk.create_top_level_paths()
    await broker.elector.start()
    assert (broker.elector.active_controller_id, broker.elector.has_leadership) == (1, True)


async def test_everyone_is_woken_when_the_node_goes_and_the_leader_resigns() -> None:  # E12.3, E12.9
    first, second = await brokers()
    await second.zk.store.write([Delete("/controller")])
    assert (first.changes, second.changes) == (["deleted"], ["deleted"])
    for broker in (second, first):
        await broker.elector.maybe_resign()
        await broker.elector.elect()
    assert first.contender.calls == [1, "revoke"]
    assert second.contender.calls == [2]


async def test_an_overwritten_node_is_believed() -> None:  # E12.10
    first, second = await brokers()
    await second.zk.store.write([SetData("/controller", b'{"version":2,"brokerid":2,"timestamp":"0"}')])
    await first.elector.maybe_resign()
    assert first.contender.calls == [1, "revoke"]
    assert first.elector.active_controller_id == 2


async def test_a_contender_that_fails_gives_the_role_up() -> None:  # rules 2.13, 2.19
    first, second = await brokers()
    second.contender.failure = RuntimeError("not today")
    await first.zk.store.write([Delete("/controller")])
    await second.elector.elect()
    assert second.contender.calls == [2, second.contender.failure, "revoke"]
    assert await first.zk.get_controller_id() is None
    second.contender.failure = ControllerMoved("somebody was faster")
    await second.elector.elect()
    assert second.contender.calls[3:] == [3]
    assert second.elector.active_controller_id == 2  # rule 2.16: the node still names it


async def test_expiry_revokes_whoever_asks() -> None:  # rule 2.30
    first, second = await brokers()
    for broker in (first, second):
        await broker.elector.session_expired()
        assert broker.contender.calls[-1] == "revoke"
        assert broker.elector.active_controller_id is None


async def test_a_session_that_expires_in_an_election_is_nobodys_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new session will elect; nothing is forced (rule 2.13)."""
    broker = RegisteredBroker(MemoryZooKeeper(), 1)

    async def expired(broker_id: int) -> None:
        raise SessionExpired("gone")

    monkeypatch.setattr(broker.zk, "register_controller", expired)
    with pytest.raises(SessionExpired, match="gone"):
        await broker.elector.elect()
    assert broker.contender.calls == []
