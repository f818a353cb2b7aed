"""Processes that a test starts, and checks that they have ended."""

from __future__ import annotations

import psutil


def family(pid: int) -> list[int]:
    """Its id, and those of all processes below it."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def wait_gone(pids: list[int], seconds: float = 10) -> list[int]:
    """The ``pids`` still alive after ``seconds``. A zombie process counts as dead."""
    processes = []
    for pid in pids:
        try:
            processes.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [p.pid for p in alive if p.status() != psutil.STATUS_ZOMBIE]
