"""Backends: ZooKeeper behind a proxy that can be cut, and ZooKeeper in memory."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio
from kazoo.client import KazooClient

from kce.election.services import ENTRY_POINTS
from kce.election.session import ElectionSession
from kce.harness.world.tcp_proxy import TcpProxy
from kce.zookeeper.store import MetadataStore
from kce.zookeeper.store.kazoo import KazooStore
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper

_chroots = itertools.count()
SESSION_TIMEOUT_MS = 4000


class Backend(ABC):
    """Clients of one empty store, and faults of their connections."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.fatal: list[Exception] = []
        self.stores: list[MetadataStore] = []

    @abstractmethod
    async def connect(self, *, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> MetadataStore: ...

    async def session(self, *, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> ElectionSession:
        self.stores.append(await self.connect(session_timeout_ms=session_timeout_ms))
        return ElectionSession(self.stores[-1], self._nursery, fatal_error_handler=self.fatal.append)

    @abstractmethod
    async def disconnect(self, session: ElectionSession) -> None: ...

    @abstractmethod
    async def reconnect(self, session: ElectionSession) -> None: ...

    @abstractmethod
    async def expire(self, session: ElectionSession) -> None: ...


class Memory(Backend):
    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__(nursery)
        self.server = MemoryZooKeeper()

    async def connect(self, *, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> MemoryStore:
        return self.server.connect(session_timeout_ms=session_timeout_ms)

    async def disconnect(self, session: ElectionSession) -> None:
        assert isinstance(session.store, MemoryStore)
        self.server.disconnect(session.store)

    async def reconnect(self, session: ElectionSession) -> None:
        assert isinstance(session.store, MemoryStore)
        self.server.reconnect(session.store)

    async def expire(self, session: ElectionSession) -> None:
        assert isinstance(session.store, MemoryStore)
        self.server.expire(session.store)


class ZooKeeper(Backend):
    def __init__(self, nursery: trio.Nursery, address: str) -> None:
        super().__init__(nursery)
        self._host, _, port = address.partition(":")
        self._port = int(port)
        self._chroot = f"election-{next(_chroots)}"
        self._proxies: dict[MetadataStore, TcpProxy] = {}

    async def connect(self, *, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> KazooStore:
        proxy = TcpProxy(self._host, self._port)
        await self._nursery.start(proxy.run)
        store = await KazooStore.connect(
            f"127.0.0.1:{proxy.port}/{self._chroot}",
            session_timeout_ms=session_timeout_ms,
            connection_timeout_ms=10_000,
        )
        self._proxies[store] = proxy
        return store

    async def disconnect(self, session: ElectionSession) -> None:
        self._proxies[session.store].cut()

    async def reconnect(self, session: ElectionSession) -> None:
        self._proxies[session.store].heal()

    async def expire(self, session: ElectionSession) -> None:
        """A second connection to the same session that closes it is how ZooKeeper's own tests expire one."""
        assert isinstance(session.store, KazooStore)
        client_id = session.store._client.client_id

        def steal() -> None:
            other = KazooClient(hosts=f"{self._host}:{self._port}", client_id=client_id)
            other.start()
            other.stop()
            other.close()

        await trio.to_thread.run_sync(steal)


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.slow)])
async def backend(request: pytest.FixtureRequest, nursery: trio.Nursery) -> AsyncIterator[Backend]:
    made = Memory(nursery) if request.param == "memory" else ZooKeeper(nursery, request.getfixturevalue("zookeeper"))
    yield made
    for store in made.stores:
        await store.aclose()
    assert made.fatal == []


@pytest.fixture
async def memory(nursery: trio.Nursery) -> AsyncIterator[Memory]:
    """Only the memory store, in which a test can step through a race."""
    made = Memory(nursery)
    yield made
    assert made.fatal == []


@pytest.fixture
def entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Installs a distribution that offers high-availability services under a name."""

    def install(name: str, target: str) -> None:
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{name} = {target}\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    return install
