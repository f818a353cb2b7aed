"""``make interop``: every operation under our controller and under Kafka's; older releases, in both roles.

Then random faults on clusters of our brokers and real ones, which replicate each other's partitions, and on clusters of
ours while groups read and transactions copy. Then the same scripts under both controllers, whose traces are compared.
Prints tables and writes them to docs/interop.md. Fails if an operation fails, a record is lost or copied twice,
replicas differ, a broker rejects what it accepts from a real controller, our controller watches a znode that Kafka's
does not, or the traces differ.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from kce.harness.embedded_zookeeper import embedded_zookeeper
from tests.interop import chaos, mixed, releases, trace_page
from tests.interop.kafka_jars import RELEASES, VERSION, Release
from tests.interop.operations import ALL, NODE, Outcome, peers, run_all
from tests.interop.refusals import EXPECTED, refusals
from tests.interop.trace_diff import Comparison
from tests.interop.trace_scripts import SCRIPTED, random_script
from tests.interop.traces import traces_of_both

#: random steps on clusters of both kinds, and with which releases
MIXED_STEPS, MIXED_RELEASES = 100, (VERSION, "2.8.2")
#: random faults while groups read and transactions copy
CHAOS_STEPS = 25
TRACE_SEEDS, TRACE_STEPS = (1, 2, 3), 60
#: with LeaderAndIsr 0, 1 and 4, UpdateMetadata 3, 4 and 6, StopReplica 0 and 3
TRACE_PROTOCOLS = ("0.11.0", "2.1", "2.6")

_HEAD = f"""# Real Kafka brokers under our controller

Three real Kafka {VERSION} brokers store the data. Node {NODE} is the active controller: first ours, then, for
comparison, a real Kafka {VERSION} broker without data. Clients are Kafka's command-line tools and librdkafka. From
"kill a broker" on, an idempotent producer with acks=all keeps sending. After every operation all acknowledged records
are consumed: none is lost, none is duplicated. `make interop` generates this page.
"""


@dataclass(frozen=True, slots=True)
class Run:
    """Results of one controller's run. ``refused``: rejected requests, counted by log message."""

    outcomes: list[Outcome]
    refused: Counter[str]
    watched: set[str]
    acknowledged: int


@dataclass(frozen=True, slots=True)
class OldRun:
    """Results of an older release: its brokers under our controller, and ours under its controller."""

    release: Release
    under_ours: list[Outcome]
    acknowledged: int
    under_theirs: list[Outcome]


@dataclass(frozen=True, slots=True)
class MixedRun:
    """Results on a cluster of both kinds of brokers."""

    outcomes: list[Outcome]
    records: int


def tell(o: Outcome) -> None:
    print(f"{o.seconds:6.1f} s  {o.operation}: {o.seen}", flush=True)


async def run_old(zookeeper: str, folder: Path, release: Release) -> OldRun:
    folder.mkdir(parents=True)  # noqa: ASYNC240 - as below
    print(f"\nbrokers of {release.version} under our controller\n", flush=True)
    chroot = f"{zookeeper}/{release.version}"
    obeyed, acknowledged = await releases.under_ours(f"{chroot}-ours", folder / "ours", release, tell)
    print(f"\nour brokers under the controller of {release.version}\n", flush=True)
    ran = await releases.under_theirs(f"{chroot}-theirs", folder / "theirs", release, tell)
    return OldRun(release, obeyed, acknowledged, ran)


async def run(zookeeper: str, folder: Path, *, ours: bool) -> Run:
    folder.mkdir()  # noqa: ASYNC240 - nothing else goes on yet
    whose = "ours" if ours else "Kafka's"
    async with peers(f"{zookeeper}/{folder.name}", folder, ours=ours) as p:
        print(f"\nnode {NODE} is {whose}\n", flush=True)
        p.on_outcome = tell
        await run_all(p, ALL)
        watched = {re.sub(r"(?<=/ids/)\d+$", "<id>", path) for path in p.watched}
        acknowledged = p.acknowledged
        logs = [broker.log for broker in p.brokers.values()]
    return Run(p.outcomes, refusals(logs), watched, acknowledged)


