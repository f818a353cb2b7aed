"""Our controller beside the one of real Kafka 3.9.1, on the same ZooKeeper and the same data, in one run.

    python benchmarks/controller.py [--sizes 1000,10000,100000,1000000] [--repeats N] [--fsync] [--json FILE]

Ten brokers (thirty above 100,000 partitions), replication 3, 100 partitions a topic. The brokers are raw sockets that
read control requests and answer them; a controller in a process of its own (node 100) is the subject. Measured, in
seconds:

failover             from the deletion of /controller until the last control request is answered
broker-death         from the end of a broker's session until the last control request is answered
controlled-shutdown  from the request for a broker that leads its share of the partitions until it is answered, and the
                     last control request is
memory               peak resident memory of the subject, in MB

Both subjects are warm: each first runs --warm-up repeats that are not counted. Repeats: 3 up to 10,000 partitions, 2
up to 100,000, 1 above, without warm-up. ZooKeeper does not sync its log to disk, which favours neither; with --fsync it
does.

Node 100 of ours is the controller alone: one of the sockets receives its own UpdateMetadata; Kafka's broker receives
its own, and nothing waits for it. After every step the states in ZooKeeper are compared with the expected ones, and
the bytes sent to the brokers are printed, to show that both did the same work.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from uuid import UUID

import trio

from benchmarks.acceptors import Acceptors
from benchmarks.rows import KAFKA, Row, report
from kce import wire
from kce.controller.config import ControllerConfig
from kce.controller.kafka_controller import KafkaController
from kce.harness.embedded_zookeeper import embedded_zookeeper, free_port
from kce.harness.links import Links
from kce.harness.node_links import NodeLinks
from kce.harness.node_process import tune_process
from kce.harness.process_member import MEMORY
from kce.harness.world import RealWorld
from kce.java import find_java
from kce.wire.metadata_version import LATEST
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import (
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderAndIsr,
    Leadership,
    RegisteredBroker,
    ReplicaAssignment,
    TopicPartition,
)
from kce.zookeeper.store import Create, Delete, Op, SetData, value
from kce.zookeeper.store.kazoo import KazooStore
from kce.zookeeper.znodes import (
    CONTROLLER,
    encode_partition_state,
    encode_topic,
    partition_path,
    partition_state_path,
    partitions_path,
    topic_path,
)
from tests.interop.kafka_jars import kafka_jars

NODE = 100
#: brokers of clusters of up to 100,000 partitions, and of larger ones
BROKERS, MANY_BROKERS = range(10), range(30)
PER_TOPIC = 100
#: a step is over when everything expected was sent, and then nothing more for so long
QUIET_S = {1000: 1.0, 10_000: 1.5, 100_000: 2.0}
#: the least bytes of a partition in UpdateMetadata
STATE_BYTES = 40


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Cluster:
    """The data and the registered brokers. Replicas of partition n are n, n+1 and n+3, modulo the number of brokers."""

    zookeeper: str
    size: int
    brokers: range
    acceptors: Acceptors
    store: KazooStore
    sessions: dict[int, KazooStore] = field(default_factory=dict)

    def partitions(self) -> list[tuple[TopicPartition, tuple[BrokerId, ...]]]:
        made = []
        for n in range(self.size):
            topic, partition = divmod(n, PER_TOPIC)
            spread = n + topic  # so that a topic's neighbours do not share all their brokers
            replicas = tuple(BrokerId((spread + d) % len(self.brokers)) for d in (0, 1, 3))
            made.append((TopicPartition(f"topic-{topic:04d}", partition), replicas))
        return made

    async def populate(self) -> None:
        """Topics as Kafka's tools write them, and states as a controller of epoch 1 did."""
        zk = KafkaZkClient(self.store, now_ms=now_ms, new_uuid=uuid.uuid4)
        await zk.create_top_level_paths()
        await zk.get_or_create_cluster_id()
        uuids = Random(1)
        topics: dict[str, dict[int, ReplicaAssignment]] = {}
        for tp, replicas in self.partitions():
            topics.setdefault(tp.topic, {})[tp.partition] = ReplicaAssignment(replicas)
        levels: list[list[Op]] = [
            [
                Create(topic_path(t), encode_topic(UUID(int=uuids.getrandbits(128), version=4), parts))
                for t, parts in topics.items()
            ],
            [Create(partitions_path(t)) for t in topics],
            [Create(partition_path(tp)) for tp, _ in self.partitions()],
            [Create(partition_state_path(tp)) for tp, _ in self.partitions()],
        ]
        for level in levels:
            for answer in await self.store.write(level):
                value(answer)

    async def reset(self) -> None:
        """All partitions led by their first replica, all brokers registered, and the controller has notified them.

        The states are changed behind the controller's back: a failover must follow.
        """
        ops = [
            SetData(
                partition_state_path(tp),
                encode_partition_state(Leadership(LeaderAndIsr(replicas[0], replicas, 5), ControllerEpoch(1))),
            )
            for tp, replicas in self.partitions()
        ]
        for answer in await self.store.write(ops):
            value(answer)
        missing = [broker for broker in self.brokers if broker not in self.sessions]
        self.acceptors.reset()
        for broker in missing:
            await self.register(broker)
        if missing and (await self.store.exists([CONTROLLER]))[0] is not None:
            await self.settled(0)
        self.acceptors.reset()

    async def register(self, broker: int) -> None:
        store = await KazooStore.connect(self.zookeeper, session_timeout_ms=60_000, connection_timeout_ms=10_000)
        self.sessions[broker] = store
        await KafkaZkClient(store, now_ms=now_ms).register_broker(
            registration(broker, self.acceptors.ports[broker], self.acceptors.ports[broker]), LATEST
        )

    async def states(self) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        """Leader, ISR and replicas of every partition, from ZooKeeper."""
        partitions = self.partitions()
        found = await KafkaZkClient(self.store, now_ms=now_ms).get_partition_states([tp for tp, _ in partitions])
        result: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
        for tp, replicas in partitions:
            known = found[tp]
            assert isinstance(known, Leadership), (tp, known)
            result.append((known.leader_and_isr.leader, known.leader_and_isr.isr, replicas))
        return result

    async def settled(self, since: float, share: float = 0.0) -> float:
        """Seconds from ``since`` to the last answer, when nothing has been sent for a while after it.

        By then ``share`` of the partitions must have been sent to all brokers but one, some of them twice.
        """
        quiet, needed = QUIET_S.get(self.size, 3.0), share * self.size * STATE_BYTES * (len(self.brokers) - 1)
        with trio.fail_after(300):
            while True:
                last = self.acceptors.last
                if last and self.acceptors.bytes >= needed and time.monotonic() - last > quiet:
                    return last - since
                await trio.sleep(0.1)


