"""A member of a group in a process of its own, with a client in Python.

`python member.py CLIENT HOST:PORT,... GROUP TOPIC STRATEGY INSTANCE`: CLIENT is confluent, kafka-python or aiokafka,
STRATEGY is range or cooperative, INSTANCE is the id of a static member, or -. It prints JSON lines, as the members of
other languages do: `{"owned": [partition, ...]}` when that has changed, `{"read": [number, ...]}` for the values of
records, once they are committed. A commit that failed may have been applied, and then nobody reads its records again:
they are printed as soon as the group's offset is beyond them. The member leaves when standard input ends. SESSION_MS is
its session timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterable
from typing import Any

HEARTBEAT_MS, SESSION_MS = 300, int(os.environ["SESSION_MS"])


class Output:
    def __init__(self) -> None:
        self._owned: list[int] = []
        #: values of records whose commit failed, by partition and offset
        self._unsure: dict[tuple[int, int], bytes] = {}

    def owned(self, partitions: Iterable[int]) -> None:
        now = sorted(partitions)
        if now != self._owned:
            self._owned = now
            print(json.dumps({"owned": now}), flush=True)

    def read(self, values: Iterable[bytes]) -> None:
        numbers = [int(value) for value in values]
        if numbers:
            print(json.dumps({"read": numbers}), flush=True)

    def unsure(self, records: Iterable[tuple[int, int, bytes]]) -> None:
        """(partition, offset, value) of records whose commit failed."""
        self._unsure.update(((partition, offset), value) for partition, offset, value in records)

    @property
    def unsure_of(self) -> set[int]:
        """Partitions whose offset in the group is of interest."""
        return {partition for partition, _ in self._unsure}

    def committed(self, partition: int, end: int | None) -> None:
        """The group's offset of a partition."""
        found = [key for key in self._unsure if key[0] == partition and key[1] < (end or 0)]
        self.read(self._unsure.pop(key) for key in found)


def end_of_input() -> threading.Event:
    ended = threading.Event()

    def read() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    return ended


def with_confluent(bootstrap: str, group: str, topic: str, strategy: str, instance: str) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    settings = {
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS,
        "partition.assignment.strategy": {"range": "range", "cooperative": "cooperative-sticky"}[strategy],
        "reconnect.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms": 1000, "log_level": 0,
    }  # fmt: skip
    if instance != "-":
        settings["group.instance.id"] = instance
    consumer, output, ended = Consumer(settings), Output(), end_of_input()
    consumer.subscribe([topic])
    while not ended.is_set():
        messages = [m for m in consumer.consume(100, 0.1) if m.error() is None]
        if messages:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as e:  # a rebalance has begun, or the coordinator moves
                print(e, file=sys.stderr)
                output.unsure((m.partition() or 0, m.offset() or 0, m.value() or b"") for m in messages)
            else:
                output.read(m.value() or b"" for m in messages)
        if output.unsure_of:
            with contextlib.suppress(KafkaException):
                for found in consumer.committed([TopicPartition(topic, p) for p in output.unsure_of], timeout=1):
                    output.committed(found.partition, found.offset)
        output.owned(partition.partition for partition in consumer.assignment())
    consumer.close()


def _settings(bootstrap: str, group: str, instance: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap.split(","), "group_id": group, "auto_offset_reset": "earliest",
        "enable_auto_commit": False, "session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": HEARTBEAT_MS,
        "group_instance_id": None if instance == "-" else instance, "metadata_max_age_ms": 1000,
    }  # fmt: skip


def with_kafka_python(bootstrap: str, group: str, topic: str, strategy: str, instance: str) -> None:
    import kafka
    import kafka.errors
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    settings = _settings(bootstrap, group, instance)
    assert strategy == "range"
    consumer = kafka.KafkaConsumer(topic, partition_assignment_strategy=[RangePartitionAssignor], **settings)
    output, ended = Output(), end_of_input()
    while not ended.is_set():
        found = [record for records in consumer.poll(timeout_ms=100).values() for record in records]
        if found:
            try:
                consumer.commit()
            except kafka.errors.KafkaError as e:
                print(e, file=sys.stderr)
                output.unsure((record.partition, record.offset, record.value) for record in found)
            else:
                output.read(record.value for record in found)
        with contextlib.suppress(kafka.errors.KafkaError):
            for partition in output.unsure_of:
                output.committed(partition, consumer.committed(kafka.TopicPartition(topic, partition)))
        output.owned(partition.partition for partition in consumer.assignment())
    consumer.close()


async def with_aiokafka(bootstrap: str, group: str, topic: str, strategy: str, instance: str) -> None:
    import aiokafka
    import aiokafka.errors
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor

    settings = _settings(bootstrap, group, instance)
    assert strategy == "range"
    consumer = aiokafka.AIOKafkaConsumer(topic, partition_assignment_strategy=(RangePartitionAssignor,), **settings)
    output, ended = Output(), end_of_input()
    await consumer.start()
    while not ended.is_set():
        found = [record for records in (await consumer.getmany(timeout_ms=100)).values() for record in records]
        if found:
            try:
                await consumer.commit()
            except aiokafka.errors.KafkaError as e:
                print(e, file=sys.stderr)
                output.unsure((record.partition, record.offset, record.value) for record in found)
            else:
                output.read(record.value for record in found)
        with contextlib.suppress(aiokafka.errors.KafkaError):
            for partition in output.unsure_of:
                output.committed(partition, await consumer.committed(aiokafka.TopicPartition(topic, partition)))
        output.owned(partition.partition for partition in consumer.assignment())
    await consumer.stop()


def main(client: str, *arguments: str) -> None:
    if client == "confluent":
        with_confluent(*arguments)
    elif client == "kafka-python":
        with_kafka_python(*arguments)
    else:
        asyncio.run(with_aiokafka(*arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
