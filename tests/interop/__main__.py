"""``make interop``: every operation under our controller, then under Kafka's own, side by side; then older releases of
Kafka with us, in both roles.

Prints a table, writes it to docs/interop.md, and fails when an operation fails, a record is lost, a broker refuses
what it would not refuse a real controller, or our node watches a node of ZooKeeper that Kafka's does not.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from harness.guard import Guard
from harness.zookeeper import embedded_zookeeper
from tests.interop import releases
from tests.interop.operations import ALL, NODE, Outcome, peers, run_all
from tests.interop.real_kafka import VERSION, Release
from tests.interop.refusals import EXPECTED, refusals

_HEAD = f"""# Real Kafka brokers under our controller

Three real Kafka {VERSION} brokers hold the data; node {NODE} is the active controller: first one of ours, then, for
comparison, a real Kafka {VERSION} broker that holds no data either. Clients are Kafka's own command line tools, and
librdkafka. From "kill a broker" on an idempotent producer with acks=all sends records all the time; after every
operation whatever was acknowledged is read again: none is lost, none is there twice. `make interop` makes this page.
"""


@dataclass(frozen=True, slots=True)
class Run:
    """What one controller's run showed. ``refused``: how often, by what the brokers logged."""

    outcomes: list[Outcome]
    refused: Counter[str]
    watched: set[str]
    acknowledged: int


@dataclass(frozen=True, slots=True)
class OldRun:
    """What an older release showed: its brokers under our controller, and ours under its."""

    release: Release
    under_ours: list[Outcome]
    acknowledged: int
    under_theirs: list[Outcome]


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
            f"Acknowledged and found again: {ours.acknowledged:,} records under our controller,"
            f" {kafkas.acknowledged:,} under Kafka's.",
            "Seconds are those of one run each, tools included, which share a JVM.",
            "",
            "## Refused requests",
            "",
            "What the brokers logged of control requests that they did not follow. A is node 100 as controller, N any"
            " other number.",
            "",
            "| logged | under ours | under Kafka's | why |",
            "|---|---|---|---|",
            *refused,
            "",
            "## Watches",
            "",
            f"With the same topics, our controller watches {len(ours.watched)} nodes of ZooKeeper, Kafka's"
            f" {len(kafkas.watched)} (`wchc`, which does not tell of watches on children).",
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
            "Three brokers of the release under our controller, with its `inter.broker.protocol.version`; what is seen"
            f" is that of {runs[0].release.version}, and the others did the same. Before 0.11 no producer is"
            " idempotent, and a record may be there twice.",
            "",
            *table("under our controller", [run.under_ours for run in runs]),
            "",
            f"Acknowledged and found again: {acknowledged}.",
            "",
            f"Three of our brokers under a controller of the release, which is node {releases.CONTROLLER}:",
            "",
            *table("our brokers", [run.under_theirs for run in runs]),
            "",
        ]
    )


def problems(ours: Run, kafkas: Run) -> list[str]:
    found = [
        f"refused under our controller only: {what}"
        for what in ours.refused
        if what not in kafkas.refused and what not in EXPECTED
    ]
    return found + [f"watched by our controller only: {path}" for path in sorted(ours.watched - kafkas.watched)]


async def both(page_path: Path) -> int:
    guard = Guard()
    with tempfile.TemporaryDirectory(prefix="kce-interop-") as name:
        folder = Path(name)
        try:
            async with embedded_zookeeper(folder / "zookeeper", guard) as zookeeper:
                ours = await run(zookeeper, folder / "ours", ours=True)
                kafkas = await run(zookeeper, folder / "kafkas", ours=False)
                old = [await run_old(zookeeper, folder / release.version, release) for release in releases.OLD]
        finally:
            guard.close()
    text = f"{page(ours, kafkas)}\n{old_page(old)}"
    print(f"\n{text}")
    page_path.write_text(text)  # noqa: ASYNC240 - nothing else goes on any more
    found = problems(ours, kafkas)
    for problem in found:
        print(f"NOT AS IT SHOULD BE: {problem}", file=sys.stderr)
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description=__doc__)
    parser.add_argument("--page", type=Path, default=Path("docs/interop.md"), help="where the table is kept")
    return trio.run(both, parser.parse_args().page)


if __name__ == "__main__":
    sys.exit(main())
