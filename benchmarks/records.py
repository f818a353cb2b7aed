"""Records through our nodes, real Kafka 3.9.1, librdkafka's mock cluster and franz-go's kfake, by the same clients.

    python -m benchmarks.records [--brokers 1 3] [--seconds 2] [--repeats 3] [--only produce consume perf-test ack]
                                 [--loads 1kB ...] [--json FILE]

    produce/1kB/N            records of 1 kB, acks=all, linger 5 ms, six partitions
    produce/100B/N           records of 100 B
    produce/small-batches/N  one partition, linger 0, batches of 16 kB
    produce/idempotent-lz4/N one partition, an idempotent producer, lz4; the records compress to half
    consume/1kB/N, /100B/N   what was produced, by assignment
    perf-test/1kB/N          kafka-producer-perf-test of Kafka 3.9.1: its own producer, idempotent, six partitions
    ack/p50/N, p99           one record after the other, until it is acknowledged
    ack/end-to-end/p50/N     until a consumer has it
    cpu/produce/1kB/N, ...   CPU of all brokers for each MB of that load; that of consumers: cpu/consume/1kB/N, ...

The last part of a name is the number of brokers; with three, topics have three replicas. /mock is beside librdkafka's
mock and /kfake beside kfake (which needs Go): both keep one copy, in memory. Ours and Kafka are processes with their
logs on the same disk and Kafka's defaults, in the same ZooKeeper. The client is librdkafka unless said otherwise, in a
process of its own, the same for all. All are measured in turn, repeat by repeat, after a round for Java to warm up. A
ratio above 1 is better than the peer.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import trio
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.broker_load import quantile
from benchmarks.record_clients import LIMIT_S, Load, acknowledge, consume, end_to_end, java_produce, produce
from benchmarks.rows import KAFKA, Row, report
from kce.harness.cluster import Cluster
from kce.harness.embedded_zookeeper import embedded_zookeeper
from kce.harness.guard import Guard
from kce.harness.process_member import ProcessMember
from tests.clusters import know_each_other
from tests.interop.clients.programs import installed, run
from tests.interop.real_kafka import real_brokers

OURS: Final = "ours"
MOCK: Final = "librdkafka's mock"
KFAKE: Final = "franz-go's kfake"
#: peers of one broker, and what rows beside them are called
IN_MEMORY: Final = {MOCK: "mock", KFAKE: "kfake"}
JVM: Final = ("-Xmx700m",)
PARTITIONS: Final = 6
MOCK_PARTITIONS: Final = 4  # which it gives every topic
#: what a consumer reads at most
CONSUME_BYTES: Final = 1_000_000_000
#: of one run of kafka-producer-perf-test for each second that a measurement takes
PERF_TEST_RECORDS: Final = 50_000

PRODUCED: Final = {
    "1kB": Load(1000, PARTITIONS),
    "100B": Load(100, PARTITIONS, in_bytes=False),
    "small-batches": Load(1000, 1, settings={"linger.ms": 0, "batch.size": 16_384}),
    "idempotent-lz4": Load(1000, 1, settings={"enable.idempotence": True, "compression.type": "lz4"}),
}
PARTS: Final = ("produce", "consume", "perf-test", "ack")
CONSUMED: Final = ("1kB", "100B")


# the servers


@dataclass
class Server:
    """``new_topic`` creates one with so many partitions and returns when it has leaders.

    ``keeps_records``: so that what was produced can be consumed. ``pids``: of the brokers, if they are processes.
    """

    bootstrap: str
    replicas: int
    admin: AdminClient | None
    keeps_records: bool = True
    pids: Sequence[int] = ()
    created: int = 0

    async def new_topic(self, partitions: int) -> str:
        self.created += 1
        name = f"topic-{self.created}"
        if self.admin is not None:
            await trio.to_thread.run_sync(self._create, name, partitions)
        return name

    def _create(self, name: str, partitions: int) -> None:
        assert self.admin is not None
        wanted = NewTopic(name, partitions, self.replicas)
        self.admin.create_topics([wanted], operation_timeout=LIMIT_S)[name].result()

    def cpu_seconds(self) -> float:
        """What its processes have used."""
        fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids)
        return sum(int(found[11]) + int(found[12]) for found in fields) / os.sysconf("SC_CLK_TCK")

    async def delete(self, topic: str) -> None:
        if self.admin is not None:
            futures = self.admin.delete_topics([topic], operation_timeout=LIMIT_S)
            await trio.to_thread.run_sync(futures[topic].result)


def administrated(address: str, brokers: int, pids: Sequence[int] = ()) -> Server:
    return Server(address, brokers, AdminClient({"bootstrap.servers": address, "log_level": 0}), pids=pids)


@contextmanager
def kfake() -> Iterator[str]:
    """The address of franz-go's kfake, one broker."""
    parts = [Path(__file__).parent / "kfake" / name for name in ("go.mod", "go.sum", "main.go")]

    def install(folder: Path) -> None:
        for part in parts:
            shutil.copy(part, folder)
        run("go", "build", "-o", "kfake", ".", folder=folder)

    program = installed("kfake", parts, install) / "kfake"
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()  # which ends it


