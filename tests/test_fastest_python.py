"""Which build of Python `make` uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kce import fastest_python
from kce.fastest_python import Build

VERSION = (sys.version_info.major, sys.version_info.minor)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_probe_this_python() -> None:
    build = fastest_python.probe(sys.executable)
    assert build is not None
    assert build.version == VERSION
    assert 0 < build.seconds < 10
    assert build.path == os.path.realpath(sys.executable)


@pytest.mark.parametrize("text", ["exit 1", "echo 3 11", "echo three\tx\ty\tz", "echo"])
def test_probe_what_is_no_python(tmp_path: Path, text: str) -> None:
    assert fastest_python.probe(str(script(tmp_path / "python3", text))) is None
    assert fastest_python.probe(str(tmp_path / "missing")) is None


def test_another_build_of_the_version_must_be_clearly_faster() -> None:
    first = Build((3, 11), 1.0, "/first")
    close, fast, faster = (Build((3, 11), seconds, f"/{seconds}") for seconds in (0.95, 0.8, 0.7))
    newer = Build((3, 12), 0.1, "/newer")
    assert fastest_python.fastest(first, []) is first
    assert fastest_python.fastest(first, [close, newer]) is first
    assert fastest_python.fastest(first, [fast, close, faster, newer]) is faster


def test_a_build_has_the_least_of_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever name it is found."""
    times = iter([3.0, 5.0, 2.0, 9.0, 4.0, 1.0] + [6.0] * 100)

    def probe(program: str) -> Build | None:
        return None if program == "none" else Build((3, 11), next(times), f"/{program[0]}")

    monkeypatch.setattr(fastest_python, "probe", probe)
    found = fastest_python.measured(["a", "none", "b", "another name"])
    assert found == {"/a": Build((3, 11), 1.0, "/a"), "/b": Build((3, 11), 4.0, "/b")}


def test_programs_are_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastest_python, "FOLDERS", ())
    for folder in "abc":
        (tmp_path / folder).mkdir()
    one = script(tmp_path / "a" / "python3", "")
    (tmp_path / "b" / "python3").symlink_to(one)
    (tmp_path / "b" / "python3.11").write_text("not executable")
    other = script(tmp_path / "c" / "python3.12", "")
    monkeypatch.setenv("PATH", os.pathsep.join(str(tmp_path / folder) for folder in ["a", "b", "c", "missing", ""]))
    assert fastest_python.programs((3, 11)) == [str(tmp_path / "b" / "python3")]
    assert fastest_python.programs((3, 12)) == [str(tmp_path / "b" / "python3"), str(other)]


@pytest.mark.parametrize(("seconds", "takes_other"), [("1e-9", True), ("1e9", False)])
def test_make_takes_the_fastest(tmp_path: Path, seconds: str, takes_other: bool) -> None:
    other = f"python{VERSION[0]}.{VERSION[1]}"
    script(tmp_path / "python3", f'exec {sys.executable} "$@"')
    script(tmp_path / other, f"printf '{VERSION[0]}\\t{VERSION[1]}\\t{seconds}\\t/other/python3'")
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    command = ("make", "--always-make", "--dry-run", "setup")
    chosen_by_user = {"PYTHON", "MAKEFLAGS"}  # `make test PYTHON=...`
    environment = {name: value for name, value in os.environ.items() if name not in chosen_by_user} | {"PATH": path}
    folder = Path(__file__).parents[1]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    chosen = next(line for line in done.stdout.splitlines() if "-m venv" in line).split()[0]
    assert (chosen == "/other/python3") is takes_other
