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
from kce.harness.invariants import Invariants, Violation, crash
from kce.harness.recordings import Recordings
from kce.harness.simulated_clients import SimulatedClients
from kce.harness.simulated_operations import NODES, Player, Step, draw
from kce.harness.world import memory

STEPS: Final = 12
#: shorter than the pauses between steps, so that sessions expire within a schedule; fetches wait as long as they can
#: without leaving the ISR, because they are most of the traffic
_PROPERTIES: Final = {
    "zookeeper.session.timeout.ms": "2000", "request.timeout.ms": "3000", "replica.lag.time.max.ms": "3000",
    "replica.fetch.wait.max.ms": "1000",
    "offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000", "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}  # fmt: skip
_SETTLE_TIMEOUT_S: Final = 100.0
MAX_SHRINKING_RUNS: Final = 100


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run; ``frames`` counts the frames that passed, ``records`` those that were acknowledged,
    ``consumed`` those that were read, ``commits`` those that a group's coordinator acknowledged, ``transactions``
    those that have ended."""

    seed: int
    steps: tuple[Step, ...]
    violations: tuple[Violation, ...]
    frames: int
    records: int = 0
    consumed: int = 0
    commits: int = 0
    transactions: int = 0


def schedule(seed: int, steps: int = STEPS) -> tuple[Step, ...]:
    """The operations of a seed."""
    random = Random(f"schedule/{seed}")
    return tuple(draw(random) for _ in range(steps))


def simulate(
    seed: int, steps: Sequence[Step] | None = None, *, trace: Path | None = None, record: Path | None = None
) -> Result:
    """Run a schedule, that of the seed if none is given; ``trace`` and ``record`` are files to write.

    Raises HarnessError, OSError where they cannot be written.
    """
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
    Recordings(record).check()  # a file that cannot be written is no violation
    cluster = Cluster(NODES, world=memory(seed), properties=_PROPERTIES, record=record, history=trace is not None)
    found: list[Violation] = []
    frames = records = consumed = commits = transactions = 0
    try:
        async with cluster:
            invariants = Invariants(cluster, found)
            player = Player(cluster, Random(f"play/{seed}"))
            clients = SimulatedClients(cluster, Random(f"clients/{seed}"), invariants.violated)
            with cluster.links.listen(invariants.observe), cluster.links.listen(player.count):
                try:
                    await _play(steps, cluster, invariants, player, clients)
                finally:
                    frames, records, consumed = player.frames, clients.acknowledged, clients.consumed
                    commits, transactions = clients.commits.acknowledged, clients.copies.transactions
    except HarnessError as e:
        found.append(Violation("converged", str(e)))
    except BaseExceptionGroup as e:
        first: BaseException = e
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if not isinstance(first, Exception):
            raise
        found.append(crash(first))
    if trace is not None:
        cluster.history.write(trace)
    return Result(seed, steps, tuple(found), frames, records, consumed, commits, transactions)


async def _play(
    steps: Sequence[Step], cluster: Cluster, invariants: Invariants, player: Player, clients: SimulatedClients
) -> None:
    """Its nursery holds the clients."""
    await clients.create_topics()
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
