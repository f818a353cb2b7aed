"""The indexes of a segment."""

from __future__ import annotations

from pathlib import Path

import pytest

from kce.broker_stub.log.indexes import AbortedTransaction, CorruptIndex, OffsetIndex, TimeIndex, TransactionIndex
from kce.harness.world.memory_disk import MemoryDisk
from kce.harness.world.real_disk import RealDisk


@pytest.fixture
def disk() -> MemoryDisk:
    made = MemoryDisk()
    made.make_folder("/d")
    return made


def offsets(disk: MemoryDisk, *, new: bool = False) -> OffsetIndex:
    return OffsetIndex(disk, lambda: "/d/x.index", 1000, new=new)


def times(disk: MemoryDisk, *, new: bool = False) -> TimeIndex:
    return TimeIndex(disk, lambda: "/d/x.timeindex", 1000, new=new)


def test_offsets_are_found_at_or_below(disk: MemoryDisk) -> None:
    index = offsets(disk, new=True)
    assert (index.lookup(1005), index.last_offset, index.offset_beyond(0)) == ((1000, 0), 1000, None)
    for offset, position in ((1010, 100), (1020, 200), (1030, 350)):
        index.append(offset, position)
    for known in (index, None):
        if known is None:
            index.store()
            known = offsets(disk)
        assert [known.lookup(offset) for offset in (1000, 1009, 1010, 1025, 9999)] == [
            (1000, 0), (1000, 0), (1010, 100), (1020, 200), (1030, 350),
        ]  # fmt: skip
        assert [known.offset_beyond(position) for position in (0, 99, 100, 200, 201, 350, 351)] == [
            1010, 1010, 1020, 1020, 1030, 1030, None,
        ]  # fmt: skip
        assert (len(known), known.last_offset) == (3, 1030)
    assert disk.read("/d/x.index") == bytes.fromhex("0000000a0000006400000014000000c80000001e0000015e")


def test_an_index_is_stored_as_far_as_it_grew(disk: MemoryDisk) -> None:
    index = offsets(disk, new=True)
    index.append(1001, 10)
    index.store()
    index.append(1002, 20)
    index.append(1003, 30)
    index.store()
    index.store()
    assert len(disk.read("/d/x.index") or b"") == 24
    index.truncate_to(1003)
    assert len(disk.read("/d/x.index") or b"") == 16
    index.append(1009, 90)
    index.store()
    assert [offsets(disk).lookup(offset) for offset in (1005, 1009)] == [(1002, 20), (1009, 90)]
    index.truncate_to(1000)
    assert (len(index), disk.read("/d/x.index")) == (0, b"")


def test_timestamps_are_found_at_or_below(disk: MemoryDisk) -> None:
    index = times(disk, new=True)
    assert (index.lookup(5), index.last) == ((-1, 1000), (-1, 1000))
    for timestamp, offset in ((10, 1005), (10, 1006), (9, 1007), (20, 1010)):
        index.maybe_append(timestamp, offset)
    index.store()
    for known in (index, times(disk)):
        assert [known.lookup(timestamp) for timestamp in (9, 10, 19, 20, 99)] == [
            (-1, 1000), (10, 1005), (10, 1005), (20, 1010), (20, 1010),
        ]  # fmt: skip
        assert (known.last, len(known)) == ((20, 1010), 2)
    index.truncate_to(1010)
    assert (index.last, len(disk.read("/d/x.timeindex") or b"")) == ((10, 1005), 12)


@pytest.mark.parametrize("content", ["00", "0000000a000000640000000a000000c8", "ffffffff00000000"])
def test_corrupt_offsets(disk: MemoryDisk, content: str) -> None:
    disk.write("/d/x.index", bytes.fromhex(content))
    with pytest.raises(CorruptIndex):
        offsets(disk)


@pytest.mark.parametrize(
    "content", ["00", "000000000000000500000001000000000000000500000002", "0000000000000005ffffffff"]
)
def test_corrupt_timestamps(disk: MemoryDisk, content: str) -> None:
    disk.write("/d/x.timeindex", bytes.fromhex(content))
    with pytest.raises(CorruptIndex):
        times(disk)


