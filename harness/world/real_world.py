"""The real world: sockets, kazoo, the wall clock, the disk; for clusters an embedded ZooKeeper behind proxies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import resource
import shutil
import socket
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Final

import trio

from kce.broker_stub.ports import Address
from kce.harness.background import BackgroundTasks
from kce.harness.embedded_zookeeper import embedded_zookeeper
from kce.harness.errors import HarnessError
from kce.harness.folders import make_writable_folder
from kce.harness.guard import Guard
from kce.harness.world.machine import Machine
from kce.harness.world.port import SECRETS, ClusterWorld, Connected, Listener, World
from kce.harness.world.real_disk import RealDisk
from kce.harness.world.session_expiry import end_session
from kce.harness.world.tcp_proxy import TcpProxy
from kce.harness.world.tcp_stream import TcpStream
from kce.harness.zookeeper_ensemble import Ensemble, embedded_ensemble
from kce.zookeeper.client_config import ZooKeeperClientConfig
from kce.zookeeper.store import Session

DEFAULT_ZOOKEEPER_PORT = 2181


#: of an IPv4 address on a socket of IPv6
_IPV4_MAPPED: Final = "::ffff:"


class RealListener(Listener):
    def __init__(self, bound: socket.socket) -> None:
        self._socket = bound

    @property
    def address(self) -> Address:
        host, port = self._socket.getsockname()[:2]
        return host, port

    def listen(self, backlog: int) -> None:
        self._socket.listen(backlog)

    async def accept(self) -> Connected:
        accepted = await self._accept()
        try:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # rule B1.14
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _connected(accepted)
        except OSError as e:
            accepted.close()
            raise ConnectionAbortedError(errno.ECONNABORTED, f"the client is gone: {e}") from None

    async def _accept(self) -> socket.socket:
        while True:
            try:
                return self._socket.accept()[0]
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)

    def close(self) -> None:
        if self._socket.fileno() != -1:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


def _connected(connected: socket.socket) -> Connected:
    return Connected(TcpStream(connected), _named(connected.getsockname()), _named(connected.getpeername()))


def _named(found: Any) -> Address:
    """A listener on all addresses of IPv6 has those of IPv4, too, and is to know them by their own names."""
    host, port = found[:2]
    return host.removeprefix(_IPV4_MAPPED), port


def _with_zone_index(host: str) -> str:
    """The C library knows a zone by its name only in addresses of a link, Java in all: ``::1%lo``."""
    address, percent, zone = host.rpartition("%")
    try:
        return f"{address}%{socket.if_nametoindex(zone)}" if percent else host
    except OSError:  # a number, or no interface
        return host


class RealWorld(World):
    """The world of a node of this process."""

    def __init__(self) -> None:
        self.machine = Machine(time.sleep)
        self.disk = RealDisk(self.machine)

    async def bind(self, host: str, port: int) -> RealListener:
        host = _with_zone_index(host)
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setblocking(False)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
        return RealListener(bound)

    async def connect(self, host: str, port: int) -> Connected:
        stream = await trio.open_tcp_stream(_with_zone_index(host), port)  # sets TCP_NODELAY
        connected = socket.socket(fileno=stream.socket.detach())
        try:
            return _connected(connected)
        except OSError:  # the peer has reset the connection already
            connected.close()
            raise

    async def zookeeper(self, config: ZooKeeperClientConfig) -> Session:
        return await config.connect()

    def now_ns(self) -> int:
        return time.time_ns() + self.machine.clock_ns

    def now_ms(self) -> int:
        return (time.time_ns() + self.machine.clock_ns) // 1_000_000

    def random(self, purpose: str) -> Random:
        return SystemRandom() if purpose == SECRETS else Random()


#: a cluster of three nodes needs some 60 in each process, and one more for each client
MIN_OPEN_FILES = 256


def allow_open_files() -> None:
    """Raise the limit of open files as far as this user may. Raises HarnessError if that is too low for a cluster."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < MIN_OPEN_FILES:
        if hard != resource.RLIM_INFINITY and hard < MIN_OPEN_FILES:
            raise HarnessError(
                f"the limit of open files is {hard}, and a cluster needs at least {MIN_OPEN_FILES}: "
                f"raise it with `ulimit -n {4 * MIN_OPEN_FILES}`"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (MIN_OPEN_FILES, hard))


