"""Transactions of librdkafka, unchanged: copies that are exactly once, though brokers die; fencing; Kafka's tools."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from kce.broker_stub.internal_topics import TRANSACTION_STATE_TOPIC, partition_for
from kce.harness import Cluster
from tests.interop.tools import Tools

pytestmark = pytest.mark.slow

INPUT, OUTPUT, GROUP, ID = "input", "output", "copiers", "copier"
PARTITIONS = 3
STATE_PARTITIONS = 4
RECORDS = 60
LIMIT_S = 120
PROPERTIES = {
    "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
    "offsets.topic.num.partitions": "3",
    "group.min.session.timeout.ms": "1000",
    "zookeeper.session.timeout.ms": "2000",
}


def producer(bootstrap: str) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": bootstrap, "transactional.id": ID, "transaction.timeout.ms": 60_000,
            "reconnect.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms": 1000, "log_level": 0,
        }
    )  # fmt: skip
    made.init_transactions(LIMIT_S)
    return made


def consumer(bootstrap: str, group: str, isolation: str = "read_committed") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": group, "isolation.level": isolation,
            "auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500, "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1000, "log_level": 0, "enable.partition.eof": True,
        }
    )  # fmt: skip


def read(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[int]:
    """All that such a reader sees up to the end of each partition."""
    reader = consumer(bootstrap, "reader", isolation)
    values = []
    try:
        for number in range(PARTITIONS):
            reader.assign([TopicPartition(topic, number, 0)])
            deadline = time.monotonic() + LIMIT_S
            while True:
                assert time.monotonic() < deadline, f"{topic}-{number} cannot be read to its end"
                message = reader.poll(0.2)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    values.append(int(message.value() or b""))
                elif error.code() == KafkaError._PARTITION_EOF:
                    break
    finally:
        reader.close()
    return sorted(values)


def fill(bootstrap: str) -> None:
    plain = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for value in range(RECORDS):
        plain.produce(INPUT, str(value), partition=value % PARTITIONS)
    assert plain.flush(LIMIT_S) == 0


def repeated(action: object, *args: object) -> bool:
    """Whether it succeeded, after any number of repetitions; False if the transaction is to be aborted."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            action(*args)  # type: ignore[operator]
        except KafkaException as e:
            error = e.args[0]
            if error.txn_requires_abort():
                return False
            if not error.retriable() or time.monotonic() > deadline:
                raise
        else:
            return True


class Copier:
    """Consume, transform, produce: some records in each transaction, with the offsets of what was read."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = producer(bootstrap)
        self._consumer = consumer(bootstrap, GROUP)
        self._consumer.subscribe([INPUT])
        self.copied = 0
        self.transactions = 0

    def copy(self, count: int) -> None:
        """Until at least so many are copied."""
        deadline = time.monotonic() + LIMIT_S
        while self.copied < count:
            assert time.monotonic() < deadline, f"{self.copied} of {count} are copied"
            messages = [m for m in self._consumer.consume(5, 0.5) if m.error() is None]
            if messages:
                self._copy([int(m.value() or b"") for m in messages])

    def _copy(self, values: list[int]) -> None:
        self.transactions += 1
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(OUTPUT, str(value), partition=value % PARTITIONS)
        offsets = self._consumer.position(self._consumer.assignment())
        metadata = self._consumer.consumer_group_metadata()
        is_sent = repeated(self._producer.send_offsets_to_transaction, offsets, metadata, 10)
        if is_sent and self.transactions % 3 and repeated(self._producer.commit_transaction, 10):
            self.copied += len(values)
            return
        assert repeated(self._producer.abort_transaction, 10)
        committed = self._consumer.committed(self._consumer.assignment(), timeout=LIMIT_S)
        for partition in committed:
            self._consumer.seek(TopicPartition(partition.topic, partition.partition, max(partition.offset, 0)))

    def close(self) -> None:
        self._consumer.close()


async def coordinator(cluster: Cluster) -> int:
    (topic,) = await cluster.describe_topics([TRANSACTION_STATE_TOPIC])
    leadership = topic.partitions[partition_for(ID, STATE_PARTITIONS)].leadership
    assert leadership is not None
    return leadership.leader_and_isr.leader


async def test_a_copy_is_exactly_once(tmp_path: Path, tools: Tools, zookeeper: str) -> None:
    """Every third transaction is aborted; the coordinator is killed between, and later the next one."""
    in_thread = trio.to_thread.run_sync
    properties = {**PROPERTIES, "log.dirs": f"{tmp_path}/logs-{{id}}"}
    async with Cluster(3, zookeeper=f"{zookeeper}/copy", properties=properties) as cluster:
        await cluster.wait_for_controller()
        for topic in (INPUT, OUTPUT):
            await cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        bootstrap = cluster.bootstrap_servers()
        await in_thread(fill, bootstrap)
        copier = await in_thread(Copier, bootstrap)
        try:
            await in_thread(copier.copy, RECORDS // 3)
            for part in (2, 3):
                doomed = await coordinator(cluster)
                await cluster.kill(doomed)
                await in_thread(copier.copy, part * RECORDS // 3)
                await cluster.start(doomed)
        finally:
            await in_thread(copier.close)
        assert await in_thread(read, bootstrap, OUTPUT) == list(range(RECORDS))
        assert copier.transactions > 2
        leader = await coordinator(cluster)
    number = partition_for(ID, STATE_PARTITIONS)
    path = tmp_path / f"logs-{leader}" / f"{TRANSACTION_STATE_TOPIC}-{number}" / f"{0:020}.log"
    dumped = await in_thread(
        tools.run, "kafka.tools.DumpLogSegments", "--transaction-log-decoder", "--print-data-log", "--files", str(path)
    )
    states = [line for line in dumped.splitlines() if f"transaction_metadata::transactionalId={ID}" in line]
    assert {state for state in ("Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "PrepareAbort", "CompleteAbort")
            if any(f"state={state}" in line for line in states)} == {
        "Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "PrepareAbort", "CompleteAbort",
    }  # fmt: skip


async def test_the_first_producer_is_fenced_by_the_second(zookeeper: str) -> None:
    in_thread = trio.to_thread.run_sync
    async with Cluster(1, zookeeper=f"{zookeeper}/fence", properties=PROPERTIES) as cluster:
        await cluster.wait_for_controller()
        await cluster.create_topic(OUTPUT, partitions=PARTITIONS, replication_factor=1)
        bootstrap = cluster.bootstrap_servers()
        await in_thread(_fence, bootstrap)
        assert await in_thread(read, bootstrap, OUTPUT) == [2]
        assert await in_thread(read, bootstrap, OUTPUT, "read_uncommitted") == [1, 2]


def _fence(bootstrap: str) -> None:
    first = producer(bootstrap)
    first.begin_transaction()
    first.produce(OUTPUT, "1", partition=0)
    first.flush(LIMIT_S)
    second = producer(bootstrap)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(LIMIT_S)
    assert fenced.value.args[0].code() == KafkaError._FENCED
    assert fenced.value.args[0].fatal()
    second.begin_transaction()
    second.produce(OUTPUT, "2", partition=0)
    second.commit_transaction(LIMIT_S)
