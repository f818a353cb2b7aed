"""`kce up`: a cluster until Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import logging
import time
import warnings
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import click
import trio
from rich.console import Console
from rich.table import Table

from kce.captures.record.wireshark import write_beside
from kce.harness import interrupts
from kce.harness.cli import detached
from kce.harness.cli.detached import OPTION, DetachableCommand, detach_option
from kce.harness.cli.options import (
    http_port_option,
    json_option,
    log_level_option,
    node_settings,
    plain_console,
    settings_options,
)
from kce.harness.cli.serving import EXIT_SETTINGS
from kce.harness.cluster import Cluster
from kce.harness.cluster_config import CONTROL, DATA
from kce.harness.commands import ClusterTarget
from kce.harness.embedded_zookeeper import spark_jars
from kce.harness.errors import HarnessError, SettingWarning
from kce.harness.running import named
from kce.harness.settling import unsettled
from kce.harness.supervisor import Supervisor
from kce.java import find_java
from kce.zookeeper.store import SessionExpired, StoreError

_CHECK_EVERY_S = 0.5
#: after its start
_SETTLES_WITHIN_S = 10.0

EPILOG = """\b
Examples:
  kce up                                          three nodes and a ZooKeeper, on free ports
  kce up --brokers 5 --data-port 9092             data listeners on 9092, 9093, ...
  kce up --record traffic.pcapng                  all traffic between nodes, written at the end
  kce up --set inter.broker.protocol.version=2.4  as an older Kafka speaks
  kce up --wait && pytest; kce down               in a script: ready when it returns, gone after `kce down`

\b
While it runs, from another terminal:
  kce topic create orders --partitions 4 --replication-factor 3
  kce describe
  kce kill 2        kce restart 2        kce pause 1        kce resume 1
"""


def _users(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Passwords by name."""
    pairs = [text.partition("=") for text in given]
    for user, _, password in pairs:
        if not user or not password:
            raise click.BadParameter("it must be NAME=PASSWORD", context, parameter)
    return {user: password for user, _, password in pairs}


@click.command(cls=DetachableCommand, epilog=EPILOG)
@click.option("--brokers", type=click.IntRange(1, 100), default=3, show_default=True, help="How many nodes.")
@click.option(
    "--controllers", type=click.IntRange(0, 100), default=0, show_default=True,
    help="How many more nodes, which contend for controller and take no replicas.",
)  # fmt: skip
@click.option("--first-id", type=click.IntRange(0), default=1, show_default=True, help="Broker id of the first node.")
@click.option("--zookeeper", metavar="HOST:PORT[/CHROOT]", help="Use this ZooKeeper instead of starting one.")
@click.option(
    "--zookeeper-port",
    type=click.IntRange(1, 65535),
    help="Port of the ZooKeeper that is started; of an ensemble's first server.",
)
@click.option(
    "--user", "users", callback=_users, multiple=True, metavar="NAME=PASSWORD",
    help="A user that SCRAM knows when the first node starts; may be repeated.",
)  # fmt: skip
@click.option(
    "--zookeepers", type=click.IntRange(1, 9), default=1, show_default=True,
    help="How many ZooKeeper servers; with three or more their leader can be killed (`kce zookeeper kill-leader`).",
)  # fmt: skip
@click.option(
    "--data-port", type=click.IntRange(1, 65535), help="Port of the first node's data listener; others count up."
)
@click.option("--control-port", type=click.IntRange(1, 65535), help="The same for the control listeners.")
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    help="Serve the first node's metrics for Prometheus on this port; others count up.",
)
@click.option(
    "--data", type=click.Path(path_type=Path), help="Folder for records, logs and ZooKeeper's data; it is kept."
)
@click.option(
    "--record", type=click.Path(path_type=Path, dir_okay=False), help="Record all traffic to this pcapng file."
)
@click.option("--wireshark", is_flag=True, help="With --record: also write FILE.lua, which tells Wireshark the ports.")
@click.option(
    "--name", metavar="NAME", help="What other commands call this cluster (--cluster NAME), if several are running."
)
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write all addresses to this JSON file when ready.",
)
@json_option
@detach_option("cluster")
@click.option(OPTION, "background", type=click.Path(path_type=Path, file_okay=False), hidden=True)
@http_port_option
@settings_options
@log_level_option
def up(
    name: str | None,
    ready_file: Path | None,
    config: Path | None,
    settings: tuple[str, ...],
    zookeeper: str | None,
    wireshark: bool,
    http_port: int | None,
    as_json: bool,
    detach: bool,
    background: Path | None,
    users: dict[str, str],
    **options: Any,
) -> int:
    """Run ZooKeeper and a cluster of nodes until Ctrl-C, SIGTERM or `kce down`.

    The exit code is 0 then; it is 1 if the cluster cannot start, 2 for wrong usage and for a setting that cannot be.
    With --wait they run in the background: 0 means that the cluster is ready.

    Each node is a process of its own: a stub broker with a control and a data listener, and a contender for the
    controller role. Everything listens on 127.0.0.1. However this command ends, nothing is left running.
    """
    if wireshark and options["record"] is None:
        raise click.UsageError("--wireshark needs --record")
    if detach and background is None:
        return detached.show(detached.start(), as_json)
    if name is not None and (taken := named(name)) is not None:
        raise HarnessError(f"the cluster of pid {taken['pid']} has the name {name} already")
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    if zookeeper is None:
        spark_jars()
        find_java()
    status = Console(stderr=True, highlight=False, soft_wrap=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SettingWarning)
        properties = node_settings(config, settings)
        try:
            cluster = Cluster(processes=True, zookeeper=zookeeper, properties=properties, users=users, **options)
        except HarnessError as e:
            click.echo(f"kce: {e}", err=True)
            return EXIT_SETTINGS
    for warning in caught:
        status.print(f"kce: warning: {warning.message}", style="yellow", markup=False)
    with contextlib.suppress(interrupts.Interrupted):
        capture = options["record"] if wireshark else None
        known_as = _KnownAs(name, ready_file, capture, http_port, as_json or background is not None, background)
        interrupts.run(_serve, cluster, known_as, status, on_signal=lambda: status.print("Stopping ..."))
    for problem in cluster.record_problems:
        status.print(f"recording: {problem}", style="yellow", markup=False)
    return 0


