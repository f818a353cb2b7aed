"""A ZooKeeper ensemble on loopback whose leader can be killed: real servers, from the jars inside the pyspark package.

async with embedded_ensemble(folder, guard, 3) as ensemble:     # ensemble.address: three servers
    await ensemble.kill_leader()                                # the other two elect a leader
    await ensemble.restart()
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import trio

from kce.harness.embedded_zookeeper import (
    SHORT_LIVED,
    START_TIMEOUT_S,
    four_letter_word,
    last_line,
    spark_jars,
    spawn,
    stop,
)
from kce.harness.errors import HarnessError
from kce.harness.guard import Guard
from kce.java import find_java

#: how long the servers may take to elect a leader
ELECTION_TIMEOUT_S = 30
_TRIES = 5
_POLL_S = 0.05
#: in ticks: how long a server may take to follow a leader, and how long it may be silent
_LIMITS = {"initLimit": "40", "syncLimit": "20"}


class _Server:
    """One server; ``ports``: of its clients, of its followers, of elections."""

    def __init__(self, number: int, folder: Path, ports: Sequence[int]) -> None:
        self.number = number
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "zookeeper.log"
        self.client_port, self.quorum_port, self.election_port = ports
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def ended(self) -> str | None:
        """Why it has ended; None while it runs."""
        return None if self.is_running else last_line(self.log.read_text(errors="replace"))

    async def mode(self) -> str | None:
        """leader or follower; None while it serves nobody."""
        if not self.is_running or str(self.data) not in await self._ask("conf"):
            return None
        lines = (await self._ask("srvr")).splitlines()
        return next((line.removeprefix("Mode: ") for line in lines if line.startswith("Mode: ")), None)

    async def _ask(self, word: str) -> str:
        with trio.move_on_after(1):
            return await four_letter_word("127.0.0.1", self.client_port, word)
        return ""


class Ensemble:
    """See the module. ``folder`` has a folder for each server."""

    def __init__(self, folder: Path, guard: Guard, ports: Sequence[Sequence[int]]) -> None:
        self._guard = guard
        self._java = [find_java(), *SHORT_LIVED]
        self._jars = spark_jars()
        self._servers = [
            _Server(number, folder / f"server-{number}", of_server) for number, of_server in enumerate(ports, start=1)
        ]

    @property
    def address(self) -> str:
        """host:port of every server."""
        return ",".join(f"127.0.0.1:{server.client_port}" for server in self._servers)

    def _settings(self) -> Mapping[str, str]:
        members = {f"server.{s.number}": f"127.0.0.1:{s.quorum_port}:{s.election_port}" for s in self._servers}
        return _LIMITS | members

    async def start(self) -> None:
        """Start the servers that do not run, and wait until all serve. Raises HarnessError."""
        for server in self._servers:
            if not server.is_running:
                self._spawn(server)
        with trio.move_on_after(START_TIMEOUT_S):
            for server in self._servers:
                while await server.mode() is None:
                    for each in self._servers:
                        if (why := each.ended) is not None:
                            raise HarnessError(f"ZooKeeper server {each.number} did not start, see {each.log}: {why}")
                    await trio.sleep(_POLL_S)
            return
        raise HarnessError(f"ZooKeeper did not start within {START_TIMEOUT_S} s, see {self._servers[0].folder.parent}")

    def _spawn(self, server: _Server) -> None:
        try:
            server.data.mkdir(parents=True, exist_ok=True)
            (server.data / "myid").write_text(f"{server.number}\n")
        except OSError as e:
            raise HarnessError(f"ZooKeeper's data folder {server.data} cannot be made: {e.strerror or e}") from None
        server.process = spawn(
            self._java, self._jars, server.folder, server.data, server.client_port, server.log, self._settings()
        )
        self._guard.watch(server.process.pid)

    async def leader(self) -> int:
        """The number of the server that leads, once one does. Raises HarnessError."""
        with trio.move_on_after(ELECTION_TIMEOUT_S):
            while True:
                running = [server for server in self._servers if server.is_running]
                if 2 * len(running) <= len(self._servers):
                    raise HarnessError(
                        f"{len(running)} of {len(self._servers)} ZooKeeper servers run, which cannot elect a leader"
                    )
                for server in running:
                    if await server.mode() == "leader":
                        return server.number
                await trio.sleep(_POLL_S)
        raise HarnessError(f"no ZooKeeper server leads after {ELECTION_TIMEOUT_S} s")

    async def kill_leader(self) -> int:
        """kill -9; returns the number of the server. Raises HarnessError where none leads."""
        number = await self.leader()
        process = self._servers[number - 1].process
        assert process is not None
        process.kill()
        await stop(process, self._guard)
        return number

    async def aclose(self) -> None:
        async with trio.open_nursery() as nursery:
            for server in self._servers:
                if server.process is not None:
                    nursery.start_soon(stop, server.process, self._guard)


@asynccontextmanager
async def embedded_ensemble(
    folder: Path, guard: Guard, servers: int, *, port: int | None = None
) -> AsyncIterator[Ensemble]:
    """Run ``servers`` with their data under ``folder``, and stop them at the end.

    ``port``: of the first server's clients, and the others count up; None are free ones. Raises HarnessError,
    JavaMissing, MissingExtra.
    """
    for attempt in range(_TRIES):
        ensemble = Ensemble(folder, guard, _ports(servers, port))
        try:
            await ensemble.start()
        except HarnessError as e:
            await _close(ensemble)
            if "BindException" not in str(e) or port is not None or attempt == _TRIES - 1:
                raise
        except BaseException:
            await _close(ensemble)
            raise
        else:
            break
    try:
        yield ensemble
    finally:
        await _close(ensemble)


async def _close(ensemble: Ensemble) -> None:
    with trio.CancelScope(shield=True):
        await ensemble.aclose()


def _ports(servers: int, first: int | None) -> list[list[int]]:
    """Three ports for each server, which were free a moment ago."""
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(3 * servers)]
        for each in bound:
            each.bind(("127.0.0.1", 0))
        free = [int(each.getsockname()[1]) for each in bound]
    ports = [free[at : at + 3] for at in range(0, len(free), 3)]
    if first is not None:
        for number, of_server in enumerate(ports):
            of_server[0] = first + number
    return ports
