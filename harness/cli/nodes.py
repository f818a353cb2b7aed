"""`kce kill | pause | resume | restart NODE` and `kce describe`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import trio
from rich.table import Table

from harness.cli.options import cluster_option, connected, plain_console, zookeeper_option
from harness.errors import HarnessError
from harness.supervisor import command, find_cluster


def _of_node(name: str, help_text: str) -> click.Command:
    @click.command(name, help=help_text)
    @click.argument("node", type=int)
    @cluster_option
    def run(node: int, cluster_file: Path | None) -> int:
        click.echo(command(find_cluster(cluster_file), name, node)["text"])
        return 0

    return run


kill = _of_node("kill", "Kill a node of the running cluster (kill -9). ZooKeeper notices when its session expires.")
pause = _of_node("pause", "Stop a node in its tracks (SIGSTOP). Past its session timeout it becomes a zombie.")
resume = _of_node("resume", "Let a paused node go on (SIGCONT).")
restart = _of_node("restart", "Stop a node with controlled shutdown if it runs, then start it on its old ports.")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@zookeeper_option
@cluster_option
def describe(as_json: bool, zookeeper: str | None, cluster_file: Path | None) -> int:
    """Show the cluster: the controller and its epoch, and every broker with its epoch and listeners.

    States of processes are known for clusters started by `kce up`; the rest is read from ZooKeeper.
    """
    processes: dict[int, dict[str, Any]] = {}
    if zookeeper is None:
        told = command(find_cluster(cluster_file), "describe")
        processes = {node["id"]: node for node in told["nodes"]}
        zookeeper = told["zookeeper"]
    found = trio.run(_read, zookeeper)
    for node_id, process in processes.items():
        known = found["brokers"].setdefault(
            node_id, {"listeners": process["listeners"], "broker_epoch": None, "rack": None}
        )
        known.update(pid=process["pid"], state=process["state"])
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return 0
    console = plain_console()
    controller = f"node {found['controller']}" if found["controller"] is not None else "none"
    console.print(f"ZooKeeper   {zookeeper}\nController  {controller}, epoch {found['controller_epoch']}")
    console.print(
        f"Topics      {found['topics']}, partitions {found['partitions']}, without leader {found['leaderless']}\n"
    )
    table = Table(box=None, pad_edge=False)
    for column in ("Broker", "Epoch", "Listeners", "Rack", "Process"):
        table.add_column(column)
    for node_id, known in sorted(found["brokers"].items()):
        listeners = " ".join(f"{name}://{where}" for name, where in known["listeners"].items())
        running = f"{known['state']} {known['pid'] or ''}" if "state" in known else ""
        epoch = "not registered" if known["broker_epoch"] is None else str(known["broker_epoch"])
        table.add_row(str(node_id), epoch, listeners, known["rack"] or "", running)
    console.print(table)
    return 0


async def _read(zookeeper: str) -> dict[str, Any]:
    from controller.admin import describe_topics

    async with connected(zookeeper, None) as zk:
        epoch = await zk.get_controller_epoch()
        if epoch is None:
            raise HarnessError(f"there is no Kafka cluster in ZooKeeper at {zookeeper}: it has no /controller_epoch")
        topics = await describe_topics(zk)
        states = [p.leadership for t in topics for p in t.partitions]
        return {
            "zookeeper": zookeeper,
            "controller": await zk.get_controller_id(),
            "controller_epoch": epoch[0],
            "topics": len(topics),
            "partitions": len(states),
            "leaderless": sum(s is None or s.leader_and_isr.elected is None for s in states),
            "brokers": {
                broker_id: {
                    "broker_epoch": broker_epoch,
                    "rack": broker.rack,
                    "listeners": {e.listener: f"{e.host}:{e.port}" for e in broker.endpoints},
                }
                for broker_id, (broker, broker_epoch) in (await zk.get_brokers(watch=False)).items()
            },
        }
