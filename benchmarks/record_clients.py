"""Clients that are measured: librdkafka, and Kafka's own producer as kafka-producer-perf-test runs it.

Each function blocks, and raises RuntimeError if a record is refused or takes longer than LIMIT_S.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import confluent_kafka

from kce.java import find_java
from tests.interop.kafka_jars import kafka_jars

LIMIT_S: Final = 60.0
_PERFORMANCE: Final = "org.apache.kafka.tools.ProducerPerformance"


@dataclass(frozen=True)
class Load:
    """``size``: bytes of a record. ``settings``: of the producer. The unit is MB/s, or records a second."""

    size: int
    partitions: int
    in_bytes: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)


def produce(bootstrap: str, topic: str, load: Load, seconds: float) -> tuple[int, float]:
    """Produce for so long; how many records were acknowledged, and the seconds until the last was."""
    failed: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": -1,
            "log_level": 0,
            "linger.ms": 5,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 200_000,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, message: failed.append(error),
            **load.settings,
        }
    )
    value = os.urandom(load.size // 2).hex().encode()
    producer.list_topics(topic, timeout=LIMIT_S)
    producer.produce(topic, value, partition=0)  # an idempotent producer asks for its id by a timer of half a second
    producer.flush(LIMIT_S)
    partitions, sent = load.partitions, 0
    begin = time.perf_counter()
    end = begin + seconds
    while time.perf_counter() < end:
        for _ in range(200):
            try:
                producer.produce(topic, value, partition=sent % partitions)
            except BufferError:
                producer.poll(0.01)
            else:
                sent += 1
        producer.poll(0)
    left = producer.flush(LIMIT_S)
    elapsed = time.perf_counter() - begin
    if left or failed:
        raise RuntimeError(f"{left} records are not acknowledged, {len(failed)} have failed: {failed[:1]}")
    return sent, elapsed


def java_produce(bootstrap: str, topic: str, size: int, records: int) -> float:
    """Records a second that kafka-producer-perf-test acknowledges, with acks=all and its other settings as they are."""
    ran = subprocess.run(
        [
            find_java(), "-Xmx256m", "-cp", f"{kafka_jars()}/*", _PERFORMANCE, "--topic", topic, "--throughput", "-1",
            "--num-records", str(records), "--record-size", str(size),
            "--producer-props", f"bootstrap.servers={bootstrap}", "acks=all",
        ],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    totals = re.findall(rf"^{records} records sent, ([0-9.]+) records/sec", ran.stdout, re.MULTILINE)
    if ran.returncode or not totals:
        raise RuntimeError(f"kafka-producer-perf-test ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
    return float(totals[-1])


def consume(bootstrap: str, topic: str, partitions: int, records: int) -> float:
    """The seconds from the first batch to the last of ``records``, as a share of the records after the first batch."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
            "log_level": 0,
            "check.crcs": False,
            # whoever fills the client's queue is else not asked again for a second, and slower for being fast
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, i, 0) for i in range(partitions)])
    read, first, begin, deadline = 0, 0, 0.0, time.perf_counter() + LIMIT_S
    while read < records:
        found = consumer.consume(10_000, timeout=0.2)
        if time.perf_counter() > deadline:
            raise RuntimeError(f"{read} of {records} records consumed in {LIMIT_S:g} s")
        if found and not first:
            first, begin = len(found), time.perf_counter()
        read += len(found)
    elapsed = time.perf_counter() - begin
    consumer.close()
    return elapsed * records / max(1, records - first)


def _delivered(done: list[Any], error: Any, message: Any) -> None:
    done.append(error)


def acknowledge(bootstrap: str, topic: str, seconds: float) -> list[float]:
    """Seconds until a record is acknowledged, one after the other."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": -1, "linger.ms": 0, "log_level": 0})
    found: list[float] = []
    begin = end = time.perf_counter()
    for i in range(10_000_000):
        done: list[Any] = []
        at = time.perf_counter()
        producer.produce(topic, b"x" * 100, partition=0, on_delivery=partial(_delivered, done))
        while not done:
            producer.poll(1)
        if done[0] is not None:
            raise RuntimeError(str(done[0]))
        end = time.perf_counter()
        if i >= 20:  # the first ones find the leader
            found.append(end - at)
        if end - begin > seconds and len(found) > 20:
            return found
    return found


def end_to_end(bootstrap: str, topic: str, seconds: float) -> list[float]:
    """Seconds until a consumer has a record, one after the other."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": -1, "linger.ms": 0, "log_level": 0})
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    found: list[float] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or len(found) < 40:
        at = time.perf_counter()
        value = str(at).encode()
        producer.produce(topic, value, partition=0)
        producer.poll(0)
        while (message := consumer.poll(LIMIT_S)) is not None and message.value() != value:
            pass
        if message is None:
            raise RuntimeError("a record was not consumed")
        found.append(time.perf_counter() - at)
    consumer.close()
    return found[20:]
