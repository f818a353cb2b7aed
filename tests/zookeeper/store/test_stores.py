"""One contract, two stores: ZooKeeper through kazoo, and its twin in process.

Covers: kce.zookeeper.store, kce.zookeeper.store.kazoo, kce.zookeeper.store.kazoo_session,
kce.zookeeper.store.memory.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing
from kazoo.client import KazooClient

from kce import wire
from kce.harness.embedded_zookeeper import TICK_MS, free_port
from kce.zookeeper.store import (
    CREATOR_ALL_ACL,
    DEFAULT_JUTE_MAXBUFFER,
    MAX_REQUEST_BYTES,
    OPEN_ACL,
    READ_ACL,
    Acls,
    BadVersion,
    Check,
    Create,
    Delete,
    InvalidAcl,
    MetadataStore,
    MultiFailed,
    NoAuth,
    NoChildrenForEphemerals,
    NodeData,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    SessionState,
    SetData,
    Stat,
    StoreError,
    StoreUnavailable,
    TooLarge,
    WatchEvent,
    WatchType,
    value,
)
from kce.zookeeper.store.armed_watches import Watch
from kce.zookeeper.store.kazoo import KazooStore
from kce.zookeeper.store.kazoo_handler import Handler
from kce.zookeeper.store.memory import MemoryZooKeeper
from tests.zookeeper.store.picky_proxy import PickyProxy

Connect = Callable[..., Awaitable[MetadataStore]]
_chroots = itertools.count()


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.slow)])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Makes clients of one empty store; ``auth`` and ``acls_of`` as both have them."""
    stores: list[MetadataStore] = []
    if request.param == "memory":
        server = MemoryZooKeeper()

        async def make(**settings: Any) -> MetadataStore:
            stores.append(server.connect(**settings))
            return stores[-1]
    else:
        address = f"{request.getfixturevalue('zookeeper')}/contract-{next(_chroots)}"

        async def make(**settings: Any) -> MetadataStore:
            timeouts = {"session_timeout_ms": 6000, "connection_timeout_ms": 10_000}
            stores.append(await KazooStore.connect(address, **timeouts, **settings))
            return stores[-1]

    yield make
    for store in stores:
        await store.aclose()


class Watched:
    """Collects what fires, and waits for it."""

    def __init__(self, store: MetadataStore) -> None:
        self.events: list[WatchEvent] = []
        self._changed = trio.Event()
        store.on_watch = self._fired

    def _fired(self, event: WatchEvent) -> None:
        self.events.append(event)
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, count: int) -> list[WatchEvent]:
        with trio.fail_after(60):
            while len(self.events) < count:
                await self._changed.wait()
        return self.events


async def create(store: MetadataStore, *paths: str) -> None:
    for path in paths:
        value((await store.write([Create(path, path.encode())]))[0])


async def test_nodes_and_versions(connect: Connect) -> None:
    store = await connect()
    await create(store, "/a", "/a/b")
    found, missing = await store.get_data(["/a", "/nope"])
    assert isinstance(found, NodeData)
    assert isinstance(missing, NoNode)
    assert missing.path == "/nope"
    assert (found.data, found.stat.version, found.stat.ephemeral_owner) == (b"/a", 0, 0)
    stat = value((await store.write([SetData("/a", b"x", 0)]))[0])
    assert isinstance(stat, Stat)
    assert (stat.version, stat.czxid) == (1, found.stat.czxid)
    assert stat.mzxid > found.stat.mzxid
    answers = await store.write(
        [SetData("/a", b"y", 0), SetData("/no", b""), Delete("/a"), Delete("/a/b", 9), Create("/a"), Create("/x/y")]
    )
    assert [type(a) for a in answers] == [BadVersion, NoNode, NotEmpty, BadVersion, NodeExists, NoNode]
    assert await store.write([Delete("/a/b", 0), Delete("/a", 1), Check("/", -1)]) == [None, None, None]
    assert await store.exists(["/a", "/"]) == [None, (await store.exists(["/"]))[0]]
    assert await store.write([]) == []
    assert await store.multi([]) == []


