"""A client of ZooKeeper, the real one's or its twin's, whose session can be struck."""

from __future__ import annotations

import itertools
import socket
from collections.abc import AsyncIterator

import pytest
import trio
from kazoo.client import KazooClient

from kce.zookeeper.client import ZkClient
from kce.zookeeper.store import Create, MetadataStore, value
from kce.zookeeper.store.kazoo import KazooStore
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper

_chroots = itertools.count()
PATH = "/a"


class Fixture:
    """One client."""

    store: MetadataStore

    def __init__(self) -> None:
        self.zk = ZkClient(self.store)

    async def create(self, path: str = PATH, data: bytes = b"1") -> None:
        value((await self.store.write([Create(path, data)]))[0])

    async def wait_for(self, happened: trio.Event) -> None:
        with trio.fail_after(60):
            await happened.wait()

    async def expire(self) -> None:
        """End its session as ZooKeeper does."""
        raise NotImplementedError

    def refuse(self) -> None:
        """Accept its authentication no more, until ``accept``."""
        raise NotImplementedError

    def accept(self) -> None:
        raise NotImplementedError

    def disconnect(self) -> None:
        """Break the connection for good."""
        raise NotImplementedError


class InMemory(Fixture):
    def __init__(self) -> None:
        self._server = MemoryZooKeeper()
        self.store: MemoryStore = self._server.connect()
        super().__init__()

    async def expire(self) -> None:
        await trio.lowlevel.checkpoint()
        self._server.expire(self.store)

    def refuse(self) -> None:
        self._server.refuse(self.store)

    def accept(self) -> None:
        """The next attempt succeeds."""

    def disconnect(self) -> None:
        self._server.disconnect(self.store)


class InZooKeeper(Fixture):
    def __init__(self, address: str, store: KazooStore) -> None:
        self._address = address
        self.store: KazooStore = store
        super().__init__()

    async def expire(self) -> None:
        def steal() -> None:  # the session is closed from a second connection to it
            other = KazooClient(hosts=self._address, client_id=self.store._client.client_id)
            other.start()
            other.stop()
            other.close()

        await trio.to_thread.run_sync(steal)

    def refuse(self) -> None:
        self.store._client.auth_data = {("unknown", "to the server")}
        self._break()

    def accept(self) -> None:
        self.store._client.auth_data = set()

    def disconnect(self) -> None:
        self.store._client.hosts = [("127.0.0.1", 1)]
        self._break()

    def _break(self) -> None:
        self.store._client._connection._socket.shutdown(socket.SHUT_RDWR)


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.slow)])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Fixture]:
    if request.param == "memory":
        made: Fixture = InMemory()
    else:
        address = f"{request.getfixturevalue('zookeeper')}/client-{next(_chroots)}"
        store = await KazooStore.connect(address, session_timeout_ms=6000, connection_timeout_ms=10_000)
        made = InZooKeeper(address, store)
    yield made
    await made.store.aclose()
