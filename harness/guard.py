"""Leave nothing behind: a small process that outlives its parent by just long enough to clean up after it.

The parent starts it, tells it over a pipe which processes and paths are its own, and holds the other end of that
pipe. When the pipe closes, however the parent ended (kill -9 included), every process still listed is killed, paused
ones too, and every path removed. A parent that ends well empties the list first.

Run as a script, with the standard library only, so that it is up in milliseconds. One line is one command:
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
    """What tells a process from a later one with the same number; None where there is no such process.

    Linux: the start time in /proc. Elsewhere the number alone has to do.
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
    """The parent's side. Closing it without ``release`` is what a crash looks like."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C or a kill of our process group is not meant for it
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def watch(self, pid: int) -> None:
        self._say(f"watch {pid}")

    def forget(self, pid: int) -> None:
        self._say(f"forget {pid}")

    def remove(self, path: Path) -> None:
        """Remove this file, or this folder and all in it, at the end."""
        self._say(f"remove {path}")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Let it do what is left to do, and wait for it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(timeout=30)


def clean_up(processes: dict[int, str | None], paths: list[Path]) -> None:
    for pid, born in processes.items():
        if born is not None and birth(pid) == born:
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) == pid:  # what it has started in its own group goes with it
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
