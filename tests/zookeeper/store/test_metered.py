"""A store that measures passes everything on.

Covers: kce.zookeeper.store.metered
"""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kce.zookeeper.store import Check, Create, MultiFailed, NoNode, SetData, Stat, WatchEvent, value
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper
from kce.zookeeper.store.metered import MeteredStore


@pytest.fixture
def inner() -> MemoryStore:
    return MemoryZooKeeper().connect(session_timeout_ms=7000)


async def test_reads_are_passed_on_with_their_watches(inner: MemoryStore) -> None:
    store, fired, observed = MeteredStore(inner, lambda ms: observed.append(ms)), list[WatchEvent](), list[float]()
    store.on_watch = fired.append
    assert store.on_watch == inner.on_watch
    await store.write([Create("/a", b"1")])
    for read in (store.get_data, store.exists, store.get_children):
        for watch in (False, True):
            fired.clear()
            (answer,) = await read(["/a"], watch=watch)  # type: ignore[operator]
            assert not isinstance(answer, Exception)
            await inner.write([SetData("/a", b"2"), Create("/a/child-", sequential=True)])
            assert bool(fired) is watch
    assert await store.get_decoded(["/a"], lambda data, version: (data, version)) == [(b"2", 6)]
    assert len(observed) == 8


async def test_writes_are_passed_on_with_their_fence(inner: MemoryStore) -> None:
    store = MeteredStore(inner, lambda ms: None)
    (made,) = await store.multi([[Create("/a", b"1"), SetData("/a", b"2", 0)]])
    assert isinstance(made, list)
    with pytest.raises(MultiFailed):
        await store.write([SetData("/a", b"3")], fence=Check("/a", 0))
    assert value((await store.get_data(["/a"]))[0]).data == b"2"
    (answer,) = await store.get_data(["/none"])
    assert isinstance(answer, NoNode)


async def test_access_control_lists_and_the_session_are_passed_on() -> None:
    server = MemoryZooKeeper()
    inner = server.connect(session_timeout_ms=7000)
    store = MeteredStore(inner, lambda ms: None)
    assert (store.session_id, store.session_timeout_ms) == (inner.session_id, 7000)
    store.on_session = print
    assert store.on_session == inner.on_session == print
    await store.write([Create("/a", b"1", ephemeral=True)])
    (acls,) = await store.get_acl(["/a"])
    assert not isinstance(acls, Exception)
    (stat,) = await store.set_acl(["/a"], acls)
    assert isinstance(stat, Stat)
    assert server.peek("/a") == (b"1", 0)
    await store.aclose()
    assert server.peek("/a") is None


async def test_the_latency_is_that_of_the_call(inner: MemoryStore, autojump_clock: MockClock) -> None:  # rule 12.8
    observed = list[float]()
    store = MeteredStore(inner, observed.append)

    async def slow(*_: object, **__: object) -> list[object]:
        await trio.sleep(0.25)
        raise ConnectionError

    inner.exists = slow  # type: ignore[method-assign,assignment]
    with pytest.raises(ConnectionError):
        await store.exists(["/a"])
    assert observed == [pytest.approx(250)]
