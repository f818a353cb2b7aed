"""Kafka Connect: a standalone worker, or a distributed one with an exactly-once source, between two files."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from tests.interop.streaming import LIMIT_S, Program

TOPIC, GROUP = "copied-lines", "connect-cluster"
#: Connect names it so
SINK_GROUP = "connect-sink"
_REQUEST_TIMEOUT_S = 10
_POLL_S = 0.1


class Files:
    """What Connect reads, and what it writes."""

    def __init__(self, folder: Path) -> None:
        self.source, self.sink = folder / "source.txt", folder / "sink.txt"
        self.source.touch()
        self.lines: list[str] = []

    def write(self, count: int) -> None:
        """So many more lines."""
        more = [f"line {len(self.lines) + number}" for number in range(count)]
        with self.source.open("a") as file:
            file.writelines(f"{line}\n" for line in more)
        self.lines += more

    def copied(self) -> list[str]:
        return self.sink.read_text().splitlines() if self.sink.exists() else []

    def wait_until_copied(self, worker: Program) -> None:
        """Until the last line is there. Raises AssertionError."""
        deadline = time.monotonic() + LIMIT_S
        while not (copied := self.copied()) or copied[-1] != self.lines[-1]:
            assert time.monotonic() < deadline, f"{copied[-1:]} is copied of {self.lines[-1]}:\n{worker.errors()}"
            time.sleep(_POLL_S)  # a file has no events

    def connectors(self) -> dict[str, dict[str, str]]:
        """Settings by name."""
        return {
            "source": {
                "connector.class": "FileStreamSource", "file": str(self.source), "topic": TOPIC,
                # transactions last as long as offset.flush.interval.ms
                "transaction.boundary": "interval",
            },
            "sink": {"connector.class": "FileStreamSink", "file": str(self.sink), "topics": TOPIC},
        }  # fmt: skip


def _worker(bootstrap: str, port: int) -> dict[str, object]:
    converter = "org.apache.kafka.connect.storage.StringConverter"
    return {
        "bootstrap.servers": bootstrap,
        "key.converter": converter,
        "value.converter": converter,
        "listeners": f"http://127.0.0.1:{port}",
        "plugin.discovery": "service_load",
        "offset.flush.interval.ms": 2000,
        "reconnect.backoff.max.ms": 500,
        "producer.reconnect.backoff.max.ms": 500,
        "producer.enable.idempotence": "true",
        "consumer.reconnect.backoff.max.ms": 500,
        "consumer.isolation.level": "read_committed",
    }


def _file(path: Path, properties: Mapping[str, object]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return str(path)


def standalone(bootstrap: str, folder: Path, name: str, files: Files) -> Program:
    """Keeps the offsets of its source in a file, which the next one finds."""
    worker = {**_worker(bootstrap, 0), "offset.storage.file.filename": folder / "offsets"}
    paths = [_file(folder / f"{name}.properties", worker)]
    for connector, settings in files.connectors().items():
        paths.append(_file(folder / f"{connector}.properties", {"name": connector, **settings}))
    return Program(folder, name, ["org.apache.kafka.connect.cli.ConnectStandalone", *paths])


def distributed(bootstrap: str, folder: Path, name: str, port: int) -> Program:
    """Keeps everything in topics; what its source sends and the offsets of that are one transaction."""
    worker = {
        **_worker(bootstrap, port),
        "group.id": GROUP,
        "exactly.once.source.support": "enabled",
        "config.storage.topic": "connect-configs",
        "config.storage.replication.factor": 3,
        "offset.storage.topic": "connect-offsets",
        "offset.storage.replication.factor": 3,
        "offset.storage.partitions": 2,
        "status.storage.topic": "connect-status",
        "status.storage.replication.factor": 3,
        "status.storage.partitions": 2,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 1000,
        "scheduled.rebalance.max.delay.ms": 0,
    }
    path = _file(folder / f"{name}.properties", worker)
    return Program(folder, name, ["org.apache.kafka.connect.cli.ConnectDistributed", path])


def configure(port: int, files: Files, worker: Program) -> None:
    """Give a distributed worker its connectors, as soon as it listens. Raises AssertionError."""
    deadline = time.monotonic() + LIMIT_S
    for name, settings in files.connectors().items():
        while not _is_accepted(f"http://127.0.0.1:{port}/connectors/{name}/config", settings):
            assert time.monotonic() < deadline, f"{name} is not accepted:\n{worker.errors()}"
            time.sleep(_POLL_S)


def _is_accepted(url: str, settings: Mapping[str, str]) -> bool:
    body = json.dumps(settings).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="PUT")
    try:
        urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S).close()
    except (OSError, HTTPException):
        return False
    return True


class Topic:
    """A reader of the topic; to be closed."""

    def __init__(self, bootstrap: str, isolation: str = "read_committed") -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": isolation, "log_level": 0}
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])
        self.lines: list[str] = []

    def read(self, last: str) -> None:
        """Until this line is seen. Raises AssertionError."""
        deadline = time.monotonic() + LIMIT_S
        while last not in self.lines:
            assert time.monotonic() < deadline, f"{last} is not seen, but {len(self.lines)} lines"
            self._take(_POLL_S)

    def read_more(self, seconds: float) -> None:
        """What nobody should have sent."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._take(left)

    def _take(self, timeout_s: float) -> None:
        messages = self._consumer.consume(500, timeout_s)
        self.lines += [(m.value() or b"").decode() for m in messages if m.error() is None]

    def close(self) -> None:
        self._consumer.close()
