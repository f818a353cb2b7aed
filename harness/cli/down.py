"""`kce down`: end a running `kce up` or `kce proxy`."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import click
import psutil

from kce.harness.cli.options import FiniteRange, cluster_option
from kce.harness.errors import HarnessError
from kce.harness.guard import birth
from kce.harness.running import called, find_cluster

_POLL_S = 0.05


@click.command(
    epilog="""\b
Examples:
  kce up --wait && pytest tests; kce down
  kce up --wait --name ci --brokers 5 && make integration; kce down --cluster ci
"""
)
@click.option(
    "--timeout", type=FiniteRange(0), default=60.0, show_default=True, metavar="SECONDS",
    help="Kill it if it has not ended by then; nothing is left running then, either.",
)  # fmt: skip
@cluster_option
def down(timeout: float, cluster_file: Path | None) -> int:
    """End the running `kce up`, or `kce proxy`, and wait until all of it is gone and its recording is written.

    The exit code is 0 when it has ended, and 1 if there is none, or it had to be killed.
    """
    cluster = find_cluster(cluster_file, or_proxy=True)
    with _output(cluster) as output:
        end(cluster, timeout)
        for line in () if output is None else output:
            click.echo(line, nl=False, err=True)
    click.echo(f"{called(cluster)} has ended")
    return 0


@contextlib.contextmanager
def _output(cluster: dict[str, Any]) -> Iterator[TextIO | None]:
    """What a cluster in the background writes from now on; it is removed with the cluster, but can still be read."""
    path = Path(cluster.get("output", ""))
    if not path.is_file():
        yield None
        return
    with path.open(errors="replace") as output:
        output.seek(0, os.SEEK_END)
        yield output


def end(cluster: dict[str, Any], timeout_s: float) -> None:
    """Send SIGTERM to the process of a cluster, SIGKILL after the timeout; return when it has ended.

    Raises HarnessError for one that had ended before, or had to be killed.
    """
    pid = cluster["pid"]
    if birth(pid) != cluster["birth"]:
        raise HarnessError(f"{called(cluster)} has ended already")
    deadline = time.monotonic() + timeout_s
    try:
        process = psutil.Process(pid)
        process.send_signal(signal.SIGTERM)
        while process.status() != psutil.STATUS_ZOMBIE:  # an orphan may stay one, where process 1 asks for none
            if time.monotonic() >= deadline:
                process.kill()
                raise HarnessError(f"{called(cluster)} did not end within {timeout_s:g} s, and was killed")
            time.sleep(_POLL_S)
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        raise HarnessError(f"{called(cluster)} belongs to another user") from None
