"""kafka-python 1.4.7, of 2019, as if brokers were of an old release: `python old_kafka_python.py HOST:PORT,... 0.10.1`

It speaks message format 1, or before 0.10 format 0, which knows no timestamps. Neither knows headers.
"""

from __future__ import annotations

import sys
from typing import Any

import six  # the one inside kafka-python cannot be imported by Python 3.12

sys.modules["kafka.vendor.six"] = six
sys.modules["kafka.vendor.six.moves"] = six.moves

import kafka  # noqa: E402
import kafka.admin  # noqa: E402
from kafka import TopicPartition  # noqa: E402
from serving import KEY, LIMIT_S, described, serve  # noqa: E402


class OldKafkaPython:
    def __init__(self, bootstrap: str, release: str) -> None:
        assert kafka.__version__ == "1.4.7"
        self._bootstrap = bootstrap.split(",")
        self._release = tuple(map(int, release.split(".")))
        self._producers: dict[str, Any] = {}
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=self._bootstrap, api_version=self._release, group_id=None,
            consumer_timeout_ms=LIMIT_S * 1000,
        )  # fmt: skip

    def _admin(self) -> Any:
        return kafka.KafkaAdminClient(bootstrap_servers=self._bootstrap)

    def create(self, topic: str, partitions: int, replicas: int) -> None:
        admin = self._admin()
        admin.create_topics([kafka.admin.NewTopic(topic, partitions, replicas)], timeout_ms=30_000)
        admin.close()

    def delete(self, topic: str) -> None:
        admin = self._admin()
        admin.delete_topics([topic], timeout_ms=30_000)
        admin.close()

    def topics(self) -> dict[str, object]:
        return {"topics": list(self._consumer.topics())}

    def produce(self, topic: str, codec: str, records: list[tuple[int, str, int]]) -> None:
        producer = self._producers.get(codec)
        if producer is None:
            producer = self._producers[codec] = kafka.KafkaProducer(
                bootstrap_servers=self._bootstrap, api_version=self._release, acks="all", retries=1000, linger_ms=5,
                max_in_flight_requests_per_connection=1, compression_type=None if codec == "none" else codec,
            )  # fmt: skip
        sent = [
            producer.send(topic, value.encode(), key=KEY, partition=partition, timestamp_ms=timestamp)
            for partition, value, timestamp in records
        ]
        for future in sent:
            future.get(timeout=LIMIT_S)

    def fetch(self, topic: str, partition: int, offset: int, count: int) -> dict[str, object]:
        self._consumer.assign([TopicPartition(topic, partition)])
        self._consumer.seek(TopicPartition(topic, partition), offset)
        records = [next(self._consumer) for _ in range(count)]
        return {"records": [described(r.offset, r.value, r.timestamp, r.key, list(r.headers)) for r in records]}

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> dict[str, object]:
        tp = TopicPartition(topic, partition)
        return {"offset": self._consumer.offsets_for_times({tp: timestamp_ms})[tp].offset}

    def bounds(self, topic: str, partition: int) -> dict[str, object]:
        tp = TopicPartition(topic, partition)
        earliest, latest = self._consumer.beginning_offsets([tp]), self._consumer.end_offsets([tp])
        return {"earliest": earliest[tp], "latest": latest[tp]}


if __name__ == "__main__":
    serve(OldKafkaPython(*sys.argv[1:]))