def registration(broker: int, control_port: int, data_port: int) -> RegisteredBroker:
    return RegisteredBroker(
        BrokerId(broker),
        (
            Endpoint("CONTROL", "PLAINTEXT", "127.0.0.1", control_port),
            Endpoint("DATA", "PLAINTEXT", "127.0.0.1", data_port),
        ),
    )


# the subjects


@dataclass
class Subject:
    """A running controller: its process, and the port to which ControlledShutdown is sent."""

    process: subprocess.Popen[bytes]
    port: int

    def peak_mb(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        raise ProcessLookupError(self.process.pid)


def start_kafka(zookeeper: str, folder: Path, control_port: int) -> Subject:
    """Kafka's own broker with default garbage collector and compiler; its log directory holds nothing."""
    control, data = free_port(), free_port()
    listeners = f"CONTROL://127.0.0.1:{control},DATA://127.0.0.1:{data}"
    (folder / "server.properties").write_text(
        f"broker.id={NODE}\nlisteners={listeners}\nadvertised.listeners={listeners}\n"
        "listener.security.protocol.map=CONTROL:PLAINTEXT,DATA:PLAINTEXT\ncontrol.plane.listener.name=CONTROL\n"
        f"inter.broker.listener.name=DATA\nzookeeper.connect={zookeeper}\nzookeeper.session.timeout.ms=60000\n"
        f"log.dirs={folder / 'data'}\nlog.cleaner.dedupe.buffer.size=4000000\nauto.leader.rebalance.enable=false\n"
        "offsets.topic.num.partitions=5\n"
    )
    (folder / "log4j.properties").write_text(
        "log4j.rootLogger=WARN, out\nlog4j.appender.out=org.apache.log4j.FileAppender\n"
        f"log4j.appender.out.File={folder}/server.log\nlog4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n\n"
    )
    command = [
        find_java(), "-Xmx700m", "-Dzookeeper.sasl.client=false", "-Djute.maxbuffer=10000000",
        f"-Dlog4j.configuration=file:{folder / 'log4j.properties'}",
        "-cp", f"{kafka_jars()}/*", "kafka.Kafka", str(folder / "server.properties"),
    ]  # fmt: skip
    out = (folder / "out.log").open("wb")
    return Subject(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder), data)


