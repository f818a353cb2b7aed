"""Kafka's own command line tools administrate a cluster that is ours alone."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path

import pytest
import trio

from kce.broker_stub.replication.throttle import ReplicationQuota
from kce.harness import Cluster, class_archive
from kce.wire.vocabulary import TopicPartition
from tests.interop.kafka_java import kafka_java
from tests.interop.tools import REASSIGN, TOPICS, Tools

pytestmark = pytest.mark.slow

CONFIGS = "kafka.admin.ConfigCommand"


async def gone(cluster: Cluster, topic: str) -> bool:
    return topic not in {described.name for described in await cluster.describe_topics()}


def test_what_a_jvm_says_of_an_archive_is_not_what_its_program_prints(tmp_path: Path) -> None:
    """Java 24 and later cannot use it for a program in one file, such as Tools.java, and say so."""
    of_another_class_path = [*kafka_java()[:-1], str(tmp_path), "-version"]
    ran = subprocess.run(of_another_class_path, capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    assert ("shared archive" in ran.stderr) == class_archive.can_be_written()


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


LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"


async def test_kafkas_tools_move_a_replica_to_another_log_directory(
    zookeeper: str, tmp_path: Path, tools: Tools
) -> None:  # rule B7.23
    async def run(*command: str, standard_input: str = "") -> str:
        return await trio.to_thread.run_sync(partial(tools.run, *command, standard_input=standard_input))

    folders = [str(tmp_path / f"{name}-1") for name in "ab"]
    properties = {"log.dirs": f"{tmp_path}/a-{{id}},{tmp_path}/b-{{id}}"}
    async with Cluster(brokers=1, zookeeper=f"{zookeeper}/log-dirs", properties=properties) as cluster:
        await cluster.wait_for_controller()
        bootstrap = ["--bootstrap-server", cluster.bootstrap_servers()]
        await cluster.create_topic("moved", partitions=1, replication_factor=1)
        await run(
            "kafka.tools.ConsoleProducer", *bootstrap, "--topic", "moved", standard_input="one\ntwo\n",
        )  # fmt: skip

        async def directories() -> dict[str, list[tuple[str, int, bool]]]:
            """What kafka-log-dirs says: partition, lag, and whether it is on its way, by directory."""
            said = await run(LOG_DIRS, *bootstrap, "--describe", "--topic-list", "moved")
            (found,) = json.loads(said.splitlines()[-1])["brokers"]
            return {
                one["logDir"]: [(p["partition"], p["offsetLag"], p["isFuture"]) for p in one["partitions"]]
                for one in found["logDirs"]
            }

        before = await directories()
        (source,) = (path for path, partitions in before.items() if partitions)
        (target,) = (path for path in folders if path != source)
        assert before == {source: [("moved-0", 0, False)], target: []}
        plan = {
            "version": 1,
            "partitions": [{"topic": "moved", "partition": 0, "replicas": [1], "log_dirs": [target]}],
        }
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(plan))
        file = ["--reassignment-json-file", str(path)]
        said = await run(REASSIGN, *bootstrap, "--execute", *file)
        assert f"Successfully started moving log directory to {target} for replica moved-0 with broker 1" in said

        async def has_moved() -> bool:
            return await directories() == {source: [], target: [("moved-0", 0, False)]}

        await cluster.wait_until(has_moved, "the replica to move")
        said = await run(REASSIGN, *bootstrap, "--verify", *file)
        assert "Reassignment of replica moved-0-1 completed successfully." in said
        consumed = await run(
            "org.apache.kafka.tools.consumer.ConsoleConsumer", *bootstrap, "--topic", "moved", "--partition", "0",
            "--offset", "earliest", "--max-messages", "2", "--timeout-ms", "60000",
        )  # fmt: skip
        assert [line for line in consumed.splitlines() if line in ("one", "two")] == ["one", "two"]


THROTTLE = "10000000"


async def test_kafkas_tool_throttles_a_reassignment(zookeeper: str, tmp_path: Path, tools: Tools) -> None:  # rule B8.11
    async def run(*command: str) -> str:
        return await trio.to_thread.run_sync(tools.run, *command)

    async with Cluster(brokers=2, zookeeper=f"{zookeeper}/throttle") as cluster:
        await cluster.wait_for_controller()
        bootstrap = ["--bootstrap-server", cluster.bootstrap_servers()]
        await cluster.create_topic("throttled", assignment={0: [1]})
        plan = {"version": 1, "partitions": [{"topic": "throttled", "partition": 0, "replicas": [1, 2]}]}
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(plan))
        file = ["--reassignment-json-file", str(path)]
        await run(REASSIGN, *bootstrap, "--execute", *file, "--throttle", THROTTLE)
        partition = TopicPartition("throttled", 0)

        def quotas(node: int) -> tuple[ReplicationQuota, ReplicationQuota]:
            found = cluster.member(node).node.broker.replication.quotas  # type: ignore[attr-defined]
            return found.leader, found.follower

        async def is_throttled() -> bool:
            leader, follower = quotas(1)[0], quotas(2)[1]
            return (leader.rate, follower.rate) == (int(THROTTLE),) * 2 and all(
                quota.is_throttled(partition) for quota in (leader, follower)
            )

        await cluster.wait_until(is_throttled, "the throttle")

        async def done() -> bool:
            return (await run(REASSIGN, *bootstrap, "--verify", *file)).count("is completed") == 1

        await cluster.wait_until(done, "the reassignment")

        async def is_free() -> bool:
            every = [quota for node in (1, 2) for quota in quotas(node)]
            return all(quota.rate > 1e18 and not quota.is_throttled(partition) for quota in every)

        await cluster.wait_until(is_free, "the end of the throttle")
