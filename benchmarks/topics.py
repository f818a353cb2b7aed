"""Topics at speed: creation, growth, deletion and reassignment, beside real Kafka 3.9.1, in one run.

    python benchmarks/topics.py [--topics 1000] [--grown 1000] [--one-by-one 40] [--rounds 10] [--warm-up 200]
                                [--json FILE]

Both clusters have four brokers, each a process of its own, with separate control and data listeners, connected to
ZooKeeper directly (the nodes of a cluster otherwise have a proxy there, to be cut off). ZooKeeper does not sync to
disk, and all log only warnings. Topics have 3 partitions with 3 replicas. One client sends the same requests to both
clusters. Rows, in seconds:

create-N          one CreateTopics for N topics, until every broker's Metadata has a leader for every partition
create-one-by-one topics created one after the other, each until every broker's Metadata has its leaders; per topic
grow-N            one CreatePartitions from 3 to 6 partitions of N topics, until every broker's Metadata has leaders
reassign-N        one AlterPartitionReassignments that replaces one replica of N partitions, until none is in progress
delete-N          one DeleteTopics for N topics, until neither ZooKeeper nor a broker's Metadata has any

Both clusters run all the time, and are measured in turn. Both are warm: they first run everything once with --warm-up
topics, and create so many one by one that Kafka's JVMs have compiled fully. Topics one by one come first, in --rounds
in which the clusters alternate: after the deletion both delete files of thousands of partitions for minutes.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from benchmarks.broker_load import ask, receive
from benchmarks.rows import KAFKA, Row, report
from kce import Cluster, wire
from kce.harness.background import BackgroundTasks
from kce.harness.embedded_zookeeper import embedded_zookeeper
from kce.harness.world import RealWorld, World
from kce.harness.world.real_world import RealClusterWorld
from kce.zookeeper import znodes
from kce.zookeeper.store.kazoo import KazooStore
from tests.interop.real_kafka import real_brokers

BROKERS = [1, 2, 3, 4]
PARTITIONS, GROWN, REPLICAS = 3, 6, 3
#: the version of CreateTopics that librdkafka sends; later ones list all settings of each topic
CREATION = 4
TIMEOUT_MS = 300_000
#: a poll of thousands of partitions takes CPU from the cluster: at most one part in so many of the time is for polls
POLL_S, POLL_SHARE = 0.001, 5
#: the same for one topic, whose answers are small
POLL_ONE_S = 0.0002


def framed(request: wire.Message, version: int) -> bytes:
    return wire.frame(wire.encode_request(request, api_version=version, correlation_id=1, client_id="benchmark"))


def decoded(response: bytes, request: wire.Message, version: int) -> Any:
    return wire.decode_response(response, api_key=request.__api_key__, api_version=version)[1]


class Client:
    """A connection to one broker. Sends one request at a time."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._frames = wire.FrameBuffer(max_frame_bytes=1 << 30)

    async def ask(self, request: Any, version: int) -> Any:
        await self.stream.send_all(framed(request, version))
        while (response := self._frames.next_frame()) is None:
            data = await self.stream.receive_some(1 << 20)
            assert data, "the broker closed the connection"
            self._frames.receive_data(data)
        return decoded(response, request, version)


async def polled(ask: Callable[[], Awaitable[Any]], holds: Callable[[Any], bool]) -> None:
    """Ask again until ``holds`` is true of the answer."""
    begin = time.perf_counter()
    while not holds(await ask()):
        await trio.sleep(max(POLL_S, (POLL_SHARE - 1) * (time.perf_counter() - begin)))
        begin = time.perf_counter()


class Clients:
    """A connection to every broker, and the controller's among them."""

    def __init__(self, clients: dict[int, Client]) -> None:
        self._clients = clients

    async def controller_id(self) -> int:
        response = await next(iter(self._clients.values())).ask(wire.MetadataRequest(topics=()), 12)
        return int(response.controller_id)

    async def controller(self) -> Client:
        return self._clients[await self.controller_id()]

    async def until(self, holds: Callable[[Any], bool]) -> None:
        """Poll the Metadata of every broker until ``holds`` is true for each."""
        request = wire.MetadataRequest(topics=None, allow_auto_topic_creation=False)

        async def poll(client: Client) -> None:
            await polled(lambda: client.ask(request, 9), holds)

        with trio.fail_after(TIMEOUT_MS / 1000):
            async with trio.open_nursery() as nursery:
                for client in self._clients.values():
                    nursery.start_soon(poll, client)


