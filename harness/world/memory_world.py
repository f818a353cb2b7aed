"""The world in memory: no socket, no file, no thread, no JVM; virtual time; the same from the same seed, byte for byte.

async with kce.Cluster(brokers=3, world=memory(seed=7)) as cluster: ...
"""

from __future__ import annotations

import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import trio

from kce.harness.background import BackgroundTasks
from kce.harness.errors import HarnessError
from kce.harness.world.machine import Machine
from kce.harness.world.memory_disk import MemoryDisk
from kce.harness.world.network import MemoryListener, MemoryNetwork, Stall
from kce.harness.world.port import ClusterWorld, Connected, World
from kce.harness.world.virtual_time import deterministic
from kce.zookeeper.client_config import ZooKeeperClientConfig
from kce.zookeeper.store import Session, StoreUnavailable
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper

#: the wall clock when the world begins: 2024-01-01T00:00:00Z
EPOCH_NS = 1_704_067_200_000_000_000

_ONE_SERVER = "ZooKeeper in memory is one server, which cannot die: an ensemble needs the real world"


class MemoryWorld(World):
    """The world of one node of a `MemoryClusterWorld`."""

    def __init__(self, cluster: MemoryClusterWorld, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self.disk = cluster.disks[name]
        self.machine = self.disk.machine

    async def bind(self, host: str, port: int) -> MemoryListener:
        await trio.lowlevel.checkpoint()
        return self._cluster.network.bind(host, port, self._cluster.stalls[self._name])

    async def connect(self, host: str, port: int) -> Connected:
        return await self._cluster.network.connect(host, port, self._cluster.stalls[self._name])

    async def zookeeper(self, config: ZooKeeperClientConfig) -> Session:
        if config.set_acl:
            raise StoreUnavailable("zookeeper.set.acl=true: the memory world knows no client certificates")
        return await self._cluster.connect_to_zookeeper(self._name, config)

    def now_ns(self) -> int:
        return self._cluster.now_ns() + self.machine.clock_ns

    def random(self, purpose: str) -> Random:
        return Random(f"{self._cluster.seed}/{self._name}/{purpose}")

    def pause(self) -> None:
        """The node stands still: nothing that it sends leaves, nothing arrives, its session is not kept alive.

        Its timers go on, as those of a process that was paused all run out when it is resumed.
        """
        self._cluster.pause(self._name)

    def resume(self) -> None:
        self._cluster.resume(self._name)


class _Made(dict[str, MemoryDisk]):
    """Makes what it does not have."""

    def __init__(self, make: Callable[[str], MemoryDisk]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> MemoryDisk:
        made = self[name] = self._make(name)
        return made


class MemoryClusterWorld(ClusterWorld):
    """``seed`` determines the order of tasks and every random number."""

    processes = False

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        #: trio.current_time() then
        self.began = 0.0
        self.network = MemoryNetwork()
        #: by node: they outlive it
        self.disks: dict[str, MemoryDisk] = _Made(self._new_disk)
        #: by node: what waits for its disk
        self.stalls: defaultdict[str, Stall] = defaultdict(Stall)
        self.server: MemoryZooKeeper
        self._sessions: defaultdict[str, list[MemoryStore]] = defaultdict(list)
        #: names of nodes
        self._cut: set[str] = set()
        self._paused: set[str] = set()

    def _new_disk(self, name: str) -> MemoryDisk:
        machine = Machine(self.stalls[name].add)
        return MemoryDisk(lambda: (self.now_ns() + machine.clock_ns) // 1_000_000, machine)

    @asynccontextmanager
    async def running(self, data: Path | None, zookeeper_port: int | None, zookeepers: int = 1) -> AsyncIterator[None]:
        if zookeepers > 1:
            raise HarnessError(f"zookeepers={zookeepers}: {_ONE_SERVER}")
        with deterministic(self.seed):
            self.began = trio.current_time()
            async with trio.open_nursery() as nursery:
                self.server = MemoryZooKeeper(self.observer().now_ms, nursery)
                yield
                nursery.cancel_scope.cancel()

    def now_ns(self) -> int:
        # whole microseconds: what is finer depends on how floating-point numbers were added up
        return EPOCH_NS + round((trio.current_time() - self.began) * 1e6) * 1000

    @property
    def zookeeper_connect(self) -> str:
        return "memory:2181"

    async def node(self, node_id: int, tasks: BackgroundTasks) -> tuple[World, str]:
        await trio.lowlevel.checkpoint()
        self.disks[_name(node_id)].release_locks()  # of the node's process before this one
        return MemoryWorld(self, _name(node_id)), self.zookeeper_connect

    def observer(self) -> World:
        return MemoryWorld(self, "observer")

    def cut(self, node_id: int) -> None:
        self._cut.add(_name(node_id))
        for store in self._living_sessions(_name(node_id)):
            self.server.disconnect(store)

    def heal(self, node_id: int) -> None:
        name = _name(node_id)
        self._cut.discard(name)
        self.delay_zookeeper(node_id, 0)
        for store in self._living_sessions(name) if name not in self._paused else ():
            self.server.reconnect(store)

    def delay_zookeeper(self, node_id: int, seconds: float) -> None:
        """The node's operations take that long to reach ZooKeeper, until `heal`; watches fire at once."""
        for store in self._living_sessions(_name(node_id)):
            store.delay_s = seconds

    def mute_zookeeper(self, node_id: int) -> None:
        self._cut.add(_name(node_id))
        for store in self._living_sessions(_name(node_id)):
            self.server.mute(store)

    def pause(self, name: str) -> None:
        self._paused.add(name)
        self.stalls[name].pause()
        for store in self._living_sessions(name):
            self.server.freeze(store)

    def resume(self, name: str) -> None:
        self._paused.discard(name)
        self.stalls[name].resume()
        for store in self._living_sessions(name) if name not in self._cut else ():
            self.server.reconnect(store)

    def _living_sessions(self, name: str) -> list[MemoryStore]:
        """The node's sessions, except those of a killed client, which last until they expire."""
        return [store for store in self._sessions[name] if not store.is_abandoned]

    def is_cut(self, node_id: int) -> bool:
        return _name(node_id) in self._cut

    async def expire(self, node_id: int, session_id: int, tls: ssl.SSLContext | None) -> None:
        await trio.lowlevel.checkpoint()
        for store in self._sessions[_name(node_id)]:
            if store.session_id == session_id:
                if store.is_abandoned or self.is_cut(node_id) or _name(node_id) in self._paused:
                    self.server.end_session(store)
                else:
                    self.server.expire(store)

    async def kill_zookeeper_leader(self) -> None:
        await self.restart_zookeeper()

    async def restart_zookeeper(self) -> None:
        await trio.lowlevel.checkpoint()
        raise HarnessError(_ONE_SERVER)

    async def connect_to_zookeeper(self, name: str, config: ZooKeeperClientConfig) -> MemoryStore:
        await trio.lowlevel.checkpoint()
        if name in self._cut:
            await trio.sleep(config.connection_timeout_ms / 1000)
            raise StoreUnavailable(f"{name} is cut off from ZooKeeper")
        store = self.server.connect(session_timeout_ms=config.session_timeout_ms)
        self._sessions[name] = [known for known in self._sessions[name] if not known.is_closed] + [store]
        return store


def _name(node_id: int) -> str:
    return f"node-{node_id}"


def memory(seed: int = 0) -> MemoryClusterWorld:
    """A world for one cluster. The Trio run that the cluster is in becomes deterministic for as long as it runs."""
    return MemoryClusterWorld(seed)