def start_ours(zookeeper: str, folder: Path, control_port: int) -> Subject:
    port = free_port()
    command = [sys.executable, __file__, "--subject", zookeeper, "--ports", f"{control_port},{port}"]
    out = (folder / "out.log").open("wb")
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=MEMORY | os.environ)
    return Subject(process, port)


async def subject(zookeeper: str, control_port: int, port: int) -> None:
    """Our side's process: the controller, and a listener for ControlledShutdown."""
    store = await KazooStore.connect(zookeeper, session_timeout_ms=60_000, connection_timeout_ms=10_000)
    zk = KafkaZkClient(store, now_ms=now_ms)
    config = ControllerConfig(
        broker_id=BrokerId(NODE),
        inter_broker_listener_name="DATA",
        control_plane_listener_name="CONTROL",
        auto_leader_rebalance_enable=False,
    )

    async def register() -> object:
        return await zk.register_broker(registration(NODE, control_port, port), LATEST)

    async def serve(stream: trio.SocketStream) -> None:
        frames = wire.FrameBuffer()
        async for data in stream:
            frames.receive_data(data)
            while (frame := frames.next_frame()) is not None:
                header, request = wire.decode_request(frame)
                assert isinstance(request, wire.ControlledShutdownRequest)
                answered = trio.Event()
                answers: list[wire.Message | None] = []

                def reply(
                    response: wire.Message | None,
                    answers: list[wire.Message | None] = answers,
                    answered: trio.Event = answered,
                ) -> None:
                    answers.append(response)
                    answered.set()

                made.submit(request, header.api_version, reply)
                await answered.wait()
                (answer,) = answers
                assert answer is not None, "this node is not the controller"
                await stream.send_all(
                    wire.frame(
                        wire.encode_response(
                            answer, api_version=header.api_version, correlation_id=header.correlation_id
                        )
                    )
                )

    tune_process()  # as every node of ours does
    await register()
    async with trio.open_nursery() as nursery:
        made = KafkaController(config, zk, NodeLinks(RealWorld(), Links(), -1).dial, nursery, register=register)
        nursery.start_soon(made.run)
        await trio.serve_tcp(serve, port, host="127.0.0.1")


async def shut_down(port: int, broker: int) -> None:
    """Send ControlledShutdown and take the answer. Raises AssertionError when leaderships were left."""
    request = wire.ControlledShutdownRequest(broker_id=broker, broker_epoch=-1)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(
            wire.frame(wire.encode_request(request, api_version=3, correlation_id=1, client_id="benchmark"))
        )
        frames = wire.FrameBuffer()
        while (frame := frames.next_frame()) is None:
            data = await stream.receive_some()
            assert data, "the controller closed the connection"
            frames.receive_data(data)
    _, response = wire.decode_response(frame, api_key=7, api_version=3)
    assert isinstance(response, wire.ControlledShutdownResponse)
    assert response.error_code == 0, wire.error_name(response.error_code)
    assert not response.remaining_partitions


# the measurement

Start = Callable[[str, Path, int], Subject]


def default_repeats(size: int) -> int:
    return 3 if size <= 10_000 else 2 if size <= 100_000 else 1


