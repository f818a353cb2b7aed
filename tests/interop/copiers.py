"""Transactional copies of librdkafka and of Kafka's own client, and a reader of what they commit.

A copier's group has the name of its transactional id.
"""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.interop.clients.programs import java

INPUT, OUTPUT, ID = "input", "output", "copier"
PARTITIONS = 3
STATE_PARTITIONS = 4
OFFSETS_PARTITIONS = 3
RECORDS = 60
LIMIT_S = 120
PROPERTIES = {
    "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "group.min.session.timeout.ms": "1000",
    "zookeeper.session.timeout.ms": "4000",
}


def producer(bootstrap: str, transactional_id: str = ID) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": bootstrap, "transactional.id": transactional_id, "transaction.timeout.ms": 60_000,
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


def fill(bootstrap: str, values: range = range(RECORDS)) -> None:
    """Each once, though leaders die."""
    idempotent = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for value in values:
        idempotent.produce(INPUT, str(value), partition=value % PARTITIONS)
    assert idempotent.flush(LIMIT_S) == 0


def repeated(action: object, *args: object) -> bool:
    """Whether it succeeded, after some tries; False if the transaction is to be aborted. Raises KafkaException."""
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
    """Consume, transform, produce: some records in each transaction, with the offsets of what was read.

    The coordinator of its group must live: librdkafka 2.16 waits for ever in send_offsets_to_transaction() for one that
    has died.
    """

    def __init__(self, bootstrap: str) -> None:
        self._producer = producer(bootstrap)
        self._consumer = consumer(bootstrap, ID)
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
        is_sent = repeated(self._producer.send_offsets_to_transaction, offsets, metadata, 5)
        if is_sent and self.transactions % 3 and repeated(self._producer.commit_transaction, 10):
            self.copied += len(values)
            return
        assert repeated(self._producer.abort_transaction, 10)
        for partition in self._consumer.committed(self._consumer.assignment(), timeout=LIMIT_S):
            self._consumer.seek(TopicPartition(partition.topic, partition.partition, max(partition.offset, 0)))

    def close(self) -> None:
        self._consumer.close()


class JavaCopier:
    """Owns the process of java/JavaCopier.java."""

    def __init__(self, bootstrap: str, errors: Path, transactional_id: str = ID, output: str = OUTPUT) -> None:
        command = [*java("JavaCopier.java"), bootstrap, INPUT, output, transactional_id]
        self._errors = errors
        with errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, process_group=0
            )

    def start(self, count: int) -> None:
        """Copy until there are so many."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % count)
        self._process.stdin.flush()

    def wait(self, count: int) -> None:
        """Until at least so many are copied."""
        assert self._process.stdout is not None
        too_long = threading.Timer(LIMIT_S, self._process.kill)
        too_long.start()
        try:
            while line := self._process.stdout.readline():
                if int(line) >= count:
                    return
        finally:
            too_long.cancel()
        raise AssertionError(f"{count} are not copied:\n{self._errors.read_text(errors='replace')}")

    def kill(self) -> None:
        with self._process:
            self._process.kill()
