"""Scripts of operations for the trace diff: what happens to a cluster of nine recording brokers, step by step. Pure.

A script is made before it runs, so both controllers get the same one. Names and assignments are chosen by a model of
the cluster; what depends on its state, such as who leads, is looked up when the step runs. No request names several
topics to delete: their markers are written one after the other, and it depends on the timing how many of them a
controller finds when it looks first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

BROKERS = range(1, 10)
#: brokers that are always left alive
FEWEST_ALIVE = 3
MOST_PARTITIONS = 7
#: of requests that time out where a partition has no leader; long enough for one that has
TIMEOUT_MS = 5000

Assignment = dict[int, tuple[int, ...]]
Partitions = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Step:
    """``operation`` names a method of `traces.Driver`, ``arguments`` are its."""

    operation: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.operation}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


def step(operation: str, **arguments: Any) -> Step:
    return Step(operation, arguments)


#: a short run, for the suite
SHORT: tuple[Step, ...] = (
    step("create", topic="orders", assignment={0: (1, 2, 3), 1: (2, 3, 1), 2: (9, 8, 1), 3: (5, 1, 9)}),
    step("create_in_zookeeper", topic="clicks", assignment={0: (4, 5, 6), 1: (6, 5, 4)}),
    step("kill", brokers=(1, 5, 9)),
    step("failover"),
    step("start", brokers=(9, 1, 5)),
    step("join_isr", partitions=(("orders", 0), ("orders", 1), ("orders", 2), ("orders", 3))),
    step("elect", partitions=(("orders", 0), ("orders", 3), ("clicks", 0)), preferred=True),
    step("reassign", targets={("orders", 0): (7, 2), ("clicks", 1): (4, 5)}),
    step("join_isr", partitions=(("orders", 0), ("clicks", 1))),
    step("delete", topics=("clicks", "unknown")),
    step("delete_in_zookeeper", topics=("orders", "unknown")),
)  # fmt: skip


def _many(topics: int, partitions: int) -> list[Step]:
    """Topics whose partitions fill hash tables beyond their first sizes."""
    return [
        step(
            "create",
            topic=f"many-{n}",
            assignment={p: tuple((n + p + i) % 9 + 1 for i in range(3)) for p in range(partitions)},
        )
        for n in range(topics)
    ]


#: every operation at least once, with the failures and refusals that the random scripts leave out
SCRIPTED: tuple[Step, ...] = (
    *SHORT,
    step("create", topic="orders", assignment={0: (1, 2), 1: (2, 1)}, configs={"max.message.bytes": "2000"}),
    step("create", topic="orders", assignment={0: (1,)}),
    step("create", topic="late", assignment={0: (1, 2)}, timeout_ms=0),
    step("create", topic="bad name", assignment={0: (1,)}),
    step("create_twice", topic="twice", assignment={0: (1,)}),
    step("add_partitions", topic="orders", assignment={2: (3, 4), 3: (4, 5)}),
    step("add_partitions", topic="unknown", assignment={1: (3, 4)}),
    step("configure", topic="orders", name="unclean.leader.election.enable", value="true"),
    step("configure", topic="orders", name="unclean.leader.election.enable", value=None),
    step("configure", topic="orders", name="retention.ms", value="1000"),
    step("configure", topic="unknown", name="retention.ms", value="1000"),
    step("shrink_isr", partitions=(("orders", 0), ("orders", 2))),
    step("shrink_isr", partitions=(("orders", 1),), stale=True),
    step("join_isr", partitions=(("orders", 0), ("orders", 2))),
    step("notify_isr_change", partition=("orders", 3)),
    step("log_dir_failure", broker=4, partitions=(("orders", 2),)),
    step("bounce", brokers=(4,)),
    step("join_isr", partitions=(("orders", 2),)),
    step("shut_down", broker=2),
    step("shut_down", broker=2, stale=True),
    step("kill", brokers=(2,)),
    step("elect", partitions=(("orders", 0), ("orders", 9), ("unknown", 0)), preferred=True),
    step("start", brokers=(2,)),
    step("elect_in_zookeeper", partitions=(("orders", 0), ("orders", 1))),
    step("move_endpoint", broker=3),
    step("allocate_producer_ids", broker=3),
    step("allocate_producer_ids", broker=4),
    step("reassign", targets={("orders", 0): (6, 7), ("orders", 1): (8, 9), ("unknown", 0): (1,), ("orders", 2): ()}),
    step("reassign", targets={("orders", 0): None, ("orders", 3): None}),
    step("failover"),
    step("reassign_in_zookeeper", targets={("orders", 1): (1, 9), ("orders", 3): (7, 5), ("unknown", 1): (1,)}),
    step("join_isr", partitions=(("orders", 1), ("orders", 3))),
    step("refuse_deletion", broker=1),
    step("create", topic="kept", assignment={0: (1, 3), 1: (3, 4)}),
    step("delete", topics=("kept",)),
    step("accept_deletion", broker=1),
    step("bounce", brokers=(1, 3)),
    step("kill", brokers=(4, 6)),
    step("delete_in_zookeeper", topics=("orders", "unknown")),
    step("start", brokers=(6, 4)),
    step("delete", topics=("late", "twice"), timeout_ms=60_000),
    *_many(5, 7),
    step("failover"),
    step("kill", brokers=(1, 2, 4)),
    step("start", brokers=(4, 1, 2)),
    step("shut_down", broker=7),
    step("failover"),
    step("delete_in_zookeeper", topics=("many-0", "many-1", "many-2", "many-3")),
    step("bounce", brokers=(7, 8)),
    step("elect", partitions=None, preferred=True),
    step("elect", partitions=None, preferred=False),
)  # fmt: skip


class _Model:
    """What the choices of a random script depend on."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.alive = set(BROKERS)
        self.topics: dict[str, Assignment] = {}
        self.named = 0

    def brokers(self, most: int, fewest: int = 1) -> tuple[int, ...]:
        """Some of those alive, in any order."""
        return tuple(self.random.sample(sorted(self.alive), self.random.randint(fewest, most)))

    def partitions(self, most: int) -> Partitions:
        known = [(topic, p) for topic, assignment in self.topics.items() for p in assignment]
        return tuple(self.random.sample(known, min(len(known), self.random.randint(1, most))))

    def assignment(self, first: int, count: int, replicas: int) -> Assignment:
        return {p: self.brokers(replicas, replicas) for p in range(first, first + count)}

    # each makes one step, or None if there is nothing to do it to

    def create(self) -> Step:
        self.named += 1
        topic = f"{self.random.choice(('orders', 'a.b', 'T', 'clicks_', 'log-'))}{self.named}"
        self.topics[topic] = self.assignment(0, self.random.randint(1, MOST_PARTITIONS), self.random.randint(1, 3))
        if self.random.random() < 0.3:
            return step("create_in_zookeeper", topic=topic, assignment=dict(self.topics[topic]))
        return step("create", topic=topic, assignment=dict(self.topics[topic]), timeout_ms=TIMEOUT_MS)

    def delete(self) -> Step | None:
        if len(self.topics) < 3:
            return None
        topics = tuple(self.random.sample(sorted(self.topics), self.random.randint(1, 2)))
        for topic in topics:
            del self.topics[topic]
        return step("delete_in_zookeeper" if len(topics) > 1 else "delete", topics=topics)

    def add_partitions(self) -> Step | None:
        if not self.topics:
            return None
        topic = self.random.choice(sorted(self.topics))
        known = self.topics[topic]
        added = self.assignment(len(known), self.random.randint(1, 2), len(known[0]))
        known |= added
        return step("add_partitions", topic=topic, assignment=added, timeout_ms=TIMEOUT_MS)

    def reassign(self) -> Step | None:
        targets = {partition: self.brokers(3) for partition in self.partitions(4)}
        if not targets:
            return None
        return step(self.random.choice(("reassign", "reassign", "reassign_in_zookeeper")), targets=targets)

    def cancel(self) -> Step | None:
        targets = dict.fromkeys(self.partitions(4))
        return step("reassign", targets=targets) if targets else None

    def kill(self) -> Step | None:
        most = min(4, len(self.alive) - FEWEST_ALIVE)
        if most < 1:
            return None
        brokers = tuple(self.random.sample(sorted(self.alive), self.random.randint(1, most)))
        self.alive -= set(brokers)
        return step("kill", brokers=brokers)

    def start(self) -> Step | None:
        dead = sorted(set(BROKERS) - self.alive)
        if not dead:
            return None
        brokers = tuple(self.random.sample(dead, self.random.randint(1, len(dead))))
        self.alive |= set(brokers)
        return step("start", brokers=brokers)

    def bounce(self) -> Step:
        return step("bounce", brokers=self.brokers(3))

    def elect(self) -> Step | None:
        partitions = self.partitions(5)
        if not partitions:
            return None
        if self.random.random() < 0.3:
            return step("elect_in_zookeeper", partitions=partitions)
        return step("elect", partitions=partitions, preferred=self.random.random() < 0.7)

    def change_isr(self) -> Step | None:
        partitions = self.partitions(6)
        operation = self.random.choice(("join_isr", "join_isr", "shrink_isr"))
        return step(operation, partitions=partitions) if partitions else None

    def join_all(self) -> Step | None:
        known = tuple((topic, p) for topic, assignment in self.topics.items() for p in assignment)
        return step("join_isr", partitions=known) if known else None

    def shut_down(self) -> Step:
        return step("shut_down", broker=self.brokers(1)[0])

    def configure(self) -> Step | None:
        if not self.topics:
            return None
        value = self.random.choice(("true", "false", None))
        return step(
            "configure",
            topic=self.random.choice(sorted(self.topics)),
            name="unclean.leader.election.enable",
            value=value,
        )

    def failover(self) -> Step:
        return step("failover")

    def move_endpoint(self) -> Step:
        return step("move_endpoint", broker=self.brokers(1)[0])


#: how often each is chosen, in relation to the others
_WEIGHTS = {
    _Model.create: 10,
    _Model.delete: 5,
    _Model.add_partitions: 4,
    _Model.reassign: 9,
    _Model.cancel: 3,
    _Model.kill: 8,
    _Model.start: 8,
    _Model.bounce: 4,
    _Model.elect: 5,
    _Model.change_isr: 7,
    _Model.join_all: 4,
    _Model.shut_down: 4,
    _Model.configure: 3,
    _Model.failover: 5,
    _Model.move_endpoint: 1,
}


def random_script(seed: int, steps: int) -> Sequence[Step]:
    """The same for the same seed."""
    model = _Model(Random(seed))
    script = [model.create()]
    while len(script) < steps:
        (make,) = model.random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        made = make(model)
        if made is not None:
            script.append(made)
    return script
