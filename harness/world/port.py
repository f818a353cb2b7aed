"""The port of effects, as Protocols; more are in `kce.broker_stub.ports`. See `real_world` and `memory_world`."""

from __future__ import annotations

import ssl
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import trio

from kce.broker_stub.disk import Disk
from kce.broker_stub.ports import Address, InTurns
from kce.harness.background import BackgroundTasks
from kce.harness.world.machine import Machine
from kce.wire.payload import Part
from kce.zookeeper.client_config import ZooKeeperClientConfig
from kce.zookeeper.store import Session

#: the purpose of random numbers that nobody may foresee
SECRETS: Final = "secrets"


class Connected(NamedTuple):
    """A TCP connection, or one in memory, and the addresses of its two ends."""

    stream: trio.abc.Stream
    local: Address
    remote: Address


class PartsStream(trio.abc.Stream):
    """A stream that sends what its world has stored without reading it, and what fits its buffer without waiting; it
    closes at once."""

    @abstractmethod
    def close(self) -> None:
        """``aclose`` without giving up the turn."""

    @abstractmethod
    async def send_parts(self, parts: Sequence[Part]) -> None:
        """Like ``send_all``, one part after the other. Raises trio.BrokenResourceError, also if one is gone."""

    @abstractmethod
    def send_nowait(self, data: bytes) -> int:
        """How many bytes were sent; none while a task is sending. Raises trio.BrokenResourceError."""

    @abstractmethod
    def receive_nowait(self, max_bytes: int) -> bytes | None:
        """What has come, b"" at the end; None if nothing has. Raises trio.BrokenResourceError."""

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """All that the peer has sent was received, and no more will come."""

    @abstractmethod
    async def wait_for_input(self, on_input: Callable[[], bool], turns: InTurns) -> None:
        """See `kce.broker_stub.ports.Link`. Raises trio.ClosedResourceError."""

    @abstractmethod
    def stop_waiting(self) -> None:
        """End the ``wait_for_input`` of another task."""


class Listener(Protocol):
    """A bound server socket."""

    @property
    def address(self) -> Address:
        """The address with the port that was bound."""
        ...

    def listen(self, backlog: int) -> None:
        """Let clients connect. Raises OSError."""

    async def accept(self) -> Connected:
        """Raises OSError; ConnectionAbortedError for a client that is gone already."""
        ...

    def close(self) -> None:
        """Refuse clients from now on. May be called twice."""


def uuids(random: Random) -> Callable[[], UUID]:
    """Version 4 UUIDs from ``random``."""
    return lambda: UUID(int=random.getrandbits(128), version=4)


class World(Protocol):
    """The outside world of one node."""

    disk: Disk
    machine: Machine

    async def bind(self, host: str, port: int) -> Listener:
        """Port 0 is an ephemeral one. Raises OSError."""
        ...

    async def connect(self, host: str, port: int) -> Connected:
        """Raises OSError."""
        ...

    async def zookeeper(self, config: ZooKeeperClientConfig) -> Session:
        """A client with a session of its own. Raises StoreUnavailable."""
        ...

    def now_ns(self) -> int:
        """Wall clock: nanoseconds since 1970. Durations are measured by ``trio.current_time``."""
        ...

    def now_ms(self) -> int:
        """The same in milliseconds."""
        return self.now_ns() // 1_000_000

    def random(self, purpose: str) -> Random:
        """A generator for one purpose, so that one use does not disturb the numbers of another."""
        ...


class ClusterWorld(Protocol):
    """The world of a cluster: the worlds of its nodes, its ZooKeeper, and the network between them."""

    #: whether nodes may run as processes of their own
    processes: bool

    def running(
        self, data: Path | None, zookeeper_port: int | None, zookeepers: int = 1
    ) -> AbstractAsyncContextManager[Path | None]:
        """ZooKeeper, of so many servers, is up and nodes can run until the end; gives the data folder, if any.

        Raises HarnessError.
        """
        ...

    @property
    def zookeeper_connect(self) -> str:
        """host:port/chroot of the cluster's ZooKeeper."""
        ...

    async def node(self, node_id: int, tasks: BackgroundTasks) -> tuple[World, str]:
        """The world of one node, and its `zookeeper.connect`."""
        ...

    def observer(self) -> World:
        """The world of who watches the cluster, and is never cut off."""
        ...

    def cut(self, node_id: int) -> None:
        """Partition a node from ZooKeeper; its session expires if it is not healed in time."""

    def heal(self, node_id: int) -> None: ...

    def delay_zookeeper(self, node_id: int, seconds: float) -> None:
        """What a node says to ZooKeeper takes so much longer until `heal`."""

    def mute_zookeeper(self, node_id: int) -> None:
        """What ZooKeeper says to a node does not arrive until `heal`."""

    def is_cut(self, node_id: int) -> bool: ...

    async def expire(self, node_id: int, session_id: int, tls: ssl.SSLContext | None) -> None:
        """End a session of the node. ``tls``: how to reach ZooKeeper. Raises HarnessError."""
        ...

    async def kill_zookeeper_leader(self) -> None:
        """Kill the server that leads the ensemble. Raises HarnessError where there is no ensemble."""
        ...

    async def restart_zookeeper(self) -> None:
        """Start the servers that were killed. Raises HarnessError where there is no ensemble."""
        ...
