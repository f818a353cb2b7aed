"""Clients, unchanged, while leaders move: each does the same, and loses nothing. And Kafka's console tools.

Their drivers are in clients/. Partitions are assigned; test_groups.py has groups.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kce.harness.sync_cluster import SyncCluster
from kce.wire.vocabulary import TopicPartition
from kce.zookeeper import cluster_nodes, znodes
from tests.clusters import create_znode
from tests.interop.clients.programs import CLIENTS, Client, Driver
from tests.interop.tools import Tools

pytestmark = pytest.mark.slow

PROPERTIES = {
    "auto.leader.rebalance.enable": "false",
    "log.retention.ms": "-1",  # the records are old
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "2000",
    "zookeeper.session.timeout.ms": "4000",
}
PARTITIONS = 3
#: records of a request to produce
EACH = 12
#: of the first record; each is a second later than the one before
FIRST_MS = 1_600_000_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncCluster]:
    with SyncCluster(3, properties=PROPERTIES) as running:
        running.wait_for_controller()
        yield running


class Leaders:
    """Who leads the partitions of a topic, and how that changes."""

    def __init__(self, cluster: SyncCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic

    def now(self) -> list[tuple[int, frozenset[int]]]:
        """Leader and ISR of each partition."""
        (described,) = self._cluster.describe_topics([self._topic])
        states = [p.leadership.leader_and_isr for p in described.partitions if p.leadership is not None]
        return [(state.leader, frozenset(state.isr)) for state in states]

    def wait_until(self, condition: Callable[[list[tuple[int, frozenset[int]]]], bool], what: str) -> None:
        self._cluster.wait_until(lambda: condition(self.now()), what)

    def kill_one(self) -> None:
        """A leader that is not the controller dies without a word, others take over, and it returns."""
        controller = self._cluster.controller_id()
        leader = next(leader for leader, _ in self.now() if leader != controller)
        self._cluster.kill(leader)
        self.wait_until(lambda states: all(lead not in (leader, -1) for lead, _ in states), "other leaders")
        self._cluster.start(leader)
        self.wait_until(lambda states: all(isr == {1, 2, 3} for _, isr in states), "the ISRs")

    def prefer(self) -> None:
        """The preferred leaders take over from leaders that live."""
        before = [leader for leader, _ in self.now()]
        data = cluster_nodes.encode_partition_list(
            [TopicPartition(self._topic, number) for number in range(len(before))]
        )
        self._cluster.call(lambda cluster: create_znode(cluster, znodes.PREFERRED_REPLICA_ELECTION, data))
        self.wait_until(lambda states: len({leader for leader, _ in states}) == min(3, len(before)), "leaders")
        assert [leader for leader, _ in self.now()] != before


class Scenario:
    """What each client does."""

    def __init__(self, name: str, client: Client, driver: Driver, cluster: SyncCluster) -> None:
        self.topic = name
        self.client = client
        self.driver = driver
        self.cluster = cluster
        self.leaders = Leaders(cluster, self.topic)
        self.sent = 0

    def run(self) -> None:
        self.create()
        for codec in self.client.codecs:
            self.produce(codec)
        self.produce_while(self.leaders.kill_one)
        records = {partition: self.fetch_while(partition) for partition in range(PARTITIONS)}
        self.check(records)
        self.seek(records[1])
        self.delete()

    def ask(self, do: str, **request: object) -> dict[str, object]:
        answer: dict[str, object] = self.driver.ask(do, topic=self.topic, **request)
        return answer

    def listed(self) -> bool:
        """Each broker learns of a topic at its own time."""
        topics = self.driver.ask("topics")["topics"]
        return self.topic in topics

    def create(self) -> None:
        if self.client.administrates:
            self.ask("create", partitions=PARTITIONS, replicas=3)
            self.cluster.wait_until(lambda: len(self.leaders.now()) == PARTITIONS, "leaders")
        else:
            self.cluster.create_topic(self.topic, partitions=PARTITIONS, replication_factor=3)
        self.cluster.wait_until(self.listed, "the client to see the topic")

    def produce(self, codec: str) -> None:
        numbers = range(self.sent, self.sent + EACH)
        self.ask("produce", codec=codec, records=[[n % PARTITIONS, str(n), FIRST_MS + n * 1000] for n in numbers])
        self.sent += EACH

    def produce_while(self, leaders_move: Callable[[], None]) -> None:
        """Before, meanwhile and after."""
        moved = threading.Event()

        def work() -> None:
            while not moved.is_set():
                self.produce("none")
            self.produce("none")

        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)
            try:
                leaders_move()
            finally:
                moved.set()
            working.result()

    def fetch_while(self, partition: int) -> list[list[object]]:
        """All records of a partition; leaders move in the middle of the first."""
        _, total = self.bounds(partition)
        half = total // 2
        first = self.fetch(partition, 0, half)
        if partition == 0:
            self.leaders.prefer()
        return first + self.fetch(partition, half, total - half)

    def bounds(self, partition: int) -> tuple[int, int]:
        bounds = self.ask("bounds", partition=partition)
        return int(str(bounds["earliest"])), int(str(bounds["latest"]))

    def fetch(self, partition: int, offset: int, count: int) -> list[list[object]]:
        records = self.ask("fetch", partition=partition, offset=offset, count=count)["records"]
        assert isinstance(records, list)
        assert [record[0] for record in records] == list(range(offset, offset + count))
        return records

    def check(self, records: dict[int, list[list[object]]]) -> None:
        """Each record is there, whole; in order and once, if the client can say so."""
        for partition, found in records.items():
            numbers = [int(str(value)) for _, value, *_ in found]
            expected = [n for n in range(self.sent) if n % PARTITIONS == partition]
            met = numbers if self.client.is_idempotent else list(dict.fromkeys(numbers))
            assert (met if self.client.keeps_order else sorted(met)) == expected
            assert {key for *_, key, _ in found} == {"k"}
            assert {header for *_, header in found} == {"1" if self.client.has_headers else None}
            if self.client.sets_timestamps:
                assert [timestamp for _, _, timestamp, *_ in found] == [FIRST_MS + n * 1000 for n in numbers]

    def seek(self, records: list[list[object]]) -> None:
        """In partition 1, by offset and by time: to the first record that is not before it."""
        assert self.fetch(1, 7, 1) == [records[7]]
        if self.client.seeks_by_time:
            times = [int(str(timestamp)) for _, _, timestamp, *_ in records]
            for wanted in (times[5], times[5] - 1, times[-1]):
                first = next(offset for offset, time in enumerate(times) if time >= wanted)
                assert self.ask("offset_at", partition=1, timestamp_ms=wanted) == {"offset": first}

    def delete(self) -> None:
        if self.client.deletes_records:
            self.ask("delete_records", partition=2, offset=7)
            assert self.bounds(2)[0] == 7
        if self.client.administrates:
            self.ask("delete")
        else:
            self.cluster.delete_topic(self.topic)
        self.cluster.wait_until(lambda: not self.listed(), "the client to miss the topic")


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_loses_nothing_while_leaders_move(name: str, cluster: SyncCluster, tmp_path: Path) -> None:
    client = CLIENTS[name]
    with Driver(client, cluster.bootstrap_servers(), tmp_path / "errors") as driver:
        Scenario(name, client, driver, cluster).run()


CONSOLE_PRODUCER = "kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"


def test_kafkas_console_tools(cluster: SyncCluster, tools: Tools, tmp_path: Path) -> None:
    topic, values = "console", [str(n) for n in range(50)]
    cluster.create_topic(topic, assignment={0: [1, 2, 3]})
    leaders = Leaders(cluster, topic)
    servers = ["--bootstrap-server", cluster.bootstrap_servers()]

    def produce(some: list[str], codec: str) -> None:
        said = tools.run(
            CONSOLE_PRODUCER, *servers, "--topic", topic, "--compression-codec", codec, "--request-required-acks",
            "all", standard_input="".join(f"{value}\n" for value in some),
        )  # fmt: skip
        assert "ERROR" not in said

    def offset(time: str) -> str:
        return tools.run(OFFSETS, *servers, "--topic", topic, "--time", time).split()[-1]

    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for i, codec in enumerate(codecs):
        if i == 2:
            leader = leaders.now()[0][0]
            cluster.restart(leader)
            leaders.wait_until(lambda states: states[0][1] == {1, 2, 3}, "the ISR")
        produce(values[i::5], codec)
    assert offset("latest") == f"{topic}:0:50"
    consumed = tools.run(
        CONSOLE_CONSUMER, *servers, "--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages",
        "50", "--timeout-ms", "60000",
    )  # fmt: skip
    lines = [line for line in consumed.splitlines() if line.isdigit()]
    assert lines == [value for i in range(5) for value in values[i::5]]
    path = tmp_path / "delete.json"
    path.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 7}]}))
    tools.run(DELETE_RECORDS, *servers, "--offset-json-file", str(path))
    assert offset("earliest") == f"{topic}:0:7"
