"""``make test``: the whole suite in two processes, to use a second core.

One process runs tests that only compute, with Spark. The other runs tests that start nodes and real Kafka, and mostly
wait; nodes are in this process only, because a restarted node needs its old port. Both get the same arguments for
pytest. The output of the first is printed after the second has ended.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile


def main(arguments: list[str]) -> int:
    pytest = [sys.executable, "-m", "pytest", *arguments]
    with tempfile.TemporaryFile("w+") as output:
        pure = subprocess.Popen([*pytest, "--part=pure", "-p", "no:cacheprovider"], stdout=output, stderr=output)
        rest = subprocess.Popen([*pytest, "--part=rest"])
        try:
            rest.wait()
        finally:  # Ctrl-C reaches both processes, and both exit cleanly
            codes = rest.wait(), pure.wait()
            print("\nThe tests that only compute, from the other process:\n", flush=True)
            output.seek(0)
            sys.stdout.writelines(output)
    return next((code for code in codes if code), 0)  # negative if a signal killed it


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