async def test_children(connect: Connect) -> None:
    store = await connect()
    await create(store, "/p", "/p/b", "/p/a")
    names, missing = await store.get_children(["/p", "/nope"])
    assert names == ["a", "b"]
    assert isinstance(missing, NoNode)


async def test_empty_data_is_empty_bytes(connect: Connect) -> None:
    store = await connect()
    value((await store.write([Create("/e")]))[0])
    (found,) = await store.get_data(["/e"])
    assert isinstance(found, NodeData)
    assert found.data == b""


async def test_sequences(connect: Connect) -> None:
    store = await connect()
    await create(store, "/q")
    made = [value(a) for a in await store.write([Create("/q/n_", sequential=True) for _ in range(3)])]
    assert made == [f"/q/n_{i:010d}" for i in range(3)]


async def test_containers(connect: Connect) -> None:  # rule E1.15
    store = await connect()
    answers = await store.write([Create("/box", container=True), Create("/box/a"), Create("/box", container=True)])
    assert answers[:2] == ["/box", "/box/a"]
    assert isinstance(answers[2], NodeExists)
    (stat,) = await store.exists(["/box"])
    assert stat is not None
    assert stat.ephemeral_owner == 0


@pytest.mark.slow
async def test_an_old_server_knows_no_containers(zookeeper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await KazooStore.connect(f"{zookeeper}/old", session_timeout_ms=6000, connection_timeout_ms=10_000)
    monkeypatch.setattr("kce.zookeeper.store.jute.CREATE_CONTAINER", 98)  # unknown to any server
    for path in ("/box", "/box/a"):
        (answer,) = await store.write([Create(path, container=True)])
        # the server closes the connection, so that the answer to what is tried next may be lost (rule 1.52)
        assert answer == path or isinstance(answer, NodeExists)
    assert None not in await store.exists(["/box", "/box/a"])
    await store.aclose()


async def test_who_closes_a_store_is_not_told_that_its_session_has_expired(connect: Connect) -> None:
    store = await connect()
    states: list[SessionState] = []
    store.on_session = states.append
    await store.aclose()
    assert SessionState.EXPIRED not in states


@pytest.mark.slow
async def test_the_session_timeout_is_the_negotiated_one(zookeeper: str) -> None:  # rule E7.13
    store = await KazooStore.connect(zookeeper, session_timeout_ms=TICK_MS, connection_timeout_ms=10_000)
    assert store.session_timeout_ms == 2 * TICK_MS
    await store.aclose()


@pytest.mark.slow
async def test_nodes_of_their_creator_alone(zookeeper: str) -> None:  # rule E1.17
    owner = await KazooStore.connect(
        f"{zookeeper}/creator", session_timeout_ms=6000, connection_timeout_ms=10_000,
        auth=[("digest", "alice:secret")], acls_of=lambda path: CREATOR_ALL_ACL,
    )  # fmt: skip
    other = await KazooStore.connect(zookeeper, session_timeout_ms=6000, connection_timeout_ms=10_000)
    await owner.write([Create("/mine"), Create("/mine/box", container=True)])
    answers = await other.get_data(["/creator/mine", "/creator/mine/box"])
    assert [str(answer) for answer in answers] == [
        "NoAuth: /creator/mine",
        "NoAuth: /creator/mine/box",
    ]
    await owner.aclose()
    await other.aclose()


async def test_access_control_lists(connect: Connect) -> None:
    """Alice may do everything, others may only read, except in ``/open``."""

    def acls_of(path: str) -> Acls:
        return OPEN_ACL if path.startswith("/open") else CREATOR_ALL_ACL + READ_ACL

    other = await connect()
    alice = await connect(auth=[("digest", "alice:secret")], acls_of=acls_of)
    await create(alice, "/open", "/mine", "/mine/a")
    assert await other.write([Create("/open/theirs")]) == ["/open/theirs"]
    (acls,) = await alice.get_acl(["/mine"])
    assert isinstance(acls, tuple)
    assert [(a.permissions, a.scheme, a.id.partition(":")[0]) for a in acls] == [
        (31, "digest", "alice"), (1, "world", "anyone")
    ]  # fmt: skip
    forbidden = [Create("/mine/b"), SetData("/mine", b""), Delete("/mine/a"), Check("/mine", 0)]
    answers = await other.write(forbidden)
    assert [type(a) for a in answers] == [NoAuth, NoAuth, NoAuth, type(None)]
    assert [str(a) for a in answers[:3]] == ["NoAuth: /mine/b", "NoAuth: /mine", "NoAuth: /mine/a"]
    assert type((await other.write([SetData("/mine", b"", 7)]))[0]) is NoAuth  # whatever the version
    (refused,) = await other.set_acl(["/mine"], OPEN_ACL)
    assert isinstance(refused, NoAuth)
    assert value((await other.get_data(["/mine"]))[0]).data == b"/mine"
    (stat, _) = await alice.set_acl(["/mine", "/mine/a"], CREATOR_ALL_ACL)
    assert isinstance(stat, Stat)
    assert stat.version == 0
    unread = [await other.get_data(["/mine"]), await other.get_children(["/mine"]), await other.get_acl(["/mine"])]
    assert [type(answer) for (answer,) in unread] == [NoAuth, NoAuth, NoAuth]
    assert type((await other.write([Check("/mine", 0)]))[0]) is NoAuth
    with pytest.raises(NoAuth):
        await other.exists(["/mine"])
    (nobody,) = await other.set_acl(["/open"], CREATOR_ALL_ACL)
    assert isinstance(nobody, InvalidAcl)
    assert await alice.set_acl(["/mine/a"], OPEN_ACL) == await alice.exists(["/mine/a"])
    opened, none = await alice.get_acl(["/mine/a", "/none"])
    assert opened == OPEN_ACL
    assert isinstance(none, NoNode)


async def test_multi_is_all_or_nothing(connect: Connect) -> None:
    store = await connect()
    await create(store, "/m")
    done, bad_check, bad_create, bad_second = await store.multi(
        [
            [Check("/m", 0), Create("/m/a", b"1"), SetData("/m/a", b"2", 0)],
            [Check("/m", 5), Create("/m/b")],
            [Create("/m/c"), Create("/m/a"), Create("/m/d")],
            [SetData("/m", b"changed"), Delete("/m/a", 0)],
        ]
    )
    assert isinstance(done, list)
    assert done[:2] == [None, "/m/a"]
    for answer, index, error in ((bad_check, 0, BadVersion), (bad_create, 1, NodeExists), (bad_second, 1, BadVersion)):
        assert isinstance(answer, MultiFailed)
        assert answer.index == index
        assert isinstance(answer.error, error)
    assert await store.get_children(["/m"]) == [["a"]]
    (node, child) = await store.get_data(["/m", "/m/a"])
    assert isinstance(node, NodeData)
    assert isinstance(child, NodeData)
    assert (node.data, node.stat.version, child.data) == (b"/m", 0, b"2")


async def test_ephemerals_go_with_their_session(connect: Connect) -> None:
    owner, other = await connect(), await connect()
    value((await owner.write([Create("/eph", b"", ephemeral=True)]))[0])
    (stat,) = await other.exists(["/eph"])
    assert stat is not None
    assert stat.ephemeral_owner == owner.session_id != other.session_id
    (answer,) = await owner.write([Create("/eph/child")])
    assert isinstance(answer, NoChildrenForEphemerals)
    watched = Watched(other)
    await other.exists(["/eph"], watch=True)
    await owner.aclose()
    assert await watched.until(1) == [WatchEvent(WatchType.DELETED, "/eph")]


async def test_watches_fire_once_and_in_order(connect: Connect) -> None:
    store, other = await connect(), await connect()
    watched = Watched(store)
    assert await store.exists(["/w"], watch=True) == [None]
    await create(other, "/w")
    assert await watched.until(1) == [WatchEvent(WatchType.CREATED, "/w")]
    await store.get_data(["/w"], watch=True)
    await store.exists(["/w"], watch=True)  # twice armed is once fired
    await store.get_children(["/w"], watch=True)
    await other.write([SetData("/w", b"1"), SetData("/w", b"2"), Create("/w/c"), Create("/w/d")])
    await watched.until(3)
    await store.get_data(["/w"], watch=True)
    await store.get_children(["/w"], watch=True)
    await other.write([Delete("/w/c"), Delete("/w/d"), Delete("/w")])
    assert (await watched.until(5))[1:] == [
        WatchEvent(WatchType.CHANGED, "/w"),
        WatchEvent(WatchType.CHILDREN, "/w"),
        WatchEvent(WatchType.CHILDREN, "/w"),
        WatchEvent(WatchType.DELETED, "/w"),
    ]


async def test_reading_an_absent_node_sets_no_watch(connect: Connect) -> None:
    store, other = await connect(), await connect()
    watched = Watched(store)
    await store.get_data(["/later"], watch=True)
    await store.get_children(["/later"], watch=True)
    await create(other, "/later", "/later/x")
    await store.exists(["/probe"], watch=True)
    await create(other, "/probe")
    assert await watched.until(1) == [WatchEvent(WatchType.CREATED, "/probe")]


async def test_a_deleted_node_fires_both_its_watches(connect: Connect) -> None:
    store, other = await connect(), await connect()
    await create(store, "/d")
    watched = Watched(store)
    await store.get_data(["/d"], watch=True)
    await store.get_children(["/d"], watch=True)
    await other.write([Delete("/d")])
    assert set(await watched.until(1)) == {WatchEvent(WatchType.DELETED, "/d")}


async def test_many_at_once(connect: Connect) -> None:
    store = await connect()
    await create(store, "/many")
    paths = [f"/many/{i:04d}" for i in range(500)]
    assert await store.write([Create(p, p.encode()) for p in paths]) == paths
    answers = await store.get_data([*paths, "/many/none"])
    assert [a.data for a in answers[:-1] if isinstance(a, NodeData)] == [p.encode() for p in paths]
    assert isinstance(answers[-1], StoreError)
    await store.write([SetData(paths[1], b"new"), SetData(paths[1], b""), SetData(paths[2], b"newer")])
    for some in (paths[:4], paths[:2]):  # in bulk and not
        *found, missing = await store.get_decoded([*some, "/many/none"], lambda data, version: (data, version))
        expected = [(paths[0].encode(), 0), (b"", 2), (b"newer", 1), (paths[3].encode(), 0)]
        assert found == expected[: len(some)]
        assert isinstance(missing, NoNode)


async def test_many_watched_reads_at_once(connect: Connect) -> None:
    store, other = await connect(), await connect()
    await create(store, "/bulk", *(f"/bulk/{name}" for name in "abcde"))
    watched = Watched(store)
    paths = [f"/bulk/{name}" for name in "abxcde"]
    answers = await store.get_data(paths, watch=[True, False, True, True, True, True])
    assert [a.data if isinstance(a, NodeData) else type(a) for a in answers] == [
        b"/bulk/a", b"/bulk/b", NoNode, b"/bulk/c", b"/bulk/d", b"/bulk/e"
    ]  # fmt: skip
    await create(other, "/bulk/x")  # was absent: not watched
    await other.write([SetData("/bulk/b", b""), SetData("/bulk/a", b"1"), SetData("/bulk/a", b"2"), Delete("/bulk/c")])
    expected = [WatchEvent(WatchType.CHANGED, "/bulk/a"), WatchEvent(WatchType.DELETED, "/bulk/c")]
    assert await watched.until(2) == expected
    await other.write([SetData("/bulk/e", b"")])
    assert await watched.until(3) == [*expected, WatchEvent(WatchType.CHANGED, "/bulk/e")]


async def test_children_of_many_at_once(connect: Connect) -> None:
    store = await connect()
    await create(store, "/kids", *(f"/kids/{i}" for i in range(6)), "/kids/1/z", "/kids/1/a")
    paths = [f"/kids/{i}" for i in range(7)]
    *found, missing = await store.get_children(paths)
    assert found == [[], ["a", "z"], [], [], [], []]
    assert isinstance(missing, NoNode)
    assert missing.path == "/kids/6"


async def test_fenced_writes(connect: Connect) -> None:
    """One operation that fails costs the others nothing; a fence that does not hold stops all."""
    store = await connect()
    await create(store, "/fence", "/f")
    ops = [Create(f"/f/{i:04d}", b"x" * 1000) for i in range(1200)]
    ops[700] = Create("/f/0003")
    answers = await store.write(ops, fence=Check("/fence", 0))
    assert isinstance(answers.pop(700), NodeExists)
    assert answers == [op.path for op in ops[:700] + ops[701:]]
    mixed = await store.write(
        [SetData("/f/0001", b"", 0), Delete("/f/none"), Delete("/f/0002", 5), SetData("/f/0001", b"", 1)],
        fence=Check("/fence", 0),
    )
    assert [type(a) for a in mixed] == [Stat, NoNode, BadVersion, Stat]
    for fence, error in ((Check("/fence", 1), BadVersion), (Check("/nowhere", 0), NoNode)):
        with pytest.raises(MultiFailed) as raised:
            await store.write([Create("/f/a"), Create("/f/b")], fence=fence)
        assert raised.value.index == 0
        assert isinstance(raised.value.error, error)
    assert await store.exists(["/f/a", "/f/b"]) == [None, None]
    assert await store.write([], fence=Check("/fence", 9)) == []


@pytest.mark.slow
async def test_large_nodes_are_read_and_written_in_requests_that_fit(zookeeper: str) -> None:
    """Ten times jute.maxbuffer in total, in sizes that the first request does not predict."""
    store = await KazooStore.connect(f"{zookeeper}/large", session_timeout_ms=6000, connection_timeout_ms=10_000)
    sizes = [10] * 100 + [50_000] * 200 + [600_000]
    paths = [f"/{i:03d}" for i in range(len(sizes))]
    data = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    written = await store.write([Create(p, d) for p, d in zip(paths, data, strict=True)])
    assert written == paths
    answers = await store.get_data(paths)
    assert [a.data for a in answers if isinstance(a, NodeData)] == data
    await store.aclose()


async def _refuse_multi_read(client: trio.SocketStream, upstream: trio.SocketStream, cut: list[int]) -> None:
    """Relay requests; to a multiRead answer as servers before 3.6 do: UNIMPLEMENTED, and close the connection."""
    frames = wire.FrameBuffer()
    async for data in client:
        frames.receive_data(data)
        while (frame := frames.next_frame()) is not None:
            if frame[4:8] == (22).to_bytes(4, "big"):
                cut.append(1)
                await client.send_all(
                    wire.frame(frame[:4] + (0).to_bytes(8, "big") + (-6).to_bytes(4, "big", signed=True))
                )
                await client.aclose()
                return
            await upstream.send_all(wire.frame(frame))


@pytest.mark.slow
async def test_a_server_without_multi_read(zookeeper: str) -> None:
    host, _, port = zookeeper.partition(":")
    refused: list[int] = []

    async def relay(client: trio.SocketStream) -> None:
        upstream = await trio.open_tcp_stream(host, int(port))

        async def back() -> None:
            with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
                async for data in upstream:
                    await client.send_all(data)

        async with upstream, client, trio.open_nursery() as nursery:
            nursery.start_soon(back)
            with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
                await _refuse_multi_read(client, upstream, refused)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, relay, 0, host="127.0.0.1"))
        address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}/old"
        store = await KazooStore.connect(address, session_timeout_ms=20_000, connection_timeout_ms=10_000)
        watched = Watched(store)
        paths = [f"/{i:02d}" for i in range(50)]
        await create(store, *paths)
        await store.exists(["/watched"], watch=True)
        session = store.session_id
        for _ in range(2):
            answers = await store.get_data([*paths, "/none"], watch=True)
            assert [a.data for a in answers[:-1] if isinstance(a, NodeData)] == [p.encode() for p in paths]
            assert isinstance(answers[-1], NoNode)
            assert await store.get_children(paths) == [[]] * 50
        assert (refused, store.session_id) == ([1], session)
        await create(store, "/watched")
        await store.write([SetData("/07", b"")])
        expected = [WatchEvent(WatchType.CREATED, "/watched"), WatchEvent(WatchType.CHANGED, "/07")]
        assert await watched.until(2) == expected
        await store.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_chroot_is_made_and_hidden(zookeeper: str) -> None:  # rule 1.4
    deep = await KazooStore.connect(f"{zookeeper}/made/for/me", session_timeout_ms=6000, connection_timeout_ms=10_000)
    root = await KazooStore.connect(zookeeper, session_timeout_ms=6000, connection_timeout_ms=10_000)
    value((await deep.write([Create("/n", ephemeral=True)]))[0])
    assert (await root.exists(["/made/for/me/n"]))[0] is not None
    assert await deep.get_children(["/"]) == [["n"]]
    await deep.aclose()
    await root.aclose()


