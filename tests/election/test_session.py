"""Watchers, subscribers and shared writes of one session; connections are in test_connection.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio

from kce.election.session import ConnectionState, ElectionSession
from kce.zookeeper.store import (
    Check,
    Create,
    Delete,
    NoAuth,
    NoNode,
    NotEmpty,
    Op,
    OpResult,
    SetData,
    StoreError,
    WatchType,
)
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper


class Scripted(MemoryStore):
    """Records writes; answers the next ones with errors."""

    def __init__(self, server: MemoryZooKeeper) -> None:
        super().__init__(server, 77)
        self.written: list[Op] = []
        self.errors: list[type[Any]] = []

    async def write(self, ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
        self.written += ops
        if self.errors:
            error = self.errors.pop(0)
            return [error(op.path) for op in ops]
        return await super().write(ops, fence=fence)


@pytest.fixture
def store() -> Scripted:
    return Scripted(MemoryZooKeeper())


@pytest.fixture
def session(store: Scripted, nursery: trio.Nursery) -> ElectionSession:
    return ElectionSession(store, nursery)


async def test_watchers_of_a_node(session: ElectionSession, store: Scripted) -> None:
    fired: list[tuple[str, WatchType]] = []
    first = session.watch("/a", lambda kind: fired.append(("first", kind)))
    second = session.watch("/a", lambda kind: fired.append(("second", kind)))
    await store.exists(["/a", "/b"], watch=True)
    await store.write([Create("/a"), Create("/b")])
    assert fired == [("first", WatchType.CREATED), ("second", WatchType.CREATED)]
    for _ in range(2):  # harmless
        first()
    await store.get_data(["/a"], watch=True)
    await store.get_children(["/a"], watch=True)
    await store.write([Create("/a/x"), SetData("/a", b"")])
    assert fired[2:] == [("second", WatchType.CHANGED)]  # children do not matter
    second()
    assert session._watchers == {}
    second()


async def test_subscribers_that_are_gone(session: ElectionSession, store: Scripted) -> None:
    states: list[object] = []
    cancel = session.subscribe(states.append)
    store._server.disconnect(store)
    assert len(states) == 1
    for _ in range(2):
        cancel()
    store._server.reconnect(store)
    assert len(states) == 1


@pytest.mark.parametrize("container", [False, True])
async def test_parents(session: ElectionSession, store: Scripted, container: bool) -> None:  # rule E1.15
    await session.make_parents("/a/b/c/d", container=container)
    assert store.written == [Create(path, container=container) for path in ("/a", "/a/b", "/a/b/c")]
    await session.make_parents("/a/b/c/d")
    store.errors = [NoNode]  # deleted meanwhile
    await session.make_parents("/a/b/c/d")


SHARED: dict[str, Callable[[ElectionSession], Awaitable[None]]] = {
    "make_parents": lambda session: session.make_parents("/x/y"),
    "delete_if_there": lambda session: session.delete_if_there("/a"),
    "delete_tree": lambda session: session.delete_tree("/a"),
}


@pytest.mark.parametrize("operation", SHARED)
async def test_what_is_refused_is_raised(session: ElectionSession, store: Scripted, operation: str) -> None:
    await store.write([Create("/a")])
    store.errors = [NoAuth]
    with pytest.raises(NoAuth):
        await SHARED[operation](session)


async def test_trees_that_others_change_meanwhile(session: ElectionSession, store: Scripted) -> None:  # rule E11.17
    for operation in ("delete_if_there", "delete_tree"):
        await SHARED[operation](session)
    await store.write([Create("/a"), Create("/a/b")])
    store.written.clear()
    store.errors = [NoNode, NotEmpty]
    await session.delete_tree("/a")
    assert store.written == [Delete(path) for path in ("/a/b", "/a", "/a/b", "/a")]
    assert await store.exists(["/a"]) == [None]
    await store.write([Create("/a"), Create("/a/b")])
    store.errors = [NoNode, NoNode]
    await session.delete_tree("/a")
    assert store.errors == []


async def test_nobody_waits_without_a_connection(session: ElectionSession) -> None:  # rule E1.14
    session.state = ConnectionState.SUSPENDED
    with trio.fail_after(1):
        await session.while_connected(trio.Event())
