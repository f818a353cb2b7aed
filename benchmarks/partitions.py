"""Many hosted partitions: the memory of each, and a restart beside real Kafka 3.9.1.

    python -m benchmarks.partitions [--partitions 100000] [--restarted 10000] [--repeats 3] [--only memory restart]

    memory/partition/idle      bytes of a process for each partition that it leads, replication 3, without records
    memory/partition/written   with a record in each, in files
    memory/partition/restarted with a record in each, loaded from files
    restart/N                  seconds until a broker leads its N partitions again, after a clean shutdown
    restart/N/killed           after kill -9, and the expiry of its session

The limit of memory is 1,000 bytes. Restarts are measured in turn with Kafka's, in the same ZooKeeper and on the same
disk, each broker with a record in every partition.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import shutil
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final
from uuid import UUID

import trio
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.broker import resident_bytes
from benchmarks.rows import KAFKA, Row, report
from kce import wire
from kce.broker_stub.log.manager import LogManager
from kce.broker_stub.log.manager_config import LogManagerConfig
from kce.broker_stub.topic_configs import TopicConfigs
from kce.harness.cluster import Cluster
from kce.harness.embedded_zookeeper import embedded_zookeeper
from kce.harness.guard import Guard
from kce.harness.world.real_disk import RealDisk
from tests.broker_stub.log.test_against_kafka import unregistered
from tests.broker_stub.support import Node
from tests.interop.real_kafka import real_brokers

LIMIT: Final = 1000
PARTITIONS_OF_A_TOPIC: Final = 1000
NOW_MS: Final = 1_700_000_000_000
JVM: Final = ("-Xmx700m",)
TOPIC: Final = "t"
LIMIT_S: Final = 600.0
MEMORY: Final = ("idle", "written", "restarted")
#: hundreds of thousands of files are soon made and synced there; a process takes as much for a file on any disk
MEMORY_DISK: Final = Path("/dev/shm")
#: more than the files of a partition take there
FILES_BYTES: Final = 40_000


def leading(topic: int) -> wire.LeaderAndIsrRequest:
    """A topic, all of whose partitions broker 1 leads."""
    states = tuple(
        wire.LeaderAndIsrPartitionState(
            partition_index=i, controller_epoch=1, leader=1, isr=(1, 2, 3), replicas=(1, 2, 3), is_new=True
        )
        for i in range(PARTITIONS_OF_A_TOPIC)
    )
    topics = (
        wire.LeaderAndIsrTopicState(topic_name=f"topic-{topic}", topic_id=UUID(int=topic + 1), partition_states=states),
    )
    return wire.LeaderAndIsrRequest(controller_id=9, controller_epoch=1, broker_epoch=-1, topic_states=topics)


async def _memory(folder: str, partitions: int, kind: str, traced: int) -> float:
    """Bytes for each partition. ``traced``: so many places in the code that hold most of it are printed."""
    logs = LogManager(
        RealDisk(), [folder], LogManagerConfig.of({}), now_ms=lambda: NOW_MS, random=Random(1),
        config_of=TopicConfigs({}).of,
    )  # fmt: skip
    node = Node(log_manager=logs)
    record = wire.write_records(wire.RecordBatch.of(wire.Record(offset=0, timestamp=NOW_MS, value=b"v")))
    await node.ask(leading(10**6))  # code and tables that all have
    common = set(node.replicas.partitions)
    gc.collect()
    if traced:
        tracemalloc.start()
    before = resident_bytes(os.getpid())
    await logs.load()
    for topic in range(partitions // PARTITIONS_OF_A_TOPIC):
        await node.ask(leading(topic))
    if kind == "written":
        for name, partition in node.replicas.partitions.items():
            if name not in common:
                partition.append(record, 1)
    gc.collect()
    found = resident_bytes(os.getpid()) - before
    if traced:
        for statistic in tracemalloc.take_snapshot().statistics("lineno")[:traced]:
            print(f"{statistic.size / partitions:8.1f} bytes  {statistic.traceback}")
        print(f"{tracemalloc.get_traced_memory()[0] / partitions:8.1f} bytes traced")
    if kind == "written":
        logs.close()
    return found / partitions


def memory(folder: str, partitions: int, kind: str, traced: int) -> float:
    return trio.run(_memory, folder, partitions, kind, traced)


def memory_disk(partitions: int) -> Path | None:
    """It, if it has room for the files of so many partitions: that of a container is often small."""
    has_room = MEMORY_DISK.is_dir() and shutil.disk_usage(MEMORY_DISK).free > partitions * FILES_BYTES
    return MEMORY_DISK if has_room else None


def measure_memory(args: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory(dir=memory_disk(args.partitions)) as folder:
            for kind in args.kinds:
                place = Path(folder) / ("idle" if kind == "idle" else "disk")
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    value = pool.apply(memory, (str(place), args.partitions, kind, args.traced))
                name = f"memory/partition/{kind}"
                row = next((row for row in rows if row.name == name), None)
                if row is None:
                    rows.append(row := Row(name, "bytes", "limit", less=True, peer_values=[LIMIT]))
                row.values.append(value)
    return rows


# restarts


@dataclass
class Broker:
    """``chroot``: its ZooKeeper. ``start`` returns when the broker runs."""

    address: str
    chroot: str
    start: Callable[[], Awaitable[None]]
    stop: Callable[[], Awaitable[None]]
    kill: Callable[[], Awaitable[None]]

    def fill(self, partitions: int) -> None:
        """A record in each of them."""
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        wanted = [NewTopic(TOPIC, partitions, 1)]
        admin.create_topics(wanted, operation_timeout=LIMIT_S, request_timeout=LIMIT_S)[TOPIC].result()
        self.leads(partitions)
        failed: list[object] = []
        producer = Producer(
            {"bootstrap.servers": self.address, "log_level": 0, "delivery.report.only.error": True,
             "message.timeout.ms": int(LIMIT_S * 1000), "on_delivery": lambda error, _: failed.append(error)}
        )  # fmt: skip
        for i in range(partitions):
            producer.produce(TOPIC, b"x" * 100, partition=i)
            producer.poll(0)
        if producer.flush(LIMIT_S) or failed:
            raise RuntimeError(f"records are not acknowledged: {failed[:1]}")

    def leads(self, partitions: int) -> None:
        """Wait until every partition has its leader."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
            with suppress(KafkaException):
                found = admin.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions
                if len(found) == partitions and all(one.leader >= 0 for one in found.values()):
                    return
            time.sleep(0.05)
        raise RuntimeError(f"{self.address} does not lead {partitions} partitions after {LIMIT_S:g} s")

    async def restarted(self, partitions: int, *, clean: bool) -> float:
        """Seconds from the start of the process until it leads everything."""
        await (self.stop() if clean else self.kill())
        await unregistered(self.chroot, 1)
        begin = time.monotonic()
        await self.start()
        await trio.to_thread.run_sync(self.leads, partitions)
        return time.monotonic() - begin


