"""aiokafka: `python aio_kafka.py HOST:PORT,...`"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

import aiokafka
import aiokafka.admin
from aiokafka import TopicPartition
from serving import HEADERS, KEY, LIMIT_S, described, serve


class AioKafka:
    """Each request runs the event loop until it is answered."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._loop = asyncio.new_event_loop()
        self._producers: dict[str, Any] = {}
        self._consumer: Any = None

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, LIMIT_S))

    async def _administrate(self, method: str, *args: Any, **more: Any) -> Any:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        try:
            return await getattr(admin, method)(*args, **more)
        finally:
            await admin.close()

    def create(self, topic: str, partitions: int, replicas: int) -> None:
        new = aiokafka.admin.NewTopic(topic, partitions, replicas)
        self._run(self._administrate("create_topics", [new], timeout_ms=30_000))

    def delete(self, topic: str) -> None:
        self._run(self._administrate("delete_topics", [topic], timeout_ms=30_000))

    def topics(self) -> dict[str, object]:
        return {"topics": list(self._run(self._administrate("list_topics")))}

    def delete_records(self, topic: str, partition: int, offset: int) -> None:
        to_delete = {TopicPartition(topic, partition): aiokafka.admin.RecordsToDelete(before_offset=offset)}
        self._run(self._administrate("delete_records", to_delete, timeout_ms=30_000))

    def produce(self, topic: str, codec: str, records: list[tuple[int, str, int]]) -> None:
        self._run(self._produce(topic, codec, records))

    async def _produce(self, topic: str, codec: str, records: list[tuple[int, str, int]]) -> None:
        producer = self._producers.get(codec)
        if producer is None:
            producer = self._producers[codec] = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self._bootstrap, acks="all", compression_type=None if codec == "none" else codec,
                enable_idempotence=True, linger_ms=5,
            )  # fmt: skip
            await producer.start()
        sent = [
            await producer.send(
                topic, value.encode(), key=KEY, partition=partition, timestamp_ms=timestamp, headers=HEADERS
            )
            for partition, value, timestamp in records
        ]  # fmt: skip
        await asyncio.gather(*sent)

    async def _assigned(self, topic: str, partition: int) -> tuple[Any, TopicPartition]:
        if self._consumer is None:
            self._consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self._bootstrap)
            await self._consumer.start()
        tp = TopicPartition(topic, partition)
        self._consumer.assign([tp])
        return self._consumer, tp

    def fetch(self, topic: str, partition: int, offset: int, count: int) -> dict[str, object]:
        async def work() -> list[list[object]]:
            consumer, tp = await self._assigned(topic, partition)
            consumer.seek(tp, offset)
            records = [await consumer.getone() for _ in range(count)]
            return [described(r.offset, r.value, r.timestamp, r.key, list(r.headers)) for r in records]

        return {"records": self._run(work())}

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> dict[str, object]:
        async def work() -> int:
            consumer, tp = await self._assigned(topic, partition)
            return int((await consumer.offsets_for_times({tp: timestamp_ms}))[tp].offset)

        return {"offset": self._run(work())}

    def bounds(self, topic: str, partition: int) -> dict[str, object]:
        async def work() -> dict[str, object]:
            consumer, tp = await self._assigned(topic, partition)
            earliest, latest = await consumer.beginning_offsets([tp]), await consumer.end_offsets([tp])
            return {"earliest": earliest[tp], "latest": latest[tp]}

        return dict(self._run(work()))


if __name__ == "__main__":
    serve(AioKafka(sys.argv[1]))
