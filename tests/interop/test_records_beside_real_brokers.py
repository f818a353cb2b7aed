"""One partition on our broker and on real Kafka's: each leads, each follows, and the logs are the same."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest
import trio
from confluent_kafka import Producer

from kce import wire
from kce.harness import Cluster
from tests.interop.kafka_java import kafka_java
from tests.interop.real_kafka import RealBroker, real_brokers
from tests.interop.records import Ledger, Traffic

pytestmark = pytest.mark.slow

OURS, THEIRS = 1, 2
VERIFICATION = "org.apache.kafka.tools.ReplicaVerificationTool"
LIMIT_S = 60
PROPERTIES = {
    "min.insync.replicas": "1", "replica.lag.time.max.ms": "3000", "zookeeper.session.timeout.ms": "4000",
    "control.plane.listener.name": "CONTROL",
}  # fmt: skip


async def states(cluster: Cluster) -> list[tuple[int, set[int]]]:
    """Leader and ISR of each partition."""
    (found,) = await cluster.describe_topics(["t"])
    return [(p.state.leader, set(p.state.isr)) for p in found.partitions if p.state is not None]


async def all_are_in_sync(cluster: Cluster) -> bool:
    return all(isr == {OURS, THEIRS} for _, isr in await states(cluster))


async def led_by(cluster: Cluster, leader: int) -> bool:
    return all(found == leader for found, _ in await states(cluster))


async def both_work(cluster: Cluster, ledger: Ledger) -> None:
    """Every partition is replicated by both, and what is produced now is acknowledged."""
    await cluster.wait_until(lambda: all_are_in_sync(cluster), "both in every ISR", timeout_s=60)
    with trio.fail_after(30):
        target = ledger.sent + 50
        while len(ledger.acknowledged) < target:  # noqa: ASYNC110 - a thread receives them
            await trio.sleep(0.05)


def log_of(folder: Path, partition: int) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((folder / f"t-{partition}").glob("*.log")))


def check_sequences(log: bytes) -> None:
    """Each epoch of a producer begins with sequence number 0, and none is twice or missing (rules B3.45, B3.48)."""
    expected: dict[tuple[int, int], int] = {}
    for batch in wire.read_records(log).batches:
        producer = batch.producer_id, batch.producer_epoch
        assert batch.base_sequence == expected.get(producer, 0)
        expected[producer] = batch.base_sequence + len(batch.records)


async def a_real_leader_dies_and_returns(cluster: Cluster, broker: RealBroker) -> None:
    broker.kill()
    await cluster.wait_until(lambda: led_by(cluster, OURS), "our broker leads", timeout_s=60)
    await broker.start()


async def ours_is_restarted(cluster: Cluster) -> None:
    await cluster.stop(OURS)
    await cluster.start(OURS)


async def test_ours_and_theirs_replicate_each_other(tmp_path: Path) -> None:
    """An idempotent producer with acks=all works all the time: nothing is lost, nothing twice."""
    ours = tmp_path / "ours"
    async with (
        Cluster(1, data=tmp_path / "data", properties={**PROPERTIES, "log.dirs": str(ours)}) as cluster,
        real_brokers([THEIRS], cluster.zookeeper, tmp_path, min_insync_replicas="1") as brokers,
    ):
        broker = brokers[THEIRS]
        await cluster.create_topic("t", assignment={0: (OURS, THEIRS), 1: (THEIRS, OURS)})
        bootstrap = f"{cluster.member(OURS).addresses['DATA']},{broker.address}"
        ledger = Ledger(bootstrap, "t")
        with Traffic(ledger):
            await both_work(cluster, ledger)
            await a_real_leader_dies_and_returns(cluster, broker)
            await both_work(cluster, ledger)
            await ours_is_restarted(cluster)
            await both_work(cluster, ledger)
        await trio.to_thread.run_sync(ledger.flush)
        assert ledger.failed == []
        assert await trio.to_thread.run_sync(ledger.check) == ledger.sent
        await cluster.wait_until(lambda: all_are_in_sync(cluster), "both in every ISR")
        await trio.sleep(1)  # the last fetch
        theirs = broker.folder / "data"
        for partition in (0, 1):
            log = log_of(ours, partition)
            assert log == log_of(theirs, partition) != b""
            check_sequences(log)


def produce(bootstrap: str, count: int) -> None:
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    for number in range(count):
        producer.produce(
            "t", str(number), partition=number % 2, on_delivery=lambda error, _: error and errors.append(error)
        )
    assert producer.flush(LIMIT_S) == 0
    assert errors == []


def first_report(bootstrap: str) -> str:
    """The lag that Kafka's tool finds between the replicas of topic t once it has read all; it goes on for ever."""
    options = ["--broker-list", bootstrap, "--topics-include", "t", "--time", "-2", "--report-interval-ms", "200"]
    command = [*kafka_java("-Xmx192m"), VERIFICATION, *options]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    ) as tool:
        too_long = threading.Timer(LIMIT_S, tool.kill)
        too_long.start()
        said = []
        try:
            assert tool.stdout is not None
            for line in tool.stdout:
                said.append(line)
                if "max lag is" in line and "max lag is -1" not in line:
                    return line
        finally:
            too_long.cancel()
            tool.kill()
    raise AssertionError(f"nothing was found:\n{''.join(said)}")


async def test_kafkas_tool_verifies_replicas_of_ours_and_theirs(tmp_path: Path) -> None:
    """It fetches from leaders and followers (replica id -2), and compares each record's checksum."""
    properties = {**PROPERTIES, "log.dirs": str(tmp_path / "ours")}
    async with (
        Cluster(1, data=tmp_path / "data", properties=properties) as cluster,
        real_brokers([THEIRS], cluster.zookeeper, tmp_path, min_insync_replicas="1") as brokers,
    ):
        await cluster.create_topic("t", assignment={0: (OURS, THEIRS), 1: (THEIRS, OURS)})
        bootstrap = f"{cluster.member(OURS).addresses['DATA']},{brokers[THEIRS].address}"
        await cluster.wait_until(lambda: all_are_in_sync(cluster), "both in every ISR", timeout_s=60)
        await trio.to_thread.run_sync(produce, bootstrap, 100)
        report = await trio.to_thread.run_sync(first_report, bootstrap)
        assert "max lag is 0 " in report
        assert "at offset 50 among 2 partitions" in report
