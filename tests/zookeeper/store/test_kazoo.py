"""kazoo under our own sending and reading: its version, and its public behaviour."""

from __future__ import annotations

import random
import re
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from kce.harness.embedded_zookeeper import four_letter_word
from kce.zookeeper.store import Create, NodeData, StoreUnavailable, jute, kazoo_session
from kce.zookeeper.store.kazoo import KazooStore
from kce.zookeeper.store.kazoo_session import TESTED_KAZOO

PATIENCE_S = 60


def test_pyproject_asks_for_the_tested_kazoo() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = (d for d in project["dependencies"] if d.startswith("kazoo"))
    major, minor = TESTED_KAZOO.split(".")
    assert requirement == f"kazoo>={TESTED_KAZOO},<{major}.{int(minor) + 1}"


@pytest.mark.parametrize("version", ["2.10.0", "2.12.0", "2.110.0", "3.0"])
async def test_another_kazoo_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kazoo_session, "KAZOO_VERSION", version)
    with pytest.raises(StoreUnavailable, match=f"kazoo {version} is installed.*pip install 'kazoo==2.11.*'"):
        await KazooStore.connect("127.0.0.1:1", session_timeout_ms=1000, connection_timeout_ms=1000)


@pytest.mark.slow
async def test_a_client_that_is_cancelled_while_it_starts_leaves_no_session(
    zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start takes long, as on a busy machine."""
    start, begun = KazooClient.start_async, []

    def slowly(client: KazooClient) -> object:
        threading.Event().wait(0.2)
        live = start(client)
        begun.append(client)
        return live

    before = await sessions(zookeeper)
    with monkeypatch.context() as patched, trio.move_on_after(0.05) as scope:
        patched.setattr(KazooClient, "start_async", slowly)
        await KazooStore.connect(zookeeper, session_timeout_ms=20_000, connection_timeout_ms=20_000)
    assert scope.cancelled_caught
    with trio.fail_after(60):
        while not begun or not (begun[0].connected or begun[0]._stopped.is_set()):  # noqa: ASYNC110
            await trio.sleep(0.01)  # kazoo's thread changes it
    store = await KazooStore.connect(zookeeper, session_timeout_ms=20_000, connection_timeout_ms=20_000)
    with trio.fail_after(15):  # less than the timeout of a session
        while await sessions(zookeeper) > before + 1:  # noqa: ASYNC110 - the server is polled
            await trio.sleep(0.05)
    await store.aclose()


@pytest.mark.slow
async def test_a_client_that_is_cancelled_when_it_is_connected_leaves_no_session(
    zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled = KazooStore._settled

    async def cancelled(store: KazooStore) -> None:
        scope.cancel()
        await settled(store)

    before = await sessions(zookeeper)
    with monkeypatch.context() as patched, trio.CancelScope() as scope:
        patched.setattr(KazooStore, "_settled", cancelled)
        await KazooStore.connect(zookeeper, session_timeout_ms=20_000, connection_timeout_ms=20_000)
    assert scope.cancelled_caught
    assert await sessions(zookeeper) == before


async def test_the_programs_random_numbers_stay_its_own(zookeeper: str) -> None:
    """kazoo draws some in its threads whenever it waits, connects and retries."""
    before = random.getstate()
    store = await KazooStore.connect(zookeeper, session_timeout_ms=20_000, connection_timeout_ms=20_000)
    await store.exists(["/"])
    await store.aclose()
    assert random.getstate() == before


@pytest.mark.slow
async def test_nodes_of_a_kind_that_was_read_before_are_read_in_large_requests_at_once(
    zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of an answer is known by connection and decoder; and it is learned again from each read."""
    requests: list[int] = []
    whole = KazooStore._batch

    async def batch(store: Any, opcode: int, paths: Any, *more: Any, **named: Any) -> list[Any]:
        if opcode == jute.MULTI_READ:
            requests.append(len(paths))
        return await whole(store, opcode, paths, *more, **named)

    def text(data: bytes, version: int) -> str:
        return data.decode()

    def length(data: bytes, version: int) -> int:
        return len(data)

    store = await KazooStore.connect(f"{zookeeper}/known", session_timeout_ms=20_000, connection_timeout_ms=20_000)
    small, large = [f"/s{i:03d}" for i in range(500)], [f"/l{i:02d}" for i in range(20)]
    await store.write(
        [*(Create(path, path.encode()) for path in small), *(Create(path, bytes(50_000)) for path in large)]
    )
    monkeypatch.setattr(KazooStore, "_batch", batch)

    async def rounds(paths: list[str], decode: Callable[[bytes, int], Any]) -> list[int]:
        requests.clear()
        await store.get_decoded(paths, decode)
        return list(requests)

    assert await store.get_decoded(small, text) == small
    assert len(requests) > 1  # the first is alone and small
    assert await rounds(small, text) == [1]
    assert len(await rounds(small, length)) > 1  # another kind of node, of which nothing is known
    assert len(await rounds(small, text)) > 1  # one kind is remembered
    (few,) = await rounds(large, text)  # as many at once as small ones: they are larger than expected
    (many,) = await rounds(large, text)
    assert few < many
    await store.aclose()


async def sessions(zookeeper: str) -> int:
    """Sessions that the server knows."""
    host, _, port = zookeeper.partition("/")[0].rpartition(":")
    text = await four_letter_word(host, int(port), "mntr")
    found = re.search(r"zk_global_sessions\s+(\d+)", text)
    assert found is not None
    return int(found[1])


def public_behaviour(client: KazooClient, other: KazooClient) -> Iterator[object]:
    """What kazoo's public calls give, one after the other; ``other`` is a second client of the same tree.

    Recipes that wait inside a callback are left out: our handler runs callbacks on the connection thread.
    """

    def failure(call: Callable[..., object], *args: Any, **kwargs: Any) -> str:
        try:
            return repr(call(*args, **kwargs))
        except (NoNodeError, NodeExistsError, BadVersionError) as e:
            return type(e).__name__

    yield client.create("/a", b"1"), client.create("/a/n-", b"2", sequence=True), client.create("/a/e", ephemeral=True)
    yield failure(client.create, "/a"), failure(client.get, "/none"), failure(client.set, "/a", b"x", version=7)
    data, stat = client.get("/a")
    yield data, stat.version, stat.children_count
    yield client.set("/a", b"3").version, client.get_children("/a"), client.exists("/none")
    yield client.ensure_path("/b/c/d"), client.exists("/b/c") is not None, len(client.get_acls("/b")[0])
    several = [client.get_async("/a"), client.get_children_async("/b"), client.exists_async("/none")]
    yield several[0].get(timeout=PATIENCE_S)[0], several[1].get(timeout=PATIENCE_S), several[2].get(timeout=PATIENCE_S)
    transaction = client.transaction()
    transaction.create("/t", b"t")
    transaction.set_data("/a", b"4")
    transaction.check("/a", 2)
    yield [str(result) if isinstance(result, str) else result.version if result is not True else result
           for result in transaction.commit()]  # fmt: skip
    refused = client.transaction()
    refused.delete("/t")
    refused.check("/a", 99)
    yield [type(result).__name__ for result in refused.commit()], client.exists("/t") is not None

    fired = threading.Event()
    events: list[tuple[str, str]] = []

    def watched(event: Any) -> None:
        events.append((event.type, event.path))
        fired.set()

    client.get("/a", watch=watched)
    other.set("/a", b"5")
    yield fired.wait(PATIENCE_S), events, client.get("/a")[0]
    fired.clear()
    yield client.exists("/later", watch=watched), client.get_children("/a", watch=watched)
    other.create("/later")
    yield fired.wait(PATIENCE_S), events
    with client.Lock("/lock", "us"):
        yield other.get_children("/lock") != [], other.Lock("/lock", "them").acquire(blocking=False)
    yield client.delete("/b", recursive=True), client.exists("/b"), client.connected


@pytest.mark.slow
async def test_kazoos_public_behaviour_is_kept(zookeeper: str) -> None:
    async def behaviour(chroot: str, *, ours: bool) -> list[object]:
        store = await KazooStore.connect(f"{zookeeper}{chroot}", session_timeout_ms=6000, connection_timeout_ms=10_000)
        stock, other = (KazooClient(f"{zookeeper}{chroot}") for _ in range(2))

        def run() -> list[object]:
            for client in (stock, other):
                client.start()
            try:
                return list(public_behaviour(store._client if ours else stock, other))
            finally:
                for client in (stock, other):
                    client.stop()
                    client.close()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_busy, store, nursery.cancel_scope)
                found = await trio.to_thread.run_sync(run)
                nursery.cancel_scope.cancel()
        finally:
            await store.aclose()
        return found

    expected = await behaviour("/stock", ours=False)
    assert await behaviour("/ours", ours=True) == expected
    assert len(expected) == 13


async def keep_busy(store: KazooStore, scope: trio.CancelScope) -> None:
    """Requests of our own between those of kazoo, until it is cancelled."""
    paths = [f"/busy-{i}" for i in range(100)]
    await store.write([Create(path, b"x") for path in paths])
    while not scope.cancel_called:
        answers = await store.get_data(paths, watch=False)
        assert all(isinstance(answer, NodeData) for answer in answers)
