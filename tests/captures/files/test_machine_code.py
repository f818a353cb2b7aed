"""Kernels: compiled for what they are called with, kept on disk, linked without numba.

Covers: kce.captures.files.machine_code, kce.captures.files.linking, kce.captures.spark.compile_kernels
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba.core.errors import NumbaError

from kce.captures.errors import CaptureError
from kce.captures.files import linking, machine_code
from kce.captures.files.linking import CannotLink, link
from kce.captures.files.machine_code import Kernel, compiled
from kce.captures.spark import compile_kernels
from tests.captures.samples import CAPTURES, unzipped

FACTOR = 3
TABLE = np.arange(100, dtype=np.int64) * 7


class Pair(NamedTuple):
    left: Any
    right: Any


def total(numbers, start):
    found = start
    for number in numbers:
        found += FACTOR * np.int64(number)
    return found


def both(pair, doubled):
    is_long = len(pair.left) > 2
    first = pair.right[0, 1] * (2 if doubled else 1)
    return first, is_long, np.int64(pair.left[0])


def difference(pair):
    return pair.left - pair.right


def put(out, value):
    out[0] = value


@compiled
def increased(number):
    return number + FACTOR


def twice_increased(number):
    return increased(increased(number))


def tabled(out, index):
    for k in range(len(out)):
        out[k] = 0
    return np.int64(TABLE[index])


def allocates(size):
    return len(np.zeros(size, np.int64))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kafka-controller-emulator" / "kernels"


def kept_only(monkeypatch):
    """From here on nothing is compiled."""
    monkeypatch.setattr(Kernel, "_compile", lambda self, kinds: pytest.fail("compiled again"))


def by_llvm_only(monkeypatch):
    """From here on nothing is linked without LLVM."""

    def cannot(symbol, file):
        raise CannotLink("another processor")

    monkeypatch.setattr(machine_code, "link", cannot)


def readonly(array):
    array.flags.writeable = False
    return array


ROWS = np.arange(12, dtype=np.int64).reshape(4, 3)
OTHERS = [ROWS[:, 1], ROWS[:, 1].copy(), readonly(np.arange(4)), np.arange(5, dtype=np.uint8), np.zeros(0, np.int64)]


@pytest.mark.parametrize("numbers", OTHERS)
@pytest.mark.parametrize("start", [0, -(1 << 40), np.int64(7), True])
def test_arrays_and_numbers(numbers, start):
    found = Kernel(total)(numbers, start)
    assert found == total(numbers, start)
    assert type(found) is int


@pytest.mark.parametrize("doubled", [False, True, np.True_])
def test_tuples(doubled):
    pair = Pair(np.arange(1, 9, dtype=np.uint8), ROWS)
    found = Kernel(both)(pair, doubled)
    assert found == both(pair, doubled)
    assert list(map(type, found)) == [int, bool, int]


def test_nothing_returned():
    out = np.zeros(1, np.int64)
    kernel = Kernel(put)
    assert kernel(out, 5) is None
    assert kernel(out, 6) is None
    assert out[0] == 6


def test_the_same_array_with_other_contents():
    numbers = np.arange(3)
    kernel = Kernel(total)
    assert kernel(numbers, 0) == 9
    numbers[0] = 1
    assert kernel(numbers, 0) == 12
    assert kernel(numbers[:1], 0) == 3


def test_kept(cache, monkeypatch):
    assert Kernel(twice_increased)(1) == 7
    (path,) = cache.iterdir()
    assert path.name.startswith(f"{__name__}.twice_increased-")
    kept_only(monkeypatch)
    assert Kernel(twice_increased)(2) == 8


@pytest.mark.parametrize("without_llvm", [True, False])
def test_linked_once_or_by_llvm(cache, without_llvm, monkeypatch):
    """A table of constants, one behind it, and what the compiler makes a call of memset."""
    if not without_llvm:
        by_llvm_only(monkeypatch)
    assert tabled_and_cleared(Kernel(tabled)) == (TABLE.tolist(), [0] * 1000)
    (path,) = cache.iterdir()
    assert (b"\x7fELF" in path.read_bytes()) is not without_llvm
    kept_only(monkeypatch)
    if without_llvm:
        monkeypatch.setattr(machine_code, "_linked_by_llvm", lambda code: pytest.fail("linked by LLVM"))
    assert tabled_and_cleared(Kernel(tabled)) == (TABLE.tolist(), [0] * 1000)


def tabled_and_cleared(kernel):
    out = np.ones(1000, np.int64)
    return [kernel(out, index) for index in range(len(TABLE))], out.tolist()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only object files for x86-64 are linked here")
def test_object_files_that_are_not_linked_here(monkeypatch):
    by_llvm_only(monkeypatch)
    monkeypatch.setattr(machine_code, "_write", lambda path, kept: made.append(kept))
    made: list[machine_code.Code] = []
    assert tabled_and_cleared(Kernel(tabled))[0] == TABLE.tolist()
    (code,) = made
    file = code.object_file
    image = link(code.symbol, file)
    assert image.addresses
    assert image.functions[0][1] == "memset"

    def refused(changed: bytes) -> str:
        with pytest.raises(CannotLink) as info:
            link(code.symbol, changed)
        return str(info.value)

    big_endian, executable, of_arm = 5, 16, 18
    assert "little-endian" in refused(b"MZ" + file[2:])
    assert "little-endian" in refused(with_byte(file, big_endian, 2))
    assert "not an object file" in refused(with_byte(file, executable, 2))
    assert "not an object file" in refused(with_byte(file, of_arm, 183))
    header, _ = section(file, 1)
    assert "neither code nor constants" in refused(with_byte(file, header + 8, 7))  # its flags: writable, too
    _, relocations = section(file, 4)
    assert "relocation of type 2" in refused(with_byte(file, relocations + 8, 2))
    with pytest.raises(CannotLink, match="no function of_another_name"):
        link("of_another_name", file)


def section(file: bytes, kind: int) -> tuple[int, int]:
    """Where the header of the first section of that kind is in an ELF file, and where its content."""
    first, size = struct.unpack_from("<Q", file, 40)[0], 64
    headers = range(first, len(file), size)
    (header,) = [at for at in headers if struct.unpack_from("<I", file, at + 4)[0] == kind][:1]
    return header, struct.unpack_from("<Q", file, header + 24)[0]


def with_byte(file: bytes, at: int, value: int) -> bytes:
    return file[:at] + bytes([value]) + file[at + 1 :]


def test_machine_code_that_may_not_run(monkeypatch):
    """As SELinux may forbid it."""

    def forbidden(address, size, protection):
        ctypes.set_errno(errno.EACCES)
        return -1

    monkeypatch.setattr(linking, "_mprotect", forbidden)
    with pytest.raises(CaptureError, match="forbids machine code") as refused:
        Kernel(total)(ROWS[0], 0)
    assert str(refused.value.__cause__) == "[Errno 13] no memory for machine code: Permission denied"


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_damaged(cache, damage, monkeypatch):
    Kernel(total)(ROWS[0], 0)
    (path,) = cache.iterdir()
    path.write_bytes(path.read_bytes()[:-9] if damage is None else damage)
    assert Kernel(total)(ROWS[0], 0) == 9
    kept_only(monkeypatch)
    assert Kernel(total)(ROWS[0], 0) == 9


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert Kernel(total)(ROWS[0], 0) == 9


def test_other_code_for_other_constants(cache, monkeypatch):
    """Those of a kernel's module, and of kernels that it calls."""
    assert Kernel(total)(ROWS[0], 0) == 9
    of_callers = Kernel(twice_increased).content
    monkeypatch.setitem(globals(), "FACTOR", 10)
    assert Kernel(total)(ROWS[0], 0) == 30
    monkeypatch.setitem(globals(), "increased", Kernel(increased.__wrapped__))
    assert Kernel(twice_increased).content != of_callers
    assert len(list(cache.iterdir())) == 2


