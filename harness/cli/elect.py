"""`kce elect` and `kce leader`: elections in any ZooKeeper, with Flink's znodes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import trio

from kce.captures.exchanges.render import printable
from kce.election.api import LeaderContender, LeaderElectionService
from kce.election.java_stream import LeaderNodeFormatError
from kce.election.leader_node import WatchedNode
from kce.election.paths import SinglePaths, zookeeper_path
from kce.election.service import MultipleComponentLeaderElectionService
from kce.election.session import ConnectionState, ElectionSession
from kce.election.zookeeper import election_driver_factory, read_leader_node
from kce.harness import interrupts
from kce.harness.cli.options import FiniteRange, cluster_option, connected_store, zookeeper_option
from kce.harness.errors import HarnessError
from kce.harness.guard import Guard
from kce.zookeeper.store import NoNode, value

ELECT_EPILOG = """\b
Examples:
  kce elect --zookeeper zk:2181 --path /cron --address $(hostname):0 --exec 'exec ./nightly-jobs'
  kce elect --path /flink/default/leader/dispatcher --address host:8081
  kce leader --path /cron --watch

CMD gets the leader session id in KCE_SESSION_ID and its address in KCE_ADDRESS. When leadership is revoked or this
command ends, CMD and its child processes are stopped. When CMD exits, this command gives up leadership and exits with
the same code. Another contender becomes leader only after the session expires: a --grace shorter than the session
timeout keeps two CMDs from running at once.
"""

LEADER_EPILOG = """\b
Examples:
  kce leader --path /cron                                 what `kce elect --path /cron` elected
  kce leader --path /flink/default/leader/dispatcher      Flink 1.14 and later
  kce leader --path /flink/default/leader/dispatcher_lock Flink up to 1.13
  kce leader --path /controller                           Kafka's controller
"""


def log(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


@click.command(epilog=ELECT_EPILOG)
@click.option("--path", required=True, help="Contend in PATH/latch; PATH/connection_info holds the leader.")
@click.option("--address", required=True, metavar="HOST:PORT", help="The address of this contender.")
@click.option("--exec", "command", metavar="CMD", help="Run CMD in a shell while leading.")
@click.option("--grace", type=FiniteRange(0), default=5.0, show_default=True, metavar="SECONDS",
              help="Time from SIGTERM to SIGKILL when CMD is stopped.")  # fmt: skip
@click.option(
    "--latch-path",
    metavar="PATH",
    help="Contend in this path instead, for one latch with many components as in Flink 1.15.",
)
@click.option("--leader-path", metavar="PATH", help="Write the leader to this path instead.")
@click.option("--session-timeout", type=click.IntRange(1, 2**31 - 1), default=10_000, show_default=True, metavar="MS",
              help="ZooKeeper's session timeout.")  # fmt: skip
@click.option("--tolerate-suspended-connections", is_flag=True, help="Keep leadership until the session expires.")
@zookeeper_option
@cluster_option
def elect(
    path: str, command: str | None, latch_path: str | None, leader_path: str | None, session_timeout: int,
    zookeeper: str | None, cluster_file: Path | None, **options: Any,
) -> int:  # fmt: skip
    """Contend for leadership until Ctrl-C, and run a command while leading.

    The first contender leads; the next one takes over when it leaves or its session ends. The znodes are those of
    Flink's elections, so that Flink's processes and this command can contend with each other.
    """
    paths = SinglePaths.below(path)
    paths = SinglePaths(zookeeper_path(latch_path or paths.latch), zookeeper_path(leader_path or paths.leader))

    async def run() -> int:
        async with connected_store(zookeeper, cluster_file, session_timeout_ms=session_timeout) as store:
            return await _contend(store, paths, command=command, **options)

    logger = logging.getLogger("kce")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return interrupts.run(run)
    finally:
        logger.setLevel(level)


async def _contend(
    store: Any,
    paths: SinglePaths,
    *,
    command: str | None,
    address: str,
    grace: float,
    tolerate_suspended_connections: bool,
) -> int:
    """Its nursery holds the session's tasks, the watch on signals, and the wait for the command."""
    with (
        contextlib.closing(Guard()) as guard,
        trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals,
    ):
        async with trio.open_nursery() as nursery:
            session = ElectionSession(store, nursery)
            factory = election_driver_factory(
                session, paths, "", tolerate_suspended_connections=tolerate_suspended_connections
            )
            service = MultipleComponentLeaderElectionService(factory, nursery).create_leader_election(paths.leader)
            contender = _Contender(service, nursery, guard, address=address, command=command, grace_s=grace)
            unsubscribe = session.subscribe(lambda state: log(f"the connection is {state.value}"))
            await service.start(contender)
            log(f"contending at {paths.latch}")

            async def until_signal() -> None:
                async for _ in signals:
                    contender.done.set()

            nursery.start_soon(until_signal)
            try:
                await contender.done.wait()
            finally:
                unsubscribe()
                with trio.CancelScope(shield=True):
                    await service.stop()
            nursery.cancel_scope.cancel()
    return contender.exit_code


#: a shell that waits until the guard watches it: if we are killed before that, it reads the end of its input
STARTER = 'read -r go || exit; exec /bin/sh -c "$1" </dev/null'


