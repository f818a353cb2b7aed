"""librdkafka in confluent-kafka: `python confluent.py HOST:PORT,...`"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from serving import HEADERS, KEY, LIMIT_S, described, serve

#: the client asks another broker next
STALE = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError._TRANSPORT)


class Confluent:
    def __init__(self, bootstrap: str) -> None:
        self._servers = {"bootstrap.servers": bootstrap}
        self._admin = AdminClient(self._servers)
        self._producers: dict[str, Producer] = {}
        self._consumer = Consumer({**self._servers, "group.id": "unused", "enable.auto.commit": False})

    def _wait(self, futures: dict[Any, Any]) -> None:
        for future in futures.values():
            future.result(LIMIT_S)

    def create(self, topic: str, partitions: int, replicas: int) -> None:
        self._wait(self._admin.create_topics([NewTopic(topic, partitions, replicas)], operation_timeout=30))

    def delete(self, topic: str) -> None:
        self._wait(self._admin.delete_topics([topic], operation_timeout=30))

    def topics(self) -> dict[str, object]:
        return {"topics": list(self._admin.list_topics(timeout=LIMIT_S).topics)}

    def delete_records(self, topic: str, partition: int, offset: int) -> None:
        self._wait(self._admin.delete_records([TopicPartition(topic, partition, offset)]))

    def produce(self, topic: str, codec: str, records: list[tuple[int, str, int]]) -> None:
        producer = self._producers.get(codec)
        if producer is None:
            producer = self._producers[codec] = Producer(
                {
                    **self._servers,
                    "acks": "all",
                    "enable.idempotence": True,
                    "compression.type": codec,
                    "linger.ms": 5,
                    "retry.backoff.ms": 20,
                }
            )
        errors: list[object] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            errors.append(error)

        for partition, value, timestamp in records:
            producer.produce(
                topic, value.encode(), KEY, partition, delivered, timestamp=timestamp, headers=list(HEADERS)
            )  # fmt: skip
        producer.flush(LIMIT_S)
        assert errors == [None] * len(records), errors

    def fetch(self, topic: str, partition: int, offset: int, count: int) -> dict[str, object]:
        self._consumer.assign([TopicPartition(topic, partition, offset)])
        records: list[list[object]] = []
        while len(records) < count:
            message = self._consumer.poll(LIMIT_S)
            assert message is not None, f"{len(records)} of {count} records in {LIMIT_S} s"
            assert message.error() is None, message.error()
            records.append(
                described(
                    message.offset(), message.value(), message.timestamp()[1], message.key(), message.headers() or []
                )
            )  # fmt: skip
        return {"records": records}

    def _asked(self, question: Callable[[], Any]) -> Any:
        """Unlike records, questions about offsets are not asked again of another leader."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                return question()
            except KafkaException as e:
                if (not e.args[0].retriable() and e.args[0].code() not in STALE) or time.monotonic() > deadline:
                    raise

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> dict[str, object]:
        wanted = TopicPartition(topic, partition, timestamp_ms)
        (found,) = self._asked(lambda: self._consumer.offsets_for_times([wanted], LIMIT_S))
        return {"offset": found.offset}

    def bounds(self, topic: str, partition: int) -> dict[str, object]:
        tp = TopicPartition(topic, partition)
        earliest, latest = self._asked(lambda: self._consumer.get_watermark_offsets(tp, LIMIT_S))
        return {"earliest": earliest, "latest": latest}


if __name__ == "__main__":
    serve(Confluent(sys.argv[1]))
