"""`kce` in its own processes, and `kce up` in the background."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KCE = [sys.executable, "-m", "kce.harness"]


def kce(*arguments: str, env: dict[str, str], timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*KCE, *arguments], capture_output=True, text=True, env=env, timeout=timeout, check=False)


def consecutive_free_ports(count: int) -> int:
    """The first of ``count`` free ports, below the ports that systems give to outgoing connections."""
    while True:
        first = random.randrange(10_000, 30_000)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        return first


@contextmanager
def background(env: dict[str, str], arguments: list[str], ready: str) -> Iterator[subprocess.Popen[str]]:
    """A running command, once it has printed ``ready``."""
    process = subprocess.Popen(
        [*KCE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, start_new_session=True
    )
    try:
        assert process.stdout is not None
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        seen = ""
        while ready not in seen:
            line = process.stdout.readline()
            assert line, f"it ended:\n{seen}"
            seen += line
        watchdog.cancel()
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def up(tmp_path: Path, env: dict[str, str], *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A running `kce up`, and the content of its ready file."""
    ready = tmp_path / "ready.json"
    command = ["up", "--ready-file", str(ready), "--set", "zookeeper.session.timeout.ms=1500", *arguments]
    with background(env, command, "Ctrl-C stops the cluster") as process:
        yield process, json.loads(ready.read_text())
