"""`kce down`, with processes that are no cluster. `test_up` has one that is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kce.harness.cli.down import end
from kce.harness.errors import HarnessError
from kce.harness.guard import birth
from tests.harness.conftest import Here

_STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
_OBEDIENT = "import signal; print(flush=True); signal.pause()"


def _cluster(script: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    process = subprocess.Popen([sys.executable, "-I", "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # its signals are set
    return process, {"pid": process.pid, "birth": birth(process.pid), "zookeeper": "zk:1", "socket": "/nowhere"}


def test_it_returns_when_the_process_has_ended() -> None:
    process, cluster = _cluster(_OBEDIENT)
    with process:
        end(cluster, 60)
        assert process.wait() == -15
    with pytest.raises(HarnessError, match=f"^pid {process.pid} has ended already$"):
        end(cluster, 60)


def test_what_does_not_end_is_killed() -> None:
    process, cluster = _cluster(_STUBBORN)
    with process:
        with pytest.raises(HarnessError, match=r"did not end within 0 s, and was killed$"):
            end(cluster, 0)
        assert process.wait() == -9


def test_another_process_with_the_same_pid_is_left_alone(here: Here, tmp_path: Path) -> None:
    process, cluster = _cluster(_OBEDIENT)
    with process:
        ready = tmp_path / "ready.json"
        ready.write_text(json.dumps({**cluster, "birth": "1"}))
        said = here("down", "--cluster", str(ready)).err
        is_left_alone = process.poll() is None
        process.kill()
    assert said == f"kce: pid {process.pid} has ended already\n"
    assert is_left_alone
