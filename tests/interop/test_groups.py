"""Consumer groups of librdkafka, kafka-python, aiokafka and of Kafka's own client and tools, unchanged."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC, partition_for
from kce.harness import Cluster
from tests.interop.tools import Tools

pytestmark = pytest.mark.slow

MEMBER = Path(__file__).parent / "group_member.py"
CLIENTS = Path(__file__).parent / "group_clients.py"
GROUP, TOPIC = "readers", "t"
PARTITIONS = 6
OFFSETS_PARTITIONS = 4
LIMIT_S = 120
PROPERTIES = {
    "group.initial.rebalance.delay.ms": "200",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
}


def consumer(bootstrap: str) -> Consumer:
    made = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 2000,
            "heartbeat.interval.ms": 200,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1000,
            "log_level": 0,
        }
    )
    made.subscribe([TOPIC])
    return made


def produce(bootstrap: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for value in values:
        producer.produce(TOPIC, str(value), partition=value % PARTITIONS)
    assert producer.flush(60) == 0


class Readers:
    """Consumers that one thread polls in turn, and what they have read."""

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        self.values: list[int] = []

    def poll_until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, f"{what}: owned are {self.owned()}, read {len(self.values)}"
            for each in self.consumers:
                message = each.poll(0.05)
                if message is not None and message.error() is None:
                    self.values.append(int(message.value() or b""))

    def owned(self) -> list[int]:
        return [len(each.assignment()) for each in self.consumers]

    def share(self, *counts: int) -> None:
        """Until each owns that many partitions."""
        self.poll_until(lambda: self.owned() == list(counts), f"to own {counts}")

    def read_all(self, values: range) -> None:
        """Until all of these were read, and as many as there are before the last are committed.

        A member that was silent for too long on a busy machine comes back, and may read some again.
        """
        self.poll_until(lambda: set(values) <= set(self.values), f"to read {values}")
        self.poll_until(lambda: self._commit() == values.stop, f"to commit {values.stop}")

    def _commit(self) -> int:
        """How many records are committed, all partitions together."""
        (each,) = self.consumers
        try:
            each.commit(asynchronous=False)
            committed = each.committed([TopicPartition(TOPIC, i) for i in range(PARTITIONS)], timeout=10)
        except KafkaException:
            return -1
        return sum(max(partition.offset, 0) for partition in committed)

    def close(self, each: Consumer) -> None:
        self.consumers.remove(each)
        each.close()


async def coordinator(cluster: Cluster) -> int:
    (topic,) = await cluster.describe_topics([GROUP_METADATA_TOPIC])
    leadership = topic.partitions[partition_for(GROUP, OFFSETS_PARTITIONS)].leadership
    assert leadership is not None
    return leadership.leader_and_isr.leader


async def test_librdkafka_shares_partitions_and_resumes(tmp_path: Path) -> None:
    """Three share six partitions, one crashes, one leaves; the coordinator dies; the next reader resumes."""
    in_thread = trio.to_thread.run_sync
    async with Cluster(3, properties={**PROPERTIES, "zookeeper.session.timeout.ms": "4000"}) as cluster:
        await cluster.wait_for_controller()
        await cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        bootstrap = cluster.bootstrap_servers()
        await in_thread(produce, bootstrap, range(60))
        readers = Readers()
        readers.consumers = [consumer(bootstrap), consumer(bootstrap)]
        command = [sys.executable, str(MEMBER), bootstrap, GROUP, TOPIC]
        doomed = await trio.lowlevel.open_process(command, stdout=subprocess.DEVNULL)
        try:
            await in_thread(readers.share, 2, 2)
        finally:
            doomed.kill()
            with trio.CancelScope(shield=True):
                await doomed.wait()
        await in_thread(readers.share, 3, 3)
        await in_thread(readers.close, readers.consumers[0])
        await in_thread(readers.share, 6)
        readers.values.clear()
        await in_thread(produce, bootstrap, range(60, 120))
        await in_thread(readers.read_all, range(60, 120))

        old = await coordinator(cluster)
        await cluster.kill(old)
        await in_thread(produce, bootstrap, range(120, 180))
        await in_thread(readers.read_all, range(120, 180))
        await in_thread(readers.close, readers.consumers[0])
        assert await coordinator(cluster) != old

        await in_thread(produce, bootstrap, range(180, 240))
        last = Readers()
        last.consumers = [consumer(bootstrap)]
        await in_thread(last.poll_until, lambda: set(range(180, 240)) <= set(last.values), "to resume")
        assert min(last.values) == 180, "what was committed is not read again"
        await in_thread(last.close, last.consumers[0])


async def test_kafka_python_and_aiokafka(tmp_path: Path) -> None:
    """See group_clients.py; not imported here, because kafka-python warns while it is imported."""
    async with Cluster(1, properties=PROPERTIES) as cluster:
        await cluster.wait_for_controller()
        await cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=1)
        bootstrap = cluster.bootstrap_servers()
        await trio.to_thread.run_sync(produce, bootstrap, range(RECORDS))

        async def run(client: str) -> None:
            errors = tmp_path / client
            command = [sys.executable, str(CLIENTS), client, bootstrap, TOPIC, str(RECORDS)]
            with trio.fail_after(LIMIT_S), errors.open("wb") as stderr:
                done = await trio.run_process(command, stderr=stderr, check=False)
            assert done.returncode == 0, errors.read_text()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "kafka-python")
            nursery.start_soon(run, "aiokafka")


CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
DUMP = "kafka.tools.DumpLogSegments"
RECORDS = 12


async def test_kafkas_own_consumer_and_tools(tools: Tools, tmp_path: Path) -> None:
    properties = {**PROPERTIES, "log.dirs": f"{tmp_path}/logs-{{id}}"}
    async with Cluster(3, properties=properties) as cluster:
        await cluster.wait_for_controller()
        await cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        bootstrap = cluster.bootstrap_servers()
        await trio.to_thread.run_sync(produce, bootstrap, range(RECORDS))

        async def run(main_class: str, *arguments: str) -> str:
            return await trio.to_thread.run_sync(tools.run, main_class, "--bootstrap-server", bootstrap, *arguments)

        async def groups(*arguments: str) -> list[list[str]]:
            """The lines of a table, split."""
            said = await run(GROUPS, *arguments)
            return [line.split() for line in said.splitlines() if line.strip()]

        consumed = await run(
            CONSOLE_CONSUMER, "--topic", TOPIC, "--group", GROUP, "--from-beginning", "--max-messages", str(RECORDS),
            "--timeout-ms", "60000",
        )  # fmt: skip
        assert sorted(int(line) for line in consumed.splitlines() if line.isdigit()) == list(range(RECORDS))
        assert [GROUP] in await groups("--list")
        described = await groups("--describe", "--group", GROUP)
        rows = [row for row in described if row[:2] == [GROUP, TOPIC]]
        assert sorted((int(row[2]), int(row[3])) for row in rows) == [(i, RECORDS // PARTITIONS) for i in range(6)]
        (state,) = [row for row in await groups("--describe", "--group", GROUP, "--state") if row[0] == GROUP]
        assert "Empty" in state
        reset = ["--reset-offsets", "--group", GROUP, "--topic", f"{TOPIC}:0", "--to-offset", "1", "--execute"]
        assert f"{GROUP} {TOPIC} 0 1" in " ".join((await run(GROUPS, *reset)).split())
        await groups("--delete-offsets", "--group", GROUP, "--topic", f"{TOPIC}:5")
        rows = [row for row in await groups("--describe", "--group", GROUP) if row[:2] == [GROUP, TOPIC]]
        assert {int(row[2]): row[3] for row in rows} == {0: "1", 1: "2", 2: "2", 3: "2", 4: "2"}
        assert "successful" in await run(GROUPS, "--delete", "--group", GROUP)
        assert [GROUP] not in await groups("--list")
        leader = await coordinator(cluster)
    number = partition_for(GROUP, OFFSETS_PARTITIONS)
    path = tmp_path / f"logs-{leader}" / f"{GROUP_METADATA_TOPIC}-{number}" / f"{0:020}.log"
    dumped = await trio.to_thread.run_sync(
        tools.run, DUMP, "--offsets-decoder", "--print-data-log", "--files", str(path)
    )
    payloads = [line for line in dumped.splitlines() if " key: " in line]
    assert any('"type":"2"' in line and '"protocolType":"consumer"' in line for line in payloads)
    assert any('"type":"1"' in line and '"partition":0' in line and '"offset":1' in line for line in payloads)
    assert payloads[-1].endswith("payload: <DELETE>"), payloads[-1]