def test_other_code_for_fields_in_another_order(monkeypatch):
    """As in another version of this program, whose cache is the same."""

    class Swapped(NamedTuple):
        right: Any
        left: Any

    Swapped.__qualname__, Swapped.__module__ = Pair.__qualname__, Pair.__module__
    assert Kernel(difference)(Pair(left=7, right=2)) == 5
    assert Kernel(difference)(Swapped(left=7, right=2)) == 5
    kept_only(monkeypatch)
    assert Kernel(difference)(Pair(left=7, right=2)) == 5


@pytest.mark.parametrize("renamed_before", ["stat", "unlink"])
def test_another_process_writes_there_too(cache, renamed_before, monkeypatch, caplog):
    """It renames a file after it was listed here, or removes it after it was found to be old."""
    cache.mkdir(parents=True)
    other = cache / "tmp-of-another-process"
    other.touch()
    os.utime(other, (0, 0))
    of_path = getattr(Path, renamed_before)

    def too_late(path, **options):
        if path == other:
            other.rename(cache / "renamed")
        return of_path(path, **options)

    machine_code._announce_loss.cache_clear()
    monkeypatch.setattr(Path, renamed_before, too_late)
    assert Kernel(total)(ROWS[0], 0) == 9
    assert (cache / "renamed").exists()
    assert "cannot be written" not in caplog.text