async def test_no_server_is_reported_in_one_line() -> None:
    port = free_port()
    with pytest.raises(StoreUnavailable, match=f"no ZooKeeper answers at 127.0.0.1:{port} within 300 ms"):
        await KazooStore.connect(f"127.0.0.1:{port}", session_timeout_ms=2000, connection_timeout_ms=300)


async def test_a_deletion_that_is_reported_for_each_kind_of_watch_is_one_event() -> None:
    """As after a reconnection. An event that nobody has asked for is none."""
    store = KazooStore(KazooClient("host/chroot", handler=Handler(None)), "nowhere", trio.lowlevel.current_trio_token())
    store._client._stopped.clear()
    watched = Watched(store)
    for path in ("/a", "/b", "/"):
        store._arm(Watch.DATA, [path])
        store._arm(Watch.CHILD, [path])
    for path in ("/chroot/a", "/chroot/c", "/chroot/b", "/chroot"):
        event = struct.pack(">iii", 2, 3, len(path)) + path.encode()
        store._fired(b"header" + event, 6)
        store._fired(event, 0)
    await watched.until(3)
    await trio.testing.wait_all_tasks_blocked()
    assert watched.events == [WatchEvent(WatchType.DELETED, path) for path in ("/a", "/b", "/")]


@pytest.mark.slow
async def test_a_reconnect_within_the_session_keeps_watches_and_reports_changes(zookeeper: str) -> None:
    """The connection is cut under kazoo; each change meanwhile is reported once."""
    store = await KazooStore.connect(f"{zookeeper}/rearm", session_timeout_ms=20_000, connection_timeout_ms=10_000)
    other = await KazooStore.connect(f"{zookeeper}/rearm", session_timeout_ms=20_000, connection_timeout_ms=10_000)
    await create(other, "/same", "/changed", "/gone", "/parent", "/quiet")
    watched = Watched(store)
    states: list[SessionState] = []
    store.on_session = states.append
    await store.get_data(["/same", "/changed", "/gone"], watch=True)
    await store.exists(["/born", "/unborn"], watch=True)
    await store.get_children(["/parent", "/quiet"], watch=True)
    session = store.session_id
    store._client._connection._socket.close()
    await other.write([SetData("/changed", b""), Delete("/gone"), Create("/born"), Create("/parent/x")])
    expected = {
        WatchEvent(WatchType.CHANGED, "/changed"),
        WatchEvent(WatchType.DELETED, "/gone"),
        WatchEvent(WatchType.CREATED, "/born"),
        WatchEvent(WatchType.CHILDREN, "/parent"),
    }
    assert set(await watched.until(4)) == expected
    assert store.session_id == session
    assert SessionState.EXPIRED not in states
    await other.write([SetData("/same", b""), Create("/unborn"), Create("/quiet/x")])
    later = await watched.until(7)
    assert set(later[4:]) == {
        WatchEvent(WatchType.CHANGED, "/same"),
        WatchEvent(WatchType.CREATED, "/unborn"),
        WatchEvent(WatchType.CHILDREN, "/quiet"),
    }
    assert len(later) == 7
    await store.aclose()
    await other.aclose()