async def _restarts(args: argparse.Namespace) -> list[Row]:
    name = f"restart/{args.restarted}"
    rows = {clean: Row(row, "s", KAFKA, less=True) for clean, row in ((True, name), (False, f"{name}/killed"))}
    with tempfile.TemporaryDirectory() as made, closing(Guard()) as guard:
        folder = Path(made)
        async with embedded_zookeeper(folder / "zookeeper", guard) as zookeeper:
            settings = {"zookeeper.session.timeout.ms": "4000"}
            ours = Cluster(
                1, processes=True, zookeeper=f"{zookeeper}/ours", data=folder, log_level="ERROR", properties=settings
            )
            real = real_brokers([1], f"{zookeeper}/kafka", folder, jvm=JVM)
            async with ours as cluster, real as brokers:
                await cluster.wait_for_controller()
                found = [
                    Broker(
                        cluster.bootstrap_servers(), f"{zookeeper}/ours", partial(cluster.start, 1),
                        partial(cluster.stop, 1), partial(cluster.kill, 1),
                    ),
                    Broker(
                        brokers[1].address, f"{zookeeper}/kafka", partial(brokers[1].start, LIMIT_S),
                        partial(brokers[1].shut_down, LIMIT_S),
                        partial(trio.to_thread.run_sync, brokers[1].kill),
                    ),
                ]  # fmt: skip
                for broker in found:
                    await trio.to_thread.run_sync(broker.fill, args.restarted)
                for _ in range(args.repeats):
                    for clean, row in rows.items():
                        for broker, values in zip(found, (row.values, row.peer_values), strict=True):
                            values.append(await broker.restarted(args.restarted, clean=clean))
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--restarted", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=MEMORY, default=list(MEMORY), help="of memory")
    parser.add_argument("--traced", type=int, default=0, help="print so many places in the code that hold memory")
    parser.add_argument("--only", nargs="+", choices=("memory", "restart"), default=["memory", "restart"])
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    rows = measure_memory(args) if "memory" in args.only else []
    if "restart" in args.only:
        rows += trio.run(_restarts, args)
    report(rows, args.json)


if __name__ == "__main__":
    main()
