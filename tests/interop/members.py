"""Groups whose members are clients in processes of their own: what each owns, and has read and committed."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import Producer

from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC, partition_for
from kce.harness.sync_cluster import SyncCluster
from tests.interop.clients.programs import franz_go, java, kafkajs, python

PARTITIONS = 6
OFFSETS_PARTITIONS = 4
LIMIT_S = 90
EACH = 60
SESSION_S = 6
PROPERTIES = {
    "auto.leader.rebalance.enable": "false",
    "group.initial.rebalance.delay.ms": "500",
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "zookeeper.session.timeout.ms": "4000",
}
COMMANDS: dict[str, Callable[[], list[str]]] = {
    "librdkafka": lambda: [*python("member.py")(), "confluent"],
    "kafka-python": lambda: [*python("member.py")(), "kafka-python"],
    "aiokafka": lambda: [*python("member.py")(), "aiokafka"],
    "kafkajs": lambda: kafkajs("member.js"),
    "franz-go": lambda: [*franz_go(), "member"],
    "java": lambda: java("JavaMember.java"),
}


class Member:
    """A ``with`` block that owns the process of a member, and knows what that has printed."""

    def __init__(self, command: list[str], errors: Path, heard: threading.Condition, session_s: int) -> None:
        self._command = command
        self._session_s = session_s
        self._errors = errors
        self._heard = heard
        self.owned: list[int] = []
        #: how often that has changed
        self.changes = 0
        self.values: list[int] = []

    def __enter__(self) -> Self:
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, process_group=0,
                env={**os.environ, "KAFKAJS_NO_PARTITIONER_WARNING": "1", "SESSION_MS": str(1000 * self._session_s)},
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            with self._heard:
                if "owned" in said:
                    self.owned = said["owned"]
                    self.changes += 1
                self.values += said.get("read", ())
                self._heard.notify_all()

    def leave(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_S)
        self._reader.join()
        self.owned = []

    def kill(self) -> None:
        self._process.kill()
        self._reader.join()  # before its pipe is closed: a reader of a closed one raises
        with self._process:
            self.owned = []

    def said(self) -> str:
        return self._errors.read_text(errors="replace")[-2000:]


class Group:
    """A ``with`` block of members of one group, which share the partitions of one topic."""

    def __init__(self, name: str, cluster: SyncCluster, folder: Path, topic: str | None = None) -> None:
        """``topic``: one that exists; otherwise one with the group's name is made."""
        self.name = name
        self.topic = topic or name
        self.cluster = cluster
        self._folder = folder
        self._heard = threading.Condition()
        self._stack = ExitStack()
        self.members: list[Member] = []
        self.sent = 0
        if topic is None:
            cluster.create_topic(name, partitions=PARTITIONS, replication_factor=3)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def start(self, client: str, strategy: str = "range", instance: str = "-", session_s: int = SESSION_S) -> Member:
        command = [
            *COMMANDS[client](), self.cluster.bootstrap_servers(), self.name, self.topic, strategy, instance,
        ]  # fmt: skip
        member = Member(command, self._folder / f"{client}-{len(self.members)}.log", self._heard, session_s)
        self.members.append(self._stack.enter_context(member))
        return member

    def produce(self) -> range:
        """As many as always; their values."""
        values = range(self.sent, self.sent + EACH)
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap_servers(), "log_level": 0})
        for value in values:
            producer.produce(self.topic, str(value), partition=value % PARTITIONS)
        assert producer.flush(LIMIT_S) == 0
        self.sent = values.stop
        return values

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        with self._heard:
            reached = self._heard.wait_for(condition, deadline - time.monotonic())
        said = "\n".join(member.said() for member in self.members)
        assert reached, f"{what}: owned are {[m.owned for m in self.members]}\n{said}"

    def wait_to_share(self, *members: Member) -> None:
        """Until these own the same number of partitions, and together all."""
        each = PARTITIONS // len(members)

        def is_shared() -> bool:
            together = [number for member in members for number in member.owned]
            return sorted(together) == list(range(PARTITIONS)) and all(len(m.owned) == each for m in members)

        self.wait_until(is_shared, f"to own {each} each")

    def wait_to_read(self, values: range) -> None:
        self.wait_until(lambda: {v for m in self.members for v in m.values} >= set(values), f"to read {values}")

    @contextmanager
    def dead_coordinator(self) -> Iterator[None]:
        """The broker starts again at the end."""
        (topic,) = self.cluster.describe_topics([GROUP_METADATA_TOPIC])
        leadership = topic.partitions[partition_for(self.name, OFFSETS_PARTITIONS)].leadership
        assert leadership is not None
        broker_id = leadership.leader_and_isr.leader
        self.cluster.kill(broker_id)
        try:
            yield
        finally:
            self.cluster.start(broker_id)
