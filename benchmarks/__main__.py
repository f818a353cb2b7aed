"""``make benchmarks``: run the benchmarks one after the other, and write docs/performance.md with a picture per area.

    python -m benchmarks [--only AREA ...] [--docs DIR]

Needs a quiet machine of two cores, and some 40 minutes. The results of an area that is not run stay as they are in
docs/performance.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.performance import write_page

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Area:
    """A part of the page: a module of this package with its arguments, and what it measures."""

    module: str
    arguments: tuple[str, ...]
    title: str


AREAS = {
    area.module: area
    for area in (
        Area("broker", ("--seconds", "0.6"), "The planes: control requests beside data, and requests a second"),
        Area("groups", ("--repeats", "2"), "Groups, transactions and secured connections"),
        Area(
            "records",
            ("--repeats", "3", "--seconds", "1"),
            "Records: produced, consumed and acknowledged by librdkafka",
        ),
        Area(
            "partitions",
            ("--partitions", "100000", "--repeats", "1"),
            "Many hosted partitions: memory, and restarts",
        ),
        Area(
            "controller",
            ("--sizes", "10000,100000,1000000", "--warm-up", "1"),
            "The controller: failover, death of a broker, controlled shutdown, memory",
        ),
        Area("topics", ("--warm-up", "100", "--grown", "200"), "Topics: creation, growth, reassignment, deletion"),
        Area("columns", ("--repeats", "2"), "Control requests as columns, beside Kafka's Java codec"),
        Area("wire", ("--sizes", "1000", "10000", "--seconds", "0.1"), "The codec, beside kio and Construct"),
        Area("captures", ("--large", "0", "--repeats", "2"), "Captures, beside tshark, dpkt and scapy"),
        Area("store", ("--repeats", "3"), "ZooKeeper: writes and reads, beside kazoo"),
        Area("election", (), "Leader election among many, beside kazoo's Lock"),
        Area("links", (), "The cost of links"),
    )
}


def run(area: Area) -> dict[str, Any] | None:
    """The rows of an area, with when and where they were measured, and how long that took; None if it failed."""
    begin = time.monotonic()
    print(f"\n== {area.title} (benchmarks/{area.module}.py)", flush=True)
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, "-m", f"benchmarks.{area.module}", *area.arguments, "--json", file.name]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        minutes = round((time.monotonic() - begin) / 60, 1)
        print(f"== {area.module}: {minutes} minutes", flush=True)
        if code:
            return None
        rows = json.loads(Path(file.name).read_text())
        return {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "minutes": minutes, "rows": rows}


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {memory:.0f} GiB, {platform.system()}, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=AREAS, metavar="AREA", help=f"of {', '.join(AREAS)}")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of performance.md")
    args = parser.parse_args()
    args.docs.mkdir(exist_ok=True)
    results = args.docs / "performance.json"
    found: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    failed = []
    for name in args.only or AREAS:
        result = run(AREAS[name])
        if result is None:
            failed.append(name)
            continue
        found[name] = result
        results.write_text(json.dumps(found, indent=1) + "\n")
        write_page(args.docs, {area: (AREAS[area].title, found[area]) for area in AREAS if area in found})
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