def page(ours: Run, kafkas: Run) -> str:
    rows = [
        f"| {mine.operation} | {mine.seen} | {mine.seconds:.1f} | {other.seconds:.1f} |"
        for mine, other in zip(ours.outcomes, kafkas.outcomes, strict=True)
    ]
    refused = [
        f"| `{what}` | {ours.refused[what]} | {kafkas.refused[what]} | {EXPECTED.get(what, '')} |"
        for what in sorted(ours.refused | kafkas.refused)
    ]
    more, fewer = sorted(ours.watched - kafkas.watched), sorted(kafkas.watched - ours.watched)
    return "\n".join(
        [
            _HEAD,
            "| operation | seen under our controller | s | s under Kafka's |",
            "|---|---|---|---|",
            *rows,
            "",
            f"Acknowledged and consumed: {ours.acknowledged:,} records under our controller,"
            f" {kafkas.acknowledged:,} under Kafka's.",
            "Seconds are from one run each, and include the tools, which share a JVM.",
            "",
            "## Rejected requests",
            "",
            "Log messages of brokers that rejected or ignored control requests. A is node 100 as controller, N any"
            " other number.",
            "",
            "| logged | under ours | under Kafka's | why |",
            "|---|---|---|---|",
            *refused,
            "",
            "## Watches",
            "",
            f"With the same topics, our controller watches {len(ours.watched)} znodes, Kafka's {len(kafkas.watched)}"
            " (from `wchc`, which omits watches on children).",
            f"Watched by ours only: {', '.join(f'`{path}`' for path in more) or 'none'}.",
            f"Watched by Kafka's only: {', '.join(f'`{path}`' for path in fewer) or 'none'}.",
            "",
        ]
    )


def old_page(runs: Sequence[OldRun]) -> str:
    def table(first: str, outcomes: Sequence[list[Outcome]]) -> list[str]:
        rows = zip(*outcomes, strict=True)
        return [
            f"| {first} | seen | " + " | ".join(f"s, {run.release.version}" for run in runs) + " |",
            "|---" * (len(runs) + 2) + "|",
            *(
                f"| {row[0].operation} | {row[0].seen} | " + " | ".join(f"{o.seconds:.1f}" for o in row) + " |"
                for row in rows
            ),
        ]

    acknowledged = ", ".join(f"{run.acknowledged:,} of {run.release.version}" for run in runs)
    return "\n".join(
        [
            "## Older releases",
            "",
            "Three brokers of the release under our controller, with its `inter.broker.protocol.version`. The results"
            f" are from {runs[0].release.version}; the other releases behaved the same. Before 0.11 producers are not"
            " idempotent, and records may be duplicated.",
            "",
            *table("under our controller", [run.under_ours for run in runs]),
            "",
            f"Acknowledged and consumed: {acknowledged}.",
            "",
            f"Three of our brokers under a controller of the release, node {releases.CONTROLLER}:",
            "",
            *table("our brokers", [run.under_theirs for run in runs]),
            "",
        ]
    )


def problems(ours: Run, kafkas: Run) -> list[str]:
    found = [
        f"rejected under our controller only: {what}"
        for what in ours.refused
        if what not in kafkas.refused and what not in EXPECTED
    ]
    return found + [f"watched by our controller only: {path}" for path in sorted(ours.watched - kafkas.watched)]


async def run_mixed(zookeeper: str, folder: Path, seed: int) -> dict[str, MixedRun]:
    """By release."""
    folder.mkdir()  # noqa: ASYNC240 - as below
    runs = {}
    for version in MIXED_RELEASES:
        print(f"\nour brokers and brokers of {version} in one cluster: {MIXED_STEPS} steps, seed {seed}\n", flush=True)
        (folder / version).mkdir()
        outcomes, records = await mixed.run(
            f"{zookeeper}/mixed-{version}", folder / version, RELEASES[version], seed=seed, steps=MIXED_STEPS,
            on_outcome=tell,
        )  # fmt: skip
        runs[version] = MixedRun(outcomes, records)
    return runs


def mixed_page(runs: Mapping[str, MixedRun], seed: int) -> str:
    kinds = {version: Counter(map(_kind, run.outcomes)) for version, run in runs.items()}
    rows = [
        f"| {kind} | " + " | ".join(str(counts[kind]) for counts in kinds.values()) + " |"
        for kind in sorted(set().union(*kinds.values()))
    ]
    records = ", ".join(f"{run.records:,} with {version}" for version, run in runs.items())
    return "\n".join(
        [
            "## Our brokers and real ones in one cluster",
            "",
            "Two brokers of ours and two real ones replicate each other's partitions; any may be controller. An"
            f" idempotent producer with acks=all works while {MIXED_STEPS} random steps are made (seed {seed}). After"
            " each, all replicas are in sync. In the end no acknowledged record was lost, none was there twice, and the"
            " logs of all replicas were the same, byte for byte.",
            "",
            "| steps | " + " | ".join(runs) + " |",
            "|---" * (len(runs) + 1) + "|",
            *rows,
            "",
            f"Records acknowledged, and read again: {records}.",
            "",
        ]
    )


