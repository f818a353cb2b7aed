"""UnifiedLogTest and LogLoaderTest of Kafka: transactions in one log (docs/transaction-semantics.md, 16e: TLG)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from kce.broker_stub.errors import InvalidProducerEpoch, KafkaStorageError, TransactionCoordinatorFenced
from kce.broker_stub.log import Isolation, Log, Origin
from kce.broker_stub.log.indexes import AbortedTransaction
from kce.harness.world.memory_disk import MemoryDisk
from tests.broker_stub.log.support import (
    FOLDER,
    NOW_MS,
    PARTITION,
    Context,
    a_log,
    append,
    base_offsets,
    batch,
    marker,
    produced,
)
from tests.broker_stub.logs import MemoryLogManager

case = pytest.mark.kafka
ABORT, COMMIT = False, True
EXPECTED = [AbortedTransaction(1, 0, 29, 8), AbortedTransaction(2, 8, 74, 36)]
#: (producer or None, records or the end of its transaction), of four producers
MIXED: tuple[tuple[int | None, int | bool], ...] = (
    (1, 5), (None, 3), (2, 2), (1, 4), (3, 3), (None, 2), (1, 10), (1, ABORT), (2, 6), (4, 3), (None, 10), (3, 9),
    (3, COMMIT), (4, 8), (2, 7), (2, ABORT), (None, 10), (4, 4), (4, COMMIT),
)  # fmt: skip


def mixed(*, as_leader: bool = True) -> Iterator[tuple[bytes, Origin]]:
    """Batches of transactions and others; for a follower, they have their offsets."""
    offset, sequences = 0, Counter[int]()
    for producer, what in MIXED:
        if isinstance(what, bool):
            assert producer is not None
            at = 0 if as_leader else offset
            yield marker(producer, committed=what, base_offset=at, leader_epoch=0), Origin.COORDINATOR
            offset += 1
            continue
        values, place = [b"%d" % i for i in range(what)], {"base_offset": 0 if as_leader else offset, "leader_epoch": 0}
        if producer is None:
            yield batch(*values, **place), Origin.CLIENT  # type: ignore[arg-type]
        else:
            yield produced(producer, sequences[producer], what, transactional=True, **place), Origin.CLIENT
            sequences[producer] += what
        offset += what


def transactional(log: Log, producer: int, sequence: int, count: int, *, epoch: int = 0, leader_epoch: int = 0) -> int:
    """The first offset."""
    records = produced(producer, sequence, count, epoch=epoch, transactional=True)
    return log.append_as_leader(records, leader_epoch).first_offset


def end(
    log: Log, producer: int, committed: bool, *, epoch: int = 0, coordinator_epoch: int = 0, leader_epoch: int = 0
) -> int:
    """The offset of the marker."""
    records = marker(producer, committed=committed, epoch=epoch, coordinator_epoch=coordinator_epoch)
    return log.append_as_leader(records, leader_epoch, origin=Origin.COORDINATOR).last_offset


def first_unstable(log: Log) -> int | None:
    """Of the log itself, not bounded by its high watermark."""
    found = log._first_unstable
    return None if found is None else found.offset


def aborted(log: Log) -> list[AbortedTransaction]:
    return [transaction for segment in log.segments for transaction in segment.txn_index.transactions]


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(Log.truncate_to, marks=case("TLG-1"), id="a part"),
        pytest.param(Log.truncate_fully, marks=case("TLG-2"), id="all"),
    ],
)
def test_a_cut_below_an_open_transaction(cut: Callable[[Log, int], object]) -> None:  # rule T12.13
    context = Context()
    log = a_log(context, segment_bytes=1024 * 1024)
    append(log, b"0", b"1", b"2")
    transactional(log, 17, 0, 2, epoch=10)
    assert first_unstable(log) == 3
    log.close()
    again = a_log(context, segment_bytes=1024 * 1024)
    assert again._first_unstable is not None
    assert (again._first_unstable.offset, again._first_unstable.is_located) == (3, False)
    cut(again, 0)
    assert first_unstable(again) is None
    assert dict(again.known_producers()) == {}


@case("TLG-3")
def test_recovery_finds_that_a_transaction_has_ended() -> None:  # rule T12.13
    context = Context()
    log = a_log(context)
    transactional(log, 137, 0, 3, epoch=5)
    after = end(log, 137, ABORT, epoch=5) + 1
    log.set_high_watermark(after)
    assert first_unstable(log) is None
    log.close()
    again = a_log(context, clean=False)
    again.set_high_watermark(after)
    assert first_unstable(again) is None
    assert again.last_stable_offset == after


@case("TLG-4")
def test_plain_records_are_stable() -> None:
    log = a_log()
    append(log, b"foo", b"bar", b"baz")
    assert first_unstable(log) is None


@case("TLG-5")
def test_a_decision_counts_when_it_is_replicated() -> None:  # rules T12.2, T12.7
    log = a_log()
    first = transactional(log, 137, 0, 3, epoch=5)
    assert first_unstable(log) == first
    transactional(log, 137, 3, 1, epoch=5)
    assert first_unstable(log) == first
    after = end(log, 137, COMMIT, epoch=5) + 1
    assert first_unstable(log) == first
    log.set_high_watermark(after)
    assert first_unstable(log) is None


@pytest.mark.parametrize(
    "as_leader", [pytest.param(True, marks=case("TLG-6")), pytest.param(False, marks=case("TLG-7"))]
)
def test_the_index_of_mixed_transactions(as_leader: bool) -> None:  # rules T12.7, T12.8, T12.19
    log = a_log()
    if as_leader:
        for records, origin in mixed():
            log.append_as_leader(records, 0, origin=origin)
    else:
        log.append_as_follower(b"".join(records for records, _ in mixed(as_leader=False)))
    assert log.log_end_offset == 90
    assert aborted(log) == EXPECTED
    for high_watermark, stable in ((30, 8), (75, 36)):
        log.set_high_watermark(high_watermark)
        assert log.located_last_stable() == log.segments.locate(stable)
        assert log._first_unstable == log.segments.locate(stable)  # located once
    log.set_high_watermark(log.log_end_offset)
    assert first_unstable(log) is None


@case("TLG-8")
def test_an_old_coordinator_is_fenced() -> None:  # rule T12.3
    log = a_log()
    transactional(log, 1, 0, 10)
    end(log, 1, ABORT, coordinator_epoch=1)
    transactional(log, 1, 10, 5)
    end(log, 1, COMMIT, coordinator_epoch=2)
    with pytest.raises(TransactionCoordinatorFenced):
        end(log, 1, ABORT, coordinator_epoch=1)
    assert log.log_end_offset == 17


@case("TLG-9")
def test_an_old_coordinator_is_fenced_without_a_transaction() -> None:  # rules T12.3, T12.4
    log = a_log()
    log.append_as_follower(
        produced(1, 0, 10, transactional=True, leader_epoch=1)
        + marker(1, committed=True, base_offset=10, leader_epoch=1)
    )
    for _ in range(2):
        end(log, 1, ABORT, coordinator_epoch=2, leader_epoch=1)
    with pytest.raises(TransactionCoordinatorFenced):
        end(log, 1, ABORT, coordinator_epoch=1, leader_epoch=1)
    assert log.log_end_offset == 13


@case("TLG-10")
def test_the_end_of_an_older_producer() -> None:  # rule T12.3
    log = a_log()
    end(log, 1, ABORT, epoch=5, coordinator_epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        end(log, 1, ABORT, epoch=4, coordinator_epoch=1)


@pytest.mark.parametrize(
    ("start", "left"), [pytest.param(5, 2, marks=case("TLG-11")), pytest.param(8, 1, marks=case("TLG-12"))]
)
def test_an_open_transaction_counts_from_the_start_of_the_log(start: int, left: int) -> None:  # rule T12.6
    log = a_log()
    transactional(log, 1, 0, 5)
    append(log, b"0", b"1", b"2")
    assert log.log_end_offset == 8
    log.roll()
    assert len(log.segments) == 2
    transactional(log, 1, 5, 5)
    assert first_unstable(log) == 0
    log.set_high_watermark(log.log_end_offset)
    log.increment_log_start_offset(start)
    log.set_high_watermark(log.log_end_offset)
    log.delete_old_segments()
    assert len(log.segments) == left
    assert first_unstable(log) == log.last_stable_offset == start


class _NoIndex(MemoryDisk):
    """The index of transactions cannot be written while ``fails``."""

    fails = False

    def before(self, path: str, size: int) -> None:
        if self.fails and path.endswith(".txnindex"):
            raise OSError(f"no space for {path}")


@case("TLG-13")
async def test_an_index_that_cannot_be_written() -> None:  # rule T12.12
    disk = _NoIndex()
    manager = MemoryLogManager(disk=disk)
    log = manager.get_or_create_log(PARTITION, is_new=True, topic_id=None)
    transactional(log, 1, 0, 10)
    disk.fails = True
    with pytest.raises(KafkaStorageError):
        end(log, 1, ABORT, coordinator_epoch=1)
    assert (log.log_end_offset, log.last_stable_offset) == (11, 0)
    with pytest.raises(KafkaStorageError):  # its directory is offline: nobody gets the log any more
        manager.get_or_create_log(PARTITION, is_new=False, topic_id=None)
    assert not manager.has_log(PARTITION)
    log.set_high_watermark(12)
    assert (log.log_end_offset, log.last_stable_offset) == (11, 0)
    disk.fails = False
    again = a_log(Context(disk), clean=False)
    assert again.log_end_offset == 11
    assert aborted(again) == [AbortedTransaction(1, 0, 10, 11)]
    again.set_high_watermark(12)
    assert first_unstable(again) is None


@case("TLG-14")
def test_two_producers_and_plain_records() -> None:  # rule T12.7
    log = a_log()
    first = transactional(log, 137, 0, 3, epoch=5)
    assert first_unstable(log) == first
    append(log, b"g", b"h", b"i")
    second = transactional(log, 983, 0, 3, epoch=5)
    assert first_unstable(log) == first
    log.set_high_watermark(end(log, 137, ABORT, epoch=5) + 1)
    assert first_unstable(log) == second
    log.set_high_watermark(end(log, 983, COMMIT, epoch=5) + 1)
    assert first_unstable(log) is None


@case("TLG-15")
def test_an_aborted_transaction_in_several_segments() -> None:  # rule T12.10
    log = a_log(segment_bytes=len(produced(137, 0, 3, epoch=5, transactional=True)))
    first = transactional(log, 137, 0, 3, epoch=5)
    assert first_unstable(log) == first
    transactional(log, 137, 3, 3, epoch=5)
    assert first_unstable(log) == first
    assert log.end.segment == 3
    log.set_high_watermark(end(log, 137, ABORT, epoch=5) + 1)
    assert first_unstable(log) is None
    found = log.read(0, 2048, Isolation.COMMITTED, at_least_one=True)
    assert [(one.producer_id, one.first_offset) for one in found.aborted] == [(137, 0)]


@pytest.mark.parametrize(
    ("only_last", "with_snapshots"),
    [
        pytest.param(False, True, marks=case("TLG-21")),
        pytest.param(True, True, marks=case("TLG-22")),
        pytest.param(True, False, marks=case("TLG-23")),
    ],
)
def test_recovery_makes_the_index_anew(only_last: bool, with_snapshots: bool) -> None:  # rule T12.13
    context = Context()
    log = a_log(context, segment_bytes=128 * 5)
    for records, origin in mixed():
        log.append_as_leader(records, 0, origin=origin)
    bases = base_offsets(log)
    assert len(bases) > 2
    lost = bases[-1:] if only_last else bases
    log.close()
    names = [f"{base:020d}{kind}" for base in lost for kind in (".index", ".txnindex")]
    if not with_snapshots:
        names += [name for name in context.disk.files(FOLDER) if name.endswith(".snapshot")]
    for name in names:
        context.disk.delete(f"{FOLDER}/{name}")
    again = a_log(context, clean=False, recovery_point=bases[-1] if only_last else 0, segment_bytes=1024 * 5)
    assert aborted(again) == EXPECTED


@case("TIX-14")
@pytest.mark.parametrize("begun_before", [False, True])
def test_recovery_of_a_segment_with_transactions(begun_before: bool) -> None:  # rule T12.13
    context = Context()
    log = a_log(context)
    before = produced(10, 0, 11, transactional=True, base_offset=75, leader_epoch=15)
    log.append_as_follower(before if begun_before else batch(b"x", base_offset=75, leader_epoch=15))
    log.roll(100)
    for records in (
        produced(5, 100, 2, transactional=True, base_offset=100, leader_epoch=15),
        produced(10, 11 if begun_before else 100, 2, transactional=True, base_offset=102, leader_epoch=15),
        batch(b"a", b"b", base_offset=104, leader_epoch=15),
        marker(10, committed=False, base_offset=106, leader_epoch=15),
        marker(5, committed=True, base_offset=107, leader_epoch=15),
    ):
        log.append_as_follower(records)
    assert base_offsets(log)[-1] == 100
    log.close()
    context.disk.delete(f"{FOLDER}/{100:020d}.txnindex")
    again = a_log(context, clean=False, recovery_point=100)
    assert again.log_end_offset == again._producers.map_end_offset == 108
    assert aborted(again) == [AbortedTransaction(10, 75 if begun_before else 102, 106, 100)]


@case("TLG-24")
def test_recovery_takes_over_an_older_coordinator_epoch() -> None:  # rules T12.3, T12.5
    context = Context()
    log = a_log(context)
    end(log, 1, ABORT, coordinator_epoch=5)
    assert log.known_producers()[1].last_timestamp == NOW_MS
    context.time_ms += 86_400_000
    log.remove_expired_producers()
    assert 1 not in log.known_producers()
    second = marker(1, committed=False, coordinator_epoch=4, timestamp=context.time_ms)
    log.append_as_leader(second, 0, origin=Origin.COORDINATOR)
    log.close()
    again = a_log(context, clean=False)
    assert again.known_producers()[1].last_timestamp == context.time_ms
