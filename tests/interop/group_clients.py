"""A group of a Python client, in its own process: `python group_clients.py kafka-python HOST:PORT,... TOPIC COUNT`

Two consumers share the partitions, read COUNT records and commit them; one leaves, and the other gets all partitions;
then a third one resumes: it finds nothing new. Ends with 0 if all was right.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import aiokafka
import aiokafka.errors
import kafka
import kafka.errors

LIMIT_S = 60
SETTINGS = {
    "auto_offset_reset": "earliest", "enable_auto_commit": False, "heartbeat_interval_ms": 200,
    "session_timeout_ms": 6000,
}  # fmt: skip


def late(deadline: float, what: str) -> None:
    assert time.monotonic() < deadline, what


def with_kafka_python(bootstrap: str, topic: str, count: int) -> None:
    deadline = time.monotonic() + LIMIT_S

    def consumer() -> Any:
        return kafka.KafkaConsumer(topic, bootstrap_servers=bootstrap.split(","), group_id="kafka-python", **SETTINGS)

    def poll(*consumers: Any) -> list[bytes]:
        found = [each.poll(timeout_ms=100) for each in consumers]
        return [record.value for records in found for some in records.values() for record in some]

    one, other = consumer(), consumer()

    def have_shared() -> bool:
        """Whether each has some partitions, and everything was read and committed."""
        poll(one, other)
        if not (one.assignment() and other.assignment()):
            return False
        try:
            one.commit()
            other.commit()
        except kafka.errors.KafkaError:  # a rebalance has begun
            return False
        return sum(one.committed(partition) or 0 for partition in one.assignment() | other.assignment()) == count

    while not have_shared():
        late(deadline, f"{one.assignment()}, {other.assignment()}")
    assert not one.assignment() & other.assignment()
    whole = one.assignment() | other.assignment()
    other.close()
    while one.assignment() != whole:
        late(deadline, f"{one.assignment()} of {whole}")
        poll(one)
    offsets = {partition: one.committed(partition) for partition in whole}
    assert sum(offsets.values()) == count, offsets
    one.close()
    last = consumer()
    while last.assignment() != whole:
        late(deadline, f"{last.assignment()} of {whole}")
        assert poll(last) == []
    assert {partition: last.position(partition) for partition in whole} == offsets
    last.close()


async def with_aiokafka(bootstrap: str, topic: str, count: int) -> None:
    async def consumer() -> Any:
        made = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id="aiokafka", **SETTINGS)
        await made.start()
        return made

    async def poll(*consumers: Any) -> list[bytes]:
        found = [await each.getmany(timeout_ms=100) for each in consumers]
        return [record.value for records in found for some in records.values() for record in some]

    async with asyncio.timeout(LIMIT_S):
        one, other = await asyncio.gather(consumer(), consumer())

        async def have_shared() -> bool:
            await poll(one, other)
            if not (one.assignment() and other.assignment()):
                return False
            try:
                await one.commit()
                await other.commit()
            except aiokafka.errors.KafkaError:  # a rebalance has begun
                return False
            whole = one.assignment() | other.assignment()
            return sum([await one.committed(partition) or 0 for partition in whole]) == count

        while not await have_shared():
            pass
        assert not one.assignment() & other.assignment()
        whole = one.assignment() | other.assignment()
        await other.stop()
        while one.assignment() != whole:
            await poll(one)
        offsets = {partition: await one.committed(partition) for partition in whole}
        assert sum(offsets.values()) == count, offsets
        await one.stop()
        last = await consumer()
        while last.assignment() != whole:
            assert await poll(last) == []
        assert {partition: await last.position(partition) for partition in whole} == offsets
        await last.stop()


def main(client: str, bootstrap: str, topic: str, count: str) -> None:
    if client == "kafka-python":
        with_kafka_python(bootstrap, topic, int(count))
    else:
        asyncio.run(with_aiokafka(bootstrap, topic, int(count)))


if __name__ == "__main__":
    main(*sys.argv[1:])
