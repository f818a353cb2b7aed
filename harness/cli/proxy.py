"""`kce proxy`: faults and recordings for a cluster that is not ours."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import click
import trio
from rich.console import Console
from rich.table import Table

from kce.captures.record.wireshark import write_beside
from kce.harness import interrupts
from kce.harness.cli import detached
from kce.harness.cli.detached import OPTION, DetachableCommand, detach_option
from kce.harness.cli.options import command_config_option, http_port_option, json_option, plain_console
from kce.harness.client_security import ClientSecurity
from kce.harness.errors import HarnessError
from kce.harness.guard import Guard
from kce.harness.logs import log_to_stderr
from kce.harness.proxy import Proxy
from kce.harness.running import named
from kce.harness.supervisor import Supervisor

#: how many brokers get consecutive ports
MOST_BROKERS = 100

EPILOG = """\b
Examples:
  kce proxy --to 127.0.0.1:9092                   every broker of the cluster gets a free port
  kce proxy --to broker-1:9092 --port 19092       ports 19092, 19093, ... in the order of broker ids
  kce proxy --to 127.0.0.1:9092 --record traffic.pcapng
  kce proxy --to 127.0.0.1:9092 --wait --port 19092 && pytest; kce down

\b
While it runs, from another terminal:
  kce fault add --api Produce --error NOT_LEADER_OR_FOLLOWER --every 10
  kce fault add --api Fetch --to 2 --delay 0.5 --jitter 0.2
  kce fault list        kce fault remove 1

Clients connect to the Bootstrap address that it prints. Addresses of brokers in responses (Metadata, FindCoordinator,
DescribeCluster, new leaders in Produce and Fetch) become those of the proxy. What brokers say to each other, and the
controller to brokers, does not pass it.

Clients connect in plaintext, and the proxy to brokers as --command-config says. Without it SASL of clients passes, and
brokers are found when a client finds them: the broker of --to has the id -1 until then.
"""


@click.command(cls=DetachableCommand, epilog=EPILOG)
@click.option(
    "--to", required=True, multiple=True, metavar="HOST:PORT",
    help="A broker of the cluster. Repeatable, for other listeners of the cluster.",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(1, 65535 - MOST_BROKERS), help="Port for the first broker; others count up."
)
@click.option(
    "--record", type=click.Path(path_type=Path, dir_okay=False), help="Record all traffic to this pcapng file."
)
@command_config_option
@click.option("--wireshark", is_flag=True, help="With --record: also write FILE.lua, which tells Wireshark the ports.")
@http_port_option
@click.option("--name", metavar="NAME", help="What other commands call this proxy (--cluster NAME).")
@click.option(
    "--ready-file", type=click.Path(path_type=Path, dir_okay=False),
    help="Write all addresses to this JSON file when ready.",
)  # fmt: skip
@json_option
@detach_option("proxy")
@click.option(OPTION, "background", type=click.Path(path_type=Path, file_okay=False), hidden=True)
def proxy(
    to: tuple[str, ...],
    port: int | None,
    record: Path | None,
    command_config: Path | None,
    wireshark: bool,
    http_port: int | None,
    name: str | None,
    ready_file: Path | None,
    as_json: bool,
    detach: bool,
    background: Path | None,
) -> int:
    """Run a proxy in front of a Kafka cluster until Ctrl-C, SIGTERM or `kce down`. Everything listens on 127.0.0.1.

    The exit code is 0 then; it is 1 if the proxy cannot start, 2 for wrong usage. With --wait it runs in the
    background: 0 means that the proxy is ready.

    Requests and responses pass as they are, until a fault acts on them (`kce fault`).
    """
    if wireshark and record is None:
        raise click.UsageError("--wireshark needs --record")
    if detach and background is None:
        return detached.show(detached.start(), as_json)
    if name is not None and (taken := named(name)) is not None:
        raise HarnessError(f"pid {taken['pid']} has the name {name} already")
    ports = () if port is None else range(port, port + MOST_BROKERS)
    log_to_stderr("INFO")
    with contextlib.suppress(interrupts.Interrupted), contextlib.closing(Guard()) as guard:
        made = Proxy(*to, ports=ports, record=record, history=False, security=ClientSecurity.of_file(command_config))
        interrupts.run(
            _serve, made, guard, _Target(made, to), (name, http_port), ready_file, record if wireshark else None,
            as_json, background,
            on_signal=lambda: click.echo("Stopping ...", err=True),
        )  # fmt: skip
    return 0


class _Target:
    """The proxy, for `Supervisor`."""

    def __init__(self, made: Proxy, to: tuple[str, ...]) -> None:
        self._proxy = made
        self._to = ",".join(to)
        self.add_rule, self.remove_rule, self.count_rule = made.add_rule, made.remove_rule, made.count_rule

    def describe(self) -> dict[str, Any]:
        brokers = sorted(self._proxy.brokers.items(), key=lambda item: item[1])
        return {
            "kind": "proxy",
            "to": self._to,
            "bootstrap_servers": self._proxy.bootstrap_servers,
            "nodes": [
                {"id": broker, "address": "{}:{}".format(*theirs), "listener": "{}:{}".format(*ours)}
                for theirs, (broker, ours) in brokers
            ],
        }

    async def act(self, command: str, request: dict[str, Any]) -> str | None:
        await trio.lowlevel.checkpoint()
        return None

    async def settle(self) -> None:
        await trio.lowlevel.checkpoint()


async def _serve(
    made: Proxy,
    guard: Guard,
    target: _Target,
    known_as: tuple[str | None, int | None],
    ready_file: Path | None,
    capture: Path | None,
    as_json: bool,
    background: Path | None,
) -> None:
    """Runs until it is cancelled. ``known_as``: a name, and an HTTP port. ``background``: the folder with the output of
    a proxy in the background. Raises HarnessError."""
    console = plain_console(stderr=as_json or background is not None)
    supervisor = Supervisor(target, guard, lambda text: console.print(f"{time.strftime('%H:%M:%S')} {text}"), *known_as)
    if background is not None:
        guard.remove(background)
        supervisor.commands.process["output"] = str(detached.output_of(background))
    try:
        async with made, trio.open_nursery() as nursery:
            await nursery.start(supervisor.run)
            supervisor.publish(ready_file)
            if capture is not None:
                write_beside(capture, [port for _, (_, port) in made.brokers.values()])
            described = supervisor.commands.describe()
            _show(console, described)
            if as_json or background is not None:
                click.echo(json.dumps(described))
            await trio.sleep_forever()
    finally:
        supervisor.retract(ready_file)


def _show(console: Console, described: dict[str, Any]) -> None:
    table = Table("Broker", "Address", "Listener", box=None, pad_edge=False)
    for node in described["nodes"]:
        table.add_row(str(node["id"]), node["address"], node["listener"])
    console.print(table)
    console.print(f"Bootstrap     {described['bootstrap_servers']}")
    if "http" in described:
        console.print(f"HTTP          {described['http']['url']}, token {described['http']['token']}")
    if "output" in described:
        console.print(f"Output        {described['output']}")
    console.print(f"{'`kce down`' if 'output' in described else 'Ctrl-C'} stops the proxy.")
