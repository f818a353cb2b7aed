"""Kafka Streams and Kafka Connect, each in a process of its own, and what they are fed and make of it."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Self

from confluent_kafka import Consumer, Producer, TopicPartition

from kce.java import find_java
from tests.interop.kafka_jars import streams_jars
from tests.interop.kafka_java import SHORT_LIVED

INPUT, OUTPUT, APPLICATION = "lines", "counts", "word-count"
PARTITIONS = 2
OFFSETS_PARTITIONS = 3
STATE_PARTITIONS = 4
LIMIT_S = 90
PROPERTIES = {
    "group.initial.rebalance.delay.ms": "200",
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "zookeeper.session.timeout.ms": "4000",
}
_WORDS = ("leader", "follower", "epoch", "offset", "fence", "isr", "log")
_LOG4J = """log4j.rootLogger=WARN, err
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.Target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
log4j.appender.err.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


class Program:
    """A ``with`` block that owns a Java process; the lines it prints are heard, its errors are in ``log``."""

    def __init__(self, folder: Path, name: str, arguments: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{name}.log"
        log4j = folder / "log4j.properties"
        log4j.write_text(_LOG4J)
        self._command = [
            find_java(), *SHORT_LIVED, f"-Dlog4j.configuration=file:{log4j}", "-cp", f"{streams_jars()}/*", *arguments,
        ]  # fmt: skip
        self._heard = threading.Condition()
        self._lines: list[str] = []
        self._has_ended = False

    def __enter__(self) -> Self:
        with self.log.open("wb") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, process_group=0
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._heard:
                self._lines.append(line.decode().strip())
                self._heard.notify_all()
        with self._heard:
            self._has_ended = True
            self._heard.notify_all()

    def wait_for(self, line: str) -> None:
        """Until it has printed this. Raises AssertionError."""
        with self._heard:
            self._heard.wait_for(lambda: line in self._lines or self._has_ended, LIMIT_S)
            assert line in self._lines, f"{line} was not printed, but {self._lines}:\n{self.errors()}"

    @property
    def lines(self) -> list[str]:
        with self._heard:
            return list(self._lines)

    def errors(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    def close(self) -> int:
        """End its input, and wait for its orderly end; its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(LIMIT_S)

    def terminate(self) -> None:
        """Ask it to end in its own orderly way, and wait for that."""
        self._process.terminate()
        self._process.wait(LIMIT_S)

    def kill(self) -> None:
        self._process.kill()
        self._reader.join()  # before its pipe is closed: a reader of a closed one raises
        with self._process:
            pass


def word_count(bootstrap: str, folder: Path, name: str) -> Program:
    """Keeps its state in a folder of its own: what another has counted it knows from the changelog topic."""
    program = str(Path(__file__).parent / "java" / "WordCount.java")
    return Program(folder, name, [program, bootstrap, INPUT, OUTPUT, APPLICATION, str(folder / name)])


class Lines:
    """Lines of words, sent each once in a background thread from ``with`` to its end, though leaders die."""

    def __init__(self, bootstrap: str, seed: int, pause_s: float = 0.02) -> None:
        # with several requests in flight librdkafka may take a new epoch when the leader dies, and send what is there
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0,
                "max.in.flight.requests.per.connection": 1,
            }
        )  # fmt: skip
        self._random = Random(seed)
        self._pause_s = pause_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send)
        #: word -> how often it was sent
        self.counts: dict[str, int] = defaultdict(int)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        assert self._producer.flush(LIMIT_S) == 0

    def _send(self) -> None:
        number = 0
        while not self._ended.wait(self._pause_s):
            words = self._random.choices(_WORDS, k=5)
            for word in words:
                self.counts[word] += 1
            self._producer.produce(INPUT, " ".join(words), partition=number % PARTITIONS)
            self._producer.poll(0)
            number += 1


class Counts:
    """What a reader sees of the word count: each word's counts in order."""

    def __init__(self, bootstrap: str, isolation: str = "read_committed") -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": isolation,
                "enable.auto.commit": False, "log_level": 0, "topic.metadata.refresh.interval.ms": 1000,
            }
        )  # fmt: skip
        self._consumer.assign([TopicPartition(OUTPUT, number, 0) for number in range(PARTITIONS)])
        self.seen: dict[str, list[int]] = defaultdict(list)

    def total(self) -> int:
        return sum(map(len, self.seen.values()))

    def read(self, count: int, errors: Program) -> None:
        """Until at least so many are seen."""
        deadline = time.monotonic() + LIMIT_S
        while self.total() < count:
            assert time.monotonic() < deadline, f"{self.total()} of {count} counts are seen:\n{errors.errors()}"
            self._take(0.5)

    def read_more(self, seconds: float) -> None:
        """What nobody should have written."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._take(left)

    def _take(self, timeout_s: float) -> None:
        for message in self._consumer.consume(500, timeout_s):
            if message.error() is None:
                self.seen[(message.key() or b"").decode()].append(int(message.value() or b""))

    def close(self) -> None:
        self._consumer.close()