def test_aborted_transactions(disk: MemoryDisk) -> None:
    index = TransactionIndex(disk, lambda: "/d/x.txnindex", 0)
    first, second = AbortedTransaction(1, 0, 10, 11), AbortedTransaction(2, 5, 20, 21)
    assert disk.read("/d/x.txnindex") is None
    index.append(first)
    index.append(second)
    again = TransactionIndex(disk, lambda: "/d/x.txnindex", 0)
    assert again.transactions == [first, second]
    assert again.aborted(0, 5) == ([first], True)
    assert again.aborted(11, 30) == ([second], False)
    assert again.aborted(0, 11) == ([first], True)
    assert again.aborted(0, 12) == ([first, second], True)
    assert again.aborted(21, 30) == ([], False)
    again.truncate_to(20)
    assert TransactionIndex(disk, lambda: "/d/x.txnindex", 0).transactions == [first]
    again.truncate_to(0)
    assert disk.read("/d/x.txnindex") == b""
    disk.write("/d/x.txnindex", b"\0\1" + bytes(32))
    with pytest.raises(CorruptIndex):
        TransactionIndex(disk, lambda: "/d/x.txnindex", 0)
    disk.write("/d/x.txnindex", bytes(34))
    with pytest.raises(CorruptIndex):
        TransactionIndex(disk, lambda: "/d/x.txnindex", 1)


def test_the_first_entries_may_be_zero(disk: MemoryDisk) -> None:
    disk.write("/d/x.index", bytes.fromhex("00000000000000000000000500000064"))
    index = offsets(disk)
    assert (len(index), index.lookup(1004), index.lookup(1005)) == (2, (1000, 0), (1005, 100))
    disk.write("/d/x.timeindex", bytes.fromhex("000000000000000000000000"))
    assert times(disk).last == (0, 1000)


def test_what_was_half_written_is_written_over(disk: MemoryDisk) -> None:
    first, second = AbortedTransaction(1, 0, 10, 11), AbortedTransaction(2, 5, 20, 21)
    index = TransactionIndex(disk, lambda: "/d/x.txnindex", 0)
    index.append(first)
    with pytest.raises(ValueError, match="does not follow"):
        index.append(first)
    whole = disk.read("/d/x.txnindex") or b""
    disk.write("/d/x.txnindex", whole + whole[:20])
    again = TransactionIndex(disk, lambda: "/d/x.txnindex", 10)
    assert again.transactions == [first]
    again.append(second)
    assert disk.read("/d/x.txnindex") == whole + bytes.fromhex("0000") + b"".join(n.to_bytes(8, "big") for n in second)
    again.truncate_to(21)
    assert (again.transactions, len(disk.read("/d/x.txnindex") or b"")) == ([first, second], 68)
    again.truncate_to(20)
    assert (again.transactions, disk.read("/d/x.txnindex")) == ([first], whole)
    disk.write("/d/x.index", bytes(16))  # more than what is flushed is cut
    more = offsets(disk, new=True)
    more.append(1003, 30)
    more.store()
    assert disk.read("/d/x.index") == bytes.fromhex("000000030000001e")


def test_an_index_keeps_no_file_open(tmp_path: Path) -> None:
    disk = RealDisk()
    made = (
        OffsetIndex(disk, lambda: f"{tmp_path}/x.index", 0, new=True),
        TimeIndex(disk, lambda: f"{tmp_path}/x.timeindex", 0, new=True),
    )
    made[0].append(5, 50)
    made[1].maybe_append(70, 5)
    for index in made:
        index.store()
        assert disk._descriptors == {}
        index.truncate_to(5)
        assert disk._descriptors == {}
    assert sorted((path.name, path.stat().st_size) for path in tmp_path.iterdir()) == [
        ("x.index", 0),
        ("x.timeindex", 0),
    ]