class RealClusterWorld(ClusterWorld):
    """``zookeeper`` is host:port/chroot of yours; None starts an embedded one."""

    processes = True

    def __init__(self, zookeeper: str | None = None) -> None:
        self._zookeeper = zookeeper
        self._ensemble: Ensemble | None = None
        #: by node, one for each server of ZooKeeper
        self._proxies: dict[int, list[TcpProxy]] = {}
        self.guard: Guard

    @asynccontextmanager
    async def running(self, data: Path | None, zookeeper_port: int | None, zookeepers: int = 1) -> AsyncIterator[Path]:
        if self._zookeeper is not None and zookeepers > 1:
            raise HarnessError(f"zookeepers={zookeepers} starts servers, and {self._zookeeper} is given: choose one")
        allow_open_files()
        async with AsyncExitStack() as stack:
            self.guard = Guard()
            stack.callback(self.guard.close)
            folder = self._data_folder(data, stack)
            if self._zookeeper is None:
                stack.enter_context(_locked(folder))
            if zookeepers > 1:
                ensemble = embedded_ensemble(folder / "zookeeper", self.guard, zookeepers, port=zookeeper_port)
                self._ensemble = await stack.enter_async_context(ensemble)
                self._zookeeper = self._ensemble.address
            elif self._zookeeper is None:
                embedded = embedded_zookeeper(folder / "zookeeper", self.guard, port=zookeeper_port)
                self._zookeeper = await stack.enter_async_context(embedded)
            yield folder

    def _data_folder(self, given: Path | None, stack: AsyncExitStack) -> Path:
        folder = given
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="kce-"))
            self.guard.remove(folder)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            make_writable_folder(folder / "logs")
        except OSError as e:
            raise HarnessError(f"the data folder {folder} is not writable: {e.strerror or e}") from None
        return folder

    @property
    def zookeeper_connect(self) -> str:
        assert self._zookeeper is not None, "the cluster has not started"
        return self._zookeeper

    async def node(self, node_id: int, tasks: BackgroundTasks) -> tuple[World, str]:
        proxies = self._proxies[node_id] = [TcpProxy(*server) for server in self.servers()]
        for proxy in proxies:
            await tasks.start(proxy.run)
        _, slash, chroot = self.zookeeper_connect.partition("/")
        return RealWorld(), f"{','.join(f'127.0.0.1:{proxy.port}' for proxy in proxies)}{slash}{chroot}"

    def servers(self) -> list[Address]:
        """The servers of `zookeeper_connect`. Raises HarnessError."""
        return [_address(server) for server in self.zookeeper_connect.partition("/")[0].split(",")]

    def observer(self) -> World:
        return RealWorld()

    def cut(self, node_id: int) -> None:
        for proxy in self._proxies[node_id]:
            proxy.cut()

    def heal(self, node_id: int) -> None:
        for proxy in self._proxies[node_id]:
            proxy.heal()

    def delay_zookeeper(self, node_id: int, seconds: float) -> None:
        for proxy in self._proxies[node_id]:
            proxy.delay_s = seconds

    def mute_zookeeper(self, node_id: int) -> None:
        for proxy in self._proxies[node_id]:
            proxy.mute()

    def is_cut(self, node_id: int) -> bool:
        return any(proxy.is_cut for proxy in self._proxies[node_id])

    async def expire(self, node_id: int, session_id: int, tls: ssl.SSLContext | None) -> None:
        *others, last = self.servers()
        for server in others:
            with contextlib.suppress(HarnessError):  # it may be dead: any server of an ensemble can close the session
                await end_session(*server, session_id, tls)
                return
        await end_session(*last, session_id, tls)

    async def kill_zookeeper_leader(self) -> None:
        await self._own_ensemble().kill_leader()

    async def restart_zookeeper(self) -> None:
        await self._own_ensemble().start()

    def _own_ensemble(self) -> Ensemble:
        if self._ensemble is None:
            raise HarnessError(
                f"ZooKeeper at {self.zookeeper_connect} is no ensemble of this cluster: use zookeepers=3"
            )
        return self._ensemble


def _address(server: str) -> Address:
    """Of host:port, or host."""
    host, colon, port = server.rpartition(":")
    if not colon:
        return server, DEFAULT_ZOOKEEPER_PORT
    if not port.isdecimal():
        raise HarnessError(f"{server} is not the HOST:PORT of a ZooKeeper server")
    return host.strip("[]"), int(port)


def real(zookeeper: str | None = None) -> RealClusterWorld:
    """Nodes on sockets, with your ZooKeeper (``zookeeper="host:port/chroot"``) or an embedded one."""
    return RealClusterWorld(zookeeper)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two ZooKeepers with one folder lose what is written. Unlike lockf, flock excludes clusters of this process."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise HarnessError(f"the data folder {folder} is in use by another cluster") from None
        yield
