"""ZooKeeper's twin in process: whole stats, the order of watches and session states, timeouts.

What it shares with the real one is in test_stores.py.

Covers: zookeeper/store/data_tree.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from kce.zookeeper.store import (
    AUTH_RETRY_MS,
    CREATOR_ALL_ACL,
    OPEN_ACL,
    READ_ACL,
    Acl,
    BadVersion,
    Check,
    Create,
    Delete,
    MultiFailed,
    Permission,
    SessionExpired,
    SessionState,
    SetData,
    Stat,
    WatchEvent,
    WatchType,
)
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper

#: ids of the first sessions
FIRST, SECOND, THIRD = 0x1000, 0x1001, 0x1002


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


async def test_stats_after_every_kind_of_change() -> None:
    clock = Clock()
    server = MemoryZooKeeper(clock)
    store = server.connect()

    async def stats(*paths: str) -> list[Stat | None]:
        return await store.exists(paths)

    assert await stats("/") == [Stat(0, 0, 0, 0, 0, 0, 0, 0)]
    clock.now = 5
    assert await store.write([Create("/a", b"0")]) == ["/a"]
    assert await stats("/", "/a") == [Stat(0, 0, 0, 0, 0, 1, 0, 1), Stat(1, 1, 5, 5, 0, 0, 0, 1)]
    clock.now = 7
    assert await store.write([SetData("/a", b"1", 0)]) == [Stat(1, 2, 5, 7, 1, 0, 0, 1)]
    clock.now = 9
    assert await store.write([Create("/a/e", ephemeral=True)]) == ["/a/e"]
    before = [Stat(1, 2, 5, 7, 1, 1, 0, 3), Stat(3, 3, 9, 9, 0, 0, FIRST, 3)]
    assert await stats("/a", "/a/e") == before
    undone = [
        Create("/a/f"), SetData("/a", b"2"), SetData("/a", b"3"), Delete("/a/e"), Create("/a/f/g"), Check("/a", 99)
    ]  # fmt: skip
    (failed,) = await store.multi([undone])
    assert isinstance(failed, MultiFailed)
    assert (failed.index, type(failed.error)) == (5, BadVersion)
    assert await stats("/a", "/a/e", "/a/f", "/a/f/g") == [*before, None, None]
    assert await store.get_children(["/a", "/a/e"]) == [["e"], []]
    assert server.peek("/a") == (b"1", 1)
    assert await store.write([Delete("/a/e")]) == [None]
    assert await stats("/a") == [Stat(1, 2, 5, 7, 1, 2, 0, 5)]
    assert await store.write([Create("/a/n", sequential=True)]) == ["/a/n0000000002"]
    assert server.peek("/a/e") is None


async def test_the_order_in_which_watches_fire() -> None:
    server = MemoryZooKeeper()
    store, other = server.connect(), server.connect()
    seen: list[Any] = []
    store.on_watch = seen.append
    server.tree.on_set = seen.append

    async def after(*ops: Create | SetData | Delete) -> list[Any]:
        await store.exists(["/p/x"], watch=True)
        await store.get_children(["/p"], watch=True)
        seen.clear()
        await other.multi([ops])
        return list(seen)

    await other.write([Create("/p")])
    parent = WatchEvent(WatchType.CHILDREN, "/p")
    assert await after(Create("/p/x")) == [WatchEvent(WatchType.CREATED, "/p/x"), parent]
    assert await after(SetData("/p/x", b"")) == ["/p/x", WatchEvent(WatchType.CHANGED, "/p/x")]
    assert await after(Delete("/p/x")) == [WatchEvent(WatchType.DELETED, "/p/x"), parent]
    await store.get_data(["/p"], watch=True)
    both = [WatchEvent(WatchType.CREATED, "/p/x"), parent, "/p", WatchEvent(WatchType.CHANGED, "/p")]
    assert await after(Create("/p/x"), SetData("/p", b"")) == both  # once all is done
    await store.get_data(["/p/x"])
    await store.get_children(["/p"])
    seen.clear()
    await other.write([SetData("/p/x", b""), Delete("/p/x")])
    assert seen == ["/p/x"]  # nothing was watched


class Observed:
    """What the client of a session learns, in order: states, with its session then, and events."""

    def __init__(self, store: MemoryStore) -> None:
        self.seen: list[Any] = []
        store.on_watch = self.seen.append
        store.on_session = lambda state: self.seen.append((state, store.session_id, store._connected.is_set()))


async def test_a_session_that_expires() -> None:
    server = MemoryZooKeeper()
    store, other = server.connect(), server.connect()
    assert (store.session_id, other.session_id) == (FIRST, SECOND)
    await store.write([Create("/mine", ephemeral=True), Create("/kept")])
    observed = Observed(store)
    other.on_watch = observed.seen.append
    await store.exists(["/mine", "/kept"], watch=True)
    await other.exists(["/mine"], watch=True)
    server.expire(store)
    assert observed.seen == [
        WatchEvent(WatchType.DELETED, "/mine"),  # the other's; its own watches are gone
        (SessionState.EXPIRED, FIRST, True),
        (SessionState.ESTABLISHED, THIRD, True),
        (SessionState.CONNECTED, THIRD, True),
    ]
    await other.write([SetData("/kept", b"")])
    assert len(observed.seen) == 4
    (root,) = await other.exists(["/"])
    assert root is not None
    assert (root.cversion, root.pzxid) == (3, 3)  # the end of a session is a change of its own


async def test_what_happens_without_a_connection_is_told_later() -> None:
    server = MemoryZooKeeper()
    store, other = server.connect(), server.connect()
    await other.write([Create(path) for path in ("/b", "/c", "/p")])
    observed = Observed(store)
    await store.get_data(["/c", "/b"], watch=True)
    await store.exists(["/a"], watch=True)
    await store.get_children(["/p"], watch=True)
    for _ in range(2):  # once is enough
        server.disconnect(store)
    await other.write([Create("/p/x"), Create("/a"), Delete("/c"), SetData("/b", b"")])
    assert observed.seen == [(SessionState.DISCONNECTED, FIRST, False)]
    for _ in range(2):
        server.reconnect(store)
    assert observed.seen[1:] == [
        (SessionState.CONNECTED, FIRST, True),
        WatchEvent(WatchType.CHANGED, "/b"),
        WatchEvent(WatchType.DELETED, "/c"),
        WatchEvent(WatchType.CREATED, "/a"),
        WatchEvent(WatchType.CHILDREN, "/p"),
    ]
    server.disconnect(store)
    server.reconnect(store)
    assert observed.seen[6:] == [(SessionState.DISCONNECTED, FIRST, False), (SessionState.CONNECTED, FIRST, True)]


@pytest.mark.parametrize("refused", [False, True])
async def test_events_of_a_session_that_ended_are_not_told(
    refused: bool, autojump_clock: trio.testing.MockClock
) -> None:
    server = MemoryZooKeeper()
    store, other = server.connect(), server.connect()
    await other.write([Create("/a")])
    await store.get_data(["/a"], watch=True)
    server.disconnect(store)
    await other.write([SetData("/a", b"")])
    observed = Observed(store)
    if refused:
        server.refuse(store)
        assert observed.seen == [
            (SessionState.AUTH_FAILED, FIRST, False),
            (SessionState.EXPIRED, FIRST, False),
        ]
        await trio.sleep(AUTH_RETRY_MS / 1000 - 0.001)
        assert len(observed.seen) == 2
        await trio.sleep(0.002)
    else:
        server.expire(store)
        assert observed.seen.pop(0) == (SessionState.EXPIRED, FIRST, False)
    assert observed.seen[-2:] == [(SessionState.ESTABLISHED, THIRD, True), (SessionState.CONNECTED, THIRD, True)]
    server.disconnect(store)
    server.reconnect(store)
    assert not any(isinstance(seen, WatchEvent) for seen in observed.seen)


async def test_a_store_that_is_closed_does_not_authenticate_again(autojump_clock: trio.testing.MockClock) -> None:
    server = MemoryZooKeeper()
    store = server.connect()
    observed = Observed(store)
    server.refuse(store)
    await store.aclose()
    await trio.sleep(2 * AUTH_RETRY_MS / 1000)
    assert len(observed.seen) == 2
    assert store.is_closed
    assert not store.is_abandoned


async def test_a_handler_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = MemoryZooKeeper()
    store = server.connect()

    def fail(state: SessionState) -> None:
        raise RuntimeError("the handler's fault")

    store.on_session = fail
    server.expire(store)
    assert store.session_id == SECOND
    assert "a handler of session state SessionState.EXPIRED failed" in caplog.text


async def test_a_session_times_out_without_a_connection(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        server = MemoryZooKeeper(nursery=nursery)
        store = server.connect(session_timeout_ms=4000)
        assert store.session_timeout_ms == 4000
        observed = Observed(store)

        async def fresh() -> None:
            await store.write([Create("/mine", ephemeral=True)])

        await fresh()
        server.disconnect(store)
        await trio.sleep(3)
        server.reconnect(store)  # in time
        await trio.sleep(3)
        assert server.peek("/mine") is not None
        server.disconnect(store)
        await trio.sleep(3.999)
        assert server.peek("/mine") is not None
        await trio.sleep(0.002)
        assert server.peek("/mine") is None
        assert [state for state, *_ in observed.seen] == [
            SessionState.DISCONNECTED, SessionState.CONNECTED, SessionState.DISCONNECTED,
        ]  # fmt: skip
        observed.seen.clear()
        server.reconnect(store)
        assert observed.seen == [
            (SessionState.EXPIRED, FIRST, False),
            (SessionState.ESTABLISHED, SECOND, True),
            (SessionState.CONNECTED, SECOND, True),
        ]
        await fresh()
        server.disconnect(store)
        await trio.sleep(3)
        server.expire(store)  # with a new session, which the timeout does not concern
        await fresh()
        await trio.sleep(3)
        assert server.peek("/mine") is not None
        server.end_session(store)
        assert server.peek("/mine") is None
        observed.seen.clear()
        server.reconnect(store)
        assert [state for state, *_ in observed.seen] == [
            SessionState.EXPIRED, SessionState.ESTABLISHED, SessionState.CONNECTED,
        ]  # fmt: skip


async def fails(operation: Callable[[], Awaitable[Any]], why: str) -> None:
    with pytest.raises(SessionExpired, match=why):
        await operation()


async def test_a_store_that_is_abandoned(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        server = MemoryZooKeeper(nursery=nursery)
        store, other = server.connect(session_timeout_ms=4000), server.connect()
        await store.write([Create("/mine", ephemeral=True)])
        await store.get_data(["/mine"], watch=True)
        observed = Observed(store)
        server.disconnect(store)
        await trio.sleep(3)
        nursery.start_soon(fails, lambda: store.exists(["/mine"]), "the session was abandoned")
        await trio.testing.wait_all_tasks_blocked()
        store.abandon()
        observed.seen.clear()
        await other.write([SetData("/mine", b"")])
        await store.aclose()  # of a dead client: nothing tells the server
        await trio.sleep(3.999)
        assert server.peek("/mine") is not None  # the timeout starts when its client dies
        await trio.sleep(0.002)
        assert server.peek("/mine") is None
        assert observed.seen == []
        assert (store.is_closed, store.is_abandoned) == (True, True)


OPERATIONS: list[Callable[[MemoryStore], Awaitable[Any]]] = [
    lambda store: store.get_data(["/"]),
    lambda store: store.exists(["/"]),
    lambda store: store.get_children(["/"]),
    lambda store: store.write([Check("/", 0)]),
    lambda store: store.multi([[Check("/", 0)]]),
    lambda store: store.get_acl(["/"]),
    lambda store: store.set_acl(["/"], OPEN_ACL),
]


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_every_operation_needs_a_session_and_takes_its_time(
    operation: Callable[[MemoryStore], Awaitable[Any]], autojump_clock: trio.testing.MockClock
) -> None:
    server = MemoryZooKeeper()
    store = server.connect()
    with trio.testing.assert_checkpoints():
        await operation(store)
    assert trio.current_time() == pytest.approx(0)
    store.delay_s = 2
    await operation(store)
    assert trio.current_time() == pytest.approx(2)
    store.delay_s = 0
    server.disconnect(store)
    with trio.move_on_after(1) as waited:
        await operation(store)
    assert waited.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fails, lambda: operation(store), "the session has ended")
        await trio.testing.wait_all_tasks_blocked()
        server.expire(store)
    await store.aclose()
    assert (store.session_id, store.is_closed) == (0, True)
    await fails(lambda: operation(store), "the session has ended")


async def test_closing_ends_the_session_once() -> None:
    server = MemoryZooKeeper()
    store, other = server.connect(), server.connect()
    await store.write([Create("/mine", ephemeral=True)])
    await store.aclose()
    assert server.peek("/mine") is None
    await store.aclose()
    await other.write([Create("/x")])
    (stat,) = await other.exists(["/x"])
    assert stat is not None
    assert stat.czxid == 3


async def test_acls_are_those_of_the_client() -> None:
    server = MemoryZooKeeper()
    both = [("digest", "bob:pw"), ("digest", "alice:secret")]
    store = server.connect(auth=both, acls_of=lambda path: CREATOR_ALL_ACL + READ_ACL)
    await store.write([Create("/a")])
    assert await store.get_acl(["/a"]) == [
        (
            Acl(Permission.ALL, "digest", "alice:aYXlLOpEooaV1cRAvUL1fp9Qt7E="),
            Acl(Permission.ALL, "digest", "bob:ikIaKsbtGweaHnb/jKn7OHqbunM="),
            *READ_ACL,
        )
    ]
    with pytest.raises(ValueError, match="there is no authentication by 'sasl'"):
        server.connect(auth=[("sasl", "x")])


async def test_a_muted_client_is_heard_and_hears_later(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        server = MemoryZooKeeper(nursery=nursery)
        store, other = server.connect(session_timeout_ms=3000), server.connect()
        await other.write([Create("/a")])
        await store.get_data(["/a"], watch=True)
        observed = Observed(store)
        server.mute(store)
        server.mute(store)  # once
        answers: list[object] = []

        async def write() -> None:
            answers.append(await store.write([SetData("/a", b"x", version=0)]))

        nursery.start_soon(write)
        await trio.sleep(1)
        assert (server.peek("/a"), answers, observed.seen) == ((b"x", 1), [], [])
        server.reconnect(store)
        assert observed.seen == [WatchEvent(WatchType.CHANGED, "/a")]
        await trio.sleep(4)
        assert len(answers) == 1, "the answer arrives, late"
        assert observed.seen == [WatchEvent(WatchType.CHANGED, "/a")]


async def test_a_muted_client_gives_the_connection_up_and_asks_again(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        server = MemoryZooKeeper(nursery=nursery)
        store = server.connect(session_timeout_ms=3000)
        await store.write([Create("/a")])
        observed = Observed(store)
        server.mute(store)
        answers: list[object] = []

        async def write() -> None:
            answers.extend(await store.write([SetData("/a", b"x", version=0)]))

        nursery.start_soon(write)
        await trio.sleep(1.9)
        assert observed.seen == []
        await trio.sleep(0.2)
        assert observed.seen == [(SessionState.DISCONNECTED, FIRST, False)]
        server.reconnect(store)
        await trio.testing.wait_all_tasks_blocked()
        assert [type(answer) for answer in answers] == [BadVersion], "it was done before"
        server.mute(store)
        nursery.start_soon(heal_later, server, store)
        with pytest.raises(SessionExpired):
            await store.exists(["/a"])
        assert store.session_id == SECOND


async def heal_later(server: MemoryZooKeeper, store: MemoryStore) -> None:
    await trio.sleep(10)
    server.reconnect(store)


async def test_a_frozen_client_notices_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        server = MemoryZooKeeper(nursery=nursery)
        store = server.connect(session_timeout_ms=3000)
        await store.write([Create("/mine", ephemeral=True)])
        observed = Observed(store)
        server.freeze(store)
        await trio.sleep(2)
        assert server.peek("/mine") is not None
        await trio.sleep(2)
        assert (server.peek("/mine"), observed.seen) == (None, [])
        server.reconnect(store)
        assert observed.seen[0] == (SessionState.EXPIRED, FIRST, False)
        assert store.session_id == SECOND