@pytest.mark.slow
async def test_an_expired_session_is_reported_once_and_its_watches_are_dropped(zookeeper: str) -> None:
    store = await KazooStore.connect(f"{zookeeper}/expire", session_timeout_ms=6000, connection_timeout_ms=10_000)
    watched = Watched(store)
    states: list[SessionState] = []
    established = trio.Event()

    def changed(state: SessionState) -> None:
        states.append(state)
        if state is SessionState.ESTABLISHED:
            established.set()

    store.on_session = changed
    await store.exists(["/x"], watch=True)
    old = store.session_id
    # a second connection to the same session that closes it is how ZooKeeper's own tests expire one
    client_id = store._client.client_id

    def steal() -> None:
        other = KazooClient(hosts=f"{zookeeper}/expire", client_id=client_id)
        other.start()
        other.stop()
        other.close()

    with trio.fail_after(60):
        while not established.is_set():  # the store may take the session back before it is closed
            await trio.to_thread.run_sync(steal)
            with trio.move_on_after(2):
                await established.wait()
    assert store.session_id != old
    assert states.count(SessionState.EXPIRED) == 1
    await create(store, "/x")
    await store.exists(["/y"], watch=True)
    await create(store, "/y")
    assert await watched.until(1) == [WatchEvent(WatchType.CREATED, "/y")]
    await store.aclose()


