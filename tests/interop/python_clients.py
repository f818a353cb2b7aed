"""The work of a client, in a process of its own: `python python_clients.py kafka-python TOPIC HOST:PORT,...`

Creates a topic, produces with every codec the client has, with acks=all and idempotently, reads everything again, seeks
by offset and by time, and deletes records and the topic. Groups are not served yet: partitions are assigned.

Prints "moving" in the middle of its last records, and goes on when it reads a line. Ends with 0 if all was right.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import aiokafka
import aiokafka.admin
import aiokafka.errors
import kafka
import kafka.admin

TOPIC = sys.argv[2]
PARTITIONS = 3
EACH = 20
#: seconds since 1970 of the first record; each is a second later
FIRST_S = 1_600_000_000
LIMIT_S = 120


class Client(Protocol):
    """The same work by another client. Records are (partition, key, value, timestamp in ms)."""

    codecs: tuple[str | None, ...]

    def create_topic(self) -> None: ...

    def produce(self, codec: str | None, values: list[bytes], meanwhile: Callable[[], None] | None = None) -> None:
        """Idempotent, acks=all; ``meanwhile`` is called after half of them were sent. All are acknowledged."""

    def consume(self, count: int) -> list[tuple[int, bytes, int]]:
        """(partition, value, timestamp) of so many records from the start."""
        ...

    def offset_at(self, partition: int, timestamp_ms: int) -> int: ...

    def value_at(self, partition: int, offset: int) -> bytes: ...

    def delete_before(self, partition: int, offset: int) -> None: ...

    def beginning(self, partition: int) -> int: ...

    def delete_topic(self) -> None: ...

    def topics(self) -> set[str]: ...


def timestamp_ms(value: bytes) -> int:
    """Values are numbers: a record's time follows from its own."""
    return (FIRST_S + int(value)) * 1000


class KafkaPython:
    codecs = (None, "gzip")  # others need packages of their own

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap.split(",")

    def _admin(self) -> Any:
        return kafka.KafkaAdminClient(bootstrap_servers=self._bootstrap)

    def create_topic(self) -> None:
        admin = self._admin()
        admin.create_topics([kafka.admin.NewTopic(TOPIC, PARTITIONS, 3)], timeout_ms=30_000)
        admin.close()

    def produce(self, codec: str | None, values: list[bytes], meanwhile: Callable[[], None] | None = None) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self._bootstrap, acks="all", compression_type=codec, enable_idempotence=True, linger_ms=5
        )
        sent = []
        for i, value in enumerate(values):
            if i == len(values) // 2 and meanwhile is not None:
                meanwhile()
            sent.append(
                producer.send(
                    TOPIC, value, key=b"k", partition=int(value) % PARTITIONS, timestamp_ms=timestamp_ms(value),
                    headers=[("h", b"1")],
                )
            )  # fmt: skip
        for future in sent:
            future.get(timeout=LIMIT_S)
        producer.close()

    def _consumer(self, partitions: range = range(PARTITIONS)) -> Any:
        consumer = kafka.KafkaConsumer(bootstrap_servers=self._bootstrap, group_id=None, consumer_timeout_ms=30_000)
        consumer.assign([kafka.TopicPartition(TOPIC, i) for i in partitions])
        return consumer

    def consume(self, count: int) -> list[tuple[int, bytes, int]]:
        consumer = self._consumer()
        consumer.seek_to_beginning()
        found = []
        for record in consumer:
            assert (record.key, list(record.headers)) == (b"k", [("h", b"1")])
            found.append((record.partition, record.value, record.timestamp))
            if len(found) == count:
                break
        consumer.close()
        return found

    def offset_at(self, partition: int, timestamp_ms: int) -> int:
        consumer, tp = self._consumer(), kafka.TopicPartition(TOPIC, partition)
        found = consumer.offsets_for_times({tp: timestamp_ms})[tp].offset
        consumer.close()
        return int(found)

    def value_at(self, partition: int, offset: int) -> bytes:
        consumer = self._consumer(range(partition, partition + 1))
        consumer.seek(kafka.TopicPartition(TOPIC, partition), offset)
        record = next(iter(consumer))
        consumer.close()
        assert record.offset == offset
        return bytes(record.value)

    def delete_before(self, partition: int, offset: int) -> None:
        admin = self._admin()
        admin.delete_records({kafka.TopicPartition(TOPIC, partition): offset}, timeout_ms=30_000)
        admin.close()

    def beginning(self, partition: int) -> int:
        consumer, tp = self._consumer(), kafka.TopicPartition(TOPIC, partition)
        found = consumer.beginning_offsets([tp])[tp]
        consumer.close()
        return int(found)

    def delete_topic(self) -> None:
        admin = self._admin()
        admin.delete_topics([TOPIC], timeout_ms=30_000)
        admin.close()

    def topics(self) -> set[str]:
        admin = self._admin()
        found = set(admin.list_topics())
        admin.close()
        return found


