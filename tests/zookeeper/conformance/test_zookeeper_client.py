"""ZCT: the client of ZooKeeper, on the real one and on its twin in memory (section 14 of docs/controller-semantics.md;
rules 1.52 to 1.59).

Covers: kce.zookeeper.client.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator

import pytest
import trio
from kazoo.client import KazooClient
from kazoo.security import make_acl
from trio.testing import wait_all_tasks_blocked

from kce.controller.metrics import SessionMetrics
from kce.metrics import Gauge, Meter, MetricName, Metrics
from kce.zookeeper.client import ChangeHandler
from kce.zookeeper.store import (
    AUTH_RETRY_MS,
    OPEN_ACL,
    READ_ACL,
    Create,
    Delete,
    MetadataStore,
    NodeData,
    NoNode,
    SessionExpired,
    SessionState,
    SetData,
    Stat,
    StoreUnavailable,
    value,
)
from kce.zookeeper.store.kazoo import KazooStore
from tests.zookeeper.conformance.clients import PATH, Fixture

_chroots = itertools.count()
#: bytes
JUTE_MAX_BUFFER = 4 << 20


async def connect(address: str, timeout_ms: int = 300, *, create_chroot: bool = True) -> KazooStore:
    return await KazooStore.connect(
        address, session_timeout_ms=2000, connection_timeout_ms=timeout_ms, create_chroot=create_chroot
    )


@pytest.mark.kafka("ZCT-1")
async def test_an_address_that_cannot_be_resolved() -> None:
    before = {thread for thread in threading.enumerate() if "trio" not in thread.name.lower()}
    with pytest.raises(StoreUnavailable, match=r"some\.invalid"):
        await connect("some.invalid:2181")
    after = {thread for thread in threading.enumerate() if "trio" not in thread.name.lower()}
    assert after <= before


@pytest.mark.kafka("ZCT-2")
async def test_a_server_that_does_not_answer() -> None:
    (silent,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with silent:
        port = silent.socket.getsockname()[1]
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port} within 300 ms"):
            await connect(f"127.0.0.1:{port}")


@pytest.mark.kafka("ZCT-3")
async def test_connection(client: Fixture) -> None:
    assert client.store.session_id != 0
    assert await client.store.exists(["/"]) != [None]


@pytest.fixture
def raw(zookeeper: str) -> Iterator[KazooClient]:
    """Another client, which sees the whole tree."""
    client = KazooClient(hosts=zookeeper)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.mark.slow
@pytest.mark.kafka("ZKCT-2")
async def test_a_chroot_is_made_or_missed(zookeeper: str, raw: KazooClient) -> None:  # rule 1.4
    chroot = f"/zct-{next(_chroots)}/kafka"
    with pytest.raises(StoreUnavailable, match=f"there is no {chroot} in ZooKeeper at {zookeeper}"):
        await connect(zookeeper + chroot, 5000, create_chroot=False)
    assert raw.exists(chroot) is None
    for create_chroot in (True, False):
        store = await connect(zookeeper + chroot, 5000, create_chroot=create_chroot)
        assert await store.exists(["/"]) != [None]
        await store.aclose()
    assert raw.exists(chroot) is not None


@pytest.mark.slow
@pytest.mark.kafka("ZKCT-3")
async def test_a_chroot_below_what_is_locked(zookeeper: str, raw: KazooClient) -> None:
    locked = f"/zct-{next(_chroots)}"
    raw.ensure_path(f"{locked}/kafka")
    raw.set_acls(locked, [make_acl("world", "anyone", read=True)])
    store = await connect(f"{zookeeper}{locked}/kafka", 5000)
    assert await store.write([Create("/a")]) == ["/a"]
    await store.aclose()
    with pytest.raises(StoreUnavailable, match=f"{locked}/other cannot be made .*: it is not allowed"):
        await connect(f"{zookeeper}{locked}/other", 5000)


@pytest.mark.slow
@pytest.mark.kafka("ZKCT-55")
async def test_answers_may_be_large(zookeeper: str) -> None:
    """Rule 1.6: Kafka raises its client's limit to 4 MiB; ours takes at least as much."""
    store = await connect(f"{zookeeper}/large", 5000)
    largest = bytes(range(256)) * (JUTE_MAX_BUFFER // 256)
    assert await store.write([Create("/n", largest[:-100])]) == ["/n"]  # what is around it takes some bytes too
    for paths in (["/n"], ["/n"] * 5):  # one by one, and in bulk
        assert [value(answer).data for answer in await store.get_data(paths)] == [largest[:-100]] * len(paths)
    await store.aclose()


# one operation each


@pytest.mark.kafka("ZCT-5")
async def test_delete_of_nothing(client: Fixture) -> None:
    (answer,) = await client.store.write([Delete(PATH)])
    assert isinstance(answer, NoNode)


@pytest.mark.kafka("ZCT-6")
async def test_delete(client: Fixture) -> None:
    await client.create()
    assert await client.store.write([Delete(PATH)]) == [None]
    assert await client.store.exists([PATH]) == [None]


@pytest.mark.kafka("ZCT-7")
async def test_exists_of_nothing(client: Fixture) -> None:
    assert await client.store.exists([PATH]) == [None]


@pytest.mark.kafka("ZCT-8")
async def test_exists(client: Fixture) -> None:
    await client.create()
    (stat,) = await client.store.exists([PATH])
    assert isinstance(stat, Stat)


@pytest.mark.kafka("ZCT-9")
async def test_data_of_nothing(client: Fixture) -> None:
    (answer,) = await client.store.get_data([PATH])
    assert isinstance(answer, NoNode)


@pytest.mark.kafka("ZCT-10")
async def test_data(client: Fixture) -> None:
    await client.create(data=b"some")
    (answer,) = await client.store.get_data([PATH])
    assert isinstance(answer, NodeData)
    assert answer.data == b"some"


@pytest.mark.kafka("ZCT-11")
async def test_set_data_of_nothing(client: Fixture) -> None:
    (answer,) = await client.store.write([SetData(PATH, b"x")])
    assert isinstance(answer, NoNode)


@pytest.mark.kafka("ZCT-12")
async def test_set_data(client: Fixture) -> None:
    await client.create()
    (answer,) = await client.store.write([SetData(PATH, b"x")])
    assert isinstance(answer, Stat)
    assert value((await client.store.get_data([PATH]))[0]).data == b"x"


@pytest.mark.kafka("ZCT-13")
async def test_acl_of_nothing(client: Fixture) -> None:
    (answer,) = await client.store.get_acl([PATH])
    assert isinstance(answer, NoNode)


@pytest.mark.kafka("ZCT-14")
async def test_acl(client: Fixture) -> None:  # rule 1.5
    await client.create()
    assert await client.store.get_acl([PATH]) == [OPEN_ACL]


@pytest.mark.kafka("ZCT-15")
async def test_acl_for_nothing(client: Fixture) -> None:
    (answer,) = await client.store.set_acl([PATH], READ_ACL)
    assert isinstance(answer, NoNode)


@pytest.mark.kafka("ZCT-16")
async def test_children_of_nothing(client: Fixture) -> None:
    (answer,) = await client.store.get_children([PATH])
    assert isinstance(answer, NoNode)


@pytest.mark.kafka("ZCT-17")
async def test_no_children(client: Fixture) -> None:
    await client.create()
    assert await client.store.get_children([PATH]) == [[]]


@pytest.mark.kafka("ZCT-18")
async def test_children(client: Fixture) -> None:
    await client.create()
    for name in ("c", "b"):
        await client.create(f"{PATH}/{name}")
    assert await client.store.get_children([PATH]) == [["b", "c"]]


# many operations


@pytest.mark.kafka("ZCT-19")
async def test_reads_in_one_go_keep_their_order(client: Fixture) -> None:
    paths = [f"/{n}" for n in range(20)]
    for path in paths:
        await client.create(path, path.encode())
    reverse = paths[::-1]
    assert [value(answer).data.decode() for answer in await client.store.get_data(reverse)] == reverse


@pytest.mark.kafka("ZCT-20")
async def test_different_operations_in_one_go_keep_their_order(client: Fixture) -> None:
    await client.create()
    answers = await client.store.write([SetData(PATH, b"2"), Create("/b"), SetData("/nope", b""), Delete("/b")])
    assert [type(answer) for answer in answers] == [Stat, str, NoNode, type(None)]
    found, missing = await client.store.get_data([PATH, "/nope"])
    assert value(found).data == b"2"
    assert isinstance(missing, NoNode)


# watches


@pytest.mark.kafka("ZCT-21")
async def test_creation_is_reported(client: Fixture) -> None:  # rule 1.58
    created = trio.Event()
    assert not await client.zk.register_and_check(PATH, ChangeHandler(created=created.set))
    await client.create()
    await client.wait_for(created)


@pytest.mark.kafka("ZCT-22")
async def test_deletion_is_reported(client: Fixture) -> None:  # rule 1.58
    deleted = trio.Event()
    await client.create()
    assert await client.zk.register_and_check(PATH, ChangeHandler(deleted=deleted.set))
    await client.store.write([Delete(PATH)])
    await client.wait_for(deleted)


@pytest.mark.kafka("ZCT-23")
async def test_a_change_of_data_is_reported(client: Fixture) -> None:  # rule 1.58
    changed = trio.Event()
    await client.create()
    assert await client.zk.register_and_check(PATH, ChangeHandler(changed=changed.set))
    await client.store.write([SetData(PATH, b"2")])
    await client.wait_for(changed)


@pytest.mark.kafka("ZCT-26")
async def test_a_change_of_children_is_reported(client: Fixture) -> None:  # rule 1.56
    changed = trio.Event()
    await client.create()
    client.zk.register_child_handler(PATH, changed.set)
    assert await client.zk.get_children(PATH) == []
    await client.create(f"{PATH}/b")
    await client.wait_for(changed)


@pytest.mark.kafka("ZCT-27")
async def test_children_that_are_read_without_watch(client: Fixture) -> None:  # rule 1.56
    changed, probed = trio.Event(), trio.Event()
    await client.create()
    client.zk.register_child_handler(PATH, changed.set)
    assert await client.zk.get_children(PATH, watch=False) == []
    await client.zk.register_and_check("/probe", ChangeHandler(created=probed.set))
    await client.create(f"{PATH}/b")
    await client.create("/probe")
    await client.wait_for(probed)  # by then the other would have fired too
    assert not changed.is_set()


# sessions


class Sessions:
    """Records the states of a session."""

    def __init__(self, store: MetadataStore) -> None:
        self.states: list[SessionState] = []
        self.established = trio.Event()
        store.on_session = self

    def __call__(self, state: SessionState) -> None:
        self.states.append(state)
        if state is SessionState.ESTABLISHED:
            self.established.set()


@pytest.mark.kafka("ZCT-24")
async def test_requests_of_a_session_handler_are_answered(client: Fixture) -> None:  # rule 2.31
    answered = trio.Event()
    await client.create()

    ended = trio.Event()

    async def ask() -> None:
        assert value((await client.store.get_data([PATH]))[0]).data == b"1"
        answered.set()

    async def ask_too_early() -> None:
        with contextlib.suppress(SessionExpired):
            await client.store.get_data([PATH])
        ended.set()

    async with trio.open_nursery() as nursery:

        def changed(state: SessionState) -> None:
            if state is SessionState.EXPIRED:  # between the sessions
                nursery.start_soon(ask_too_early)
            if state is SessionState.ESTABLISHED:
                nursery.start_soon(ask)

        client.store.on_session = changed
        await client.expire()
        await client.wait_for(ended)
        await client.wait_for(answered)


@pytest.mark.kafka("ZCT-25")
async def test_a_session_handler_that_fails(client: Fixture, caplog: pytest.LogCaptureFixture) -> None:  # rule 2.28
    established = trio.Event()

    def fails(state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            raise RuntimeError("broken for the test")
        if state is SessionState.ESTABLISHED:
            established.set()

    client.store.on_session = fails
    await client.expire()
    await client.wait_for(established)
    assert "broken for the test" in caplog.text
    await client.create()


@pytest.mark.kafka("ZCT-28")
async def test_a_refused_authentication_is_reported(client: Fixture) -> None:
    refused = trio.Event()
    client.store.on_session = lambda state: refused.set() if state is SessionState.AUTH_FAILED else None
    client.refuse()
    await client.wait_for(refused)
    client.accept()


@pytest.mark.slow
@pytest.mark.kafka("ZCT-32")
async def test_a_refused_authentication_is_tried_again(client: Fixture) -> None:  # rule 1.7
    states: list[SessionState] = []
    times: dict[SessionState, float] = {}
    established = trio.Event()

    def changed(state: SessionState) -> None:
        states.append(state)
        times[state] = trio.current_time()
        if state is SessionState.AUTH_FAILED:
            client.accept()
        if state is SessionState.ESTABLISHED:
            established.set()

    await client.create()
    old = client.store.session_id
    client.store.on_session = changed
    client.refuse()
    await client.wait_for(established)
    last = [s for s in states if s not in (SessionState.DISCONNECTED, SessionState.CONNECTED)]
    assert last == [SessionState.AUTH_FAILED, SessionState.EXPIRED, SessionState.ESTABLISHED]
    assert times[SessionState.ESTABLISHED] - times[SessionState.AUTH_FAILED] >= AUTH_RETRY_MS / 1000
    assert client.store.session_id not in (0, old)
    assert value((await client.store.get_data([PATH]))[0]).data == b"1"


@pytest.mark.slow
@pytest.mark.parametrize("chroot", ["", "/some/root"])
async def test_who_is_refused_cannot_connect(zookeeper: str, chroot: str) -> None:
    with pytest.raises(StoreUnavailable, match=f"at {zookeeper} does not accept our authentication .unknown"):
        await KazooStore.connect(
            zookeeper + chroot, session_timeout_ms=2000, connection_timeout_ms=5000, auth=[("unknown", "x")]
        )


@pytest.mark.kafka("ZCT-29")
async def test_requests_end_with_a_connection_that_does_not_come_back(client: Fixture) -> None:  # rule 1.52
    ended: list[str] = []

    async def ask() -> None:
        with pytest.raises(SessionExpired):
            await client.store.get_data([PATH])
        ended.append("read")

    async def tell() -> None:
        with pytest.raises(SessionExpired):
            await client.store.write([Create(PATH)])
        ended.append("write")

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            client.disconnect()
            for _ in range(20):
                nursery.start_soon(ask)
                nursery.start_soon(tell)
            await wait_all_tasks_blocked()
            assert ended == []  # sent again for as long as there is hope
            await client.store.aclose()
    assert sorted(ended) == ["read"] * 20 + ["write"] * 20


@pytest.mark.kafka("ZCT-30")
async def test_an_expired_session_is_followed_by_a_new_one(client: Fixture) -> None:  # rule 2.28
    sessions = Sessions(client.store)
    old = client.store.session_id
    ended: list[bool] = []

    async def ask() -> None:
        """Each request ends, in the old session, in the new one or with the old one."""
        try:
            answers = await client.store.get_data(["/nope", "/neither"])
        except SessionExpired:
            ended.append(False)
        else:
            assert [type(answer) for answer in answers] == [NoNode, NoNode]
            ended.append(True)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await ask()
            nursery.start_soon(client.expire)
            while not sessions.established.is_set():
                for _ in range(5):
                    nursery.start_soon(ask)
                await trio.sleep(0.01)
            await ask()
    assert ended[0]
    assert ended[-1]
    about_sessions = [s for s in sessions.states if s in (SessionState.EXPIRED, SessionState.ESTABLISHED)]
    assert about_sessions == [SessionState.EXPIRED, SessionState.ESTABLISHED]
    assert client.store.session_id != old
    await client.create()
    assert value((await client.store.get_data([PATH]))[0]).data == b"1"


@pytest.mark.kafka("ZCT-31")
async def test_closing_while_a_session_expires(client: Fixture) -> None:
    closed = trio.Event()

    async def close() -> None:
        await client.store.aclose()
        closed.set()

    async with trio.open_nursery() as nursery:

        def changed(state: SessionState) -> None:
            if state is SessionState.EXPIRED:
                nursery.start_soon(close)

        client.store.on_session = changed
        await client.expire()
        await client.wait_for(closed)


# what is shown of it (rule 12.8)


class Shown:
    """The metrics of a client's sessions; ``established`` as in Sessions."""

    def __init__(self, store: MetadataStore) -> None:
        self._metrics = Metrics()
        self._sessions = SessionMetrics(self._metrics)
        self.established = trio.Event()
        self.disconnected = trio.Event()
        self.while_away: set[float] = set()
        store.on_session = self._changed

    def _changed(self, state: SessionState) -> None:
        self._sessions.changed(state)
        if state in (SessionState.DISCONNECTED, SessionState.EXPIRED):
            self.while_away.add(self["SessionState"])
        if state is SessionState.CONNECTED:
            self.established.set()
            self.disconnected = trio.Event()
        if state is SessionState.DISCONNECTED:
            self.disconnected.set()

    def __getitem__(self, name: str) -> float:
        metric = self._metrics[MetricName("kafka.server", "SessionExpireListener", name)]
        assert isinstance(metric, (Gauge, Meter))
        return metric.read()


@pytest.mark.kafka("ZCT-33")
async def test_changes_of_a_sessions_state_are_counted(client: Fixture) -> None:
    shown = Shown(client.store)
    names = [f"ZooKeeper{what}PerSec" for what in ("SyncConnects", "Expires", "AuthFailures", "ReadOnlyConnects")]
    assert [shown[name] for name in names] == [1, 0, 0, 0]
    await client.expire()
    await client.wait_for(shown.established)
    assert [shown[name] for name in names] == [2, 1, 0, 0]
    disconnects = shown["ZooKeeperDisconnectsPerSec"]
    client.disconnect()
    await client.wait_for(shown.disconnected)
    assert shown["ZooKeeperDisconnectsPerSec"] == disconnects + 1
    assert [shown[name] for name in names] == [2, 1, 0, 0]


@pytest.mark.kafka("ZCT-34")
async def test_the_state_of_a_session_is_shown(client: Fixture) -> None:
    shown = Shown(client.store)
    assert shown["SessionState"] == 1
    await client.expire()
    await client.wait_for(shown.established)
    assert shown.while_away == {0}
    assert shown["SessionState"] == 1
