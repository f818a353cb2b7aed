"""Records in a cluster: nodes keep and replicate them, while leaders move."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import trio
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

from kce import wire
from kce.broker_stub.node_client import NodeClient
from kce.harness import Cluster
from kce.harness.links import Links
from kce.harness.node_links import NodeLinks
from kce.harness.world import memory
from kce.harness.world.memory_world import MemoryClusterWorld
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.log.support import batch
from tests.broker_stub.replication.support import fetch_request, produce_request, values_of
from tests.interop.records import Ledger, Traffic

PROPERTIES = {
    "log.dirs": "/kafka-logs-{id}",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "2000",
    "zookeeper.session.timeout.ms": "4000",
}


async def ask(
    cluster: Cluster, world: MemoryClusterWorld, node_id: int, message: wire.Message, version: int
) -> wire.Message:
    host, port = cluster.member(node_id).addresses["DATA"].rsplit(":", 1)
    links = NodeLinks(world.observer(), Links(set()), -1)
    connection = await links.dial(host, int(port), to=node_id, listener="DATA")
    client = NodeClient(connection, "test")
    try:
        return await client.request(message, version)
    finally:
        await client.aclose()


async def leader_of(cluster: Cluster, topic: str, partition: int = 0) -> tuple[int, tuple[int, ...]]:
    (found,) = await cluster.describe_topics([topic])
    leadership = found.partitions[partition].leadership
    assert leadership is not None
    return leadership.leader_and_isr.leader, tuple(leadership.leader_and_isr.isr)


async def isr_is(cluster: Cluster, members: set[int], topic: str = "t") -> bool:
    leader, isr = await leader_of(cluster, topic)
    return leader >= 0 and set(isr) == members


async def produce(cluster: Cluster, world: MemoryClusterWorld, value: bytes) -> int:
    """acks=all, to whoever leads, until it is acknowledged; the offset."""
    while True:
        leader, _ = await leader_of(cluster, "t")
        try:
            answer = await ask(cluster, world, leader, produce_request(batch(value), -1, 3000, "t"), 9)
        except OSError:
            await trio.sleep(0.2)
            continue
        assert isinstance(answer, wire.ProduceResponse)
        data = answer.responses[0].partition_responses[0]
        if data.error_code == 0:
            return data.base_offset
        await trio.sleep(0.2)


async def a_life_with_failovers(seed: int, record: Path | None = None) -> list[bytes | None]:
    """What is in the log in the end."""
    world = memory(seed)
    async with Cluster(3, world=world, properties=PROPERTIES, record=record) as cluster:
        await cluster.create_topic("t", partitions=1, replication_factor=3)
        sent = [b"%d" % await produce(cluster, world, b"%d" % i) for i in range(3)]
        assert sent == [b"0", b"1", b"2"]
        for i in range(3, 6):
            leader, _ = await leader_of(cluster, "t")
            await cluster.kill(leader)
            await cluster.wait_until(lambda leader=leader: isr_is(cluster, {1, 2, 3} - {leader}), what="the ISR")  # type: ignore[misc]
            assert await produce(cluster, world, b"%d" % i) == i
            await cluster.start(leader)
            await cluster.wait_until(lambda: isr_is(cluster, {1, 2, 3}), what="the ISR")
        leader, _ = await leader_of(cluster, "t")
        answer = await ask(cluster, world, leader, fetch_request(0, topic="t", version=12), 12)
        assert isinstance(answer, wire.FetchResponse)
        await trio.sleep(1)  # followers have the leader's high watermark after their next fetch
        contents = {
            world.disks[f"node-{node}"].read(f"/kafka-logs-{node}/t-0/00000000000000000000.log") for node in (1, 2, 3)
        }
        assert len(contents) == 1, "the logs of all replicas are the same, byte for byte"
        return values_of(answer.responses[0].partitions[0])


async def test_nothing_acknowledged_is_lost_while_leaders_die_in_memory() -> None:
    assert await a_life_with_failovers(seed=3) == [b"%d" % i for i in range(6)]


def test_the_same_seed_gives_the_same_traffic(tmp_path: Path) -> None:
    digests = []
    for i in range(2):
        record = tmp_path / f"{i}.pcapng"
        trio.run(a_life_with_failovers, 5, record)
        digests.append(hashlib.sha256(record.read_bytes()).hexdigest())
    assert digests[0] == digests[1]


async def test_a_clean_restart_keeps_what_is_there() -> None:
    world = memory(4)
    async with Cluster(1, world=world, properties={**PROPERTIES, "min.insync.replicas": "1"}) as cluster:
        await cluster.create_topic("t", partitions=1, replication_factor=1)
        assert await produce(cluster, world, b"before") == 0
        await cluster.stop(1)
        assert world.disks["node-1"].exists("/kafka-logs-1/.kafka_cleanshutdown")
        await cluster.start(1)
        assert await produce(cluster, world, b"after") == 1
        await cluster.delete_topic("t")
        names = world.disks["node-1"].folders("/kafka-logs-1")
        assert [name.startswith("t-0.") and name.endswith("-delete") for name in names] == [True]


async def test_a_follower_lags_on_command() -> None:
    """The follower leaves the ISR, and returns when it may fetch again."""
    world = memory(6)
    async with Cluster(3, world=world, properties=PROPERTIES) as cluster:
        await cluster.create_topic("t", partitions=1, replication_factor=3)
        leader, _ = await leader_of(cluster, "t")
        follower = min({1, 2, 3} - {leader})
        member = cluster.member(follower)
        replication = member.node.broker.replication  # type: ignore[attr-defined]
        replication.lag(TopicPartition("t", 0), follower, True)
        await produce(cluster, world, b"x")
        await cluster.wait_until(lambda: isr_is(cluster, {1, 2, 3} - {follower}), what="the ISR")
        replication.lag(TopicPartition("t", 0), follower, False)
        await cluster.wait_until(lambda: isr_is(cluster, {1, 2, 3}), what="the ISR")


@pytest.mark.parametrize("log_dirs", ["a folder", None])
async def test_a_killed_node_finds_its_records_unless_it_has_no_log_directory(log_dirs: str | None) -> None:
    world = memory(1)
    properties: dict[str, str | None] = {} if log_dirs else {"log.dirs": None}
    async with Cluster(1, world=world, properties=properties) as cluster:
        await cluster.create_topic("t", partitions=1, replication_factor=1)
        assert await produce(cluster, world, b"before") == 0
        await cluster.kill(1)
        await cluster.start(1)
        assert await produce(cluster, world, b"after") == (1 if log_dirs else 0)


@pytest.mark.slow
async def test_librdkafka_loses_nothing_while_nodes_are_killed(tmp_path: Path) -> None:
    """Processes on sockets and disks; an idempotent producer with acks=all works all the time."""
    properties = {**PROPERTIES, "log.dirs": f"{tmp_path}/records-{{id}}"}
    async with Cluster(3, processes=True, data=tmp_path / "data", properties=properties) as cluster:
        await cluster.create_topic("t", partitions=3, replication_factor=3)
        ledger = Ledger(",".join(member.addresses["DATA"] for member in map(cluster.member, (1, 2, 3))), "t")
        with Traffic(ledger):
            for victim in (1, 2):
                await cluster.kill(victim)
                await cluster.wait_until(
                    lambda victim=victim: all_isrs(cluster, {1, 2, 3} - {victim}),
                    what="the ISRs without it",  # type: ignore[misc]
                )
                await cluster.start(victim)
                await cluster.wait_until(lambda: all_isrs(cluster, {1, 2, 3}), what="the ISRs with it")
        await trio.to_thread.run_sync(ledger.flush)
        assert ledger.failed == []
        assert len(ledger.acknowledged) == ledger.sent > 100
        await trio.to_thread.run_sync(ledger.check)
    assert contents(tmp_path) == [1, 1, 1]


def contents(folder: Path) -> list[int]:
    """The number of different logs of each partition."""
    found = (folder.glob(f"records-*/t-{partition}/*.log") for partition in range(3))
    return [len({path.read_bytes() for path in paths}) for paths in found]


async def all_isrs(cluster: Cluster, members: set[int]) -> bool:
    (found,) = await cluster.describe_topics(["t"])
    states = [partition.leadership.leader_and_isr for partition in found.partitions if partition.leadership is not None]
    return len(states) == 3 and all(state.leader >= 0 and set(state.isr) == members for state in states)


def consume(bootstrap: str, rack: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
            "client.rack": rack,
            "client.id": rack,
        }
    )
    consumer.assign([ConfluentPartition("t", 0, 0)])
    try:
        return [message.value() for _ in range(count) if (message := consumer.poll(30)) is not None]
    finally:
        consumer.close()


@pytest.mark.slow
async def test_librdkafka_reads_from_the_follower_in_its_rack(tmp_path: Path) -> None:  # KIP-392
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    properties = {"replica.selector.class": selector}
    async with Cluster(2, racks=("a", "b"), data=tmp_path / "data", properties=properties) as cluster:
        await cluster.create_topic("t", assignment={0: [1, 2]})
        bootstrap = cluster.member(1).addresses["DATA"]
        ledger = Ledger(bootstrap, "t")
        for _ in range(100):
            ledger.send()
        await trio.to_thread.run_sync(ledger.flush)
        values = await trio.to_thread.run_sync(consume, bootstrap, "b", 100)
        assert len(set(values)) == len(values) == 100
        with_records = {
            event.source
            for event in cluster.history.events(api="Fetch", is_request=False)
            if event.header.client_id == "b" and any(map(has_records, event.message().responses))  # type: ignore[attr-defined]
        }
        assert with_records == {2}


def has_records(topic: wire.FetchableTopicResponse) -> bool:
    return any(data.records for data in topic.partitions)
