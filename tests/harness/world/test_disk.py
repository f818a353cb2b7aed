"""Both disks behave the same; the one in memory loses unflushed writes on a crash.

Covers: broker_stub/disk.py, harness/world/memory_disk.py, harness/world/real_disk.py.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from kce.broker_stub.disk import Disk, content, replace
from kce.broker_stub.zookeeper.broker_metadata import BrokerMetadata, read_metadata, write_metadata
from kce.harness.world.memory_disk import MemoryDisk
from kce.harness.world.real_disk import MIN_SLICE_BYTES, RealDisk, RealFile, RealSlice


@pytest.fixture(params=[RealDisk, MemoryDisk])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    made: Disk = request.param()
    made.make_folder(str(tmp_path))
    return made


def test_what_was_written_is_read(disk: Disk, tmp_path: Path) -> None:
    path, other = f"{tmp_path}/a/b", f"{tmp_path}/a/c"
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


def test_a_file_grows_at_its_end_and_is_cut(disk: Disk, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(f"{tmp_path}/none/a")
    path = f"{tmp_path}/a"
    file = disk.open(path)
    file.append(b"abc", memoryview(b"defg"), b"")
    file.append(b"hij")
    assert (file.size, bytes(file.read(1, 3)), bytes(file.read(5, 4)), bytes(file.read(8, 9))) == (
        10, b"bcd", b"fghi", b"ij",
    )  # fmt: skip
    for position in range(12):
        for size in range(12):
            assert bytes(file.read(position, size)) == b"abcdefghij"[position : position + size]
    file.truncate(20)
    file.truncate(8)
    file.append(b"X")
    file.flush()
    file.close()
    assert (file.size, disk.read(path), bytes(file.read(6, 9))) == (9, b"abcdefghX", b"ghX")
    assert disk.open(path).size == 9
    file.truncate(0)
    assert (file.size, disk.read(path), file.read(0, 1)) == (0, b"", b"")


def test_a_slice_is_what_is_read(disk: Disk, tmp_path: Path) -> None:
    data = os.urandom(3 * MIN_SLICE_BYTES)
    file = disk.open(f"{tmp_path}/a")
    file.append(data)
    for position, size in ((0, len(data)), (1, 2 * MIN_SLICE_BYTES), (len(data) - MIN_SLICE_BYTES, 1 << 30), (5, 7)):
        found = file.slice(position, size)
        assert content(found) == data[position : position + size]
        assert len(found) == len(data[position : position + size])
        assert isinstance(found, RealSlice) == (isinstance(disk, RealDisk) and size > 7)


class Sliced:
    """A real file with random bytes."""

    def __init__(self, folder: Path) -> None:
        self.disk = RealDisk()
        self.data = os.urandom(4 * MIN_SLICE_BYTES)
        self.path = f"{folder}/f"
        self.file: RealFile = self.disk.open(self.path)
        self.file.append(self.data)

    def slice(self, position: int = 0, size: int = MIN_SLICE_BYTES) -> RealSlice:
        found = self.file.slice(position, size)
        assert isinstance(found, RealSlice)
        return found

    @property
    def descriptors(self) -> int:
        """Of the file, in this process."""
        file, count = os.stat(self.path), 0
        for name in os.listdir("/dev/fd"):
            try:
                count += os.path.samestat(file, os.fstat(int(name)))
            except OSError:  # that of the folder, which is closed again
                continue
        return count


def test_a_slice_keeps_its_file(tmp_path: Path) -> None:
    sliced = Sliced(tmp_path)
    found, expected = sliced.slice(1), sliced.data[1 : 1 + MIN_SLICE_BYTES]
    sliced.disk.rename(sliced.path, f"{tmp_path}/g")
    assert found.read() == expected
    sliced.disk.delete(f"{tmp_path}/g")
    sliced.disk.open(sliced.path).append(b"another")
    assert found.read() == expected


def test_a_slice_has_nothing_that_was_cut_off(tmp_path: Path) -> None:
    """Not even what was appended in its place; the disk may have closed and opened the file meanwhile."""
    sliced = Sliced(tmp_path)
    before, within, other = sliced.slice(0), sliced.slice(MIN_SLICE_BYTES), sliced.disk.open(f"{tmp_path}/other")
    other.append(sliced.data)
    elsewhere = other.slice(0, 2 * MIN_SLICE_BYTES)
    sliced.file.close()
    sliced.file.truncate(2 * MIN_SLICE_BYTES - 1)
    sliced.file.append(sliced.data)
    with pytest.raises(OSError, match=f"cut before byte {2 * MIN_SLICE_BYTES}"):
        within.read()
    with pytest.raises(OSError, match="cut before byte"):
        within.send(-1, 0, 1)
    assert before.read() == sliced.data[:MIN_SLICE_BYTES]
    assert content(elsewhere) == sliced.data[: 2 * MIN_SLICE_BYTES]
    assert len(sliced.slice(MIN_SLICE_BYTES).read()) == MIN_SLICE_BYTES


def test_a_slice_notices_that_somebody_else_has_cut_its_file(tmp_path: Path) -> None:
    sliced = Sliced(tmp_path)
    found = sliced.slice(1)
    os.truncate(sliced.path, MIN_SLICE_BYTES)
    with pytest.raises(OSError, match="cut before byte"):
        found.read()


def test_slices_take_only_so_many_descriptors_and_give_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sliced = Sliced(tmp_path)
    sliced.disk._max_slices = 2
    kept = [sliced.slice(), sliced.slice(1)]
    assert sliced.descriptors == 3
    assert sliced.file.slice(2, MIN_SLICE_BYTES) == sliced.data[2 : 2 + MIN_SLICE_BYTES]
    del kept[0]
    assert sliced.descriptors == 2
    assert sliced.slice(3).read() == sliced.data[3 : 3 + MIN_SLICE_BYTES]
    kept.clear()
    assert sliced.descriptors == 1

    def dup(descriptor: int) -> int:
        raise OSError(errno.EMFILE, "no more descriptors")

    monkeypatch.setattr(os, "dup", dup)
    assert sliced.file.slice(4, MIN_SLICE_BYTES) == sliced.data[4 : 4 + MIN_SLICE_BYTES]


def test_folders(disk: Disk, tmp_path: Path) -> None:
    top = f"{tmp_path}/top"
    disk.make_folder(f"{top}/b/c")
    disk.make_folder(f"{top}/b/c")
    disk.write(f"{top}/z", b"1")
    disk.write(f"{top}/y", b"2")
    disk.open(f"{top}/b/c/file").append(b"3")
    disk.flush_folder(f"{top}/b")
    assert (disk.files(top), disk.folders(top), disk.folders(f"{top}/b")) == (["y", "z"], ["b"], ["c"])
    disk.rename(f"{top}/b", f"{top}/n")
    assert disk.read(f"{top}/n/c/file") == b"3"
    assert [disk.exists(f"{top}/{name}") for name in ("b", "n", "n/c/file", "y", "x")] == [
        False,
        True,
        True,
        True,
        False,
    ]
    for path in ("n", "y", "none"):
        disk.delete(f"{top}/{path}")
    assert (disk.files(top), disk.folders(top)) == (["z"], [])
    for fails in (disk.files, disk.folders, disk.flush_folder):
        with pytest.raises(FileNotFoundError):
            fails(f"{top}/n")


def test_a_file_that_is_renamed_with_its_folder_and_opened_again(disk: Disk, tmp_path: Path) -> None:
    disk.make_folder(f"{tmp_path}/a")
    disk.open(f"{tmp_path}/a/f").append(b"old")
    disk.rename(f"{tmp_path}/a", f"{tmp_path}/b")
    disk.make_folder(f"{tmp_path}/a")
    disk.open(f"{tmp_path}/a/f").append(b"new!")
    assert (disk.read(f"{tmp_path}/b/f"), disk.read(f"{tmp_path}/a/f")) == (b"old", b"new!")


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    disk = MemoryDisk()
    disk.make_folder("/d")
    assert [disk.lock("/d/.lock"), disk.lock("/d/.lock")] == [True, False]
    disk.unlock("/d/.lock")
    assert disk.lock("/d/.lock")
    disk.release_locks()
    assert disk.lock("/d/.lock")


def test_a_lock_of_the_machine_is_held_against_other_processes(tmp_path: Path) -> None:
    def in_a_child(locks: Callable[[], bool]) -> bool:
        child = os.fork()
        if not child:
            os._exit(locks())
        return bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    disk, path = RealDisk(), f"{tmp_path}/.lock"
    assert disk.lock(path)
    assert not in_a_child(lambda: RealDisk().lock(path))
    disk.unlock(path)
    assert in_a_child(lambda: RealDisk().lock(path))


def test_a_process_holds_only_so_many_descriptors(tmp_path: Path) -> None:
    disk = RealDisk()
    disk._max_descriptors = 2
    files = [disk.open(f"{tmp_path}/{i}") for i in range(5)]
    for _ in range(2):
        for i, file in enumerate(files):
            file.append(b"%d" % i)
            assert len(disk._descriptors) <= 2
    assert [disk.read(f"{tmp_path}/{i}") for i in range(5)] == [b"00", b"11", b"22", b"33", b"44"]
    assert disk.modified_ms(f"{tmp_path}/1") > 1_700_000_000_000


async def test_many_files_are_flushed_while_others_run(tmp_path: Path) -> None:
    for disk in (RealDisk(), MemoryDisk()):
        disk.make_folder(str(tmp_path))
        disk.open(f"{tmp_path}/a").append(b"1")
        disk.flush_folder(str(tmp_path))
        await disk.flush_all([f"{tmp_path}/a", f"{tmp_path}/none"])
    disk.crash()
    assert disk.read(f"{tmp_path}/a") == b"1"


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
    disk.rename("/d", "/e")
    disk.flush_folder("/")
    disk.crash()
    assert disk.read("/e/c") == b"1"


def test_a_crash_undoes_what_was_appended_and_cut_since_the_flush() -> None:
    disk = MemoryDisk()
    disk.make_folder("/d")
    file = disk.open("/d/a")
    file.append(b"abc")
    disk.flush("/d/a")
    file.append(b"def")
    disk.crash()
    assert disk.read("/d/a") == b"abc"
    file = disk.open("/d/a")
    file.truncate(1)
    file.append(b"XYZ")
    disk.crash()
    assert disk.read("/d/a") == b"abc"
    file = disk.open("/d/a")
    file.truncate(1)
    file.flush()
    disk.crash()
    assert disk.read("/d/a") == b"a"


def test_a_torn_file_keeps_some_of_what_was_not_flushed() -> None:
    found = set()
    for seed in range(40):
        disk = MemoryDisk()
        disk.make_folder("/d")
        file = disk.open("/d/a")
        file.append(b"ab")
        disk.flush("/d/a")
        file.append(b"cd")
        disk.crash(Random(seed))
        found.add(disk.read("/d/a"))
    assert found == {b"ab", b"abc", b"abcd"}


class CrashingDisk(MemoryDisk):
    """Loses power before its operation number ``at``."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at

    def before(self, path: str, size: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise OSError("no power")


def test_meta_properties_survives_a_crash_at_every_point() -> None:
    """A reader finds the whole file or none; once it is written, it stays."""
    metadata = BrokerMetadata("cluster", 7)
    at, done = 0, False
    while not done:
        disk = CrashingDisk(at)
        failed: dict[str, OSError] = {}
        write_metadata(disk, ["/a", "/b"], metadata, failed)
        done = not failed
        at += not done
        disk.crash()
        disk._left = 10_000
        found = read_metadata(disk, ["/a", "/b"], {})
        assert found in ([metadata] if done else [metadata, BrokerMetadata()])
    assert at > 10


def test_a_file_that_is_replaced_is_never_half_there() -> None:
    at, done = 0, False
    while not done:
        disk = CrashingDisk(10_000)
        replace(disk, "/d/f", b"old")
        disk._left = at
        try:
            replace(disk, "/d/f", b"new content")
            done = True
        except OSError:
            at += 1
        disk.crash(Random(at))
        disk._left = 10_000
        assert disk.read("/d/f") in ((b"new content",) if done else (b"old", b"new content"))


@pytest.mark.parametrize("most", [1, 3, 1000])
def test_a_short_write_is_continued(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = os.pwritev

    def short(descriptor: int, parts: Sequence[bytes], at: int) -> int:
        return written(descriptor, [b"".join(parts)[:most]], at)

    monkeypatch.setattr(os, "pwritev", short)
    file = RealDisk().open(str(tmp_path / "f"))
    file.append(b"ab", memoryview(b""), b"cdefg")
    file.append(b"")
    file.append(b"hi")
    assert (file.size, bytes(file.read(0, 100)), (tmp_path / "f").read_bytes()) == (9, b"abcdefghi", b"abcdefghi")
