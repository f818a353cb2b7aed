"""Where the cache is, and that nothing fails where there is none.

Covers: kce/cache.py.
"""

from __future__ import annotations

import pwd
from pathlib import Path

import numba.core.caching
import pytest

from kce.cache import cache_folder, user_cache
from kce.captures.files.machine_code import Kernel
from kce.harness import class_archive
from kce.harness.embedded_zookeeper import spawn
from kce.wire import columnar_memory


def doubled(number):
    return 2 * number


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare user id of a container, with a working directory that it may write."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)


def test_location(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/a")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/a/.cache/kafka-controller-emulator")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path("/home/a/.cache/kafka-controller-emulator")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/kafka-controller-emulator")


@pytest.mark.usefixtures("homeless")
def test_without_a_home_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is there a folder called `~` afterwards."""
    assert user_cache() is None
    assert not class_archive.location("zookeeper").is_file()
    assert Kernel(doubled)(2) == 4
    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [numba.core.caching.UserWideCacheLocator])
    assert columnar_memory.compiled(doubled)(2) == 4
    assert not list(tmp_path.iterdir())


def test_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
    assert columnar_memory.compiled(doubled)(2) == 4


def test_a_cache_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name too long stands for a home of another user: the file system refuses to look, which is not "not there"."""
    monkeypatch.setenv("XDG_CACHE_HOME", f"/{'x' * 300}")
    java = ["/bin/echo"]
    with spawn(java, tmp_path, tmp_path, tmp_path / "data", 2181, log := tmp_path / "log", {}) as process:
        process.wait()
    assert "-XX:SharedArchiveFile" not in log.read_text()
    assert Kernel(doubled)(3) == 6
