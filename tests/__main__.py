"""``make test``: the whole suite in three processes, since two of them mostly wait.

One process runs tests that mostly compute, with Spark. The others start nodes and mostly wait: one runs the tests with
clients, tools and real Kafka, which may download; one runs the rest, in a network namespace of its own, because a
restarted node needs its old port and no other process may take it. Where such a namespace is denied, this one runs
after the others. All get the same arguments for pytest. The output of one is printed when those before have ended.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from typing import IO

from tests import own_network

Process = subprocess.Popen[str]
#: a process that runs for so long ends after the test that it runs: twice as long as on a busy machine
LONGEST_S = 2700


def main(arguments: list[str]) -> int:
    pytest = [sys.executable, "-m", "pytest", f"--session-timeout={LONGEST_S}", *arguments]
    isolated = [sys.executable, "-m", "tests.own_network"]
    with ExitStack() as stack:

        def start(part: str, *, before: list[str]) -> tuple[Process, IO[str]]:
            output = stack.enter_context(tempfile.TemporaryFile("w+"))
            command = [*before, *pytest, f"--part={part}", "-p", "no:cacheprovider"]
            return subprocess.Popen(command, stdout=output, stderr=output, text=True), output

        others = {"that only compute": start("pure", before=[])}
        can_isolate = own_network.is_allowed()
        if can_isolate:
            others["that start nodes"] = start("nodes", before=isolated)
        clients = subprocess.Popen([*pytest, "--part=clients"])
        try:
            codes = [clients.wait()]
            if not can_isolate:
                codes.append(subprocess.run([*pytest, "--part=nodes"], check=False).returncode)
        finally:  # Ctrl-C reaches all processes, and all exit cleanly
            clients.wait()
            for which, (process, output) in others.items():
                process.wait()
                print(f"\nThe tests {which}, from another process:\n", flush=True)
                output.seek(0)
                sys.stdout.writelines(output)
    codes += [process.returncode for process, _ in others.values()]
    return next((code for code in codes if code), 0)  # negative if a signal killed it


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
