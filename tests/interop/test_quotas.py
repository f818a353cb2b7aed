"""Quotas of clients with Kafka's own tools and librdkafka, unchanged, and beside a real broker (section 8)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from confluent_kafka import Producer

from kce import wire
from kce.broker_stub.node_client import NodeClient
from kce.harness import Cluster
from kce.harness.links import Links
from kce.harness.node_links import NodeLinks
from kce.harness.world import RealWorld
from kce.wire import ErrorCode
from tests.broker_stub.replication.support import batch, fetch_request, produce_request
from tests.harness.conformance.quotas import alteration, results
from tests.interop.real_kafka import real_brokers
from tests.interop.tools import Tools

pytestmark = pytest.mark.slow

CONFIGS = "kafka.admin.ConfigCommand"
MB = 1_000_000
LIMIT_S = 60


async def test_kafka_configs_sets_and_describes_quotas(zookeeper: str, tools: Tools) -> None:  # rules B8.16, B8.17
    async with Cluster(brokers=1, zookeeper=f"{zookeeper}/quota-tools") as cluster:
        await cluster.wait_for_controller()
        bootstrap = ["--bootstrap-server", cluster.bootstrap_servers()]

        async def run(*arguments: str) -> str:
            return await trio.to_thread.run_sync(tools.run, CONFIGS, *bootstrap, *arguments)

        of_client = ["--entity-type", "clients", "--entity-name", "my client"]
        of_both = ["--entity-type", "users", "--entity-name", "u", "--entity-type", "clients", "--entity-default"]
        of_address = ["--entity-type", "ips", "--entity-name", "10.1.2.3"]
        for entity, config in (
            (of_client, "producer_byte_rate=1024,request_percentage=12.5"),
            (of_both, "consumer_byte_rate=2048"),
            (of_address, "connection_creation_rate=7"),
        ):
            await run("--alter", *entity, "--add-config", config)
        start, _, quotas = (await run("--describe", *of_client)).strip().partition(" are ")
        assert start == "Quota configs for client-id 'my client'"
        assert set(quotas.split(", ")) == {"producer_byte_rate=1024.0", "request_percentage=12.5"}
        start, _, quotas = (await run("--describe", *of_both)).strip().partition(" are ")
        assert quotas == "consumer_byte_rate=2048.0"
        named = set(start.removeprefix("Quota configs for ").split(", "))
        assert named == {"user-principal 'u'", "the default client-id"}
        assert "Quota configs for ip '10.1.2.3' are connection_creation_rate=7.0" in await run(
            "--describe", "--entity-type", "ips"
        )
        await run("--alter", *of_client, "--delete-config", "producer_byte_rate,request_percentage")
        assert await run("--describe", *of_client) == ""
        assert await cluster.zk.get_children("/config/clients") == []


async def test_librdkafka_is_throttled_to_its_rate(zookeeper: str) -> None:  # rules B8.1, B8.5
    """5 MB at 1 MB/s over a window of one to two seconds."""
    throttled_ms: list[float] = []

    def produce(bootstrap: str) -> float:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap, "client.id": "slow", "acks": "all", "batch.size": 100_000,
                "linger.ms": 5, "throttle_cb": lambda event: throttled_ms.append(event.throttle_time),
            }
        )  # fmt: skip
        began = time.monotonic()
        for _ in range(50):
            producer.produce("t", b"x" * 100_000, partition=0)
        while producer.flush(1):
            assert time.monotonic() - began < LIMIT_S
        return time.monotonic() - began

    properties = {"quota.window.num": "2", "quota.window.size.seconds": "1"}
    async with Cluster(brokers=1, zookeeper=f"{zookeeper}/quota-producer", properties=properties) as cluster:
        await cluster.wait_for_controller()
        await cluster.create_topic("t", partitions=1, replication_factor=1)
        bootstrap = cluster.bootstrap_servers()
        assert await trio.to_thread.run_sync(produce, bootstrap) < 3
        assert throttled_ms == []
        await cluster.zk.change_config("clients", "slow", {"producer_byte_rate": str(MB)})
        await limited(cluster, "slow", MB)
        seconds = await trio.to_thread.run_sync(produce, bootstrap)
        assert throttled_ms
        assert 3 < seconds < 10


async def limited(cluster: Cluster, client_id: str, rate: float) -> None:
    """Wait until node 1 knows the quota."""
    member: Any = cluster.member(1)

    async def applies() -> bool:
        return bool(member.node.broker.client_quotas.produce.limit_of("ANONYMOUS", client_id) == rate)

    await cluster.wait_until(applies, "the quota")


def address(cluster: Cluster) -> tuple[str, int]:
    host, port = cluster.bootstrap_servers().rsplit(":", 1)
    return host, int(port)


async def connect(host: str, port: int, client_id: str = "test") -> NodeClient:
    links = NodeLinks(RealWorld(), Links(set()), -1)
    return NodeClient(await links.dial(host, port, to=1, listener="DATA"), client_id)


class Answer(NamedTuple):
    throttle_ms: int
    what: Any


async def script(host: str, port: int) -> list[Answer]:
    """What each client is told. Each has a connection of its own, which is throttled after its first answer."""
    admin = await connect(host, port)
    limits = {
        "p": {"producer_byte_rate": 1000.0}, "f-4": {"consumer_byte_rate": 100.0},
        "f-11": {"consumer_byte_rate": 100.0}, "f-12": {"consumer_byte_rate": 100.0},
        "m": {"controller_mutation_rate": 2.0}, "z": {"producer_byte_rate": 0.0},
    }  # fmt: skip
    for some in (limits, {"t": {"request_percentage": 1e-6}}):
        request = alteration([({"client-id": name}, changes) for name, changes in some.items()])
        assert set(results(await admin.request(request, 1)).values()) == {(ErrorCode.NONE, None)}
    answers: list[Answer] = []

    async def tell(client_id: str, message: wire.Message, version: int, what: Callable[[Any], Any]) -> None:
        client = await connect(host, port, client_id)
        try:
            answer: Any = await client.request(message, version)
        finally:
            await client.aclose()
        answers.append(Answer(answer.throttle_time_ms, what(answer)))

    def code(answer: Any) -> int:
        return answer.responses[0].partition_responses[0].error_code  # type: ignore[no-any-return]

    def fetched(answer: Any) -> list[int]:
        return [len(data.records or b"") for topic in answer.responses for data in topic.partitions]

    with trio.fail_after(LIMIT_S):  # a broker learns of changes in their order, after they are answered
        while not (answers and answers.pop().throttle_ms):
            await tell("t", wire.MetadataRequest(topics=()), 9, lambda _: None)
    one = produce_request(batch(b"x" * 20_000, timestamp=1), 1, topic="t")
    await tell("p", one, 9, code)
    for version in (4, 11, 12):
        await tell(
            f"f-{version}", fetch_request(0, topic="t", version=version, partition_max_bytes=25_000), version, fetched
        )
    await tell("z", one, 9, code)
    topics = tuple(wire.CreatableTopic(name=n, num_partitions=30, replication_factor=1) for n in ("one", "two"))
    await tell("t", wire.MetadataRequest(topics=()), 9, lambda _: None)
    await tell("p", one, 9, code)
    await tell("m", wire.CreateTopicsRequest(topics=topics, timeout_ms=30_000, validate_only=False), 5, lambda _: None)
    await admin.aclose()
    return answers


@asynccontextmanager
async def ours(zookeeper: str) -> AsyncIterator[tuple[str, int]]:
    async with Cluster(brokers=1, zookeeper=f"{zookeeper}/quota-ours") as cluster:
        await cluster.wait_for_controller()
        await cluster.create_topic("t", partitions=1, replication_factor=1)
        yield address(cluster)


@asynccontextmanager
async def theirs(zookeeper: str, folder: Path) -> AsyncIterator[tuple[str, int]]:
    async with real_brokers([1], f"{zookeeper}/quota-theirs", folder, auto_create_topics_enable="false") as brokers:
        host, port = brokers[1].address.rsplit(":", 1)
        client = await connect(host, int(port))
        try:
            topic = wire.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            request = wire.CreateTopicsRequest(topics=(topic,), timeout_ms=30_000)
            with trio.fail_after(LIMIT_S):
                while await created(client, request) == ErrorCode.INVALID_REPLICATION_FACTOR:  # noqa: ASYNC110
                    await trio.sleep(0.1)  # it knows no brokers yet, and tells nobody when it does
        finally:
            await client.aclose()
        yield host, int(port)


async def created(client: NodeClient, request: wire.CreateTopicsRequest) -> int:
    answer: Any = await client.request(request, 5)
    return answer.topics[0].error_code  # type: ignore[no-any-return]


async def test_throttle_times_are_those_of_a_real_broker(zookeeper: str, tmp_path: Path) -> None:  # B8.6, B8.13
    """To the millisecond where the window has no history."""
    told = []
    for cluster in (partial(ours, zookeeper), partial(theirs, zookeeper, tmp_path)):
        async with cluster() as where:
            told.append(await script(*where))
    our, their = told
    first = slice(0, len(our) - 2)
    assert our[first] == their[first]
    assert [answer.throttle_ms > 0 for answer in our[first]] == [True, True, True, True, False, True]
    for ours_again, theirs_again in zip(our[first.stop :], their[first.stop :], strict=True):
        assert ours_again.throttle_ms > 10_000
        assert ours_again.throttle_ms == pytest.approx(theirs_again.throttle_ms, abs=5000)  # less what has passed
