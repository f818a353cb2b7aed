from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from kce.harness.cli import main


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """So that clusters of other tests, or of the developer, are not found."""
    return {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}


class Said(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


Here = Callable[..., Said]


@pytest.fixture
def here(env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Here:
    """`kce` in this process, for what needs none of its own, which would take a second to start."""
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, env[name])
    monkeypatch.setattr(tempfile, "tempdir", None)  # which is looked for once, and kept

    def run(*arguments: str) -> Said:
        capfd.readouterr()
        code = main(list(arguments))
        return Said(code, *capfd.readouterr())

    return run