def has_leaders(topics: int, partitions: int) -> Callable[[Any], bool]:
    """Whether there are so many topics with so many partitions in all, and each has a leader."""

    def holds(response: Any) -> bool:
        return (
            len(response.topics) == topics
            and sum(len(t.partitions) for t in response.topics) == partitions
            and all(p.leader_id >= 0 for t in response.topics for p in t.partitions)
        )

    return holds


def check(codes: Sequence[int]) -> None:
    failed = {wire.error_name(code) for code in codes if code}
    assert not failed, failed


def creation(names: Sequence[str]) -> wire.CreateTopicsRequest:
    topics = tuple(
        wire.CreatableTopic(name=name, num_partitions=PARTITIONS, replication_factor=REPLICAS) for name in names
    )
    return wire.CreateTopicsRequest(topics=topics, timeout_ms=TIMEOUT_MS)


def create_one_by_one(addresses: Mapping[int, str], controller: int, names: Sequence[str]) -> float:
    """Create each topic once every broker has the leaders of the one before; seconds.

    On blocking sockets: a client of tasks would take from the cluster as much of the processors as a broker does. All
    brokers are asked, and then their answers read; those that have the topic too late are asked again."""
    holds = has_leaders(1, PARTITIONS)
    with ExitStack() as stack:
        connections = {
            broker: stack.enter_context(socket.create_connection((host, int(port)), timeout=TIMEOUT_MS / 1000))
            for broker, (host, _, port) in ((broker, address.rpartition(":")) for broker, address in addresses.items())
        }
        begin = time.perf_counter()
        for name in names:
            request = creation([name])
            answer = decoded(ask(connections[controller], framed(request, CREATION)), request, CREATION)
            check([topic.error_code for topic in answer.topics])
            named = (wire.MetadataRequestTopic(name=name),)
            poll = wire.MetadataRequest(topics=named, allow_auto_topic_creation=False)
            encoded, waiting = framed(poll, 9), list(connections.values())
            while waiting:
                for connection in waiting:
                    connection.sendall(encoded)
                waiting = [connection for connection in waiting if not holds(decoded(receive(connection), poll, 9))]
                if waiting:
                    time.sleep(POLL_ONE_S)
        return time.perf_counter() - begin


@dataclass(frozen=True)
class Measured:
    """A cluster that runs."""

    addresses: Mapping[int, str]
    clients: Clients
    store: KazooStore


async def delete(cluster: Measured, names: Sequence[str]) -> None:
    controller = await cluster.clients.controller()
    topics = tuple(wire.DeleteTopicState(name=name) for name in names)
    response = await controller.ask(wire.DeleteTopicsRequest(topics=topics, timeout_ms=TIMEOUT_MS), 6)
    check([t.error_code for t in response.responses])
    await cluster.clients.until(lambda response: not response.topics)
    with trio.fail_after(TIMEOUT_MS / 1000):
        await polled(
            lambda: cluster.store.get_children([znodes.TOPICS, znodes.DELETE_TOPICS]), lambda found: not any(found)
        )


async def one_by_one(cluster: Measured, count: int) -> float:
    """Seconds per topic."""
    names = [f"alone-{i:05d}" for i in range(count)]
    controller = await cluster.clients.controller_id()
    seconds = await trio.to_thread.run_sync(create_one_by_one, cluster.addresses, controller, names)
    await delete(cluster, names)
    return seconds / count


async def operations(cluster: Measured, count: int, grown: int) -> dict[str, float]:
    """Run every operation on many topics; returns seconds by row."""
    clients = cluster.clients
    controller = await clients.controller()
    names = [f"topic-{i:05d}" for i in range(count)]
    seconds: dict[str, float] = {}

    async def timed(row: str, work: Callable[[], Awaitable[object]]) -> None:
        begin = time.perf_counter()
        await work()
        seconds[row] = time.perf_counter() - begin

    async def create_all() -> None:
        response = await controller.ask(creation(names), 7)
        check([t.error_code for t in response.topics])
        await clients.until(has_leaders(count, count * PARTITIONS))

    async def grow() -> None:
        topics = tuple(wire.CreatePartitionsTopic(name=name, count=GROWN, assignments=None) for name in names[:grown])
        response = await controller.ask(wire.CreatePartitionsRequest(topics=topics, timeout_ms=TIMEOUT_MS), 3)
        check([t.error_code for t in response.results])
        await clients.until(has_leaders(count, count * PARTITIONS + grown * (GROWN - PARTITIONS)))

    async def reassign() -> None:
        """The first partition of every topic: its last replica moves to the broker that has none."""
        described = await controller.ask(wire.MetadataRequest(topics=None, allow_auto_topic_creation=False), 9)
        topics = []
        for topic in described.topics:
            partition = next(p for p in topic.partitions if p.partition_index == 0)
            (spare,) = set(BROKERS) - set(partition.replica_nodes)
            moved = (*partition.replica_nodes[:-1], spare)
            topics.append(
                wire.ReassignableTopic(
                    name=topic.name, partitions=(wire.ReassignablePartition(partition_index=0, replicas=moved),)
                )
            )
        request = wire.AlterPartitionReassignmentsRequest(topics=tuple(topics), timeout_ms=TIMEOUT_MS)
        begin = time.perf_counter()
        response = await controller.ask(request, 0)
        check([response.error_code, *(p.error_code for t in response.responses for p in t.partitions)])
        listing = wire.ListPartitionReassignmentsRequest(topics=None, timeout_ms=TIMEOUT_MS)
        await polled(lambda: controller.ask(listing, 0), lambda response: not response.topics)
        seconds[f"reassign-{count}"] = time.perf_counter() - begin

    await timed(f"create-{count}", create_all)
    await timed(f"grow-{grown}", grow)
    await reassign()
    await timed(f"delete-{count}", lambda: delete(cluster, names))
    return seconds