async def test_oversized_writes_are_not_sent(connect: Connect) -> None:  # rule 1.6
    store = await connect()
    states: list[SessionState] = []
    store.on_session = states.append
    await create(store, "/node", "/fence")
    oversized = bytes(MAX_REQUEST_BYTES)
    small, large, later = await store.write([SetData("/node", b"1"), SetData("/node", oversized), Create("/later")])
    assert isinstance(small, Stat)
    assert isinstance(large, TooLarge)
    assert (large.path, later) == ("/node", "/later")
    (fenced,) = await store.write([Create("/large", oversized)], fence=Check("/fence", 0))
    assert isinstance(fenced, TooLarge)
    done, failed = await store.multi([[Create("/done")], [Create("/undone"), SetData("/node", oversized)]])
    assert done == ["/done"]
    assert isinstance(failed, MultiFailed)
    assert (failed.index, type(failed.error)) == (1, TooLarge)
    assert await store.exists(["/undone"]) == [None]
    assert states == []  # the connection is intact


class PickyStore(NamedTuple):
    proxy: PickyProxy
    store: KazooStore


@pytest.fixture
async def picky(zookeeper: str, nursery: trio.Nursery) -> AsyncIterator[Callable[[int], Awaitable[PickyStore]]]:
    stores: list[MetadataStore] = []

    async def make(limit: int) -> PickyStore:
        proxy = PickyProxy(zookeeper, limit)
        address = await nursery.start(proxy.run)
        store = await KazooStore.connect(
            f"{address}/picky-{next(_chroots)}", session_timeout_ms=2000, connection_timeout_ms=10_000
        )
        stores.append(store)
        return PickyStore(proxy, store)

    yield make
    for store in stores:
        await store.aclose()


