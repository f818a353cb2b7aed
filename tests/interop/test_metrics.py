"""The metrics of a broker of ours, and those of a real one in JMX, after the same requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from kce import wire
from kce.broker_stub.metrics import broker_metrics
from kce.harness import Cluster
from kce.harness.embedded_zookeeper import free_port
from kce.metrics import Meter
from kce.wire import ErrorCode, Record, RecordBatch, write_records
from tests.clusters import know_each_other, node, request
from tests.interop.kafka_java import SHORT_LIVED, archived
from tests.interop.real_kafka import real_brokers
from tests.interop.tools import Tools

TOPIC = "t"
#: of these everything that there is after a few requests
COMPARED = (
    "kafka.server:type=BrokerTopicMetrics,",
    "kafka.server:type=ReplicaManager,",
    "kafka.cluster:type=Partition,",
    "kafka.log:type=Log,",
    "kafka.log:type=LogManager,name=OfflineLogDirectoryCount",
    "kafka.network:type=RequestMetrics,name=RequestsPerSec,request=Produce,",
    "kafka.network:type=SocketServer,name=ExpiredConnectionsKilledCount",
    "kafka.server:type=FetchSessionCache,",
    "kafka.server:type=KafkaServer,name=BrokerState",
)
#: see broker_stub.metrics: idle partitions of a session are not looked at; why records were refused is not counted
LEFT_OUT = re.compile("name=(TotalFetchRequests|NoKeyCompactedTopicRecords|Invalid.*Records)PerSec")


def batch(*values: bytes, sequence: int = -1, producer: int = -1) -> bytes:
    records = [Record(offset=i, timestamp=1_700_000_000_000, value=value) for i, value in enumerate(values)]
    epoch = 0 if producer >= 0 else -1
    return write_records(RecordBatch.of(*records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence))


def damaged(records: bytes) -> bytes:
    return records[:-1] + bytes([records[-1] ^ 1])


PRODUCED = [
    (batch(b"one", b"two"), ErrorCode.NONE),
    (batch(b"three"), ErrorCode.NONE),
    (batch(b"x" * 2000), ErrorCode.MESSAGE_TOO_LARGE),
    (damaged(batch(b"four")), ErrorCode.CORRUPT_MESSAGE),
    (batch(b"five", producer=7, sequence=0), ErrorCode.NONE),
    (batch(b"six", producer=7, sequence=5), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (batch(b"five", producer=7, sequence=0), ErrorCode.NONE),  # a duplicate
]


async def traffic(address: str) -> None:
    configs = (wire.CreatableTopicConfig(name="max.message.bytes", value="1000"),)
    topic = wire.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, configs=configs)
    created: Any = await request(address, wire.CreateTopicsRequest(topics=(topic,), timeout_ms=30_000), 5)
    assert created.topics[0].error_code == ErrorCode.NONE
    for records, code in PRODUCED:
        data = wire.TopicProduceData(name=TOPIC, partition_data=(wire.PartitionProduceData(index=0, records=records),))
        produced: Any = await request(address, wire.ProduceRequest(acks=1, timeout_ms=30_000, topic_data=(data,)), 9)
        assert produced.responses[0].partition_responses[0].error_code == code
    for offset in (0, 2, 3, 100):
        partition = wire.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1_000_000)
        topics = (wire.FetchTopic(topic=TOPIC, partitions=(partition,)),)
        await request(address, wire.FetchRequest(max_bytes=1_000_000, min_bytes=1, topics=topics), 11)


def in_jmx(tools: Tools, port: int) -> Iterator[tuple[str, float]]:
    printed = tools.run(
        "org.apache.kafka.tools.JmxTool", "--one-time", "--report-format", "properties",
        "--jmx-url", f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi",
    )  # fmt: skip
    for line in printed.splitlines():
        name, _, value = line.rpartition("=")
        bean, _, attribute = name.rpartition(":")
        if attribute in ("Count", "Value") and bean.startswith(COMPARED) and not LEFT_OUT.search(bean):
            yield bean, float(value)


def of_ours(cluster: Cluster) -> Iterator[tuple[str, float]]:
    for name, metric in broker_metrics(node(cluster, 1).broker):
        bean = str(name)
        if bean.startswith(COMPARED):
            assert isinstance(metric, Meter) or hasattr(metric, "read")
            yield bean, float(metric.read())


@pytest.mark.slow
async def test_the_same_as_in_jmx(zookeeper: str, tmp_path: Path) -> None:  # rules 12.10, 12.11
    port = free_port()
    remote = "-Dcom.sun.management.jmxremote"
    jvm = (
        *SHORT_LIVED, *await trio.to_thread.run_sync(archived), remote, f"{remote}.port={port}",
        f"{remote}.rmi.port={port}", f"{remote}.host=127.0.0.1", f"{remote}.authenticate=false", f"{remote}.ssl=false",
        "-Djava.rmi.server.hostname=127.0.0.1",
    )  # fmt: skip
    async with (
        real_brokers([1], f"{zookeeper}/metrics", tmp_path / "kafka", jvm=jvm) as brokers,
        Cluster(1) as cluster,
    ):
        await know_each_other(brokers[1].address)
        with Tools() as tools:
            for address in (brokers[1].address, cluster.bootstrap_servers()):
                await traffic(address)
            theirs = dict(await trio.to_thread.run_sync(lambda: list(in_jmx(tools, port))))
        assert len(theirs) > 40
        assert dict(of_ours(cluster)) == theirs
