"""Random faults of coordinators and leaders while groups read and transactions copy; what must hold meanwhile.

- No committed offset goes back.
- After each step, a reader of READ_COMMITTED sees each input once.
- No two members of one generation own a partition.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import trio

from kce import wire
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, partition_for
from kce.harness.cluster import Cluster
from kce.harness.cluster_config import DATA
from kce.harness.sync_cluster import SyncCluster
from tests.clusters import request
from tests.interop.copiers import (
    INPUT,
    OFFSETS_PARTITIONS,
    PARTITIONS,
    PROPERTIES,
    STATE_PARTITIONS,
    JavaCopier,
    fill,
    read,
)
from tests.interop.members import Group

#: new records of a step
EACH: Final = 24
READERS: Final = "readers"
#: transactional id and group -> output
OUTPUTS: Final = {"first-copier": "first-output", "second-copier": "second-output"}
FAULTS: Final = ("kill", "pause", "cut")
WATCH_SECONDS: Final = 0.5
ANSWER_SECONDS: Final = 2


class Step(NamedTuple):
    """``victim``: who leads this partition of this topic."""

    fault: str
    topic: str
    partition: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.fault} the leader of {self.topic}-{self.partition} for {self.seconds:.1f} s"


def schedule(seed: int, steps: int) -> list[Step]:
    random = Random(seed)
    victims = [
        *((TRANSACTION_STATE_TOPIC, partition_for(name, STATE_PARTITIONS)) for name in OUTPUTS),
        *((GROUP_METADATA_TOPIC, partition_for(name, OFFSETS_PARTITIONS)) for name in (READERS, *OUTPUTS)),
        *((topic, 0) for topic in OUTPUTS.values()),
    ]
    return [
        Step(random.choice(FAULTS), *random.choice(victims), round(random.uniform(0.5, 4), 1)) for _ in range(steps)
    ]


def ask(cluster: SyncCluster, message: wire.Message, version: int) -> list[Any]:
    """What those nodes answer that can: librdkafka's admin client may abort the process where a coordinator dies."""

    async def answers(cluster: Cluster) -> list[wire.Message]:
        found = []
        for member in cluster.members:
            with contextlib.suppress(OSError), trio.move_on_after(ANSWER_SECONDS):
                if member.state == "running":
                    found.append(await request(member.addresses[DATA], message, version))
        return found

    return cluster.call(answers)


