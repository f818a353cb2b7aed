"""A small process that cleans up after its parent, even after kill -9.

The parent sends it the processes and paths to clean up over a pipe, and keeps the pipe open. When the pipe closes,
the guard kills every process that is still listed, paused ones too, and removes every path. A parent that ends
normally empties the list first.

It runs as a script with the standard library only, so that it starts in milliseconds. One line is one command:
``watch PID``, ``forget PID``, ``remove PATH``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def birth(pid: int) -> str | None:
    """Identifies a process beyond its reusable pid; None if there is no such process.

    On Linux it is the start time in /proc, elsewhere an empty string.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        try:
            os.kill(pid, 0)
        except OSError:
            return None
        return ""
    return stat.rpartition(")")[2].split()[19]


class Guard:
    """The parent's side."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # it must survive a Ctrl-C or a kill of our process group
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def watch(self, pid: int) -> None:
        self._send(f"watch {pid}")

    def forget(self, pid: int) -> None:
        self._send(f"forget {pid}")

    def remove(self, path: Path) -> None:
        """Remove this file or folder at the end."""
        self._send(f"remove {path}")

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Let it clean up, and wait for it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(timeout=30)


def clean_up(processes: dict[int, str | None], paths: list[Path]) -> None:
    for pid, born in processes.items():
        if born is not None and birth(pid) == born:
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) == pid:  # with the processes that it started in its own group
                    os.killpg(pid, signal.SIGKILL)
                else:
                    os.kill(pid, signal.SIGKILL)
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.unlink()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    processes: dict[int, str | None] = {}
    paths: list[Path] = []
    commands: dict[str, Callable[[str], object]] = {
        "watch": lambda text: processes.__setitem__(int(text), birth(int(text))),
        "forget": lambda text: processes.pop(int(text), None),
        "remove": lambda text: paths.append(Path(text)),
    }
    for line in sys.stdin:
        command, _, text = line.rstrip("\n").partition(" ")
        commands[command](text)
    clean_up(processes, paths)


if __name__ == "__main__":
    main()