def _kind(outcome: Outcome) -> str:
    """The operation, without numbers."""
    return re.sub(r"broker \d+", "broker", re.sub(r" t-\d+ to .*| \(then .*", "", outcome.operation))


def run_chaos(folder: Path, seed: int) -> int:
    """How many records were copied."""
    return chaos.run(folder, seed=seed, steps=CHAOS_STEPS, tell=lambda step: print(step, flush=True))


def chaos_page(copied: int, seed: int) -> str:
    faults = Counter(step.fault for step in chaos.schedule(seed, CHAOS_STEPS))
    return "\n".join(
        [
            "## Groups and transactions under fire",
            "",
            "Three of our brokers; Kafka's own client and librdkafka copy the same input in transactions, of which"
            " every third is aborted, and a group of three reads it. Meanwhile coordinators and leaders fail:"
            f" {', '.join(f'{count} times {fault}' for fault, count in sorted(faults.items()))} (seed {seed}). After"
            f" each step each of {copied:,} inputs was there once for a reader of READ_COMMITTED, no committed offset"
            " had gone back, and no two members of one generation owned a partition.",
            "",
        ]
    )


async def compare_traces(zookeeper: str, folder: Path) -> dict[str, Comparison]:
    """By script."""
    scripts = {"scripted": SCRIPTED} | {f"random, seed {n}": random_script(n, TRACE_STEPS) for n in TRACE_SEEDS}
    compared = {}
    for number, (name, script) in enumerate(scripts.items()):
        compared[name] = await traces_of_both(f"{zookeeper}/traces-{number}", folder / str(number), script)
        _tell_comparison(name, compared[name])
    for ibp in TRACE_PROTOCOLS:
        name = f"scripted, inter.broker.protocol.version={ibp}"
        compared[name] = await traces_of_both(f"{zookeeper}/traces-{ibp}", folder / ibp, SCRIPTED, ibp=ibp)
        _tell_comparison(name, compared[name])
    name = "scripted, Kafka beside Kafka"
    compared[name] = await traces_of_both(f"{zookeeper}/traces-control", folder / "control", SCRIPTED, control=True)
    _tell_comparison(name, compared[name])
    return compared


def _tell_comparison(name: str, found: Comparison) -> None:
    print(f"traces, {name}: {found.identical} of {found.requests} requests are identical", flush=True)


async def both(page_path: Path, seed: int) -> int:
    with tempfile.TemporaryDirectory(prefix="kce-interop-") as name:
        folder = Path(name)
        async with embedded_zookeeper(folder / "zookeeper") as zookeeper:
            ours = await run(zookeeper, folder / "ours", ours=True)
            kafkas = await run(zookeeper, folder / "kafkas", ours=False)
            old = [await run_old(zookeeper, folder / release.version, release) for release in releases.OLD]
            mixed_runs = await run_mixed(zookeeper, folder / "mixed", seed)
            compared = await compare_traces(zookeeper, folder / "traces")
        (folder / "chaos").mkdir()
        copied = await trio.to_thread.run_sync(run_chaos, folder / "chaos", seed)
    parts = (
        page(ours, kafkas), mixed_page(mixed_runs, seed), chaos_page(copied, seed), trace_page.section(compared),
        old_page(old),
    )  # fmt: skip
    text = "\n".join(parts)
    print(f"\n{text}")
    page_path.write_text(text)  # noqa: ASYNC240 - nothing else goes on any more
    found = problems(ours, kafkas) + trace_page.problems(compared)
    for problem in found:
        print(f"PROBLEM: {problem}", file=sys.stderr)
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description=__doc__)
    parser.add_argument("--page", type=Path, default=Path("docs/interop.md"), help="file for the table")
    parser.add_argument("--seed", type=int, default=1, help="of the random steps on clusters of both kinds")
    args = parser.parse_args()
    return trio.run(both, args.page, args.seed)


if __name__ == "__main__":
    sys.exit(main())
