"""Deterministic simulation: a cluster and clients in memory, random operations and faults from one seed, invariants.

The same seed gives the same run on every machine. A violation is reported with its seed; `shrunk` finds a shorter
schedule with the same violation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import trio

from kce.harness.cluster import Cluster
from kce.harness.errors import HarnessError
from kce.harness.faults import Rule
from kce.harness.invariants import Invariants, Violation, crash
from kce.harness.node import Lag
from kce.harness.simulated_clients import ASSIGNMENT, TOPIC, SimulatedClients
from kce.harness.world import MemoryClusterWorld, memory
from kce.wire.vocabulary import TopicPartition

NODES: Final = 3
STEPS: Final = 12
#: shorter than the pauses between steps, so that sessions expire within a schedule
_PROPERTIES: Final = {
    "zookeeper.session.timeout.ms": "2000", "request.timeout.ms": "3000", "replica.lag.time.max.ms": "3000",
}  # fmt: skip
_SETTLE_TIMEOUT_S: Final = 100.0
_STEP_TIMEOUT_S: Final = 60.0
_TOPICS: Final = ("a", "b", "c")
#: operation -> how often it is chosen
_WEIGHTS: Final = {
    "create": 5, "delete": 2, "kill": 4, "start": 5, "restart": 2, "cut": 3, "heal": 3, "hold": 3, "release": 3,
    "delete controller": 2, "break": 2, "delay": 2, "duplicate": 1, "expire": 2, "lag": 1, "slow": 2,
}  # fmt: skip
MAX_SHRINKING_RUNS: Final = 100


@dataclass(frozen=True, slots=True)
class Step:
    """One operation, on a node or a topic, and the pause after it. Where it makes no sense it does nothing."""

    operation: str
    node: int
    topic: str
    pause_s: float

    def __str__(self) -> str:
        subject = self.topic if self.operation in ("create", "delete") else f"node {self.node}"
        return f"{self.operation} {subject}, then {self.pause_s:.2f} s"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run; ``frames`` counts the frames that passed, ``records`` those that were acknowledged,
    ``consumed`` those that were read."""

    seed: int
    steps: tuple[Step, ...]
    violations: tuple[Violation, ...]
    frames: int
    records: int = 0
    consumed: int = 0


def schedule(seed: int, steps: int = STEPS) -> tuple[Step, ...]:
    """The operations of a seed."""
    random = Random(f"schedule/{seed}")
    kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    return tuple(
        Step(
            random.choices(kinds, weights)[0],
            random.randint(1, NODES),
            random.choice(_TOPICS),
            random.choice((0.0, 0.001, 0.01, 0.1, 1.0, 3.0)) * random.random(),
        )
        for _ in range(steps)
    )


def simulate(
    seed: int, steps: Sequence[Step] | None = None, *, trace: Path | None = None, record: Path | None = None
) -> Result:
    """Run a schedule, that of the seed if none is given; ``trace`` and ``record`` are files to write."""
    return trio.run(_run, seed, tuple(schedule(seed) if steps is None else steps), trace, record)


def shrunk(result: Result) -> Result:
    """A run with fewer steps and a violation of the same invariant."""
    wanted = result.violations[0].invariant
    runs = 0
    best = result
    position = 0
    while position < len(best.steps) and runs < MAX_SHRINKING_RUNS:
        runs += 1
        tried = simulate(result.seed, best.steps[:position] + best.steps[position + 1 :])
        if any(violation.invariant == wanted for violation in tried.violations):
            best = tried
        else:
            position += 1
    return best