async def _in_memory(stack: ExitStack) -> dict[str, Server]:
    mock = confluent_kafka.Producer({"test.mock.num.brokers": 1})
    known = await trio.to_thread.run_sync(partial(mock.list_topics, timeout=10))
    (broker,) = known.brokers.values()
    stack.callback(mock.flush)  # it lives as long as its producer
    found = {MOCK: Server(f"{broker.host}:{broker.port}", 1, None, keeps_records=False)}
    if shutil.which("go") is None:
        print("Go is not installed: kfake is NOT measured", flush=True)
    else:
        found[KFAKE] = administrated(stack.enter_context(kfake()), 1)
    return found


@asynccontextmanager
async def servers(brokers: int) -> AsyncIterator[dict[str, Server]]:
    """Ours, Kafka's, and with one broker those that keep records in memory, by name."""
    with tempfile.TemporaryDirectory() as name, closing(Guard()) as guard, ExitStack() as stack:
        folder = Path(name)
        async with embedded_zookeeper(folder / "zookeeper", guard) as zookeeper:
            cluster = Cluster(brokers, processes=True, zookeeper=f"{zookeeper}/ours", data=folder, log_level="ERROR")
            kafka = real_brokers(list(range(1, brokers + 1)), f"{zookeeper}/kafka", folder, jvm=JVM)
            async with cluster, kafka as real:
                await cluster.wait_for_controller()
                ours = [member.pid for member in cluster.members if isinstance(member, ProcessMember) and member.pid]
                theirs = [broker.pid for broker in real.values()]
                addresses = {OURS: cluster.bootstrap_servers(), KAFKA: ",".join(b.address for b in real.values())}
                for address in addresses.values():
                    await know_each_other(*address.split(","))
                found = {
                    OURS: administrated(addresses[OURS], brokers, ours),
                    KAFKA: administrated(addresses[KAFKA], brokers, theirs),
                }
                if brokers == 1:
                    found |= await _in_memory(stack)
                yield found


# the measurements


class Rows:
    """Rows by name; the values of peers in memory are in rows of their own."""

    def __init__(self, brokers: int) -> None:
        self._brokers = brokers
        self._rows: dict[str, Row] = {}

    def add(self, name: str, server: str, value: float, unit: str, *, less: bool = False) -> None:
        peers = {f"{name}/{self._brokers}": KAFKA}
        if self._brokers == 1:
            peers |= {f"{name}/1/{short}": peer for peer, short in IN_MEMORY.items()}
        for row_name, peer in peers.items():
            if server in (OURS, peer):
                row = self._rows.setdefault(row_name, Row(row_name, unit, peer, less=less))
                (row.values if server == OURS else row.peer_values).append(value)

    def all(self) -> list[Row]:
        return [row for row in self._rows.values() if row.peer_values]


