"""MDR: topics that Metadata requests create in a cluster in memory (section 12 of docs/broker-semantics.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kce import wire
from kce.harness import Cluster
from kce.harness.world import memory
from kce.wire import ErrorCode
from tests.clusters import node


@asynccontextmanager
async def two_brokers(**properties: str) -> AsyncIterator[Cluster]:
    """Broker 1 knows both. Underscores become dots."""
    given = {key.replace("_", "."): text for key, text in properties.items()}
    async with Cluster(2, world=memory(seed=5), properties=given) as cluster:
        cache = node(cluster, 1).broker.metadata_cache

        async def known() -> bool:
            return len(cache.snapshot.alive_brokers) == 2

        await cluster.wait_until(known, "broker 1 to know both")
        yield cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with two_brokers(
        auto_create_topics_enable="true", num_partitions="3", default_replication_factor="2"
    ) as cluster:
        yield cluster


async def ask(cluster: Cluster, *names: str, version: int = 9, allowed: bool = True) -> dict[str | None, int]:
    """The errors by topic that broker 1 answers."""
    message = wire.MetadataRequest(
        topics=tuple(wire.MetadataRequestTopic(name=name) for name in names),
        allow_auto_topic_creation=allowed,
    )
    host, _, port = cluster.member(1).addresses["DATA"].rpartition(":")
    link = await node(cluster, 1).links.dial(host, int(port), to=-1, listener="")
    await link.send_frame(wire.encode_request(message, api_version=version, correlation_id=1, client_id="c"))
    answer = wire.decode_response(await link.receive_frame(), api_key=message.__api_key__, api_version=version)[1]
    await link.aclose()
    assert isinstance(answer, wire.MetadataResponse)
    return {topic.name: topic.error_code for topic in answer.topics}


async def until_there(cluster: Cluster, name: str, version: int = 9) -> None:
    async def is_there() -> bool:
        return (await ask(cluster, name, version=version))[name] == ErrorCode.NONE

    await cluster.wait_until(is_there, f"{name} to have leaders")


@pytest.mark.kafka("MDR-7")
@pytest.mark.parametrize("version", [0, 3, 4, 9, 12])
async def test_a_topic_is_created_if_the_request_allows_it(cluster: Cluster, version: int) -> None:
    assert await ask(cluster, "t", version=version) == {"t": ErrorCode.LEADER_NOT_AVAILABLE}
    await until_there(cluster, "t", version)
    (topic,) = await cluster.describe_topics(["t"])
    assert [len(p.assignment.replicas) for p in topic.partitions] == [2, 2, 2]
    if version >= 4:
        unknown = {"no": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert await ask(cluster, "no", version=version, allowed=False) == unknown
        assert await ask(cluster, "no", version=version, allowed=False) == unknown


@pytest.mark.kafka("MDR-8")
async def test_too_few_brokers_for_the_replication_factor() -> None:
    async with two_brokers(auto_create_topics_enable="true", default_replication_factor="3") as cluster:
        assert await ask(cluster, "t") == {"t": ErrorCode.INVALID_REPLICATION_FACTOR}


@pytest.mark.kafka("MDR-9")
async def test_one_of_two_colliding_topics_is_created(cluster: Cluster) -> None:
    found = await ask(cluster, "my.topic", "my_topic")
    assert sorted(found.values()) == [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.INVALID_TOPIC_EXCEPTION]
    (created,) = (name for name, error in found.items() if error == ErrorCode.LEADER_NOT_AVAILABLE)
    assert created is not None
    await until_there(cluster, created)


async def test_clusters_create_none_by_default() -> None:
    async with two_brokers() as cluster:
        assert await ask(cluster, "t") == {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
