"""Our reactor beside real Kafka 3.9.1 and librdkafka's mock cluster (C), in one run.

    python -m benchmarks.broker [--seconds 2] [--repeats 3] [--only api-versions control ...] [--json FILE]

    api-versions/CxN    pipelined ApiVersions requests a second, C connections with N under way on each
    control/...         an empty LeaderAndIsr, one after the other, sent to the control listener of its own, and to the
                        data listener, which it then shares with the load
    control/idle        without load
    control/loaded      while 64 connections keep 4 Metadata requests of a 500-partition topic under way each
    control/records     while two clients produce records of 100 bytes with acks=all to six partitions and fetch them:
                        four busy connections, too few for a queue at the data listener
    control/clients     while 64 connections keep 4 requests under way each: half of them Produce, acks=all, ten records
                        of 100 bytes; half of them Fetch of 16 kB
    control/hostile     the same on the control listener while one legal but huge Metadata request is worked on
    connections/...     memory of 10,000 idle connections; connections opened, used once and closed a second

Ours and Kafka are nodes of one process each, with the same ZooKeeper and a control plane. They are measured in turn,
repeat by repeat; each figure is the median of the repeats, with their spread. A ratio above 1 is better than the peer.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import trio

from benchmarks import broker_load as load
from benchmarks.rows import KAFKA, Row, report
from kce import wire
from kce.harness.cluster import Cluster
from kce.harness.embedded_zookeeper import embedded_zookeeper
from kce.harness.guard import Guard
from tests.interop.real_kafka import RealBroker

MOCK = "librdkafka's mock"
PARTITIONS = 500
LOAD = (64, 4)
CLIENTS = 2
PRODUCED_PARTITIONS = 6
JVM = ("-Xmx700m",)
LIMIT_S = 0.020
IDLE_CONNECTIONS = 10_000
IDLE_BYTES = 20_000
OPENED_PER_S = 2_000


@dataclass
class Server:
    control: load.Address
    data: load.Address
    pid: int


async def elsewhere(function: Callable[..., Any], *args: Any) -> Any:
    """The result of ``function`` in a process of its own."""

    def run() -> Any:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(function, args)

    return await trio.to_thread.run_sync(run)


def _address(text: str) -> load.Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


async def _create_topic(server: Server) -> None:
    topic = wire.CreatableTopic(name=load.TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    request = wire.CreateTopicsRequest(topics=(topic,), timeout_ms=60_000)
    with trio.fail_after(60):
        while True:  # until the broker knows itself to be alive
            answer: Any = await trio.to_thread.run_sync(load.request, server.data, request, 7)
            if not answer.topics[0].error_code:
                return
            await trio.sleep(0.2)


@asynccontextmanager
async def servers() -> AsyncIterator[dict[str, Server]]:
    with tempfile.TemporaryDirectory() as folder, closing(Guard()) as guard:
        async with embedded_zookeeper(Path(folder) / "zookeeper", guard) as zookeeper:
            kafka = RealBroker(1, f"{zookeeper}/kafka", Path(folder), guard, jvm=JVM)
            cluster = Cluster(brokers=1, processes=True, zookeeper=f"{zookeeper}/ours", log_level="ERROR")
            try:
                await kafka.start()
                async with cluster:
                    await cluster.wait_for_controller()
                    member = cluster.member(1)
                    assert member.pid is not None
                    control, data = (_address(member.addresses[name]) for name in ("CONTROL", "DATA"))
                    ours = Server(control, data, member.pid)
                    theirs = Server(("127.0.0.1", kafka.control_port), ("127.0.0.1", kafka.data_port), kafka.pid)
                    for server in (ours, theirs):
                        await _create_topic(server)
                    yield {"ours": ours, KAFKA: theirs}
            finally:
                kafka.kill()


Part = Callable[[dict[str, Server], argparse.Namespace], Awaitable[list[Row]]]


async def api_versions(found: dict[str, Server], args: argparse.Namespace) -> list[Row]:
    producer = confluent_kafka.Producer({"test.mock.num.brokers": 1})
    mock = next(iter(producer.list_topics(timeout=10).brokers.values()))
    rows = []
    for connections, in_flight in ((8, 64), (64, 16), (1, 1)):
        name = f"api-versions/{connections}x{in_flight}"
        row, beside_mock = Row(name, "1/s", KAFKA), Row(f"{name}/mock", "1/s", MOCK)
        how = (connections, in_flight, args.seconds)
        for server in found.values():  # Java warms up
            await elsewhere(load.hammer, server.data, *how)
        for _ in range(args.repeats):
            row.values.append(await elsewhere(load.hammer, found["ours"].data, *how))
            row.peer_values.append(await elsewhere(load.hammer, found[KAFKA].data, *how))
            beside_mock.peer_values.append(await elsewhere(load.hammer, (mock.host, mock.port), *how))
        beside_mock.values = row.values
        rows += [row, beside_mock]
    return rows


@contextmanager
def metadata_load(server: Server) -> Iterator[None]:
    with load.in_background(load.hammer, server.data, *LOAD, 1e9, load.METADATA):
        yield


@contextmanager
def records_load(server: Server) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            stack.enter_context(load.in_background(load.produce_and_consume, server.data, PRODUCED_PARTITIONS))
        yield


@contextmanager
def clients_load(server: Server) -> Iterator[None]:
    connections, in_flight = LOAD
    load.fill_partition(server.data)
    with ExitStack() as stack:
        for payload in (load.PRODUCE, load.FETCH):
            how = (connections // 2, in_flight, 1e9, payload)
            stack.enter_context(load.in_background(load.hammer, server.data, *how))
        yield


LOADS = {"loaded": metadata_load, "records": records_load, "clients": clients_load}


async def control(found: dict[str, Server], args: argparse.Namespace) -> list[Row]:
    idle = Row("control/idle/own/p50", "ms", KAFKA, less=True)
    rows = [idle]
    for _ in range(args.repeats):
        for name, server in found.items():
            quiet = await elsewhere(load.probe, server.control, args.seconds)
            (idle.values if name == "ours" else idle.peer_values).append(load.quantile(quiet, 0.5) * 1e3)
    for name, under in LOADS.items():
        rows += await _loaded(name, under, found, args)
    return rows


async def _loaded(
    kind: str, under: Callable[[Server], AbstractContextManager[None]], found: dict[str, Server],
    args: argparse.Namespace,
) -> list[Row]:  # fmt: skip
    half, tail = (Row(f"control/{kind}/own/{q}", "ms", KAFKA, less=True) for q in ("p50", "p99"))
    shared = Row(f"control/{kind}/own-vs-shared/p50", "ms", "our shared listener", less=True)
    for repeat in range(args.repeats + 1):
        for name, server in found.items():
            with under(server):
                await trio.sleep(args.seconds / 2)
                own = await elsewhere(load.probe, server.control, 2 * args.seconds)
                on_shared = await elsewhere(load.probe, server.data, args.seconds)
            if not repeat:  # Java warms up
                continue
            for row, q in ((half, 0.5), (tail, 0.99)):
                (row.values if name == "ours" else row.peer_values).append(load.quantile(own, q) * 1e3)
            if name == "ours":
                shared.values.append(load.quantile(own, 0.5) * 1e3)
                shared.peer_values.append(load.quantile(on_shared, 0.5) * 1e3)
    return [half, tail, shared]


async def hostile(found: dict[str, Server], args: argparse.Namespace) -> list[Row]:
    """The worst of the requests counts."""
    row = Row("control/hostile/p99", "ms", "20 ms", less=True, peer_values=[LIMIT_S * 1e3])
    context = multiprocessing.get_context("spawn")
    for _ in range(args.repeats):
        worst = 0.0
        for name in load.HOSTILE:
            sent, answered = context.Event(), context.Event()
            process = context.Process(target=load.send_hostile, args=(found["ours"].data, name, sent, answered))
            process.start()
            await trio.to_thread.run_sync(sent.wait)
            values = await trio.to_thread.run_sync(load.probe, found["ours"].control, 120, 0.001, answered)
            process.join()
            p99 = load.quantile(values, 0.99) * 1e3
            worst = max(worst, p99)
            print(f"  {name:<34}{len(values):>6} probes, p99 {p99:.2f} ms, most {max(values) * 1e3:.2f} ms", flush=True)
        row.values.append(worst)
    return [row]


async def connections(found: dict[str, Server], args: argparse.Namespace) -> list[Row]:
    rate = Row("connections/open-close", "1/s", "2,000/s", peer_values=[OPENED_PER_S])
    for _ in range(args.repeats):
        rate.values.append(await elsewhere(load.open_and_close, found["ours"].data, args.seconds))
    memory = Row("connections/idle", "bytes", "20 kB", less=True, peer_values=[IDLE_BYTES])
    before = resident_bytes(found["ours"].pid)
    ready = multiprocessing.get_context("spawn").Event()
    with load.in_background(load.hold, found["ours"].data, IDLE_CONNECTIONS, ready):
        await trio.to_thread.run_sync(ready.wait, 120)
        memory.values.append((resident_bytes(found["ours"].pid) - before) / IDLE_CONNECTIONS)
    return [rate, memory]


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


PARTS: dict[str, Part] = {
    "api-versions": api_versions, "control": control, "hostile": hostile, "connections": connections,
}  # fmt: skip


async def measure(args: argparse.Namespace) -> Sequence[Row]:
    rows: list[Row] = []
    async with servers() as found:
        for name in args.only or PARTS:
            rows += await PARTS[name](found, args)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    report(trio.run(measure, args), args.json)


if __name__ == "__main__":
    main()
