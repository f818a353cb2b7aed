"""kafka-python: `python kafka_python.py HOST:PORT,...`"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import kafka
import kafka.admin
import kafka.errors
from kafka import TopicPartition
from serving import HEADERS, KEY, LIMIT_S, described, serve


class KafkaPython:
    def __init__(self, bootstrap: str) -> None:
        self._servers = {"bootstrap_servers": bootstrap.split(",")}
        self._producers: dict[str, Any] = {}
        self._consumer = kafka.KafkaConsumer(group_id=None, consumer_timeout_ms=LIMIT_S * 1000, **self._servers)

    def _admin(self) -> Any:
        return kafka.KafkaAdminClient(**self._servers)

    def create(self, topic: str, partitions: int, replicas: int) -> None:
        admin = self._admin()
        admin.create_topics([kafka.admin.NewTopic(topic, partitions, replicas)], timeout_ms=30_000)
        admin.close()

    def delete(self, topic: str) -> None:
        admin = self._admin()
        admin.delete_topics([topic], timeout_ms=30_000)
        admin.close()

    def topics(self) -> dict[str, object]:
        admin = self._admin()
        found = list(admin.list_topics())
        admin.close()
        return {"topics": found}

    def delete_records(self, topic: str, partition: int, offset: int) -> None:
        admin = self._admin()
        admin.delete_records({TopicPartition(topic, partition): offset}, timeout_ms=30_000)
        admin.close()

    def produce(self, topic: str, codec: str, records: list[tuple[int, str, int]]) -> None:
        producer = self._producers.get(codec)
        if producer is None:
            producer = self._producers[codec] = kafka.KafkaProducer(
                acks="all", compression_type=None if codec == "none" else codec, enable_idempotence=True, linger_ms=5,
                **self._servers,
            )  # fmt: skip
        sent = [
            producer.send(
                topic, value.encode(), key=KEY, partition=partition, timestamp_ms=timestamp, headers=HEADERS
            )
            for partition, value, timestamp in records
        ]  # fmt: skip
        for future in sent:
            future.get(timeout=LIMIT_S)

    def fetch(self, topic: str, partition: int, offset: int, count: int) -> dict[str, object]:
        self._consumer.assign([TopicPartition(topic, partition)])
        self._consumer.seek(TopicPartition(topic, partition), offset)
        records = [next(self._consumer) for _ in range(count)]
        return {"records": [described(r.offset, r.value, r.timestamp, r.key, list(r.headers)) for r in records]}

    def _of_leader(self, ask: Callable[..., dict[TopicPartition, Any]], tp: TopicPartition, about: Any) -> Any:
        """The answer of the leader of today.

        kafka-python 3.0.12 repeats a ListOffsets that the old leader refused without a look at the metadata.
        """
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                return ask(about, timeout_ms=1000)[tp]
            except kafka.errors.KafkaTimeoutError:
                if time.monotonic() > deadline:
                    raise
                self._consumer.topics()  # fetches the metadata

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> dict[str, object]:
        tp = TopicPartition(topic, partition)
        return {"offset": self._of_leader(self._consumer.offsets_for_times, tp, {tp: timestamp_ms}).offset}

    def bounds(self, topic: str, partition: int) -> dict[str, object]:
        tp = TopicPartition(topic, partition)
        return {
            "earliest": self._of_leader(self._consumer.beginning_offsets, tp, [tp]),
            "latest": self._of_leader(self._consumer.end_offsets, tp, [tp]),
        }


if __name__ == "__main__":
    serve(KafkaPython(sys.argv[1]))
