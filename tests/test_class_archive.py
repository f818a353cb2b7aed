"""Archives of Java classes, and what happens where none can be written."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kce import class_archive
from kce.captures.spark import archive_classes as of_spark
from kce.harness import archive_classes as of_zookeeper


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a Java that has no archive of its own classes, and can do nothing else."""
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n[ $1 = -Xshare:on ] && echo Unable to use shared archive. && exit 1\nexit 2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return java


@pytest.mark.parametrize("archive_classes", [of_spark, of_zookeeper])
def test_a_java_without_an_archive_of_its_own_classes_writes_none(
    archive_classes: object, java: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not class_archive.can_be_written()
    archive_classes.main()  # type: ignore[attr-defined]
    assert capsys.readouterr().out.startswith("This Java maps no archive of its own classes: ")
    assert not (tmp_path / "cache").exists()
    java.write_text("#!/bin/sh\n")
    assert class_archive.can_be_written()


def test_an_archive_is_there_only_if_it_was_written_whole(tmp_path: Path) -> None:
    archive = tmp_path / "cache" / "a.jsa"

    def write(*, fails: bool) -> None:
        with class_archive.writing(archive) as written:
            written.write_bytes(b"classes")
            assert not fails, "in the middle"

    with pytest.raises(AssertionError, match="in the middle"):
        write(fails=True)
    assert not list(archive.parent.iterdir())
    write(fails=False)
    assert [path.read_bytes() for path in archive.parent.iterdir()] == [b"classes"]


def test_a_program_is_waited_for_until_what_it_started_has_ended_or_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    script = "(cat pipe; touch outlived) & exit 0"  # nobody writes; the child has the pipe of stdout
    with pytest.raises(subprocess.TimeoutExpired):
        class_archive.run(["sh", "-c", script], os.environ, tmp_path, timeout_s=0.5)
    assert not (tmp_path / "outlived").exists()


def test_a_program_that_fails_raises(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        class_archive.run(["sh", "-c", "echo why; exit 3"], os.environ, tmp_path)
    assert (failed.value.returncode, failed.value.output) == (3, b"why\n")
