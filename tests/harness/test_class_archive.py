"""Archives of Java classes, and what happens where none can be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kce.harness import archive_classes, class_archive


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


def test_a_java_without_an_archive_of_its_own_classes_writes_none(
    java: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not class_archive.can_be_written()
    archive_classes.main()
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


def test_an_archive_belongs_to_a_java_and_to_its_classes(java: Path) -> None:
    archive = class_archive.location("zookeeper", "one.jar")
    assert class_archive.location("zookeeper", "one.jar") == archive
    assert class_archive.location("zookeeper", "other.jar") != archive
    java.unlink()
    java.write_text("another")
    os.utime(java, (1, 1))
    assert class_archive.location("zookeeper", "one.jar") != archive
