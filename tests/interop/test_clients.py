"""Clients, unchanged, while leaders move: kafka-python, aiokafka, and Kafka's own in its tools.

What the first two do is in python_clients.py, which is not imported here: kafka-python warns while it is imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from kce.harness import Cluster
from kce.wire.vocabulary import TopicPartition
from tests.interop.tools import Tools

pytestmark = pytest.mark.slow

CLIENTS = Path(__file__).parent / "python_clients.py"
TOPIC = "records"
LIMIT_S = 240
PROPERTIES = {"zookeeper.session.timeout.ms": "2000", "min.insync.replicas": "2", "replica.lag.time.max.ms": "2000"}


async def kill_leader(cluster: Cluster) -> int:
    (topic,) = await cluster.describe_topics([TOPIC])
    leadership = topic.partitions[0].leadership
    assert leadership is not None
    leader = leadership.leader_and_isr.leader
    await cluster.kill(leader)
    return leader


@pytest.mark.parametrize("client", ["kafka-python", "aiokafka"])
async def test_a_client_loses_nothing_while_a_leader_dies(client: str, tmp_path: Path) -> None:
    async with Cluster(3, properties=PROPERTIES) as cluster:
        await cluster.wait_for_controller()
        command = [sys.executable, str(CLIENTS), client, TOPIC, cluster.bootstrap_servers()]
        errors = tmp_path / "stderr"
        with trio.fail_after(LIMIT_S), errors.open("wb") as stderr:
            process = await trio.lowlevel.open_process(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                said = b""
                while not said.endswith(b"\n") and (part := await process.stdout.receive_some()):
                    said += part
                if said == b"moving\n":
                    leader = await kill_leader(cluster)
                    await process.stdin.send_all(b"\n")
                    await cluster.start(leader)
                code = await process.wait()
            finally:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()
                for stream in (process.stdin, process.stdout):
                    await trio.aclose_forcefully(stream)
        assert (said, code) == (b"moving\n", 0), errors.read_text()


JAVA_RECORDS = 300
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"


async def test_kafkas_own_client(tools: Tools, tmp_path: Path) -> None:
    """Its producer with every codec, idempotent with acks=all, while a leader dies; its consumer; its admin client."""
    async with Cluster(3, properties=PROPERTIES) as cluster:
        await cluster.wait_for_controller()
        await cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
        servers = cluster.bootstrap_servers()

        async def run(*command: str) -> str:
            return await trio.to_thread.run_sync(tools.run, *command)

        async def produce(records: int, codec: str, rate: int = -1) -> None:
            said = await run(
                PERFORMANCE, "--topic", TOPIC, "--num-records", str(records), "--record-size", "100", "--throughput",
                str(rate), "--producer-props", f"bootstrap.servers={servers}", "acks=all", f"compression.type={codec}",
            )  # fmt: skip
            assert f"\n{records} records sent" in f"\n{said}"
            assert "Exception" not in said

        async def offset(time: str) -> int:
            said = await run(OFFSETS, "--bootstrap-server", servers, "--topic", TOPIC, "--time", time)
            topic, partition, found = said.split()[-1].split(":")
            assert (topic, partition) == (TOPIC, "0")
            return int(found)

        with trio.fail_after(LIMIT_S):
            codecs = ("none", "gzip", "snappy", "lz4", "zstd")
            for codec in codecs:
                await produce(JAVA_RECORDS, codec)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce, 2 * JAVA_RECORDS, "none", JAVA_RECORDS // 2)  # for four seconds
                await cluster.wait_until(lambda: has_records(cluster, len(codecs) * JAVA_RECORDS + 100), "some records")
                leader = await kill_leader(cluster)
                await cluster.start(leader)
            total = (len(codecs) + 2) * JAVA_RECORDS
            assert await offset("latest") == total
            consumed = await run(
                CONSUMER, "--bootstrap-server", servers, "--topic", TOPIC, "--partition", "0", "--offset", "0",
                "--max-messages", str(total), "--timeout-ms", "30000", "--property", "print.offset=true",
            )  # fmt: skip
            offsets = [
                int(line.split()[0].removeprefix("Offset:")) for line in consumed.splitlines() if "Offset:" in line
            ]
            assert offsets == list(range(total))
            path = tmp_path / "delete.json"
            path.write_text(json.dumps({"version": 1, "partitions": [{"topic": TOPIC, "partition": 0, "offset": 7}]}))
            await run(DELETE_RECORDS, "--bootstrap-server", servers, "--offset-json-file", str(path))
            assert await offset("earliest") == 7


async def has_records(cluster: Cluster, count: int) -> bool:
    """Whether the first node has so many."""
    logs = cluster.member(1).node.logs  # type: ignore[attr-defined]
    found = logs.logs.get(TopicPartition(TOPIC, 0))
    return found is not None and found.log_end_offset >= count
