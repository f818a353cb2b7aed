"""Kafka's own command line tools administrate a cluster that is ours alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from kce.harness import Cluster
from tests.interop.tools import REASSIGN, TOPICS, Tools

pytestmark = pytest.mark.slow

CONFIGS = "kafka.admin.ConfigCommand"


async def gone(cluster: Cluster, topic: str) -> bool:
    return topic not in {described.name for described in await cluster.describe_topics()}


async def test_kafkas_tools(zookeeper: str, tmp_path: Path, tools: Tools) -> None:
    async def run(*command: str) -> str:
        return await trio.to_thread.run_sync(tools.run, *command)

    async with Cluster(brokers=3, zookeeper=f"{zookeeper}/tools") as cluster:
        await cluster.wait_for_controller()
        bootstrap = ["--bootstrap-server", cluster.bootstrap_servers()]

        async def replicas() -> dict[int, tuple[int, ...]]:
            (topic,) = await cluster.describe_topics(["placed"])
            return {p.partition: tuple(p.assignment.replicas) for p in topic.partitions}

        await run(
            TOPICS, *bootstrap, "--create", "--topic", "placed", "--partitions", "3", "--replication-factor", "2",
            "--config", "retention.ms=1000",
        )  # fmt: skip
        placed = await replicas()
        assert sorted(len(set(brokers)) for brokers in placed.values()) == [2, 2, 2]
        assert sorted(brokers[0] for brokers in placed.values()) == [1, 2, 3]

        topic = ["--entity-type", "topics", "--entity-name", "placed"]
        change = ["--add-config", "cleanup.policy=[compact,delete]", "--delete-config", "retention.ms"]
        await run(CONFIGS, *bootstrap, "--alter", *topic, *change)
        described = await run(CONFIGS, *bootstrap, "--describe", *topic)
        assert "cleanup.policy=compact,delete" in described
        assert "retention.ms" not in described

        moved = {number: tuple(b % 3 + 1 for b in brokers) for number, brokers in placed.items()}
        plan = {
            "version": 1,
            "partitions": [{"topic": "placed", "partition": n, "replicas": list(r)} for n, r in moved.items()],
        }
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(plan))
        file = ["--reassignment-json-file", str(path)]
        await run(REASSIGN, *bootstrap, "--execute", *file)

        async def done() -> bool:
            return await replicas() == moved

        await cluster.wait_until(done, "the reassignment")
        assert (await run(REASSIGN, *bootstrap, "--verify", *file)).count("is completed") == 3

        await run(TOPICS, *bootstrap, "--delete", "--topic", "placed")
        await cluster.wait_until(lambda: gone(cluster, "placed"), "the topic to be deleted")
