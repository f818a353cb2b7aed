"""`kce describe`: a cluster in ZooKeeper mode, ours or real, read from ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from kce.harness import interrupts
from kce.harness.cli.options import cluster_option, connected, plain_console, zookeeper_option
from kce.harness.errors import HarnessError
from kce.harness.running import command, find_cluster
from kce.zookeeper import admin_nodes
from kce.zookeeper.admin import PartitionDescription, TopicDescription, describe_topics
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import TopicPartition
from kce.zookeeper.znodes import BadZNode

#: with more partitions, only those with remarks are shown, unless --all is given
SHOW_ALL_UP_TO = 50

Partition = dict[str, Any]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every partition.")
@click.option(
    "--all", "show_all", is_flag=True, help=f"Show every partition, also if there are more than {SHOW_ALL_UP_TO}."
)
@zookeeper_option
@cluster_option
def describe(as_json: bool, show_all: bool, zookeeper: str | None, cluster_file: Path | None) -> int:
    """Show a cluster: the controller and its epoch, brokers, partitions with leader and ISR, pending operations.

    --zookeeper shows any cluster in ZooKeeper mode, real ones of every version included. The states of processes are
    shown for clusters started by `kce up`.
    """
    processes: dict[int, dict[str, Any]] = {}
    if zookeeper is None:
        running = command(find_cluster(cluster_file), "describe")
        processes = {node["id"]: node for node in running["nodes"]}
        zookeeper = running["zookeeper"]
    found = interrupts.run(_read, zookeeper)
    for node_id, process in processes.items():
        known = found["brokers"].setdefault(
            node_id, {"listeners": process["listeners"], "broker_epoch": None, "rack": None}
        )
        known.update(pid=process["pid"], state=process["state"])
    if as_json:
        click.echo(json.dumps(found | {"problems": problems(found)}, indent=2))
    else:
        _print(plain_console(), found, show_all=show_all)
    return 0


async def _read(zookeeper: str) -> dict[str, Any]:
    async with connected(zookeeper, None) as zk:
        try:
            return await read_cluster(zk, zookeeper)
        except BadZNode as e:
            raise HarnessError(f"ZooKeeper at {zookeeper} holds something that Kafka does not write: {e}") from None


async def read_cluster(zk: KafkaZkClient, zookeeper: str) -> dict[str, Any]:
    """The output of `--json`. Read-only, without watches. Raises HarnessError, BadZNode."""
    epoch = await zk.get_controller_epoch()
    if epoch is None:
        raise HarnessError(f"there is no Kafka cluster in ZooKeeper at {zookeeper}: it has no /controller_epoch")
    topics = await describe_topics(zk)
    partitions = [_partition(t, p) for t in topics for p in t.partitions]
    requested = await admin_nodes.get_partition_reassignment(zk) or {}
    return {
        "zookeeper": zookeeper,
        "controller": await zk.get_controller_id(),
        "controller_epoch": epoch[0],
        "topics": len(topics),
        "partitions": len(partitions),
        "leaderless": sum(not _has_leader(p) for p in partitions),
        "under_replicated": sum(_is_under_replicated(p) for p in partitions),
        "brokers": {
            broker_id: {
                "broker_epoch": broker_epoch,
                "rack": broker.rack,
                "listeners": {e.listener: e.address for e in broker.endpoints},
            }
            for broker_id, (broker, broker_epoch) in (await zk.get_brokers(watch=False)).items()
        },
        "pending": {
            "reassignments": [str(TopicPartition(p["topic"], p["partition"])) for p in partitions if _is_moving(p)],
            "requested_reassignments": {str(tp): list(target) for tp, target in requested.items()},
            "deletions": sorted(await zk.get_topic_deletions()),
            "preferred_elections": sorted(map(str, await admin_nodes.get_preferred_replica_election(zk) or ())),
        },
        "partition_states": partitions,
    }


def problems(found: dict[str, Any]) -> list[str]:
    """The health problems, one sentence each."""
    brokers: dict[int, dict[str, Any]] = found["brokers"]
    controller = found["controller"]
    sentences = []
    if controller is None:
        sentences.append("There is no controller: nobody owns /controller.")
    elif controller not in brokers or brokers[controller]["broker_epoch"] is None:
        sentences.append(f"The controller, node {controller}, is not registered in /brokers/ids.")
    for broker_id, broker in sorted(brokers.items()):
        state = broker.get("state", "running")
        if state != "running":
            sentences.append(f"Node {broker_id} is {state}.")
        elif broker["broker_epoch"] is None:
            sentences.append(f"Node {broker_id} is running, but not registered in /brokers/ids.")
    replicas = {replica for p in found["partition_states"] for replica in p["replicas"]}
    if unknown := sorted(replicas - brokers.keys()):
        sentences.append(f"Brokers {_ids(unknown)} have replicas, but are not registered.")
    for count, text in (
        (found["leaderless"], "without a leader"),
        (found["under_replicated"], "under-replicated"),
    ):
        if count:
            sentences.append(f"{count} of {found['partitions']} partitions {'is' if count == 1 else 'are'} {text}.")
    return sentences


def _partition(topic: TopicDescription, partition: PartitionDescription) -> Partition:
    """Leader, epoch and ISR are null where the controller has written no state."""
    state = partition.state
    return {
        "topic": topic.name,
        "partition": partition.partition,
        "leader": None if state is None else state.leader,
        "leader_epoch": None if state is None else state.leader_epoch,
        "isr": None if state is None else list(state.isr),
        "replicas": list(partition.assignment.replicas),
        "adding": list(partition.assignment.adding),
        "removing": list(partition.assignment.removing),
        "deleting": topic.marked_for_deletion,
    }


def _has_leader(p: Partition) -> bool:
    return p["leader"] is not None and p["leader"] >= 0


def _is_under_replicated(p: Partition) -> bool:
    return bool(set(p["replicas"]) - set(p["adding"]) - set(p["isr"] or ()))


def _is_moving(p: Partition) -> bool:
    return bool(p["adding"] or p["removing"])


def _remarks(p: Partition) -> list[str]:
    """The anomalies of a partition."""
    remarks = []
    if p["leader"] is None:
        remarks.append("new")
    elif not _has_leader(p):
        remarks.append("no leader")
    elif _is_under_replicated(p):
        remarks.append("under-replicated")
    if _is_moving(p):
        remarks.append(f"moving: adding {_ids(p['adding'])}, removing {_ids(p['removing'])}")
    if p["deleting"]:
        remarks.append("to be deleted")
    return remarks


def _ids(ids: Iterable[int] | None) -> str:
    return "-" if not ids else ",".join(map(str, ids))


def _print(console: Console, found: dict[str, Any], *, show_all: bool) -> None:
    controller = f"node {found['controller']}" if found["controller"] is not None else "none"
    console.print(f"ZooKeeper   {found['zookeeper']}\nController  {controller}, epoch {found['controller_epoch']}")
    console.print(
        f"Topics      {found['topics']}, partitions {found['partitions']}, without leader {found['leaderless']}, "
        f"under-replicated {found['under_replicated']}"
    )
    for title, sentence in zip_longest(["Unhealthy"], problems(found), fillvalue=""):
        if sentence:
            console.print(f"{title:<11} {sentence}", markup=False)
    pending = found["pending"]
    for title, things in (
        ("Moving", pending["reassignments"]),
        ("To move", [f"{tp} to {_ids(target)}" for tp, target in pending["requested_reassignments"].items()]),
        ("To delete", pending["deletions"]),
        ("To elect", pending["preferred_elections"]),
    ):
        if things:
            console.print(f"{title:<11} {'; '.join(things)}", markup=False)
    console.print()
    console.print(_brokers(found["brokers"]))
    partitions = found["partition_states"]
    shown = [p for p in partitions if show_all or len(partitions) <= SHOW_ALL_UP_TO or _remarks(p)]
    if shown:
        console.print()
        console.print(_partitions(shown))
    if len(shown) < len(partitions):
        console.print(f"\n{len(partitions) - len(shown)} partitions are healthy; --all shows them")


def _brokers(brokers: dict[int, dict[str, Any]]) -> Table:
    table = _table("Broker", "Epoch", "Listeners", "Rack", "Process")
    for node_id, known in sorted(brokers.items()):
        listeners = " ".join(f"{name}://{where}" for name, where in known["listeners"].items())
        running = f"{known['state']} {known['pid'] or ''}" if "state" in known else ""
        epoch = "not registered" if known["broker_epoch"] is None else str(known["broker_epoch"])
        table.add_row(str(node_id), epoch, listeners, known["rack"] or "", running)
    return table


def _partitions(partitions: Iterable[Partition]) -> Table:
    table = _table("Topic", "Partition", "Leader", "Epoch", "Replicas", "ISR", "")
    for p in partitions:
        numbers = ("-" if p[key] is None else str(p[key]) for key in ("leader", "leader_epoch"))
        remarks = "; ".join(_remarks(p))
        table.add_row(p["topic"], str(p["partition"]), *numbers, _ids(p["replicas"]), _ids(p["isr"]), remarks)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table