class GroupWatch:
    """Asks the coordinator for the group again and again, while the ``with`` block runs."""

    def __init__(self, cluster: SyncCluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.answers = 0
        self.violations: list[str] = []

    def __enter__(self) -> GroupWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            for response in ask(self._cluster, wire.DescribeGroupsRequest(groups=(self._group,)), 5):
                (group,) = response.groups
                if group.error_code == wire.ErrorCode.NONE:
                    self._look(group)

    def _look(self, group: wire.DescribeGroupsResponseDescribedGroup) -> None:
        self.answers += 1
        assignments = [wire.decode_assignment(m.member_assignment)[1] for m in group.members if m.member_assignment]
        owned = [(own.topic, number) for a in assignments for own in a.assigned_partitions for number in own.partitions]
        if len(set(owned)) < len(owned):
            self.violations.append(f"{group.group_state}: {sorted(owned)}")


class Commits:
    """The committed offsets of groups, as they were seen last."""

    def __init__(self, cluster: SyncCluster) -> None:
        self._cluster = cluster
        self._seen: dict[tuple[str, int], int] = {}

    def check(self, group: str) -> int:
        """How many records are committed. Raises AssertionError if an offset has gone back."""
        found: dict[int, int] = {}

        def are_found() -> bool:
            found.update(self._stable(group))
            return bool(found)

        self._cluster.wait_until(are_found, f"the offsets of {group}")
        for partition, offset in found.items():
            last = self._seen.get((group, partition), -1)
            assert offset >= last, f"{group} had committed {last} of {INPUT}-{partition}, not {offset}"
            self._seen[group, partition] = offset
        return sum(found.values())

    def _stable(self, group: str) -> dict[int, int]:
        """Of each partition; empty while a transaction is about to commit one."""
        for response in ask(
            self._cluster, wire.OffsetFetchRequest(group_id=group, topics=None, require_stable=True), 7
        ):
            entries = [entry for topic in response.topics for entry in topic.partitions]
            if response.error_code == wire.ErrorCode.NONE and not any(entry.error_code for entry in entries):
                return {entry.partition_index: entry.committed_offset for entry in entries}
        return {}


class Chaos:
    """Copiers and readers on a cluster that suffers."""

    def __init__(self, cluster: SyncCluster, folder: Path, stack: ExitStack) -> None:
        self._cluster = cluster
        self._bootstrap = cluster.bootstrap_servers()
        self._sent = 0
        self._commits = Commits(cluster)
        for topic in (INPUT, *OUTPUTS.values()):
            cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        self._copiers = [
            JavaCopier(self._bootstrap, folder / f"{name}.log", name, output) for name, output in OUTPUTS.items()
        ]
        for copier in self._copiers:
            stack.callback(copier.kill)
        self._readers = stack.enter_context(Group(READERS, cluster, folder, topic=INPUT))
        for _ in range(3):
            self._readers.start("librdkafka")
        self._watch = stack.enter_context(GroupWatch(cluster, READERS))
        cluster.wait_until(lambda: self._topics_are_there(), "the internal topics")

    def _topics_are_there(self) -> bool:
        names = {topic.name for topic in self._cluster.describe_topics()}
        return {TRANSACTION_STATE_TOPIC, GROUP_METADATA_TOPIC} <= names

    def _leader(self, topic: str, partition: int) -> int:
        (found,) = self._cluster.describe_topics([topic])
        leadership = found.partitions[partition].leadership
        assert leadership is not None
        return leadership.leader_and_isr.leader

    @contextmanager
    def _fault(self, step: Step) -> Iterator[int]:
        victim = self._leader(step.topic, step.partition)
        start, end = {
            "kill": (self._cluster.kill, self._cluster.start),
            "pause": (self._cluster.pause, self._cluster.resume),
            "cut": (self._cluster.cut_from_zookeeper, self._cluster.heal),
        }[step.fault]
        start(victim)
        try:
            yield victim
        finally:
            end(victim)

    def do(self, step: Step) -> None:
        """New input, a fault while it is copied and read, and then everything must come to rest."""
        values = range(self._sent, self._sent + EACH)
        fill(self._bootstrap, values)
        self._sent = values.stop
        for copier in self._copiers:
            copier.start(self._sent)
        with self._fault(step):
            time.sleep(step.seconds)
        self._cluster.wait_until_settled()
        for copier in self._copiers:
            copier.wait(self._sent)
        self._readers.wait_to_read(values)
        self._check()

    def _check(self) -> None:
        assert not self._watch.violations, self._watch.violations
        for group in OUTPUTS:
            assert self._commits.check(group) == self._sent
        self._commits.check(READERS)
        for topic in OUTPUTS.values():
            assert read(self._bootstrap, topic) == list(range(self._sent))

    @property
    def answers(self) -> int:
        """How often the group was looked at."""
        return self._watch.answers


def run(folder: Path, *, seed: int, steps: int, tell: Callable[[str], None] = print) -> int:
    """How many records were copied, twice. Raises AssertionError."""
    tell(f"chaos: seed {seed}")
    with SyncCluster(3, properties=PROPERTIES, processes=True) as cluster, ExitStack() as stack:
        cluster.wait_for_controller()
        chaos = Chaos(cluster, folder, stack)
        for step in schedule(seed, steps):
            tell(str(step))
            chaos.do(step)
        assert chaos.answers >= steps
        return steps * EACH
