"""Both disks behave the same; the one in memory loses unflushed writes on a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from kce.broker_stub.ports import Disk
from kce.broker_stub.zookeeper.broker_metadata import BrokerMetadata, read_metadata, write_metadata
from kce.harness.world.disk import MemoryDisk, RealDisk


@pytest.fixture(params=[RealDisk, MemoryDisk])
def disk(request: pytest.FixtureRequest) -> Disk:
    made: Disk = request.param()
    return made


def test_what_was_written_is_read(disk: Disk, tmp_path: Path) -> None:
    path, other = str(tmp_path / "a" / "b"), str(tmp_path / "a" / "c")
    assert disk.read(path) is None
    disk.write(path, b"1")
    disk.write(path, b"22")
    disk.flush(path)
    assert disk.read(path) == b"22"
    disk.rename(path, other)
    assert (disk.read(path), disk.read(other)) == (None, b"22")
    for fails in (lambda: disk.rename(path, other), lambda: disk.flush(path)):
        with pytest.raises(FileNotFoundError):
            fails()


def test_a_crash_undoes_what_was_not_flushed() -> None:
    disk = MemoryDisk()
    disk.write("/d/a", b"1")
    disk.flush("/d/a")
    disk.write("/d/a", b"2")
    disk.write("/d/b", b"3")
    disk.rename("/d/a", "/d/c")
    disk.crash()
    assert [disk.read(f"/d/{name}") for name in "abc"] == [b"1", None, None]
    disk.rename("/d/a", "/d/c")
    disk.flush("/d/c")
    disk.crash()
    assert [disk.read(f"/d/{name}") for name in "abc"] == [None, None, b"1"]


class CrashingDisk(MemoryDisk):
    """Loses power before its operation number ``at``."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            self.crash()
            raise OSError("no power")

    def write(self, path: str, content: bytes) -> None:
        self._step()
        super().write(path, content)

    def flush(self, path: str) -> None:
        self._step()
        super().flush(path)

    def rename(self, old: str, new: str) -> None:
        self._step()
        super().rename(old, new)


def test_meta_properties_survives_a_crash_at_every_point() -> None:
    """A reader finds the whole file or none; once it is written, it stays."""
    metadata = BrokerMetadata("cluster", 7)
    for at in range(9):
        disk = CrashingDisk(at)
        try:
            write_metadata(disk, ["/a", "/b"], metadata)
            done = True
        except Exception:  # noqa: BLE001 - however it fails
            done = False
        disk.crash()
        found = read_metadata(disk, ["/a", "/b"])
        assert found in ([metadata] if done else [metadata, BrokerMetadata()])
        assert done == (at == 8)