@pytest.mark.slow
async def test_a_write_above_the_servers_limit_fails_and_others_go_on(
    picky: Callable[[int], Awaitable[PickyStore]], caplog: pytest.LogCaptureFixture
) -> None:
    proxy, store = await picky(DEFAULT_JUTE_MAXBUFFER)
    session = store.session_id
    with trio.fail_after(60):
        large, after = await store.write([Create("/large", bytes(DEFAULT_JUTE_MAXBUFFER)), Create("/after")])
    assert (type(large), after) == (TooLarge, "/after")
    assert (proxy.refused, store.session_id) == (2, session)
    assert "refuses a write as large as that of /large" in caplog.text
    assert await store.write([Create("/later")]) == ["/later"]


@pytest.mark.slow
async def test_a_session_whose_connections_break_without_end_is_ended(
    picky: Callable[[int], Awaitable[PickyStore]], caplog: pytest.LogCaptureFixture
) -> None:
    """A server with a small jute.maxbuffer: the write is below the default limit, and breaks every connection."""
    proxy, store = await picky(100_000)
    await store.write([Create("/ephemeral", ephemeral=True)])
    session, states, established = store.session_id, list[SessionState](), trio.Event()

    def changed(state: SessionState) -> None:
        states.append(state)
        if state is SessionState.ESTABLISHED:
            established.set()

    store.on_session = changed
    with trio.fail_after(60):
        with pytest.raises(SessionExpired, match="did not execute 1 operations"):
            await store.write([Create("/poison", bytes(200_000))])
        await established.wait()
        assert store.session_id != session
        assert await store.exists(["/ephemeral"]) == [None]  # the session was closed, not left to its timeout
        assert await store.write([Create("/good")]) == ["/good"]
    assert states.count(SessionState.EXPIRED) == 1
    assert proxy.refused >= 3
    assert "is unusable" in caplog.text
