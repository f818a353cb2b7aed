"""Records that must not be lost: who produces them knows which were acknowledged, and asks for all of them again."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

T = TypeVar("T")

_PATIENCE_S = 60.0
_HIGH_WATERMARK_S = 60.0
_PAUSE_S = 0.002
_BATCH, _BATCH_WAIT_S = 2000, 0.2
_REPORT_MS = 200


class Lost(AssertionError):
    """A record that was acknowledged is not there, or one is there twice."""


class Ledger:
    """Records of one topic, numbered; every acknowledgement (acks=all, from an idempotent producer where there is one)
    is kept.

    One request is in flight at a time. Of two, a broker that becomes leader of a new partition between them refuses the
    first and takes the second at any sequence number; librdkafka then believes the first to be in the log, too.

    ``producers``: ids and epochs of the idempotent producer. Where librdkafka takes a new epoch, what it has sent to an
    earlier leader may be in the log twice: ``twice``, of the last `check`.
    """

    def __init__(self, bootstrap: str, topic: str, *, is_idempotent: bool = True) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.failed: list[str] = []
        self.producers: set[tuple[int, int]] = set()
        self.twice: list[int] = []
        self._reports = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": is_idempotent,
                "max.in.flight.requests.per.connection": 1,
                "linger.ms": 1,
                "topic.metadata.refresh.interval.ms": 1000,
                "topic.metadata.propagation.max.ms": 600_000,  # a broker that has just started knows no topics
                "statistics.interval.ms": _REPORT_MS,
                "stats_cb": self._report,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )

    def send(self) -> None:
        number, self.sent = self.sent, self.sent + 1

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.acknowledged.add(number)
            else:
                self.failed.append(f"record {number}: {error.str()}")

        self._producer.produce(self.topic, key=str(number), value=str(number), on_delivery=delivered)
        self._producer.poll(0)

    def _report(self, statistics: str) -> None:
        self._reports += 1
        match json.loads(statistics):
            case {"eos": {"producer_id": int(producer_id), "producer_epoch": int(epoch)}} if producer_id >= 0:
                self.producers.add((producer_id, epoch))

    def _next_reports(self) -> None:
        """Serve reports until there is one of now; the next may have been on its way."""
        awaited = self._reports + 2
        while self._reports < awaited:
            self._producer.poll(_REPORT_MS / 1000)

    def flush(self) -> None:
        """Until everything that was sent is acknowledged. Raises Lost."""
        left = self._producer.flush(_PATIENCE_S)
        if left or self.failed:
            raise Lost(f"{left} records are not acknowledged, these failed: {self.failed[:3]}")

    def check(self) -> int:
        """Read the topic from its beginning to its end: every record acknowledged by now is there, and, as only an
        idempotent producer promises that has kept its epoch, none twice.

        Returns how many were read. Raises Lost.
        """
        acknowledged = set(self.acknowledged)
        deadline = time.monotonic() + _HIGH_WATERMARK_S
        while True:  # the high watermark of a new leader may be behind for a moment
            found = Counter(read_all(self.bootstrap, self.topic))
            lacking = sorted(acknowledged - found.keys())
            if not lacking or time.monotonic() > deadline:
                break
            time.sleep(_BATCH_WAIT_S)
        self._next_reports()
        twice = self.twice = sorted(number for number, times in found.items() if times > 1)
        if lacking or (twice and len(self.producers) == 1):
            raise Lost(f"{len(lacking)} acknowledged records are lost, say {lacking[:5]}; {len(twice)} are there twice")
        return len(found)


class Traffic:
    """A thread that sends records for as long as the ``with`` block lasts."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            self._ledger.send()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


def read_all(bootstrap: str, topic: str) -> list[int]:
    """Every record between the earliest and the latest offset there is now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "read-all",
            "enable.auto.commit": False,
            "isolation.level": "read_uncommitted",
            "log_level": 0,
        }
    )
    try:
        metadata = _patiently(lambda: consumer.list_topics(topic, timeout=_PATIENCE_S))
        ends: dict[int, int] = {}
        for number in metadata.topics[topic].partitions:
            low, high = _patiently(functools.partial(_watermarks, consumer, TopicPartition(topic, number)))
            if high > low:
                ends[number] = high
        consumer.assign([TopicPartition(topic, number, 0) for number in ends])
        return [int(m.value() or b"") for m in _until(consumer, ends)] if ends else []
    finally:
        consumer.close()


def _watermarks(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    low, high = consumer.get_watermark_offsets(partition, timeout=_PATIENCE_S)
    return low, high


def _patiently(ask: Callable[[], T]) -> T:
    """The answer; retry while brokers come and go or a new leader has no high watermark yet (rule B7.15)."""
    give_up = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return ask()
        except KafkaException:
            if time.monotonic() > give_up:
                raise
            time.sleep(_BATCH_WAIT_S)


def _until(consumer: Consumer, ends: dict[int, int]) -> Iterator[Message]:
    """Messages below ``ends``, from which partitions are taken when they are done. Raises Lost when nothing comes."""
    for message in _consumed(consumer):
        number, offset = message.partition(), message.offset()
        assert number is not None
        assert offset is not None
        if offset < ends.get(number, 0):
            yield message
            if offset + 1 == ends[number]:
                del ends[number]
        if not ends:
            return


def _consumed(consumer: Consumer) -> Iterator[Message]:
    """Messages as they come. Raises Lost when none has come for long."""
    last = time.monotonic()
    while time.monotonic() < last + _PATIENCE_S:
        for message in consumer.consume(_BATCH, timeout=_BATCH_WAIT_S):
            if message.error() is None:
                last = time.monotonic()
                yield message
    raise Lost("nothing more can be read, though the end is not reached")


def consume_in_group(bootstrap: str, topic: str, count: int, group: str) -> int:
    """``count`` records as a member of a group, committed; the sum of the offsets that the group has committed then."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe([topic])
        for _ in zip(range(count), _consumed(consumer), strict=False):
            pass
        consumer.commit(asynchronous=False)
        committed = consumer.committed(consumer.assignment(), timeout=_PATIENCE_S)
        return sum(max(p.offset, 0) for p in committed)
    finally:
        consumer.close()