class _KnownAs(NamedTuple):
    """How others find the cluster once it is ready: ``capture`` gets a script for Wireshark beside it, ``background``
    is the folder with the output of a cluster in the background."""

    name: str | None
    ready_file: Path | None
    capture: Path | None
    http_port: int | None
    as_json: bool
    background: Path | None


async def _serve(cluster: Cluster, known_as: _KnownAs, status: Console) -> None:
    """Runs until it is cancelled."""
    begin = time.monotonic()
    async with AsyncExitStack() as stack:
        with status.status("Starting ZooKeeper and the nodes ..."):
            await stack.enter_async_context(cluster)
        console = plain_console(stderr=known_as.as_json)
        await _run(cluster, known_as, console, begin)


async def _run(cluster: Cluster, known_as: _KnownAs, console: Console, begin: float) -> None:
    """Its nursery holds the command socket and the watcher of nodes that end unexpectedly."""
    known = {m.id: m.state for m in cluster.members}

    def report(text: str) -> None:
        console.print(f"{time.strftime('%H:%M:%S')} {text}")

    def changed(text: str) -> None:
        known.update({m.id: m.state for m in cluster.members})
        report(text)

    supervisor = Supervisor(ClusterTarget(cluster), cluster.guard, changed, known_as.name, known_as.http_port)
    if known_as.background is not None:
        cluster.guard.remove(known_as.background)
        supervisor.commands.process["output"] = str(detached.output_of(known_as.background))
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor.run)
            controller = await cluster.wait_for_controller()
            supervisor.publish(known_as.ready_file)
            if known_as.capture is not None:
                addresses = [address for member in cluster.members for address in dict(member.addresses).values()]
                write_beside(known_as.capture, [int(address.rpartition(":")[2]) for address in addresses])
            console.print(_table(cluster, controller.id))
            console.print(f"ZooKeeper     {cluster.zookeeper}")
            console.print(f"Bootstrap     {cluster.bootstrap_servers()}")
            console.print(f"Logs          {cluster.logs}")
            if (http := supervisor.commands.process.get("http")) is not None:
                console.print(f"HTTP          {http['url']}, token {http['token']}")
            took = time.monotonic() - begin
            console.print(f"Ready in {took:.1f} s. Node {controller.id} is controller, epoch {controller.epoch}.")
            if known_as.background is not None:
                console.print(f"Output        {supervisor.commands.process['output']}")
            console.print(f"{'Ctrl-C' if known_as.background is None else '`kce down`'} stops the cluster.")
            if known_as.as_json:
                click.echo(json.dumps(supervisor.commands.describe()))
            nursery.start_soon(_report_failures, cluster, known, report)
            nursery.start_soon(_report_unsettled, cluster, report)
    finally:
        supervisor.retract(known_as.ready_file)


def _table(cluster: Cluster, controller_id: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("Node", "Pid", "Control listener", "Data listener", ""):
        table.add_column(column)
    for member in cluster.members:
        mark = "controller" if member.id == controller_id else ""
        table.add_row(str(member.id), str(member.pid), member.addresses[CONTROL], member.addresses[DATA], mark)
    return table


async def _report_failures(cluster: Cluster, known: dict[int, str], report: Callable[[str], None]) -> None:
    """Report when a node ends unexpectedly, and when ZooKeeper is gone or back. ``known``: states already reported."""
    connected = True
    while True:
        await trio.sleep(_CHECK_EVERY_S)
        for member in cluster.members:
            if member.state == "stopped" and known[member.id] != "stopped":
                known[member.id] = "stopped"
                report(f"node {member.id}: {member.end_reason()}. `kce restart {member.id}` starts it again")
        if cluster.zookeeper_connected != connected:
            connected = cluster.zookeeper_connected
            report(
                f"ZooKeeper at {cluster.zookeeper} {'answers again' if connected else 'does not answer'}"
                + ("" if connected else ": until it does, no node can register, elect a controller or change a topic")
            )


async def _report_unsettled(cluster: Cluster, report: Callable[[str], None]) -> None:
    """Report why the cluster does not come to rest after its start: its nodes cannot log in to each other, perhaps.

    It ends when a node is ended or paused: what follows then is no surprise.
    """
    deadline, reason = trio.current_time() + _SETTLES_WITHIN_S, None
    while trio.current_time() < deadline:
        if any(member.state != "running" for member in cluster.members):
            return
        with contextlib.suppress(HarnessError, StoreError, SessionExpired):  # somebody has ended ZooKeeper
            reason = await unsettled(cluster)
            if reason is None:
                return
        await trio.sleep(_CHECK_EVERY_S)
    if reason is not None:
        report(f"after {_SETTLES_WITHIN_S:g} s {reason}; the logs of the nodes are in {cluster.logs}")
