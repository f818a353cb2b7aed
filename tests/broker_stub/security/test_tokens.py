"""Delegation tokens when the store fails, in which order it is written, and what becomes of tokens by themselves.

Covers: broker_stub/zookeeper/token_store.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce.broker_stub.security.tokens import DelegationTokenManager
from kce.broker_stub.zookeeper.token_store import TokenChanges, ZkTokenStore
from kce.zookeeper import security_nodes
from kce.zookeeper.security_nodes import TokenInformation
from kce.zookeeper.store import SessionState
from kce.zookeeper.store.memory import MemoryStore
from tests.broker_stub.conformance.test_delegation_token_manager import HOUR, OWNER, RENEW, World, password


class Unwritable:
    async def read(self, token_id: str) -> TokenInformation | None:
        raise OSError

    async def write(self, token: TokenInformation) -> None:
        raise OSError

    async def delete(self, token_id: str) -> None:
        raise OSError


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        yield World(nursery)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def manager(world: World) -> DelegationTokenManager:
    return await world.start()


async def test_what_could_not_be_written_has_not_happened(world: World, manager: DelegationTokenManager) -> None:
    token = await manager.create(OWNER, OWNER, [], -1)
    manager._store = Unwritable()
    with pytest.raises(OSError):  # noqa: PT011
        await manager.create(OWNER, OWNER, [], -1)
    with pytest.raises(OSError):  # noqa: PT011
        await manager.renew(OWNER, password(token), HOUR)
    with pytest.raises(OSError):  # noqa: PT011
        await manager.expire(OWNER, password(token), -1)
    assert list(manager.tokens()) == [token]


async def test_a_token_expires_before_its_longest_life_ends(world: World, manager: DelegationTokenManager) -> None:
    await manager.create(OWNER, OWNER, [], -1)
    world.now += RENEW
    await manager.expire_tokens()
    assert len(manager.tokens()) == 1
    world.now += 1
    await manager.expire_tokens()
    assert not manager.tokens()


async def test_news_of_a_token_that_was_never_known(manager: DelegationTokenManager) -> None:
    await manager.reload("gone before it was read")
    assert not manager.tokens()


async def test_the_store_is_written_before_others_are_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("set_or_create_token", "delete_token", "notify_token_change"):

        async def note(*args: object, name: str = name) -> None:
            done.append(name)

        monkeypatch.setattr(security_nodes, name, note)
    store = ZkTokenStore(world.client())
    await store.write(TokenInformation("id", "User:a", "User:a", (), 1, 2, 3))
    await store.delete("id")
    assert done == ["set_or_create_token", "notify_token_change", "delete_token", "notify_token_change"]


async def test_when_expired_tokens_are_looked_for(world: World, autojump_clock: MockClock) -> None:
    """Rule 4.20."""
    manager = await world.start(delegation_token_expiry_check_interval_ms="1500")
    began, looked = trio.current_time(), []

    def is_controller() -> bool:
        looked.append(trio.current_time() - began)
        return False

    world.nursery.start_soon(manager.run, is_controller)
    await trio.sleep(4)
    assert looked == [0, 1.5, 3]


async def test_a_failure_to_remove_is_not_the_last_attempt(
    world: World, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    manager = await world.start(delegation_token_expiry_check_interval_ms="1000")
    await manager.create(OWNER, OWNER, [], HOUR)
    world.now += 2 * HOUR
    store, manager._store = manager._store, Unwritable()
    world.nursery.start_soon(manager.run, lambda: True)
    await trio.sleep(0.5)
    assert "could not be removed" in caplog.text
    manager._store = store
    await trio.sleep(1)
    assert not manager.tokens()


async def test_a_controller_removes_what_it_finds_expired_at_its_start(world: World) -> None:
    first = await world.start()
    await first.create(OWNER, OWNER, [], HOUR)
    world.now += 2 * HOUR
    zk = world.client()
    second = DelegationTokenManager(first._config, ZkTokenStore(zk), now_ms=lambda: world.now, new_uuid=first._new_uuid)
    await world.nursery.start(TokenChanges(zk, second, lambda: True).run)
    await wait_all_tasks_blocked()
    assert not second.tokens()
    assert not first.tokens()


async def test_changes_of_a_lost_session_are_read_in_the_next(world: World) -> None:
    world.now = 0  # like that of the store, which else has only old notifications
    first = await world.start()
    zk = world.client()
    second = DelegationTokenManager(first._config, ZkTokenStore(zk), now_ms=lambda: world.now, new_uuid=first._new_uuid)
    changes = TokenChanges(zk, second, lambda: False)
    await world.nursery.start(changes.run)
    assert isinstance(zk.store, MemoryStore)
    world.zookeeper.disconnect(zk.store)
    token = await first.create(OWNER, OWNER, [], -1)
    await wait_all_tasks_blocked()
    assert not second.tokens()
    world.zookeeper.reconnect(zk.store)
    changes.session_changed(SessionState.ESTABLISHED)
    await wait_all_tasks_blocked()
    assert list(second.tokens()) == [token]