async def measure(start: Start, name: str, cluster: Cluster, args: argparse.Namespace) -> dict[str, list[float]]:
    acceptors, size = cluster.acceptors, cluster.size
    await cluster.reset()
    times: dict[str, list[float]] = {}

    def note(what: str, seconds: float, counted: bool) -> None:
        if counted:
            times.setdefault(what, []).append(seconds)
        sent = ", ".join(f"{count} {api}" for api, count in sorted(acceptors.requests.items()))
        kind = "" if counted else " (warm-up)"
        print(f"  {name} {what}/{size}{kind}: {seconds:.3f} s, {acceptors.bytes / 1e6:.2f} MB in {sent}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        acceptors.reset()
        running = start(cluster.zookeeper, Path(folder), acceptors.ports[NODE])
        try:
            await cluster.settled(0, share=1.0)
            warm_up = args.warm_up if size <= 100_000 else 0
            for repeat in range(-warm_up, args.repeats or default_repeats(size)):
                counted = repeat >= 0
                await cluster.reset()
                begin = time.monotonic()
                value((await cluster.store.write([Delete(CONTROLLER)]))[0])
                note("failover", await cluster.settled(begin, share=1.0), counted)
                acceptors.reset()
                victim = repeat % len(cluster.brokers)
                begin = time.monotonic()
                await cluster.sessions.pop(victim).aclose()
                # each partition of which it has a replica is sent
                note("broker-death", await cluster.settled(begin, share=4 / len(cluster.brokers)), counted)
                for leader, isr, replicas in await cluster.states():
                    assert leader in isr
                    assert victim not in isr
                    assert leader == next(r for r in replicas if r != victim)
                await cluster.reset()
                value((await cluster.store.write([Delete(CONTROLLER)]))[0])
                await cluster.settled(0, share=1.0)
                acceptors.reset()
                begin = time.monotonic()
                await shut_down(running.port, victim)
                answered = time.monotonic() - begin
                note(
                    "controlled-shutdown",
                    max(answered, await cluster.settled(begin, share=3 / len(cluster.brokers))),
                    counted,
                )
                assert all(leader != victim and victim not in isr for leader, isr, _ in await cluster.states())
                acceptors.reset()  # it registers again in the next reset, as a broker that restarts does
                await cluster.sessions.pop(victim).aclose()
                await cluster.settled(0)
            peak = running.peak_mb()
        except BaseException:
            print((Path(folder) / "out.log").read_text()[-4000:], file=sys.stderr)
            raise
        finally:
            running.process.kill()
            running.process.wait()
    print(f"  {name} peak memory at {size}: {peak:.0f} MB", flush=True)
    with trio.fail_after(90):  # the registration of a process that was killed goes with its session
        await cluster.store.write([Delete(CONTROLLER), Delete(f"/brokers/ids/{NODE}")])
    return {**times, "memory": [peak]}


@asynccontextmanager
async def prepared(size: int, *, fsync: bool) -> AsyncIterator[Cluster]:
    jvm = [] if fsync else ["-Dzookeeper.forceSync=no"]
    if size > 100_000:
        jvm.append("-Xmx4g")
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_zookeeper(Path(folder), jvm=jvm) as address:
            store = await KazooStore.connect(address, session_timeout_ms=60_000, connection_timeout_ms=10_000)
            brokers = BROKERS if size <= 100_000 else MANY_BROKERS
            acceptors = Acceptors([*brokers, NODE])
            cluster = Cluster(address, size, brokers, acceptors, store)
            try:
                await cluster.populate()
                yield cluster
            finally:
                with trio.CancelScope(shield=True):
                    for session in (*cluster.sessions.values(), store):
                        await session.aclose()
                acceptors.stop()


async def run(args: argparse.Namespace) -> list[Row]:
    rows = []
    theirs: dict[str, list[float]] = {}
    for size in args.sizes:
        peer = KAFKA
        async with prepared(size, fsync=args.fsync) as cluster:
            ours = await measure(start_ours, "ours", cluster, args)
            if size <= args.peer_limit:
                theirs = await measure(start_kafka, "Kafka", cluster, args)
                measured = size
            elif theirs:
                peer = f"{KAFKA} at {measured:,}"
        for what, took in ours.items():
            count = size // len(cluster.brokers) if what == "controlled-shutdown" else size
            unit = "MB" if what == "memory" else "s"
            rows.append(Row(f"{what}/{count}", unit, peer, less=True, values=took, peer_values=theirs.get(what, [])))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", type=lambda text: [int(n) for n in text.split(",")], default=[1000, 10_000, 100_000, 1_000_000]
    )
    parser.add_argument("--repeats", type=int, help="counted repeats (default: by size, see above)")
    parser.add_argument("--warm-up", type=int, default=3, help="repeats of each subject that are not counted")
    parser.add_argument("--fsync", action="store_true", help="ZooKeeper syncs its log to disk before it answers")
    parser.add_argument(
        "--peer-limit", type=int, default=100_000,
        help="partitions up to which Kafka is measured (0: not); above, the peer is Kafka at its largest size",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--subject", metavar="ZOOKEEPER", help=argparse.SUPPRESS)
    parser.add_argument("--ports", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.subject:
        control, data = map(int, args.ports.split(","))
        trio.run(subject, args.subject, control, data)
        return
    report(trio.run(run, args), args.json)


if __name__ == "__main__":
    main()
