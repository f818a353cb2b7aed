"""Records through our nodes, real Kafka 3.9.1 and librdkafka's mock cluster, by one client: librdkafka.

    python -m benchmarks.records [--brokers 1 3] [--seconds 3] [--repeats 3] [--only produce consume ack] [--json FILE]

    produce/1kB/N            records of 1 kB, acks=all, linger 5 ms, six partitions
    produce/100B/N           records of 100 B
    produce/small-batches/N  one partition, linger 0, batches of 16 kB
    produce/idempotent-lz4/N one partition, an idempotent producer, lz4; the records compress to half
    consume/1kB/N, /100B/N   what was produced, by assignment
    ack/p50/N, p99           one record after the other, until it is acknowledged
    ack/end-to-end/p50/N     until a consumer has it

The last part of a name is the number of brokers; with three, topics have three replicas. /mock is beside the mock,
which keeps one copy, in memory. Ours and Kafka are processes with their logs on the same disk and Kafka's defaults, in
the same ZooKeeper. The client is a process of its own, the same for all. They are measured in turn, repeat by repeat.
A ratio above 1 is better than the peer.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import trio
from confluent_kafka.admin import AdminClient

from benchmarks.broker_load import quantile
from benchmarks.rows import KAFKA, Row, report
from kce.harness.cluster import Cluster
from kce.harness.embedded_zookeeper import embedded_zookeeper
from kce.harness.guard import Guard
from tests.interop.real_kafka import real_brokers

OURS: Final = "ours"
MOCK: Final = "librdkafka's mock"
JVM: Final = ("-Xmx700m",)
PARTITIONS: Final = 6
MOCK_PARTITIONS: Final = 4  # which it gives every topic
LIMIT_S: Final = 60.0
#: what a consumer reads at most
CONSUME_BYTES: Final = 300_000_000


@dataclass(frozen=True)
class Load:
    """``size``: bytes of a record. ``settings``: of the producer. The unit is MB/s, or records a second."""

    size: int
    partitions: int = PARTITIONS
    in_bytes: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)


PRODUCED: Final = {
    "1kB": Load(1000),
    "100B": Load(100, in_bytes=False),
    "small-batches": Load(1000, 1, settings={"linger.ms": 0, "batch.size": 16_384}),
    "idempotent-lz4": Load(1000, 1, settings={"enable.idempotence": True, "compression.type": "lz4"}),
}
PARTS: Final = ("produce", "consume", "ack")
CONSUMED: Final = ("1kB", "100B")


# the client, in a process of its own


def produce(bootstrap: str, topic: str, load: Load, seconds: float) -> tuple[int, float]:
    """Produce for so long; how many records were acknowledged, and the seconds until the last was."""
    failed: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": -1,
            "log_level": 0,
            "linger.ms": 5,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 200_000,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, message: failed.append(error),
            **load.settings,
        }
    )
    value = os.urandom(load.size // 2).hex().encode()
    producer.list_topics(topic, timeout=LIMIT_S)
    partitions, sent = load.partitions, 0
    begin = time.perf_counter()
    end = begin + seconds
    while time.perf_counter() < end:
        for _ in range(200):
            try:
                producer.produce(topic, value, partition=sent % partitions)
            except BufferError:
                producer.poll(0.01)
            else:
                sent += 1
        producer.poll(0)
    left = producer.flush(LIMIT_S)
    elapsed = time.perf_counter() - begin
    if left or failed:
        raise RuntimeError(f"{left} records are not acknowledged, {len(failed)} have failed: {failed[:1]}")
    return sent, elapsed


def consume(bootstrap: str, topic: str, partitions: int, records: int) -> float:
    """The seconds from the first batch to the last of ``records``, as a share of the records after the first batch."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
            "log_level": 0,
            "check.crcs": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, i, 0) for i in range(partitions)])
    read, first, begin, deadline = 0, 0, 0.0, time.perf_counter() + LIMIT_S
    while read < records:
        found = consumer.consume(10_000, timeout=0.2)
        if time.perf_counter() > deadline:
            raise RuntimeError(f"{read} of {records} records consumed in {LIMIT_S:g} s")
        if found and not first:
            first, begin = len(found), time.perf_counter()
        read += len(found)
    elapsed = time.perf_counter() - begin
    consumer.close()
    return elapsed * records / max(1, records - first)


