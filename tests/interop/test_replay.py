"""Replay recordings of Kafka 3.9.1 to real Kafka 3.9.1: as a controller, as brokers, as a client; and what librdkafka
did at our broker, to another of ours and to real Kafka 3.9.1.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kce.captures.files.pcap import CaptureFile
from kce.captures.replay.recording import Recording
from kce.captures.replay.replay import Replay, Verdict
from kce.captures.replay.rewrite import Rewriter, newest_controller_epoch
from kce.harness import Cluster
from kce.harness.cli.options import connected
from tests.captures.replay.test_replay import lives
from tests.captures.samples import CAPTURES
from tests.clusters import know_each_other, leaders_and_isrs, metadata
from tests.harness.cli.support import KCE
from tests.interop.real_kafka import real_brokers

pytestmark = pytest.mark.slow

BROKER = 2
TOUR = CAPTURES["kafka-3.9.1-tour"]


async def test_a_real_broker_answers_a_recorded_controller_as_it_did(zookeeper: str, tmp_path: Path) -> None:
    with CaptureFile(TOUR) as capture:
        recording = Recording.read(capture)
    (steps,) = lives(step for step in recording.of_controllers() if step.broker_id == BROKER)
    chroot = f"{zookeeper}/replayed"
    async with real_brokers([BROKER], chroot, tmp_path) as brokers:
        async with connected(chroot, None) as zk:
            registered = await zk.get_brokers(watch=False)
            known = await zk.get_controller_epoch()
        assert known is not None
        newest = newest_controller_epoch(step.request for step in steps)
        assert newest is not None
        rewrite = Rewriter(
            [(step.request, step.broker_id) for step in steps],
            controller_shift=known[0] + 10 - newest,
            broker_epochs={int(broker): int(epoch) for broker, (_, epoch) in registered.items()},
        )
        replay = Replay(
            steps, {BROKER: ("127.0.0.1", brokers[BROKER].control_port)}, dial=trio.open_tcp_stream, rewrite=rewrite,
            speed=None,
        )  # fmt: skip
        outcomes = await replay.run()
    other = [str(outcome) for outcome in outcomes if outcome.verdict is not Verdict.SAME]
    assert len(outcomes) > 50
    assert other == []


@asynccontextmanager
async def recorded_broker(broker_id: int, zookeeper: str, output: dict[int, str]) -> AsyncIterator[None]:
    """`kce replay --as broker`; what it prints is in ``output`` afterwards."""
    command = [*KCE, "replay", str(TOUR), "--as", "broker", "--broker", str(broker_id), "--zookeeper", zookeeper,
               "--speed", "4"]  # fmt: skip
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    try:
        yield
        process.send_signal(signal.SIGINT)
        output[broker_id] = b"".join([data async for data in process.stdout]).decode()
        assert await process.wait() == 0, output[broker_id]
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stdout.aclose()


async def leaders(cluster: Cluster, topic: str) -> dict[int, int]:
    """Leader by partition."""
    return {partition: leader for partition, (leader, _) in (await leaders_and_isrs(cluster, topic)).items()}


#: What another cluster has of its own.
OF_THE_CLUSTER = ("cluster_id", "topic_id", "port", "controller_id")


async def test_a_real_controller_takes_recorded_answers_and_a_real_broker_a_recorded_client(
    zookeeper: str, tmp_path: Path
) -> None:
    chroot = f"{zookeeper}/answered"
    output: dict[int, str] = {}
    async with (
        real_brokers([BROKER], chroot, tmp_path, broker_rack="r2", replica_lag_time_max_ms="30000") as brokers,
        Cluster(0, zookeeper=chroot) as cluster,
    ):
        real = brokers[BROKER]

        async def all_registered() -> bool:
            return await cluster.registered() == {1, 2, 3}

        own_start = len(real.log)
        async with recorded_broker(1, chroot, output), recorded_broker(3, chroot, output):
            await cluster.wait_until(all_registered, "the recorded brokers to register")
            orders = {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2], 3: [1, 3, 2]}
            solo = {0: [3, 1], 1: [3, 2], 2: [1, 2]}
            for topic, assignment in (("orders", orders), ("solo", solo)):  # as they were when they were recorded
                await cluster.create_topic(topic, assignment=assignment)
                assert await leaders(cluster, topic) == {n: replicas[0] for n, replicas in assignment.items()}
            await cluster.delete_topic("solo")  # is done when StopReplica was answered for every replica
            log = real.log
        complaints = [
            line for line in log[own_start:].splitlines()
            if re.search(r"\] (WARN|ERROR|FATAL) ", line) and re.search(r"\((kafka\.controller|state\.change)", line)
        ]  # fmt: skip
        assert complaints == []
        for broker_id in (1, 3):
            of = f"sent to broker 127.0.0.1:[0-9]+ \\(id: {broker_id} rack: r1\\)"
            assert re.search(rf"Received response LeaderAndIsrResponseData\(errorCode=0.*{of}", log)
            lines = output[broker_id].splitlines()
            assert "0 of them without a recorded response" in lines[-1]
            apis = Counter(line.partition(" #")[0] for line in lines)
            assert {"LeaderAndIsr v7", "UpdateMetadata v8", "StopReplica v4"} <= apis.keys()
            stops = [line for line in lines if line.startswith("StopReplica")]
            assert len([line for line in stops if "answered as packet" in line]) == len(stops) == 2
            assert any(re.search(r"LeaderAndIsr v7 #\d+: answered as packet", line) for line in lines)

        async def knows_that_it_is_alone() -> bool:
            known = await metadata(real.address)
            isrs = {partition.isr_nodes for topic in known.topics for partition in topic.partitions}
            return {broker.node_id for broker in known.brokers} == {BROKER} and isrs == {(BROKER,)}

        await cluster.wait_until(knows_that_it_is_alone, "the real broker to be alone")
        run = await trio.run_process(
            [*KCE, "replay", str(TOUR), "--as", "client", "--connection", "98", "--to", real.address, "--speed", "10",
             *(f"--volatile={name}" for name in OF_THE_CLUSTER)],
            capture_stdout=True, capture_stderr=True, check=False,
        )  # fmt: skip
    # ApiVersions and Produce, with its offsets, are as they were; Metadata shows that two brokers are missing
    first, *fields, last = run.stdout.decode().splitlines()
    assert first.startswith("packet 366 Metadata v12 #3 to 127.0.0.1:54777: different")
    assert {re.sub(r"\[\d+\]|:.*", "", field).split(".")[-1].strip() for field in fields} == {
        "brokers", "leader_id", "leader_epoch", "isr_nodes", "offline_replicas",
    }  # fmt: skip
    assert (run.returncode, last) == (1, "3 requests replayed: 2 same, 1 different"), run.stderr


#: Internal topics that are soon created, and groups that do not wait for more members.
AT_ONCE = {
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.num.partitions": "8",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
BROKERS = [1, 2, 3]
CLIENT = "billing"
#: What its requests have ids in, or what assigns them.
WITH_IDS = {"AddPartitionsToTxn", "EndTxn", "Fetch", "InitProducerId", "JoinGroup", "LeaveGroup", "OffsetCommit",
            "Produce", "SyncGroup"}  # fmt: skip


def produce_and_consume(bootstrap: str, topic: str, client_id: str, records: int = 3) -> None:
    """In a transaction of "copy", then as a member of the group "readers"."""
    client = {"bootstrap.servers": bootstrap, "client.id": client_id}
    producer = Producer(client | {"transactional.id": "copy"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(records):
        producer.produce(topic, b"%d" % number, partition=0)
    producer.commit_transaction(60)
    consumer = Consumer(
        client | {"group.id": "readers", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    )
    consumer.subscribe([topic])
    read: list[bytes | None] = []
    while len(read) < records:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None, message.error()
        read.append(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    assert read == [b"%d" % number for number in range(records)]


async def create_another(bootstrap: str) -> None:
    await know_each_other(*bootstrap.split(","))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    await trio.to_thread.run_sync(admin.create_topics([NewTopic("another", 1, 1)])["another"].result)


def take_a_producer_id(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce("another", b"")
    assert producer.flush(60) == 0


async def test_a_client_of_ours_gets_the_same_answers_with_the_ids_of_other_clusters(
    zookeeper: str, tmp_path: Path
) -> None:
    """Of topics, members, generations, sessions and producers; topics and coordinators are led as they were.

    Another cluster of ours, and real Kafka.
    """
    traffic = tmp_path / "traffic.pcapng"
    where = f"{zookeeper}/recorded-client"
    async with Cluster(len(BROKERS), zookeeper=where, record=traffic, properties=AT_ONCE) as cluster:
        await cluster.wait_for_controller()
        await create_another(cluster.bootstrap_servers())
        for number in range(2):  # epochs of the producer, and generations of the group
            await trio.to_thread.run_sync(
                produce_and_consume, cluster.bootstrap_servers(), "another", f"client-{number}"
            )
        await cluster.create_topic("orders", assignment={0: [3, 1], 1: [2, 3]})
        await trio.to_thread.run_sync(produce_and_consume, cluster.bootstrap_servers(), "orders", CLIENT)
    with CaptureFile(traffic) as capture:
        recording = Recording.read(capture)
    steps = [step for step in recording.steps if step.request.client_id == CLIENT]
    assert {step.request.api_name for step in steps} >= WITH_IDS
    assert 3 in {step.broker_id for step in steps}  # the leader
    unanswered = sum(step.response is None for step in steps)

    async def replayed(addresses: dict[int, str]) -> list[str]:
        bootstrap = ",".join(addresses.values())
        await create_another(bootstrap)
        await trio.to_thread.run_sync(take_a_producer_id, bootstrap)
        targets = (f"--to={broker}={address}" for broker, address in addresses.items())
        volatile = (f"--volatile={name}" for name in ("cluster_id", "port", "controller_id"))
        run = await trio.run_process(
            [*KCE, "replay", str(traffic), "--as", "client", "--client-id", CLIENT, "--create-topics",
             *targets, *volatile],
            capture_stdout=True, capture_stderr=True, check=False,
        )  # fmt: skip
        return [*run.stderr.decode().splitlines(), *run.stdout.decode().splitlines()]

    created = (
        "kce: created: __consumer_offsets (8 partitions), __transaction_state (8 partitions), orders (2 partitions)"
    )
    same = f"{len(steps)} requests replayed: {len(steps) - unanswered} same"
    expected = [created, same + (f", {unanswered} no response recorded" if unanswered else "")]
    where = f"{zookeeper}/another-cluster"
    async with Cluster(len(BROKERS), zookeeper=where, properties=AT_ONCE) as cluster:
        await cluster.wait_for_controller()
        addresses = dict(zip(BROKERS, cluster.bootstrap_servers().split(","), strict=True))
        assert await replayed(addresses) == expected
    settings = {name.replace(".", "_"): value for name, value in AT_ONCE.items()}
    async with real_brokers(BROKERS, f"{zookeeper}/real", tmp_path, **settings) as brokers:
        assert await replayed({broker: brokers[broker].address for broker in BROKERS}) == expected
