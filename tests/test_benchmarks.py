"""Every benchmark imports what it needs, and has a --help; one that stands in for a part of ours works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BENCHMARKS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if "def main" in path.read_text())


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_starts(path: Path) -> None:
    command = [sys.executable, str(path), "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert f"usage: {path.name}" in done.stdout


@pytest.mark.slow
def test_links_are_compared_with_connections_that_work() -> None:
    command = [sys.executable, "-m", "benchmarks.links", "--bursts", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "links/unobserved" in done.stdout
    assert done.stderr == ""
