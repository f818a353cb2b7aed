"""The guard cleans up, however the parent ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from kce.harness.guard import Guard, birth
from tests.harness.processes import wait_gone


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def test_closing_kills_what_is_watched_and_removes_paths(tmp_path: Path) -> None:
    guard = Guard()
    killed, spared = sleeper(), sleeper()
    folder, file = tmp_path / "folder", tmp_path / "file"
    (folder / "deep").mkdir(parents=True)
    file.touch()
    try:
        os.kill(killed.pid, signal.SIGSTOP)  # a paused process must go too
        for process in (killed, spared):
            guard.watch(process.pid)
        guard.forget(spared.pid)
        guard.remove(folder)
        guard.remove(file)
        guard.close()
        assert killed.wait(10) == -signal.SIGKILL
        assert spared.poll() is None
        assert list(tmp_path.iterdir()) == []
    finally:
        for process in (killed, spared):
            process.kill()
            process.wait()


def test_it_acts_when_the_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, sys, subprocess; from kce.harness.guard import Guard; g = Guard();"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "g.watch(child.pid); print(g.pid, child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == -signal.SIGKILL
    assert wait_gone([int(pid) for pid in ran.stdout.split()]) == []


def test_birth_tells_processes_apart() -> None:
    process = sleeper()
    born = birth(process.pid)
    assert born is not None
    assert birth(process.pid) == born
    process.kill()
    process.wait()
    assert birth(process.pid) is None