def test_what_is_old_and_cannot_be_removed_stays(cache, caplog):
    other = cache / "folder"
    other.mkdir(parents=True)
    os.utime(other, (0, 0))
    machine_code._announce_loss.cache_clear()
    assert Kernel(total)(ROWS[0], 0) == 9
    assert other.exists()
    assert "cannot be written" not in caplog.text


def test_old_files_are_removed(cache):
    Kernel(total)(ROWS[0], 0)
    (path,) = cache.iterdir()
    long_ago = time.time() - machine_code._KEPT_S - 60
    os.utime(path, (long_ago, long_ago))
    Kernel(total)(ROWS[:, 0], 0)
    (other,) = cache.iterdir()
    assert other != path


def test_a_kernel_allocates_nothing():
    with pytest.raises(NumbaError, match="zeros"):
        Kernel(allocates)(3)


def test_captures_are_read_without_numba(tmp_path):
    """Once `make setup` has compiled the kernels of `kce decode` and `kce analyze`."""
    setup = python("-m", compile_kernels.__name__)
    assert setup.stderr.count("compiling") == 1
    file = tmp_path / "sample.pcap"
    file.write_bytes(unzipped("kafka-3.9.1-tour"))
    code = """
        import sys
        from kce.harness.cli import captures, main
        captures.BULK_FROM_BYTES = 0
        print(main(["decode", sys.argv[1]]), "kce.captures.fast.lines" in sys.modules, file=sys.stderr)
        print("numba" in sys.modules, file=sys.stderr)
        from kce.captures.spark import small  # which imports pandas, and that numba
        print(small.decode([sys.argv[1]]).num_rows, file=sys.stderr)
        from kce.captures.spark.compile_kernels import decode_as_tasks
        print(decode_as_tasks([sys.argv[1]]), file=sys.stderr)
    """
    decoding = python("-c", textwrap.dedent(code), str(file))
    assert "LeaderAndIsr" in decoding.stdout
    *_, decoded, numba, rows, rows_of_tasks = decoding.stderr.splitlines()
    assert (decoded, numba) == ("0 True", "False")
    assert int(rows_of_tasks) == int(rows) > 0
    assert "compiling" not in decoding.stderr


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


FORBIDDEN = """
import ctypes, sys
if ctypes.CDLL(None, use_errno=True).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, as systemd's MemoryDenyWriteExecute
    sys.exit(77)
from kce.harness.cli import main
sys.exit(main(["analyze", sys.argv[1]]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_MDWE is Linux's")
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_system_that_forbids_machine_code_is_one_line(tmp_path, is_kept):
    environment = os.environ if is_kept else os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", FORBIDDEN, str(CAPTURES["kafka-3.9.1-tour"])]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if ran.returncode == 77:
        pytest.skip("Linux before 6.3")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.splitlines()[-1].startswith("kce: this system forbids machine code")
    assert "Traceback" not in ran.stderr