def _rate(load: Load, records: int, seconds: float) -> tuple[float, str]:
    return (records * load.size / seconds / 1e6, "MB/s") if load.in_bytes else (records / seconds, "1/s")


@dataclass
class Measurement:
    """Of one server. ``client``: the process of the client."""

    name: str
    server: Server
    rows: Rows
    seconds: float
    client: Pool

    def _used(self, what: str, load: Load, records: int, before: float) -> None:
        if self.server.pids:
            used = (self.server.cpu_seconds() - before) * 1e3
            self.rows.add(f"cpu/{what}", self.name, used / (records * load.size / 1e6), "ms/MB", less=True)

    async def _ask(self, function: Callable[..., Any], topic: str, *args: Any) -> Any:
        return await trio.to_thread.run_sync(self.client.apply, function, (self.server.bootstrap, topic, *args))

    @asynccontextmanager
    async def _topic(self, partitions: int) -> AsyncIterator[str]:
        topic = await self.server.new_topic(partitions)
        yield topic
        await self.server.delete(topic)

    async def records(self, which: str, *, consumes: bool) -> None:
        """Produce, and consume the same records again."""
        load = PRODUCED[which]
        partitions = min(load.partitions, MOCK_PARTITIONS) if self.name == MOCK else load.partitions
        async with self._topic(partitions) as topic:
            before = self.server.cpu_seconds()
            sent, took = await self._ask(produce, topic, replace(load, partitions=partitions), self.seconds)
            self._used(f"produce/{which}", load, sent, before)
            self.rows.add(f"produce/{which}", self.name, *_rate(load, sent, took))
            if consumes and which in CONSUMED and self.server.keeps_records:
                records = min(sent, CONSUME_BYTES // load.size)
                before = self.server.cpu_seconds()
                took = await self._ask(consume, topic, partitions, records)
                self._used(f"consume/{which}", load, records, before)
                self.rows.add(f"consume/{which}", self.name, *_rate(load, records, took))

    async def perf_test(self) -> None:
        load = PRODUCED["1kB"]
        async with self._topic(load.partitions) as topic:
            rate = await self._ask(java_produce, topic, load.size, round(PERF_TEST_RECORDS * self.seconds))
            self.rows.add("perf-test/1kB", self.name, rate * load.size / 1e6, "MB/s")

    async def latency(self) -> None:
        async with self._topic(1) as topic:
            found = await self._ask(acknowledge, topic, self.seconds)
        for which, q in (("p50", 0.5), ("p99", 0.99)):
            self.rows.add(f"ack/{which}", self.name, quantile(found, q) * 1e3, "ms", less=True)
        async with self._topic(1) as topic:
            found = await self._ask(end_to_end, topic, self.seconds)
        self.rows.add("ack/end-to-end/p50", self.name, quantile(found, 0.5) * 1e3, "ms", less=True)


async def _measure(one: Measurement, parts: Sequence[str], loads: Sequence[str]) -> None:
    if "produce" in parts or "consume" in parts:
        for which in loads:
            await one.records(which, consumes="consume" in parts)
    if "perf-test" in parts and one.name != MOCK:  # Kafka's producer asks it for what it does not have
        await one.perf_test()
    if "ack" in parts:
        await one.latency()


async def measure(args: argparse.Namespace) -> list[Row]:
    found = []
    with multiprocessing.get_context("spawn").Pool(1) as client:
        for brokers in args.brokers:
            rows, warm_up = Rows(brokers), Rows(brokers)
            async with servers(brokers) as known:
                for repeat in range(-1, args.repeats):
                    for name, server in known.items():
                        if repeat < 0 and name != KAFKA:
                            continue  # only Java warms up
                        into = warm_up if repeat < 0 else rows
                        await _measure(Measurement(name, server, into, args.seconds, client), args.only, args.loads)
            found += rows.all()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each measurement takes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--loads", nargs="+", choices=list(PRODUCED), default=list(PRODUCED))
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    report(trio.run(measure, args), args.json)


if __name__ == "__main__":
    main()