async def _run(seed: int, steps: tuple[Step, ...], trace: Path | None, record: Path | None) -> Result:
    cluster = Cluster(NODES, world=memory(seed), properties=_PROPERTIES, record=record, history=trace is not None)
    found: list[Violation] = []
    frames = records = consumed = 0
    try:
        async with cluster:
            invariants = Invariants(cluster, found)
            player = _Player(cluster, Random(f"play/{seed}"))
            clients = SimulatedClients(cluster, Random(f"clients/{seed}"), invariants.violated)
            with cluster.links.listen(invariants.observe), cluster.links.listen(player.count):
                try:
                    await _play(steps, cluster, invariants, player, clients)
                finally:
                    frames, records, consumed = player.frames, clients.acknowledged, clients.consumed
            if trace is not None:
                cluster.history.write(trace)
    except HarnessError as e:
        found.append(Violation("converged", str(e)))
    except BaseExceptionGroup as e:
        first: BaseException = e
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if not isinstance(first, Exception):
            raise
        found.append(crash(first))
    return Result(seed, steps, tuple(found), frames, records, consumed)


async def _play(
    steps: Sequence[Step], cluster: Cluster, invariants: Invariants, player: _Player, clients: SimulatedClients
) -> None:
    """Its nursery holds the clients."""
    await clients.create_topic()
    async with trio.open_nursery() as nursery:
        clients.start(nursery)
        for step in steps:
            await player.play(step)
        await cluster.repair()
        await clients.finish()
        await _settle(cluster, invariants)
        invariants.check_answered()
        nursery.cancel_scope.cancel()
    await clients.check()


async def _settle(cluster: Cluster, invariants: Invariants) -> None:
    """Wait until every broker knows what ZooKeeper has."""
    reason: str | None = None
    with trio.move_on_after(_SETTLE_TIMEOUT_S):
        while (reason := await invariants.unsettled()) is not None:
            if invariants.overtaken:
                invariants.overtaken = False
                await cluster.delete_controller()
            await trio.sleep(0.5)
    if reason is not None:
        invariants.not_converged(reason)


class _Player:
    def __init__(self, cluster: Cluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self.frames = 0

    def count(self, _: object) -> None:
        self.frames += 1

    async def play(self, step: Step) -> None:
        with trio.move_on_after(_STEP_TIMEOUT_S):
            await self._do(step)
        await trio.sleep(step.pause_s)

    async def _do(self, step: Step) -> None:
        cluster, member = self._cluster, self._cluster.member(step.node)
        is_running = member.state == "running"
        topics = {topic.name for topic in await cluster.describe_topics()}
        match step.operation:
            case "create" if step.topic not in topics:
                replicas = self._random.sample(range(1, NODES + 1), self._random.randint(1, NODES))
                await cluster.create_topic(step.topic, assignment={0: replicas, 1: replicas[::-1]}, wait=False)
            case "delete" if step.topic in topics:
                await cluster.delete_topic(step.topic, wait=False)
            case "kill" if is_running:
                await cluster.kill(step.node)
            case "start" if not is_running:
                await cluster.heal(step.node)
                await cluster.start(step.node)
            case "restart" if is_running and not cluster.world.is_cut(step.node):
                await cluster.restart(step.node)
            case "cut":
                await cluster.cut_from_zookeeper(step.node)
            case "heal":
                await cluster.heal(step.node)
            case "hold":
                await cluster.hold_control_requests(step.node)
            case "release":
                await cluster.release_control_requests(step.node)
            case "expire" if step.node in await cluster.registered():
                await cluster.expire_session(step.node)
            case "lag":
                lag = Lag(TopicPartition(TOPIC, self._random.choice(list(ASSIGNMENT))), step.node)
                for each in cluster.members:
                    await each.lag(lag, True)
            case "slow":
                assert isinstance(cluster.world, MemoryClusterWorld)
                cluster.world.delay_zookeeper(step.node, 0.3 * self._random.random())
            case "delete controller" if await cluster.controller() is not None:
                await cluster.delete_controller()
            case "break":
                await cluster.add_rule(Rule(to=step.node, reset=True, every=7, seed=self._random.randrange(1000)))
            case "delay":
                await cluster.add_rule(Rule(to=step.node, jitter=0.5, seed=self._random.randrange(1000)))
            case "duplicate":
                await cluster.add_rule(Rule(to=step.node, api="LeaderAndIsr", duplicate=True, every=3))