class _Contender(LeaderContender[UUID]):
    """Runs the command while it leads. ``done`` is set when the command has ended or a signal came."""

    def __init__(
        self,
        service: LeaderElectionService,
        nursery: trio.Nursery,
        guard: Guard,
        *,
        address: str,
        command: str | None,
        grace_s: float,
    ) -> None:
        self.done = trio.Event()
        self.exit_code = 0
        self._service = service
        self._nursery = nursery
        self._guard = guard
        self._address = address
        self._command = command
        self._grace_s = grace_s
        self._process: trio.Process | None = None

    async def grant_leadership(self, session_id: UUID) -> None:
        log(f"leading as {session_id}")
        if self._command is not None:
            self._process = await trio.lowlevel.open_process(
                ["/bin/sh", "-c", STARTER, "sh", self._command],
                stdin=subprocess.PIPE,
                process_group=0,
                env={**os.environ, "KCE_SESSION_ID": str(session_id), "KCE_ADDRESS": self._address},
            )
            self._guard.watch(self._process.pid)
            assert self._process.stdin is not None
            async with self._process.stdin as stdin:
                with contextlib.suppress(trio.BrokenResourceError):
                    await stdin.send_all(b"\n")
            self._nursery.start_soon(self._wait, self._process)
        await self._service.confirm_leadership(session_id, self._address)

    async def revoke_leadership(self) -> None:
        log("no longer leading")
        process, self._process = self._process, None
        if process is not None:
            self._signal(process, signal.SIGTERM)
            with trio.move_on_after(self._grace_s):
                await process.wait()
            self._signal(process, signal.SIGKILL)  # for processes left in its group
            await process.wait()
            self._guard.forget(process.pid)

    async def handle_error(self, error: Exception) -> None:
        log(f"{error}")

    async def _wait(self, process: trio.Process) -> None:
        code = await process.wait()
        if process is self._process:  # not stopped by us
            self.exit_code = code if code >= 0 else 128 - code
            self._guard.forget(process.pid)
            log(f"the command has ended with exit code {self.exit_code}")
            self.done.set()

    @staticmethod
    def _signal(process: trio.Process, number: signal.Signals) -> None:
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return


@click.command(epilog=LEADER_EPILOG)
@click.option("--path", required=True, help="A leader znode, or its parent if it is named connection_info.")
@click.option("--watch", is_flag=True, help="Print every change until Ctrl-C.")
@zookeeper_option
@cluster_option
def leader(path: str, watch: bool, zookeeper: str | None, cluster_file: Path | None) -> int:
    """Print the leader: address and session id, or the id of Kafka's controller."""
    paths = [zookeeper_path(path), zookeeper_path(path, "connection_info")]

    async def run() -> None:
        # who watches may come before the first contender; who asks once writes nothing
        connecting = connected_store(zookeeper, cluster_file, create_chroot=watch)
        async with connecting as store, trio.open_nursery() as nursery:
            if watch:
                await _watch(ElectionSession(store, nursery), paths)
                return
            answers = await store.get_data(paths)
            data = [b"" if isinstance(answer, NoNode) else value(answer).data for answer in answers]
            try:
                text = _leader_text(*data)
            except LeaderNodeFormatError as e:
                raise HarnessError(f"{paths[0] if data[0] else paths[1]} holds no leader: {e}") from None
            if text is None:
                raise HarnessError(f"there is no leader at {paths[0]}")
            click.echo(text)

    interrupts.run(run)
    return 0


async def _watch(session: ElectionSession, paths: list[str]) -> None:
    """Print the leader, every change of it, and every time that the connection is lost."""
    printed: list[str] = []
    found: dict[str, bytes] = {}
    nodes: list[WatchedNode] = []

    def show(text: str) -> None:
        if printed[-1:] != [text]:
            printed.append(text)
            click.echo(f"{time.strftime('%H:%M:%S')} {text}")
            sys.stdout.flush()

    def changed(path: str, data: bytes | None) -> None:
        found[path] = data or b""
        if len(found) < len(paths):
            return
        try:
            show(_leader_text(*(found[p] for p in paths)) or "no leader")
        except LeaderNodeFormatError as e:
            show(f"no leader can be read: {e}")

    def connection_changed(state: ConnectionState) -> None:
        if not state.is_connected:
            show(f"unknown: the connection is {state.value}")
            for node in nodes:
                node.forget()

    def failed(error: Exception) -> None:
        click.echo(f"kce: {error}", err=True)

    session.subscribe(connection_changed)
    for path in paths:
        on_data: Callable[[bytes | None], None] = partial(changed, path)
        nodes.append(WatchedNode(session, path, on_data=on_data, on_error=failed))
        nodes[-1].forget()  # so that a missing znode is reported too
        nodes[-1].start()
    await trio.sleep_forever()


def _leader_text(*data: bytes) -> str | None:
    """The leader in the first znode that is not empty. Raises LeaderNodeFormatError."""
    for content in data:
        if content.startswith(b"{"):
            try:
                return f"broker {int(json.loads(content)['brokerid'])}, Kafka's controller"
            except (ValueError, KeyError, TypeError):
                raise LeaderNodeFormatError(0, "neither Flink's leader nor Kafka's controller") from None
        if content:
            information = read_leader_node(content)
            return f"{printable(information.address or '')} {information.session_id}"
    return None
