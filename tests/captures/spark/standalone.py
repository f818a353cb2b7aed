"""A standalone Spark on this machine: a master and workers, each a process, as `sbin/start-*.sh` run them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent

#: What master and workers say when they are up.
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")


@contextlib.contextmanager
def standalone(folder: Path, *, workers: int = 2, memory: str = "1536m") -> Iterator[str]:
    """The URL of a master with ``workers``, of one core each and ``memory`` for their executors."""
    with contextlib.ExitStack() as stack:
        (url,) = _started(
            stack, _MASTER, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0",
            "--webui-port", "0",
        )  # fmt: skip
        for number in range(workers):
            _started(
                stack, _REGISTERED, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--port", "0",
                "--webui-port", "0", "--cores", "1", "--memory", memory, "--work-dir", str(folder / f"worker-{number}"),
                url,
            )  # fmt: skip
        yield url


def environment() -> dict[str, str]:
    """That of Spark's programs, and of those that run on it: with the code that is tested, on this Python."""
    return {
        **os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(__file__).parents[3]), "SPARK_DAEMON_MEMORY": "256m",
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # half a dozen of them, each for seconds
    }  # fmt: skip


def _started(stack: contextlib.ExitStack, up: re.Pattern[str], *command: str) -> tuple[str, ...]:
    """Run a daemon until ``stack`` is closed; what ``up`` finds in the line that says that it is up."""
    daemon = stack.enter_context(
        subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(),
        )
    )  # fmt: skip
    stack.callback(daemon.terminate)
    assert daemon.stderr is not None
    output = []
    for line in daemon.stderr:
        output.append(line)
        if match := up.search(line):
            # its log goes on: somebody has to take it
            threading.Thread(target=daemon.stderr.read, daemon=True).start()
            return match.groups()
    raise AssertionError(f"{' '.join(command)} ended: {''.join(output[-20:])}")
