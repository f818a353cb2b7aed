"""``make test``: the whole suite in two processes, for the second core.

What only computes runs beside what starts JVMs, Spark, nodes and real Kafka, which wait for each other most of the
time; nodes are in one process only, because one that is started again wants the port that it had. Arguments are
pytest's, for both. What the first process says is printed when the second has ended.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile


def main(arguments: list[str]) -> int:
    pytest = [sys.executable, "-m", "pytest", *arguments]
    with tempfile.TemporaryFile("w+") as said:
        pure = subprocess.Popen([*pytest, "--part=pure", "-p", "no:cacheprovider"], stdout=said, stderr=said)
        rest = subprocess.Popen([*pytest, "--part=rest"])
        try:
            rest.wait()
        finally:  # a Ctrl-C reaches both, which end in order
            codes = rest.wait(), pure.wait()
            print("\nThe other part of the suite, what only computes, in another process:\n", flush=True)
            said.seek(0)
            sys.stdout.writelines(said)
    return next((code for code in codes if code), 0)  # negative for one that a signal has killed


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
