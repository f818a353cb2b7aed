"""TransactionIndexTest of Kafka (docs/transaction-semantics.md, 16e: TIX). Covers: broker_stub/log/indexes.py."""

from __future__ import annotations

import pytest

from kce.broker_stub.log.indexes import AbortedTransaction, CorruptIndex, TransactionIndex
from kce.harness.world.memory_disk import MemoryDisk

case = pytest.mark.kafka
PATH = "/d/00000000000000000000.txnindex"
FOUR = [
    AbortedTransaction(0, 0, 10, 11), AbortedTransaction(1, 5, 15, 13), AbortedTransaction(2, 18, 35, 25),
    AbortedTransaction(3, 32, 50, 40),
]  # fmt: skip


class Index:
    """In a folder in memory, under a path that may change."""

    def __init__(self, *transactions: AbortedTransaction) -> None:
        self.disk = MemoryDisk()
        self.disk.make_folder("/d")
        self.path = PATH
        self.opened = self.open()
        for transaction in transactions:
            self.opened.append(transaction)

    def open(self, base_offset: int = 0) -> TransactionIndex:
        return TransactionIndex(self.disk, lambda: self.path, base_offset)


@case("TIX-1")
def test_appends_after_it_was_opened_again() -> None:
    index = Index(*FOUR)
    again = index.open()
    another = AbortedTransaction(3, 50, 60, 55)
    again.append(another)
    assert again.transactions == index.open().transactions == [*FOUR, another]


@case("TIX-2")
def test_an_entry_before_the_segment() -> None:  # rule T12.9
    with pytest.raises(CorruptIndex):
        Index(*FOUR).open(100)


@pytest.mark.parametrize("last_offset", [pytest.param(15, marks=case("TIX-3")), pytest.param(10, marks=case("TIX-4"))])
def test_last_offsets_grow(last_offset: int) -> None:  # rule T12.9
    index = Index(AbortedTransaction(1, 5, 15, 13))
    with pytest.raises(ValueError, match="does not follow"):
        index.opened.append(AbortedTransaction(0, 0, last_offset, 11))
    assert index.open().transactions == [AbortedTransaction(1, 5, 15, 13)]


@case("TIX-5")
@pytest.mark.parametrize(
    ("fetch_offset", "upper_bound", "expected", "is_complete"),
    [
        (0, 100, FOUR, False), (0, 32, FOUR[:3], True), (0, 35, FOUR, True), (10, 35, FOUR, True),
        (11, 35, FOUR[1:], True), (20, 41, FOUR[2:], False),
    ],
)  # fmt: skip
def test_aborted_transactions_of_a_range(
    fetch_offset: int, upper_bound: int, expected: list[AbortedTransaction], is_complete: bool
) -> None:  # rule T12.10
    assert Index(*FOUR).opened.aborted(fetch_offset, upper_bound) == (expected, is_complete)


@case("TIX-6")
def test_truncation() -> None:  # rule T12.9
    index = Index(*FOUR)
    for offset, kept in ((51, FOUR), (50, FOUR[:3]), (0, [])):
        index.opened.truncate_to(offset)
        assert index.opened.aborted(0, 100)[0] == kept
        assert index.open().transactions == kept


@case("TIX-7")
def test_an_entry() -> None:  # rule T12.8
    entry = AbortedTransaction(983493, 137, 299, 200)
    index = Index(entry)
    assert index.open().transactions == [entry]
    assert index.disk.read(PATH) == bytes(2) + b"".join(n.to_bytes(8, "big") for n in (983493, 137, 299, 200))


@case("TIX-8")
@case("TIX-9")
@pytest.mark.parametrize("path", ["/d/renamed", "/parent/00000000000000000000.txnindex"])
def test_its_file_or_folder_is_renamed(path: str) -> None:
    index = Index(AbortedTransaction(0, 0, 10, 2))
    index.disk.make_folder("/parent")
    index.disk.rename(index.path, path)
    index.path = path
    index.opened.append(AbortedTransaction(1, 5, 15, 16))
    assert [found.first_offset for found in index.open().aborted(0, 100)[0]] == [0, 5]


@case("TIX-10")
def test_there_is_a_file_once_there_is_an_entry() -> None:  # rule B6.3
    index = Index()
    assert not index.disk.exists(PATH)
    index.opened.append(AbortedTransaction(0, 0, 10, 2))
    index.disk.flush(PATH)
    assert index.disk.read(PATH)
