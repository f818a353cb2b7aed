"""``make test``: the whole suite in four processes, since two of them mostly wait.

Two processes run tests that mostly compute, one of them those with Spark; they yield the processors (nice) to the
others, whose nodes and clients have sessions that could expire. These mostly wait: one runs the tests with clients,
tools and real Kafka, which may download; one runs the rest, in a network namespace of its own, because a restarted node
needs its old port and no other process may take it. Where such a namespace is denied, this one runs after the others.
All get the same arguments for pytest. The output of one is printed when those before have ended; what failed in any of
them is printed again at the end, where a reader of CI's output looks first.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from tests import own_network

Process = subprocess.Popen[str]
#: a process that runs for so long ends after the test that it runs: three times as long as on a quiet machine
LONGEST_S = 3600


def main(arguments: list[str]) -> int:
    pytest = [sys.executable, "-m", "pytest", f"--session-timeout={LONGEST_S}", *arguments]
    isolated = [sys.executable, "-m", "tests.own_network"]
    with ExitStack() as stack:
        reports = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def of(part: str) -> list[str]:
            # the newer family has no place for what tests record
            return [*pytest, f"--part={part}", f"--junitxml={reports / part}.xml", "-o", "junit_family=xunit1"]

        def start(part: str, *, before: list[str]) -> tuple[Process, IO[str]]:
            output = stack.enter_context(tempfile.TemporaryFile("w+"))
            command = [*before, *of(part), "-p", "no:cacheprovider"]
            return subprocess.Popen(command, stdout=output, stderr=output, text=True), output

        others = {
            "that only compute": start("pure", before=["nice", "-n", "7"]),
            "with Spark": start("spark", before=["nice", "-n", "3"]),  # they take longest
        }
        can_isolate = own_network.is_allowed()
        if can_isolate:
            others["that start nodes"] = start("nodes", before=isolated)
        clients = subprocess.Popen(of("clients"))
        codes: dict[str, int] = {}
        try:
            codes["with clients"] = clients.wait()
            if not can_isolate:
                codes["that start nodes"] = subprocess.run(of("nodes"), check=False).returncode
        finally:  # Ctrl-C reaches all processes, and all exit cleanly
            clients.wait()
            for which, (process, output) in others.items():
                process.wait()
                print(f"\nThe tests {which}, from another process:\n", flush=True)
                output.seek(0)
                sys.stdout.writelines(output)
        for report in sorted(reports.glob("*.xml")):
            sys.stdout.writelines(failures(report))
    codes |= {which: process.returncode for which, (process, _) in others.items()}
    for which, code in codes.items():
        print(f"The tests {which} ended with {code}.")  # a process that took too long may have no failed test
    return next((code for code in codes.values() if code), 0)  # negative if a signal killed it


def failures(report: Path) -> Iterator[str]:
    """Why each test failed that failed in this report of pytest (JUnit's XML)."""
    for test in ElementTree.parse(report).iter("testcase"):
        for why in (*test.iter("failure"), *test.iter("error")):
            yield f"\nFAILED {test.get('classname')}::{test.get('name')}\n{why.text}\n"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
