"""`kce topic create | list | describe | delete`, directly in ZooKeeper as Kafka's older tools."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import click
import trio
from rich.table import Table

from kce.harness import interrupts
from kce.harness.cli.options import cluster_option, connected, plain_console, properties, zookeeper_option
from kce.harness.errors import HarnessError
from kce.zookeeper import admin, topic_plans, znodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient

WAIT_TIMEOUT_S = 30.0


@click.group()
def topic() -> None:
    """Create, list, describe and delete topics.

    They work on the running `kce up`, or with --zookeeper on any Kafka cluster in ZooKeeper mode.
    """


def _with_client(
    zookeeper: str | None, cluster_file: Path | None, action: Callable[[KafkaZkClient], Awaitable[Any]]
) -> Any:
    async def run() -> Any:
        async with connected(zookeeper, cluster_file) as zk:
            try:
                return await action(zk)
            except topic_plans.AdminError as e:
                raise HarnessError(str(e)) from None

    return interrupts.run(run)


async def _wait(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    with trio.move_on_after(WAIT_TIMEOUT_S):
        while not await condition():  # noqa: ASYNC110 - the controller is another process
            await trio.sleep(0.05)
        return
    raise HarnessError(f"{what} after {WAIT_TIMEOUT_S:g} s: is a controller active? See `kce describe`")


@topic.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), default=1, show_default=True, help="How many partitions.")
@click.option(
    "--replication-factor", type=click.IntRange(1), default=1, show_default=True, help="Replicas of each partition."
)
@click.option(
    "--replica-assignment",
    metavar="1:2,2:3",
    help="Replicas of each partition, partitions separated by commas and brokers by colons, instead of both above.",
)
@click.option("--config", "settings", multiple=True, metavar="KEY=VALUE", help="A topic configuration. Repeatable.")
@click.option("--no-wait", is_flag=True, help="Do not wait until every partition has a leader.")
@zookeeper_option
@cluster_option
def create(
    name: str,
    partitions: int,
    replication_factor: int,
    replica_assignment: str | None,
    settings: tuple[str, ...],
    no_wait: bool,
    zookeeper: str | None,
    cluster_file: Path | None,
) -> int:
    """Create a topic and wait until its partitions have leaders."""
    assignment = _assignment(replica_assignment) if replica_assignment else None

    async def run(zk: KafkaZkClient) -> None:
        topic_id = await admin.create_topic(
            zk, name, partitions=partitions, replication_factor=replication_factor,
            assignment=assignment, config=properties(settings), random=Random(),
        )  # fmt: skip

        async def led() -> bool:
            (described,) = await admin.describe_topics(zk, [name])
            return described.has_leaders

        if not no_wait:
            await _wait(led, f"topic {name} is created, but not all its partitions have a leader")
        click.echo(f"topic {name} is created, id {znodes.encode_topic_id(topic_id)}")

    _with_client(zookeeper, cluster_file, run)
    return 0


def _assignment(text: str) -> dict[int, list[int]]:
    try:
        return {p: [int(b) for b in brokers.split(":")] for p, brokers in enumerate(text.split(","))}
    except ValueError:
        raise click.UsageError(f"--replica-assignment {text}: not brokers like 1:2,2:3") from None


@topic.command("list")
@zookeeper_option
@cluster_option
def list_topics(zookeeper: str | None, cluster_file: Path | None) -> int:
    """Print the names of all topics, one a line."""

    async def run(zk: KafkaZkClient) -> None:
        for name in sorted(await zk.get_topics(watch=False)):
            click.echo(name)

    _with_client(zookeeper, cluster_file, run)
    return 0


@topic.command()
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@zookeeper_option
@cluster_option
def describe(names: tuple[str, ...], as_json: bool, zookeeper: str | None, cluster_file: Path | None) -> int:
    """Show leader, replicas, ISR and epochs of every partition, of all topics or of those named."""

    async def run(zk: KafkaZkClient) -> list[admin.TopicDescription]:
        return await admin.describe_topics(zk, names or None)

    described: list[admin.TopicDescription] = _with_client(zookeeper, cluster_file, run)
    if as_json:
        click.echo(json.dumps([_as_json(t) for t in described], indent=2))
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("Topic", "Partition", "Leader", "Replicas", "ISR", "Leader epoch", "Controller epoch", ""):
        table.add_column(column)
    for t in described:
        for row in _as_json(t)["partitions"]:
            mark = "being deleted" if t.marked_for_deletion else "" if row["leader"] is not None else "no state yet"
            cells = (row["partition"], _or_none(row["leader"]), _ids(row["replicas"]), _ids(row["isr"]))
            table.add_row(t.name, *map(str, cells), str(row["leader_epoch"]), str(row["controller_epoch"]), mark)
    plain_console().print(table)
    return 0


def _as_json(described: admin.TopicDescription) -> dict[str, Any]:
    rows = []
    for p in described.partitions:
        state = p.state
        rows.append(
            {
                "partition": p.partition,
                "leader": state.leader if state else None,
                "replicas": list(p.assignment.replicas),
                "isr": list(state.isr) if state else [],
                "leader_epoch": state.leader_epoch if state else None,
                "partition_epoch": state.partition_epoch if state else None,
                "controller_epoch": p.leadership.controller_epoch if p.leadership else None,
            }
        )
    topic_id = znodes.encode_topic_id(described.topic_id) if described.topic_id else None
    return {
        "topic": described.name,
        "topic_id": topic_id,
        "config": described.config,
        "marked_for_deletion": described.marked_for_deletion,
        "partitions": rows,
    }


def _ids(ids: list[int]) -> str:
    return ",".join(map(str, ids))


def _or_none(leader: int | None) -> str:
    return "none" if leader is None or leader < 0 else str(leader)


async def _deletion_waits_for(zk: KafkaZkClient, name: str) -> str:
    """What a deletion waits for, as far as ZooKeeper shows it (rule 4.12)."""
    assignment = (await zk.get_topic_assignments([name])).get(name)
    if assignment is None:
        return ""
    replicas = {broker for replicas in assignment.partitions.values() for broker in replicas.replicas}
    missing = sorted(replicas - (await zk.get_brokers(watch=False)).keys())
    waits = [f"broker {broker}, which has a replica and is not registered" for broker in missing]
    if await zk.get_controller_id() is None:
        waits.append("a controller: there is none")
    return f"; it waits for {' and '.join(waits)}" if waits else ""


@topic.command()
@click.argument("name")
@click.option("--no-wait", is_flag=True, help="Do not wait until the topic is gone.")
@zookeeper_option
@cluster_option
def delete(name: str, no_wait: bool, zookeeper: str | None, cluster_file: Path | None) -> int:
    """Mark a topic for deletion and wait until it is gone."""

    async def run(zk: KafkaZkClient) -> None:
        await admin.delete_topic(zk, name)

        async def gone() -> bool:
            return name not in await zk.get_topics(watch=False)

        if no_wait:
            click.echo(f"topic {name} is marked for deletion")
            return
        try:
            await _wait(gone, f"topic {name} is marked for deletion and still there")
        except HarnessError as e:
            raise HarnessError(f"{e}{await _deletion_waits_for(zk, name)}") from None
        click.echo(f"topic {name} is deleted")

    _with_client(zookeeper, cluster_file, run)
    return 0
