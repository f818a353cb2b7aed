"""Find the fastest build of the Python that `make` would use. Standard library only: it runs before anything is there.

Builds of one version differ: one without profile-guided optimization, as pyenv makes by default, needs a third more
time for the same code. As a program it prints the path of the build to use.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

#: another build is taken only if it is faster by this factor: less is noise
GAIN: Final = 1.1
#: probes of each
ROUNDS: Final = 4
#: beside the folders of PATH
FOLDERS: Final = ("/usr/local/bin", "/usr/bin", "/opt/homebrew/bin")

#: prints the version, the path behind links and shims, and seconds for a loop as the nodes have it. A build that
#: cannot make virtual environments fails.
PROBE: Final = """
import ensurepip, os, sys, time, venv
class Thing:
    __slots__ = ("count", "name")
    def __init__(self):
        self.count, self.name = 0, "thing"
    def add(self, number):
        self.count += number
        return self.name
def loop():
    thing, seen = Thing(), {}
    for i in range(20000):
        thing.add(i)
        seen[i & 255] = (i, thing.count)
        int.from_bytes(bytes((i & 255, 7)), "big")
def seconds():
    began = time.perf_counter()
    loop()
    return time.perf_counter() - began
print(*sys.version_info[:2], min(seconds() for _ in range(10)), os.path.realpath(sys._base_executable), sep="\\t")
"""


class Build(NamedTuple):
    version: tuple[int, int]
    seconds: float
    path: str


def probe(program: str) -> Build | None:
    """None if it is no Python that can make virtual environments."""
    try:
        done = subprocess.run((program, "-I", "-c", PROBE), capture_output=True, text=True, timeout=60, check=True)
        major, minor, seconds, path = done.stdout.strip().split("\t")
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Build((int(major), int(minor)), float(seconds), path)


def fastest(first: Build, others: Iterable[Build]) -> Build:
    """Of those of its version; ``first`` unless another is clearly faster."""
    best = min((other for other in others if other.version == first.version), key=lambda b: b.seconds, default=first)
    return best if best.seconds * GAIN < first.seconds else first


def programs(version: tuple[int, int]) -> list[str]:
    """What may be a build of the version, each file once."""
    names = ("python3", f"python{version[0]}.{version[1]}")
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *FOLDERS]
    found = (Path(folder, name) for folder in folders for name in names if folder)
    return list({os.path.realpath(path): str(path) for path in found if os.access(path, os.X_OK)}.values())


def measured(programs: Sequence[str]) -> dict[str, Build]:
    """The builds behind ``programs`` by path, each with the least time of several probes in turn: whatever else runs
    disturbs some of them."""
    found: dict[str, Build] = {}
    for _ in range(ROUNDS):
        for program in programs:
            build = probe(program)
            if build is not None and (build.path not in found or build.seconds < found[build.path].seconds):
                found[build.path] = build
    return found


def main() -> None:
    found = measured([sys.executable, *programs(sys.version_info[:2])])
    first = found.get(os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]
    if first is None:  # it cannot make virtual environments, and `make` will say so
        print(sys.executable)
        return
    best = fastest(first, found.values())
    if best is not first:
        print(
            f"{best.path} is used: {first.seconds / best.seconds:.1f} times as fast as {first.path} "
            f"(PYTHON={first.path} takes that)",
            file=sys.stderr,
        )
    print(best.path)


if __name__ == "__main__":
    main()
