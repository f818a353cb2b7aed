"""Missing or too-old Java is reported in one line with what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kce.java import JavaMissing, find_java, java_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_versions(text: str, version: int | None) -> None:
    assert java_version(text) == version


def fake_java(folder: Path, output: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
    java.chmod(0o755)
    return java


def test_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path, 'openjdk version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=f"Java 17 or later is needed and {java} is Java 11: install") as caught:
        find_java()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("version", "named"), [("11.0.2", "Java 11"), ("1.8.0_402", "Java 8"), ("17.0.15", None)])
def test_the_release_of_the_installation_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, named: str | None
) -> None:
    java = fake_java(tmp_path, "it is not asked")
    (tmp_path / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if named is None:
        assert find_java() == str(java)
    else:
        with pytest.raises(JavaMissing, match=f"is {named}: install"):
            find_java()


def test_a_home_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name too long stands for a folder of another user: the file system refuses to look."""
    monkeypatch.setenv("JAVA_HOME", f"/{'x' * 300}")
    with pytest.raises(JavaMissing, match="which has no bin/java: install"):
        find_java()


def test_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="there is no `java` on the PATH"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="which has no bin/java"):
        find_java()


def test_as_a_program_it_says_one_line(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "kce" / "java.py"
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env={"PATH": str(tmp_path)}, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "apt-get install openjdk-17-jre-headless" in ran.stderr