class DirectWorld(RealClusterWorld):
    """Nodes are connected to ZooKeeper without a proxy, as those of Kafka are."""

    async def node(self, node_id: int, tasks: BackgroundTasks) -> tuple[World, str]:
        self._proxies[node_id] = []
        return RealWorld(), self.zookeeper_connect


@asynccontextmanager
async def ours(folder: Path) -> AsyncIterator[tuple[str, dict[int, str]]]:
    async with (
        embedded_zookeeper(folder) as zookeeper,
        Cluster(brokers=len(BROKERS), processes=True, world=DirectWorld(zookeeper), log_level="WARNING") as cluster,
    ):
        addresses = cluster.bootstrap_servers().split(",")
        yield zookeeper, dict(zip(BROKERS, addresses, strict=True))


@asynccontextmanager
async def kafka(folder: Path) -> AsyncIterator[tuple[str, dict[int, str]]]:
    async with (
        embedded_zookeeper(folder) as zookeeper,
        real_brokers(BROKERS, zookeeper, folder, jvm=("-Xmx1g",)) as brokers,
    ):
        yield zookeeper, {i: broker.address for i, broker in brokers.items()}


@asynccontextmanager
async def measured(start: Any) -> AsyncIterator[Measured]:
    with tempfile.TemporaryDirectory() as folder:
        async with start(Path(folder)) as (zookeeper, addresses), AsyncExitStack() as stack:
            store = await KazooStore.connect(zookeeper, session_timeout_ms=20_000, connection_timeout_ms=20_000)
            stack.push_async_callback(store.aclose)
            connections = {}
            for broker, address in addresses.items():
                host, port = address.rsplit(":", 1)
                connections[broker] = Client(
                    await stack.enter_async_context(await trio.open_tcp_stream(host, int(port)))
                )
            clients = Clients(connections)
            await clients.until(lambda response: len(response.brokers) == len(BROKERS) and response.controller_id > 0)
            yield Measured(addresses, clients, store)


async def measure(args: argparse.Namespace) -> list[Row]:
    rows: dict[str, Row] = {}

    def add(name: str, values: Sequence[float]) -> None:
        row = rows.setdefault(name, Row(f"topics/{name}", "s", KAFKA, less=True))
        row.values.append(values[0])
        row.peer_values.append(values[1])

    async with measured(ours) as mine, measured(kafka) as theirs:
        both = (mine, theirs)
        for cluster in both:
            await operations(cluster, args.warm_up, min(args.grown, args.warm_up))
            await one_by_one(cluster, args.warm_up_one_by_one)
        for _ in range(args.rounds):
            add("create-one-by-one", [await one_by_one(cluster, args.one_by_one) for cluster in both])
        found = [await operations(cluster, args.topics, args.grown) for cluster in both]
        for name in found[0]:
            add(name, [seconds[name] for seconds in found])
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--grown", type=int, default=1000, help="how many of them get more partitions")
    parser.add_argument("--one-by-one", type=int, default=40, help="topics that are created one after the other")
    parser.add_argument("--rounds", type=int, default=10, help="how often")
    parser.add_argument("--warm-up", type=int, default=200, help="topics of the run that is not counted")
    parser.add_argument(
        "--warm-up-one-by-one", type=int, default=500, help="of one after the other: so many until Kafka gets no faster"
    )
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    args.grown = min(args.grown, args.topics)
    report(trio.run(measure, args), args.json)


if __name__ == "__main__":
    main()