class AioKafka:
    """Each step in an event loop of its own."""

    codecs = (None, "gzip", "snappy", "lz4", "zstd")

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    @asynccontextmanager
    async def _running(self, made: Any) -> AsyncIterator[Any]:
        await made.start()
        try:
            yield made
        finally:
            await (made.stop() if hasattr(made, "stop") else made.close())

    def _admin(self) -> Any:
        return self._running(aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=self._bootstrap))

    def _consumer(self) -> Any:
        return self._running(aiokafka.AIOKafkaConsumer(bootstrap_servers=self._bootstrap))

    def create_topic(self) -> None:
        async def work() -> None:
            async with self._admin() as admin:
                await admin.create_topics([aiokafka.admin.NewTopic(TOPIC, PARTITIONS, 3)], timeout_ms=30_000)

        asyncio.run(work())

    def produce(self, codec: str | None, values: list[bytes], meanwhile: Callable[[], None] | None = None) -> None:
        async def work() -> None:
            made = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self._bootstrap, acks="all", compression_type=codec, enable_idempotence=True,
                linger_ms=5,
            )  # fmt: skip
            async with self._running(made) as producer:
                sent = []
                for i, value in enumerate(values):
                    if i == len(values) // 2 and meanwhile is not None:
                        await asyncio.to_thread(meanwhile)
                    sent.append(
                        await producer.send(
                            TOPIC, value, key=b"k", partition=int(value) % PARTITIONS,
                            timestamp_ms=timestamp_ms(value), headers=[("h", b"1")],
                        )
                    )  # fmt: skip
                await asyncio.wait_for(asyncio.gather(*sent), LIMIT_S)

        asyncio.run(work())

    def consume(self, count: int) -> list[tuple[int, bytes, int]]:
        async def work() -> list[tuple[int, bytes, int]]:
            found = []
            async with self._consumer() as consumer:
                consumer.assign([aiokafka.TopicPartition(TOPIC, i) for i in range(PARTITIONS)])
                await consumer.seek_to_beginning()
                while len(found) < count:
                    record = await asyncio.wait_for(consumer.getone(), 30)
                    assert (record.key, list(record.headers)) == (b"k", [("h", b"1")])
                    found.append((record.partition, record.value, record.timestamp))
            return found

        return asyncio.run(work())

    def _asked(self, question: Callable[[Any, aiokafka.TopicPartition], Any], partition: int) -> Any:
        async def work() -> Any:
            async with self._consumer() as consumer:
                tp = aiokafka.TopicPartition(TOPIC, partition)
                consumer.assign([tp])
                return await asyncio.wait_for(question(consumer, tp), 30)

        return asyncio.run(work())

    def offset_at(self, partition: int, timestamp_ms: int) -> int:
        async def ask(consumer: Any, tp: Any) -> int:
            return int((await consumer.offsets_for_times({tp: timestamp_ms}))[tp].offset)

        return int(self._asked(ask, partition))

    def value_at(self, partition: int, offset: int) -> bytes:
        async def ask(consumer: Any, tp: Any) -> bytes:
            consumer.seek(tp, offset)
            record = await consumer.getone()
            assert record.offset == offset
            return bytes(record.value)

        return bytes(self._asked(ask, partition))

    def delete_before(self, partition: int, offset: int) -> None:
        async def work() -> None:
            async with self._admin() as admin:
                to_delete = aiokafka.admin.RecordsToDelete(before_offset=offset)
                await admin.delete_records({aiokafka.TopicPartition(TOPIC, partition): to_delete}, timeout_ms=30_000)

        asyncio.run(work())

    def beginning(self, partition: int) -> int:
        async def ask(consumer: Any, tp: Any) -> int:
            return int((await consumer.beginning_offsets([tp]))[tp])

        return int(self._asked(ask, partition))

    def delete_topic(self) -> None:
        async def work() -> None:
            async with self._admin() as admin:
                await admin.delete_topics([TOPIC], timeout_ms=30_000)

        asyncio.run(work())

    def topics(self) -> set[str]:
        async def work() -> set[str]:
            async with self._admin() as admin:
                return set(await admin.list_topics())

        return asyncio.run(work())


def work(client: Client) -> None:
    client.create_topic()
    deadline = time.monotonic() + LIMIT_S
    while TOPIC not in client.topics():  # each broker learns of it at its own time
        assert time.monotonic() < deadline
    numbers = [b"%d" % i for i in range(EACH * (len(client.codecs) + 1))]
    for i, codec in enumerate(client.codecs):
        client.produce(codec, numbers[i * EACH : (i + 1) * EACH])
    client.produce(None, numbers[-EACH:], leader_moves)
    expected = {i: [n for n in numbers if int(n) % PARTITIONS == i] for i in range(PARTITIONS)}
    found: dict[int, list[bytes]] = {i: [] for i in range(PARTITIONS)}
    for partition, value, timestamp in client.consume(len(numbers)):
        assert timestamp == timestamp_ms(value)
        found[partition].append(value)
    assert found == expected  # each once, in order
    assert client.offset_at(1, timestamp_ms(expected[1][5])) == 5
    assert client.offset_at(1, timestamp_ms(expected[1][5]) - 1) == 5
    assert client.value_at(2, 7) == expected[2][7]
    client.delete_before(2, 7)
    assert client.beginning(2) == 7
    client.delete_topic()
    assert TOPIC not in client.topics()


def leader_moves() -> None:
    print("moving", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    work({"kafka-python": KafkaPython, "aiokafka": AioKafka}[sys.argv[1]](sys.argv[3]))