def _delivered(done: list[Any], error: Any, message: Any) -> None:
    done.append(error)


def acknowledge(bootstrap: str, topic: str, seconds: float) -> list[float]:
    """Seconds until a record is acknowledged, one after the other."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": -1, "linger.ms": 0, "log_level": 0})
    found: list[float] = []
    begin = end = time.perf_counter()
    for i in range(10_000_000):
        done: list[Any] = []
        at = time.perf_counter()
        producer.produce(topic, b"x" * 100, partition=0, on_delivery=partial(_delivered, done))
        while not done:
            producer.poll(1)
        if done[0] is not None:
            raise RuntimeError(str(done[0]))
        end = time.perf_counter()
        if i >= 20:  # the first ones find the leader
            found.append(end - at)
        if end - begin > seconds and len(found) > 20:
            return found
    return found


def end_to_end(bootstrap: str, topic: str, seconds: float) -> list[float]:
    """Seconds until a consumer has a record, one after the other."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": -1, "linger.ms": 0, "log_level": 0})
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    found: list[float] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or len(found) < 40:
        at = time.perf_counter()
        value = str(at).encode()
        producer.produce(topic, value, partition=0)
        producer.poll(0)
        while (message := consumer.poll(LIMIT_S)) is not None and message.value() != value:
            pass
        if message is None:
            raise RuntimeError("a record was not consumed")
        found.append(time.perf_counter() - at)
    consumer.close()
    return found[20:]


# the servers


@dataclass
class Server:
    """``new_topic`` creates one with so many partitions and returns when it has leaders."""

    bootstrap: str
    replicas: int
    admin: AdminClient | None
    created: int = 0

    async def new_topic(self, partitions: int) -> str:
        self.created += 1
        name = f"topic-{self.created}"
        if self.admin is not None:
            await trio.to_thread.run_sync(self._create, name, partitions)
        return name

    def _create(self, name: str, partitions: int) -> None:
        assert self.admin is not None
        wanted = confluent_kafka.admin.NewTopic(name, partitions, self.replicas)
        self.admin.create_topics([wanted], operation_timeout=LIMIT_S)[name].result()

    async def delete(self, topic: str) -> None:
        if self.admin is not None:
            futures = self.admin.delete_topics([topic], operation_timeout=LIMIT_S)
            await trio.to_thread.run_sync(futures[topic].result)


@asynccontextmanager
async def servers(brokers: int) -> AsyncIterator[dict[str, Server]]:
    """Ours, Kafka's, and with one broker the mock, by name."""
    with tempfile.TemporaryDirectory() as name, closing(Guard()) as guard:
        folder = Path(name)
        async with embedded_zookeeper(folder / "zookeeper", guard) as zookeeper:
            cluster = Cluster(brokers, processes=True, zookeeper=f"{zookeeper}/ours", data=folder, log_level="ERROR")
            kafka = real_brokers(list(range(1, brokers + 1)), f"{zookeeper}/kafka", folder, jvm=JVM)
            async with cluster, kafka as real:
                await cluster.wait_for_controller()
                addresses = {OURS: cluster.bootstrap_servers(), KAFKA: ",".join(b.address for b in real.values())}
                found = {
                    name: Server(address, brokers, AdminClient({"bootstrap.servers": address, "log_level": 0}))
                    for name, address in addresses.items()
                }
                if brokers == 1:
                    mock = confluent_kafka.Producer({"test.mock.num.brokers": 1})
                    known = await trio.to_thread.run_sync(partial(mock.list_topics, timeout=10))
                    (broker,) = known.brokers.values()
                    found[MOCK] = Server(f"{broker.host}:{broker.port}", 1, None)
                yield found


