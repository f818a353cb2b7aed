"""A member of a group in a process of its own, with a client in Python.

`python member.py CLIENT HOST:PORT,... GROUP TOPIC STRATEGY INSTANCE`: CLIENT is confluent, kafka-python or aiokafka,
STRATEGY is range or cooperative, INSTANCE is the id of a static member, or -. It prints JSON lines, as the members of
other languages do: `{"owned": [partition, ...]}` when that has changed, `{"read": [number, ...]}` for the values of
records, once they are committed. It leaves when standard input ends. SESSION_MS is its session timeout.
"""

from __future__ import annotations

import asyncio
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

    def owned(self, partitions: Iterable[int]) -> None:
        now = sorted(partitions)
        if now != self._owned:
            self._owned = now
            print(json.dumps({"owned": now}), flush=True)

    def read(self, values: Iterable[bytes]) -> None:
        numbers = [int(value) for value in values]
        if numbers:
            print(json.dumps({"read": numbers}), flush=True)


def end_of_input() -> threading.Event:
    ended = threading.Event()

    def read() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    return ended


def with_confluent(bootstrap: str, group: str, topic: str, strategy: str, instance: str) -> None:
    from confluent_kafka import Consumer, KafkaException

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
            except KafkaException as e:  # a rebalance has begun, or the coordinator moves: they are read again
                print(e, file=sys.stderr)
            else:
                output.read(m.value() or b"" for m in messages)
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
        found = consumer.poll(timeout_ms=100)
        values = [record.value for records in found.values() for record in records]
        if values:
            try:
                consumer.commit()
            except kafka.errors.KafkaError as e:
                print(e, file=sys.stderr)
            else:
                output.read(values)
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
        found = await consumer.getmany(timeout_ms=100)
        values = [record.value for records in found.values() for record in records]
        if values:
            try:
                await consumer.commit()
            except aiokafka.errors.KafkaError as e:
                print(e, file=sys.stderr)
            else:
                output.read(values)
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
