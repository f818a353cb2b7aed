"""Kafka's clients administer a cluster of ours, and read back the results."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest
import trio
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from kce.harness import Cluster
from kce.zookeeper import znodes
from tests.clusters import metadata

pytestmark = pytest.mark.slow
T = TypeVar("T")


async def call_admin(call: Callable[..., dict[Any, Future[T]]], *args: Any, **more: Any) -> dict[Any, T | str]:
    """What became of each: its result, or the name of Kafka's error."""

    def wait() -> dict[Any, T | str]:
        results: dict[Any, T | str] = {}
        for key, future in call(*args, request_timeout=60, **more).items():
            try:
                results[key] = future.result(timeout=60)
            except KafkaException as e:
                results[key] = e.args[0].name()
        return results

    return await trio.to_thread.run_sync(wait)


async def admin_of(cluster: Cluster) -> AdminClient:
    """A client, once all nodes know each other and the controller: librdkafka gives up early, or asks again late."""

    async def settled() -> bool:
        answers = [await metadata(member.addresses["DATA"]) for member in cluster.members]
        return all(len(a.brokers) == len(cluster.members) and a.controller_id >= 0 for a in answers)

    await cluster.wait_until(settled, "every node to be in the metadata of all")
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers()})


def topic_config(name: str, *entries: ConfigEntry) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, name, incremental_configs=list(entries) or None)


async def described(admin: AdminClient, name: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, name)
    (entries,) = (await call_admin(admin.describe_configs, [resource])).values()
    assert not isinstance(entries, str)
    return {entry.name: entry.value for entry in entries.values()}


async def test_topics_partitions_and_configurations(zookeeper: str) -> None:
    async with Cluster(brokers=3, zookeeper=f"{zookeeper}/admin-client") as cluster:
        admin = await admin_of(cluster)
        wanted = [
            NewTopic("placed", 4, 3, config={"retention.ms": "1000"}),
            NewTopic("given", 2, replica_assignment=[[3, 1], [1, 2]]),
            NewTopic("wide", 1, 4),
            NewTopic("odd", 1, 1, config={"retention.ms": "soon"}),
        ]
        assert await call_admin(admin.create_topics, wanted, operation_timeout=60) == {
            "placed": None,
            "given": None,
            "wide": "INVALID_REPLICATION_FACTOR",
            "odd": "INVALID_CONFIG",
        }
        assert await call_admin(admin.create_topics, [NewTopic("given", 1, 1)]) == {"given": "TOPIC_ALREADY_EXISTS"}
        assert await call_admin(admin.create_topics, [NewTopic("tried", 1, 1)], validate_only=True) == {"tried": None}
        listed = (await trio.to_thread.run_sync(admin.list_topics)).topics
        assert set(listed) == {"placed", "given"}
        assert [listed["given"].partitions[p].replicas for p in (0, 1)] == [[3, 1], [1, 2]]

        more = [NewPartitions("given", 4), NewPartitions("placed", 2), NewPartitions("tried", 2)]
        assert await call_admin(admin.create_partitions, more, operation_timeout=60) == {
            "given": None,
            "placed": "INVALID_PARTITIONS",
            "tried": "UNKNOWN_TOPIC_OR_PART",
        }
        # rule 10.15: placed with the position of broker 3, the first replica of partition 0, as start and shift
        topic = next(t for t in await cluster.describe_topics(["given"]))
        assert [p.assignment.replicas for p in topic.partitions] == [(3, 1), (1, 2), (2, 3), (3, 2)]
        assert all(p.leadership is not None for p in topic.partitions)

        assert (await described(admin, "placed"))["retention.ms"] == "1000"
        operations = [
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
            ConfigEntry("min.insync.replicas", "2", incremental_operation=AlterConfigOpType.SET),
        ]
        (answer,) = (await call_admin(admin.incremental_alter_configs, [topic_config("placed", *operations)])).values()
        assert answer is None
        now = await described(admin, "placed")
        assert now["retention.ms"] == "604800000"
        assert now["cleanup.policy"] == "delete,compact"
        assert now["min.insync.replicas"] == "2"
        wrong = ConfigEntry("min.insync.replicas", "0", incremental_operation=AlterConfigOpType.SET)
        (answer,) = (await call_admin(admin.incremental_alter_configs, [topic_config("placed", wrong)])).values()
        assert answer == "INVALID_CONFIG"

        assert await call_admin(admin.delete_topics, ["given", "nobody"], operation_timeout=60) == {
            "given": None,
            "nobody": "UNKNOWN_TOPIC_OR_PART",
        }
        assert set((await trio.to_thread.run_sync(admin.list_topics)).topics) == {"placed"}
        await cluster.wait_until(lambda: cluster._is_gone("given"), "topic given to be deleted")
        changes = await cluster.zk.get_children("/config/changes")
        assert len(changes) == 1
        assert not await cluster.exists(znodes.topic_config_path("given"))


async def test_the_cluster_described(zookeeper: str) -> None:
    async with Cluster(brokers=2, zookeeper=f"{zookeeper}/describe", properties={"num.partitions": "2"}) as cluster:
        controller = await cluster.wait_for_controller()
        admin = await admin_of(cluster)

        def describe() -> Any:
            return admin.describe_cluster(include_authorized_operations=True, request_timeout=60).result(timeout=60)

        found = await trio.to_thread.run_sync(describe)
        assert found.cluster_id == cluster.cluster_id
        assert found.controller.id == controller.id
        assert {f"{n.host}:{n.port}" for n in found.nodes} == set(cluster.bootstrap_servers().split(","))
        assert found.authorized_operations
        for member in cluster.members:  # a request about one broker goes to that broker (rule B7.25)
            resource = ConfigResource(ResourceType.BROKER, str(member.id))
            (entries,) = (await call_admin(admin.describe_configs, [resource])).values()
            assert not isinstance(entries, str)
            assert entries["broker.id"].value == str(member.id)
            assert entries["num.partitions"].value == "2"
            assert entries["num.partitions"].is_read_only
            assert not entries["num.io.threads"].is_read_only
        more_threads = ConfigEntry("num.io.threads", "9", incremental_operation=AlterConfigOpType.SET)
        broker_2 = ConfigResource(ResourceType.BROKER, "2", incremental_configs=[more_threads])
        (answer,) = (await call_admin(admin.incremental_alter_configs, [broker_2])).values()
        assert answer is None
        (entries,) = (await call_admin(admin.describe_configs, [ConfigResource(ResourceType.BROKER, "2")])).values()
        assert not isinstance(entries, str)
        changed = entries["num.io.threads"]
        assert (changed.value, changed.source) == ("9", ConfigSource.DYNAMIC_BROKER_CONFIG.value)
        await call_admin(admin.create_topics, [NewTopic("defaults", -1, 1)], operation_timeout=60)
        topics = TopicCollection(["defaults"])
        (topic,) = (await call_admin(admin.describe_topics, topics)).values()
        assert not isinstance(topic, str)
        assert len(topic.partitions) == 2


async def test_a_topic_with_too_many_partitions_is_refused_and_the_next_is_served() -> None:
    async with Cluster(2) as cluster:
        admin = await admin_of(cluster)
        huge, good = NewTopic("huge", 100_000, 1), NewTopic("good", 2, 2)
        assert await call_admin(admin.create_topics, [huge]) == {"huge": "INVALID_REPLICA_ASSIGNMENT"}
        assert await call_admin(admin.create_topics, [good]) == {"good": None}
        (described,) = await cluster.describe_topics()
        assert (described.name, described.has_leaders) == ("good", True)