# the measurements


async def elsewhere(function: Callable[..., Any], *args: Any) -> Any:
    """The result of ``function`` in a process of its own."""

    def run() -> Any:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(function, args)

    return await trio.to_thread.run_sync(run)


class Rows:
    """Rows by name; values of the mock are the peers of rows of their own."""

    def __init__(self, brokers: int) -> None:
        self._brokers = brokers
        self._rows: dict[str, Row] = {}

    def add(self, name: str, server: str, value: float, unit: str, *, less: bool = False) -> None:
        name = f"{name}/{self._brokers}"
        if server != MOCK:
            row = self._rows.setdefault(name, Row(name, unit, KAFKA, less=less))
            (row.values if server == OURS else row.peer_values).append(value)
        if self._brokers == 1 and server != KAFKA:
            row = self._rows.setdefault(f"{name}/mock", Row(f"{name}/mock", unit, MOCK, less=less))
            (row.values if server == OURS else row.peer_values).append(value)

    def all(self) -> list[Row]:
        return [row for row in self._rows.values() if row.peer_values]


def _rate(load: Load, records: int, seconds: float) -> tuple[float, str]:
    return (records * load.size / seconds / 1e6, "MB/s") if load.in_bytes else (records / seconds, "1/s")


async def _records(name: str, server: Server, args: argparse.Namespace, rows: Rows, loads: Sequence[str]) -> None:
    """Produce, and consume the same records again."""
    for which in loads:
        load = PRODUCED[which]
        partitions = min(load.partitions, MOCK_PARTITIONS) if name == MOCK else load.partitions
        topic = await server.new_topic(partitions)
        sent, seconds = await elsewhere(
            produce, server.bootstrap, topic, replace(load, partitions=partitions), args.seconds
        )
        rows.add(f"produce/{which}", name, *_rate(load, sent, seconds))
        if which in CONSUMED and "consume" in args.only and name != MOCK:  # the mock keeps too little
            records = min(sent, CONSUME_BYTES // load.size)
            seconds = await elsewhere(consume, server.bootstrap, topic, partitions, records)
            rows.add(f"consume/{which}", name, *_rate(load, records, seconds))
        await server.delete(topic)


async def _latency(name: str, server: Server, args: argparse.Namespace, rows: Rows) -> None:
    topic = await server.new_topic(1)
    found = await elsewhere(acknowledge, server.bootstrap, topic, args.seconds)
    for which, q in (("p50", 0.5), ("p99", 0.99)):
        rows.add(f"ack/{which}", name, quantile(found, q) * 1e3, "ms", less=True)
    await server.delete(topic)
    topic = await server.new_topic(1)
    found = await elsewhere(end_to_end, server.bootstrap, topic, args.seconds)
    rows.add("ack/end-to-end/p50", name, quantile(found, 0.5) * 1e3, "ms", less=True)
    await server.delete(topic)


async def measure(args: argparse.Namespace) -> list[Row]:
    found = []
    for brokers in args.brokers:
        rows, warm_up = Rows(brokers), Rows(brokers)
        async with servers(brokers) as known:
            for repeat in range(-1, args.repeats):  # Java warms up
                for name, server in known.items():
                    into = warm_up if repeat < 0 else rows
                    if "produce" in args.only or "consume" in args.only:
                        await _records(name, server, args, into, args.loads)
                    if "ack" in args.only:
                        await _latency(name, server, args, into)
        found += rows.all()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each measurement takes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--loads", nargs="+", choices=list(PRODUCED), default=list(PRODUCED))
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    report(trio.run(measure, args), args.json)


if __name__ == "__main__":
    main()
