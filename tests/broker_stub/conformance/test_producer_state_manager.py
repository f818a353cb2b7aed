"""Upstream's ProducerStateManagerTest. Covers: broker_stub/log/producer_state.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kce.broker_stub.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from kce.broker_stub.log.producer_state import (
    CompletedTransaction,
    Origin,
    ProducedBatch,
    ProducerAppend,
    ProducerState,
    ProducerStateManager,
)
from kce.broker_stub.log.snapshots import ProducerSnapshot, read_snapshot, write_snapshot
from kce.harness.world.memory_disk import MemoryDisk
from kce.wire import EndTransactionMarker
from kce.wire.batch_header import BatchHeader

kafka = pytest.mark.kafka
FOLDER = "/a-0"
ID, EPOCH = 1, 0
EXPIRATION_MS = 86_400_000
MAX_INT32 = 2**31 - 1
NOW_MS = 1_700_000_000_000


class Producers:
    """A manager, and short forms of what is appended to it."""

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.disk.make_folder(FOLDER)
        self.manager = ProducerStateManager(self.disk, FOLDER, expiration_ms=EXPIRATION_MS)

    def data(
        self,
        sequence: int,
        offset: int,
        *,
        epoch: int = EPOCH,
        producer_id: int = ID,
        timestamp: int = NOW_MS,
        transactional: bool = False,
        origin: Origin = Origin.CLIENT,
    ) -> None:
        append = self.manager.prepare(producer_id, origin)
        append.append(header(sequence, offset, epoch=epoch, timestamp=timestamp, transactional=transactional), None)
        self.manager.update(producer_id, append)
        self.manager.map_end_offset = offset + 1

    def end(
        self,
        offset: int,
        *,
        committed: bool = True,
        epoch: int = EPOCH,
        producer_id: int = ID,
        coordinator_epoch: int = 0,
        timestamp: int = NOW_MS,
    ) -> None:
        append = self.manager.prepare(producer_id, Origin.COORDINATOR)
        completed = end_marker(append, offset, committed, epoch, coordinator_epoch, timestamp)
        self.manager.update(producer_id, append)
        if completed is not None:
            self.manager.complete(completed)
        self.manager.map_end_offset = offset + 1

    def state(self, producer_id: int = ID) -> ProducerState:
        return self.manager.producers[producer_id]

    def files(self) -> list[int]:
        """Offsets of the snapshots in the folder."""
        return [int(name.removesuffix(".snapshot")) for name in self.disk.files(FOLDER)]

    def reloaded(self, start: int, end: int, now_ms: int = NOW_MS) -> Producers:
        """Another manager in the same folder."""
        made = Producers(self.disk)
        made.manager.truncate_and_reload(start, end, now_ms)
        return made


def header(
    sequence: int,
    offset: int,
    *,
    count: int = 1,
    epoch: int = EPOCH,
    timestamp: int = NOW_MS,
    transactional: bool = False,
    control: bool = False,
) -> BatchHeader:
    return BatchHeader(
        base_offset=offset, length=100, partition_leader_epoch=0, magic=2, crc=0,
        attributes=transactional * 0x10 | control * 0x20, last_offset_delta=count - 1, base_timestamp=timestamp,
        max_timestamp=timestamp, producer_id=ID, producer_epoch=epoch, base_sequence=sequence, record_count=count,
    )  # fmt: skip


def end_marker(
    append: ProducerAppend,
    offset: int,
    committed: bool,
    epoch: int = EPOCH,
    coordinator_epoch: int = 0,
    timestamp: int = NOW_MS,
) -> CompletedTransaction | None:
    marker = EndTransactionMarker(committed=committed, coordinator_epoch=coordinator_epoch)
    control = header(-1, offset, epoch=epoch, timestamp=timestamp, transactional=True, control=True)
    return append.append(control, marker)


@pytest.fixture
def producers() -> Producers:
    return Producers()


@kafka("PRS-1")
def test_basic_id_mapping(producers: Producers) -> None:
    producers.data(0, 0)
    producers.data(1, 0)
    for sequence in (1, 5):
        with pytest.raises(OutOfOrderSequence):
            producers.data(sequence, 0)
    producers.data(0, 0, epoch=EPOCH + 1)
    with pytest.raises(InvalidProducerEpoch):
        producers.data(0, 0)


@kafka("PRS-2")
def test_append_txn_marker_with_no_producer_state(producers: Producers) -> None:
    producers.end(27, epoch=2)
    assert (producers.state().epoch, producers.state().last_sequence) == (2, -1)
    with pytest.raises(InvalidProducerEpoch):
        producers.data(0, 0, epoch=0)
    with pytest.raises(OutOfOrderSequence):
        producers.data(17, 0, epoch=2)
    producers.data(0, 39, epoch=2)
    assert (producers.state().epoch, producers.state().last_sequence) == (2, 0)


@kafka("PRS-3")
def test_producer_sequence_wrap_around(producers: Producers) -> None:
    producers.data(MAX_INT32, 735, epoch=15, origin=Origin.REPLICATION)
    producers.data(0, 1235, epoch=15)
    state = producers.state()
    assert (state.epoch, state.batches[0].first_sequence, state.last_sequence) == (15, MAX_INT32, 0)


@kafka("PRS-4")
def test_producer_sequence_with_wrap_around_batch_record(producers: Producers) -> None:
    first = MAX_INT32 - 10
    append = producers.manager.prepare(ID, Origin.REPLICATION)
    append.append(header(first, 2000, count=21, epoch=15), None)
    assert ID not in producers.manager.producers
    producers.manager.update(ID, append)
    (batch,) = producers.state().batches
    assert (batch.first_sequence, batch.last_sequence) == (first, 9)
    assert (batch.first_offset, batch.last_offset) == (2000, 2020)


@kafka("PRS-5")
def test_producer_sequence_invalid_wrap_around(producers: Producers) -> None:
    producers.data(MAX_INT32, 735, epoch=15, origin=Origin.REPLICATION)
    with pytest.raises(OutOfOrderSequence):
        producers.data(1, 1235, epoch=15)


@kafka("PRS-6")
def test_no_validation_on_first_entry_when_loading_log(producers: Producers) -> None:
    producers.data(16, 735, epoch=5, origin=Origin.REPLICATION)
    assert producers.state() == ProducerState(5, -1, NOW_MS, None, (ProducedBatch(16, 735, 0, NOW_MS),))
    assert (producers.state().batches[0].first_sequence, producers.state().batches[0].first_offset) == (16, 735)


@kafka("PRS-7")
def test_control_record_bumps_producer_epoch(producers: Producers) -> None:
    producers.data(0, 0)
    producers.end(1, committed=False, epoch=1)
    assert producers.state() == ProducerState(1, 0, NOW_MS, None, ())
    producers.data(0, 2, epoch=1)
    assert producers.state().batches[0].first_sequence == 0


@kafka("PRS-8")
def test_prepare_update_does_not_mutate(producers: Producers) -> None:
    append = producers.manager.prepare(ID, Origin.CLIENT)
    append.append(header(0, 15, count=6), None)
    assert ID not in producers.manager.producers
    producers.manager.update(ID, append)
    following = producers.manager.prepare(ID, Origin.CLIENT)
    following.append(header(6, 26, count=5), None)
    before = producers.state()
    assert (before.batches[0].first_sequence, before.last_sequence, before.batches[-1].last_offset) == (0, 5, 20)
    producers.manager.update(ID, following)
    after = producers.state()
    assert (after.batches[0].first_sequence, after.last_sequence, after.batches[-1].last_offset) == (0, 10, 30)


@kafka("PRS-9")
def test_update_producer_transaction_state(producers: Producers) -> None:
    producers.data(0, 9)
    append = producers.manager.prepare(ID, Origin.CLIENT)
    for sequence, offset in ((1, 16), (6, 26)):
        append.append(header(sequence, offset, count=5, transactional=True), None)
        state = append.state
        assert (state.epoch, state.last_sequence, state.batches[-1].last_offset) == (0, sequence + 4, offset + 4)
        assert (state.transaction, append.started) == (16, [16])
    assert end_marker(append, 40, True, coordinator_epoch=15) == CompletedTransaction(ID, 16, 40, is_aborted=False)
    assert (append.state.transaction, append.state.last_sequence, append.started) == (None, 10, [16])
    assert append.state.coordinator_epoch == 15


@kafka("PRS-10")
def test_out_of_sequence_after_control_record_epoch_bump(producers: Producers) -> None:
    producers.data(0, 0, transactional=True)
    producers.data(1, 1, transactional=True)
    producers.end(1, committed=False, epoch=1)
    for epoch in (1, 2):
        with pytest.raises(OutOfOrderSequence):
            producers.data(2, 2, epoch=epoch, transactional=True)
    producers.data(0, 0, epoch=1, transactional=True)
    assert (producers.state().epoch, producers.state().last_sequence) == (1, 0)


@kafka("PRS-11")
def test_non_transactional_append_with_ongoing_transaction(producers: Producers) -> None:
    producers.data(0, 0, transactional=True)
    with pytest.raises(InvalidTxnState):
        producers.data(1, 1)


@kafka("PRS-12")
def test_truncate_and_reload_removes_out_of_range_snapshots(producers: Producers) -> None:
    for i in range(5):
        producers.data(i, i)
        producers.manager.take_snapshot()
    producers.manager.truncate_and_reload(1, 3, NOW_MS)
    assert producers.manager.snapshots == (2, 3)


@kafka("PRS-13")
def test_take_snapshot(producers: Producers) -> None:
    producers.data(0, 0)
    producers.data(1, 1)
    assert producers.manager.take_snapshot() == f"{FOLDER}/00000000000000000002.snapshot"
    assert producers.files() == [2]
    assert producers.disk.read(f"{FOLDER}/00000000000000000002.snapshot")


@kafka("PRS-14")
def test_fetch_snapshot_empty_snapshot(producers: Producers) -> None:
    assert producers.manager.snapshots == ()
    assert producers.manager.take_snapshot() is None


@kafka("PRS-15")
@pytest.mark.parametrize("case", ["unfinished", "finished", "empty"])
def test_recover_from_snapshot(producers: Producers, case: str) -> None:
    if case == "empty":
        producers.end(0, committed=False)
    else:
        producers.data(0, 0, transactional=True)
        producers.data(1, 1, transactional=True)
    if case == "finished":
        producers.end(2, committed=False)
    producers.manager.take_snapshot()
    reloaded = producers.reloaded(0, 1 if case == "empty" else 3)
    state = reloaded.state()
    assert state.last_timestamp == NOW_MS
    assert state.transaction == (0 if case == "unfinished" else None)
    if case != "empty":
        assert state.batches == (ProducedBatch(1, 1, 0, NOW_MS),)
        reloaded.data(2, 2, transactional=True)


@kafka("PRS-16")
def test_remove_expired_pids_on_reload(producers: Producers) -> None:
    producers.data(0, 0, timestamp=0)
    producers.data(1, 1, timestamp=1)
    producers.manager.take_snapshot()
    reloaded = producers.reloaded(0, 1, EXPIRATION_MS + 1)
    reloaded.data(2, 2, timestamp=70001)  # accepted, because the producer is forgotten
    assert [state.last_sequence for state in reloaded.manager.producers.values()] == [2]
    assert reloaded.manager.map_end_offset == 3


@kafka("PRS-17")
def test_accept_append_without_producer_state_on_replica(producers: Producers) -> None:
    producers.data(0, 0, timestamp=0)
    producers.data(1, 1, timestamp=1)
    producers.manager.take_snapshot()
    reloaded = producers.reloaded(0, 1, 70000)
    assert ID not in reloaded.manager.producers
    reloaded.data(2, 2, timestamp=70001, origin=Origin.REPLICATION)
    (batch,) = reloaded.state().batches
    assert (reloaded.state().epoch, batch.first_sequence, batch.last_sequence) == (EPOCH, 2, 2)


@kafka("PRS-18")
def test_accept_append_with_sequence_gaps_on_replica(producers: Producers) -> None:
    producers.data(0, 0)
    with pytest.raises(OutOfOrderSequence):
        producers.data(3, 1)
    assert producers.state().last_sequence == 0
    producers.data(3, 1, origin=Origin.REPLICATION)
    assert producers.state().last_sequence == 3


@kafka("PRS-20")
def test_truncate_fully_and_start_at(producers: Producers) -> None:
    producers.data(0, 0)
    producers.data(1, 1)
    producers.manager.take_snapshot()
    assert producers.files() == [2]
    producers.data(2, 2)
    producers.manager.take_snapshot()
    assert producers.files() == [2, 3]
    producers.manager.truncate_fully(0)
    assert (producers.files(), producers.manager.producers, producers.manager.map_end_offset) == ([], {}, 0)
    producers.data(0, 0)
    producers.manager.take_snapshot()
    assert producers.files() == [1]


@kafka("PRS-21")
def test_reload_snapshots(producers: Producers) -> None:
    producers.data(1, 1)
    producers.data(2, 2)
    producers.manager.take_snapshot()
    path = f"{FOLDER}/00000000000000000003.snapshot"
    content = producers.disk.read(path)
    producers.data(3, 3)
    producers.data(4, 4)
    producers.manager.take_snapshot()
    assert producers.files() == [3, 5]
    producers.manager.truncate_and_reload(3, 5, NOW_MS)
    assert producers.files() == [5]
    producers.disk.write(path, content or b"")
    producers.manager.truncate_fully(0)
    producers.manager.reload_snapshots()
    assert (producers.manager.snapshots, producers.files()) == ((3,), [3])


@kafka("PRS-22")
def test_first_unstable_offset(producers: Producers) -> None:
    manager = producers.manager
    assert manager.first_unstable_offset is None
    producers.data(0, 99, transactional=True)
    assert manager.first_unstable_offset == 99
    producers.data(0, 105, producer_id=2, transactional=True)
    assert manager.first_unstable_offset == 99
    producers.end(109)
    assert manager.first_unstable_offset == 99
    manager.replicated(100)
    assert manager.first_unstable_offset == 99
    manager.replicated(110)
    assert manager.first_unstable_offset == 105
    producers.end(112, committed=False, producer_id=2)
    assert manager.first_unstable_offset == 105
    manager.replicated(113)
    assert manager.first_unstable_offset is None


def test_first_unstable_offset_after_truncation(producers: Producers) -> None:
    manager = producers.manager
    producers.data(0, 99, transactional=True)
    assert manager.first_unstable_offset == 99
    manager.take_snapshot()
    producers.end(105)
    manager.replicated(106)
    assert manager.first_unstable_offset is None
    manager.take_snapshot()
    producers.data(1, 106)
    manager.truncate_and_reload(0, 106, NOW_MS)
    assert manager.first_unstable_offset is None
    manager.truncate_and_reload(0, 100, NOW_MS)
    assert manager.first_unstable_offset == 99


@kafka("PRS-23")
def test_load_from_snapshot_retains_non_expired_producers(producers: Producers) -> None:
    producers.data(0, 0)
    producers.data(0, 1, producer_id=2)
    producers.manager.take_snapshot()
    producers.manager.truncate_and_reload(1, 2, NOW_MS)
    found = {
        i: (state.last_sequence, state.batches[-1].last_offset) for i, state in producers.manager.producers.items()
    }
    assert found == {1: (0, 0), 2: (0, 1)}


@kafka("PRS-24")
def test_skip_snapshot_if_offset_unchanged(producers: Producers) -> None:
    producers.data(0, 0)
    producers.manager.take_snapshot()
    assert producers.manager.take_snapshot() is None
    assert producers.files() == [1]


@kafka("PRS-25")
def test_pid_expiration_timeout(producers: Producers) -> None:
    producers.data(0, 1, epoch=5)
    producers.manager.remove_expired(NOW_MS + EXPIRATION_MS - 1)
    assert ID in producers.manager.producers
    producers.manager.remove_expired(NOW_MS + EXPIRATION_MS)
    producers.data(1, 2, epoch=5, timestamp=NOW_MS + EXPIRATION_MS)
    assert [state.last_sequence for state in producers.manager.producers.values()] == [1]
    assert producers.manager.map_end_offset == 3


@kafka("TPS-7")
def test_producers_with_ongoing_transactions_do_not_expire(producers: Producers) -> None:
    producers.data(0, 99, epoch=5, transactional=True)
    assert producers.manager.first_unstable_offset == 99
    for _ in range(2):
        producers.manager.remove_expired(NOW_MS + EXPIRATION_MS + 1)
        assert ID in producers.manager.producers
        assert producers.manager.first_unstable_offset == 99


@kafka("TPS-6")
def test_a_marker_that_fences(producers: Producers) -> None:  # rule T12.3
    producers.data(0, 0, transactional=True)
    producers.end(1, committed=False, epoch=EPOCH + 1)
    assert (producers.state().transaction, producers.state().batches) == (None, ())
    producers.manager.remove_expired(NOW_MS)
    assert ID in producers.manager.producers


LATE_MS = 1_200_000


@kafka("TPS-2")
@kafka("TPS-3")
def test_late_transactions(producers: Producers) -> None:  # rule T8.6
    manager = producers.manager
    first, second = {"producer_id": 39, "epoch": 2}, {"producer_id": 57, "epoch": 9}
    producers.data(0, 100, transactional=True, **first)
    assert not manager.has_late_transaction(NOW_MS, LATE_MS)
    producers.data(0, 150, transactional=True, timestamp=NOW_MS + 500, **second)
    assert not manager.has_late_transaction(NOW_MS + 500, LATE_MS)
    manager.take_snapshot()
    assert not manager.has_late_transaction(NOW_MS + LATE_MS, LATE_MS)
    for now_ms in (NOW_MS + LATE_MS + 1, NOW_MS + LATE_MS + 501):
        assert manager.has_late_transaction(now_ms, LATE_MS)
        reloaded = producers.reloaded(0, manager.map_end_offset, now_ms)
        assert reloaded.manager.has_late_transaction(now_ms, LATE_MS)
    producers.end(200, **first)
    assert manager.has_late_transaction(NOW_MS + LATE_MS + 501, LATE_MS)
    producers.end(250, **second)
    assert not manager.has_late_transaction(NOW_MS + LATE_MS + 501, LATE_MS)


@pytest.mark.parametrize(
    "truncate",
    [
        pytest.param(lambda manager: manager.truncate_and_reload(0, 80, NOW_MS), marks=kafka("TPS-4")),
        pytest.param(lambda manager: manager.truncate_fully(150), marks=kafka("TPS-5")),
    ],
)
def test_a_truncation_forgets_late_transactions(
    producers: Producers, truncate: Callable[[ProducerStateManager], None]
) -> None:
    producers.data(0, 100, transactional=True)
    assert producers.manager.has_late_transaction(NOW_MS + LATE_MS + 1, LATE_MS)
    truncate(producers.manager)
    assert not producers.manager.has_late_transaction(NOW_MS + LATE_MS + 1, LATE_MS)


@kafka("PRS-26")
def test_sequence_not_validated_for_group_metadata_topic(producers: Producers) -> None:
    for offset in (99, 100):
        producers.data(-1, offset, transactional=True, origin=Origin.COORDINATOR)
    assert [batch.last_offset for batch in producers.state().batches] == [99, 100]


@kafka("PRS-27")
def test_old_epoch_for_control_record(producers: Producers) -> None:
    producers.data(0, 99, epoch=5, transactional=True)
    with pytest.raises(InvalidProducerEpoch):
        producers.end(100, epoch=3)


@kafka("TPS-8")
def test_coordinator_fencing(producers: Producers) -> None:
    producers.data(0, 99, transactional=True)
    producers.end(100, coordinator_epoch=1)
    assert producers.state().coordinator_epoch == 1
    producers.end(101, coordinator_epoch=1)
    producers.end(102, coordinator_epoch=2)
    with pytest.raises(TransactionCoordinatorFenced):
        producers.end(103, coordinator_epoch=1)


@kafka("TPS-9")
def test_coordinator_fencing_after_a_reload(producers: Producers) -> None:  # rule T12.5
    producers.data(0, 99, transactional=True)
    producers.end(100, coordinator_epoch=1)
    producers.manager.take_snapshot()
    with pytest.raises(TransactionCoordinatorFenced):
        producers.reloaded(0, 200).end(100)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: b"", id="empty", marks=kafka("PRS-28")),
        pytest.param(lambda content: content[: len(content) // 2], id="truncated", marks=kafka("PRS-29")),
        pytest.param(lambda content: bytes(37) + content[37:], id="corrupt", marks=kafka("PRS-30")),
        pytest.param(lambda content: content[:-1] + b"\0", id="checksum"),
        pytest.param(lambda content: b"\0\2" + content[2:], id="version"),
    ],
)
def test_load_from_damaged_snapshot_file(producers: Producers, damage: Callable[[bytes], bytes]) -> None:
    for i in range(2):
        producers.data(i, i)
        producers.manager.take_snapshot()
    path = f"{FOLDER}/00000000000000000002.snapshot"
    producers.disk.write(path, damage(producers.disk.read(path) or b""))
    reloaded = producers.reloaded(0, 20)
    assert producers.files() == [1]
    assert reloaded.state().batches[-1].last_offset == 0


@kafka("TPS-10")
def test_append_empty_control_batch(producers: Producers) -> None:
    append = producers.manager.prepare(ID, Origin.CLIENT)
    assert append.append(header(-1, 15, control=True), None) is None
    producers.manager.update(ID, append)
    assert producers.state().transaction is None


@pytest.mark.parametrize(
    ("base_offsets", "kept"),
    [
        pytest.param({5}, [5, 42], marks=kafka("PRS-31")),
        pytest.param({42}, [42], marks=kafka("PRS-32")),
    ],
)
def test_remove_stray_snapshots(base_offsets: set[int], kept: list[int]) -> None:
    disk = MemoryDisk()
    for offset in (5, 2, 42):
        disk.write(f"{FOLDER}/{offset:020d}.snapshot", b"")
    producers = Producers(disk)
    producers.manager.remove_stray(base_offsets)
    assert (list(producers.manager.snapshots), producers.files()) == (kept, kept)


@pytest.mark.parametrize(
    "exists", [pytest.param(True, marks=kafka("PRS-33")), pytest.param(False, marks=kafka("PRS-34"))]
)
def test_remove_and_mark_snapshot_for_deletion(exists: bool) -> None:
    disk, path = MemoryDisk(), f"{FOLDER}/00000000000000000005.snapshot"
    disk.write(path, b"")
    producers = Producers(disk)
    if not exists:
        disk.delete(path)
    assert producers.manager.delete_later(5) == ([f"{path}.deleted"] if exists else [])
    assert producers.manager.snapshots == ()
    assert producers.manager.delete_later(5) == []


@kafka("PRS-35")
def test_last_stable_offset_completed_txn(producers: Producers) -> None:
    manager = producers.manager
    starts = {1: 992342, 2: 992342 + 25, 3: 992342 + 57}
    for producer_id, start in starts.items():
        producers.data(0, start, producer_id=producer_id, transactional=True)
    last = starts[3] + 15
    for producer_id, stable, unstable in ((1, starts[2], starts[2]), (3, starts[2], starts[2]), (2, None, None)):
        completed = CompletedTransaction(producer_id, starts[producer_id], last, is_aborted=False)
        assert manager.last_stable_offset(completed) == (last + 1 if stable is None else stable)
        manager.complete(completed)
        manager.replicated(last + 1)
        assert manager.first_unstable_offset == unstable
        last += 20


@kafka("TPS-15")
def test_skip_empty_transactions(producers: Producers) -> None:
    manager = producers.manager
    first = manager.prepare(ID, Origin.CLIENT)
    first.append(header(0, 16, count=5, transactional=True), None)
    manager.update(ID, first)
    manager.replicated(21)
    assert (first.started, manager.first_unstable_offset) == ([16], 16)
    second = manager.prepare(ID, Origin.CLIENT)
    completed = [end_marker(second, 21, True), end_marker(second, 22, True), end_marker(second, 23, False)]
    second.append(header(5, 24, count=4, transactional=True), None)
    completed += [end_marker(second, 28, False), end_marker(second, 29, False)]
    second.append(header(9, 30, count=2, transactional=True), None)
    assert completed == [
        CompletedTransaction(ID, 16, 21, is_aborted=False), None, None,
        CompletedTransaction(ID, 24, 28, is_aborted=True), None,
    ]  # fmt: skip
    assert second.started == [24, 30]
    manager.update(ID, second)
    for found in completed:
        if found is not None:
            manager.complete(found)
    manager.replicated(32)
    assert manager.first_unstable_offset == 30


@kafka("PRS-36")
def test_read_write_snapshot() -> None:
    disk, path = MemoryDisk(), f"{FOLDER}/x"
    entries = {1: ProducerSnapshot(2, 1, 2, 3, -1, 3, 100), 11: ProducerSnapshot(12, -1, -1, 0, 123456, 13, -1)}
    write_snapshot(disk, path, entries)
    assert read_snapshot(disk, path) == entries


def test_only_five_batches_are_known(producers: Producers) -> None:
    """Rules B3.44, B3.45."""
    for i in range(7):
        producers.data(i, i)
    state = producers.state()
    assert [batch.last_sequence for batch in state.batches] == [2, 3, 4, 5, 6]
    duplicates = [state.duplicate_of(header(i, 0)) for i in range(8)]
    assert [found and found.first_offset for found in duplicates] == [None, None, 2, 3, 4, 5, 6, None]
    assert state.duplicate_of(header(4, 0, epoch=1)) is None


def test_a_snapshot_says_minus_one_where_there_is_nothing(producers: Producers) -> None:
    """As Kafka writes it, of a producer of which only a marker is known."""
    producers.end(27, epoch=2)
    path = producers.manager.take_snapshot()
    assert path is not None
    entry = read_snapshot(producers.disk, path)[ID]
    assert (entry.last_sequence, entry.last_offset, entry.offset_delta, entry.transaction) == (-1, -1, 0, -1)


def test_who_has_not_expired_stays_when_others_have(producers: Producers) -> None:  # rule B3.53
    producers.data(0, 0)
    producers.data(0, 1, producer_id=2, timestamp=NOW_MS + 10)
    producers.manager.remove_expired(NOW_MS + EXPIRATION_MS)
    assert producers.manager.producers.keys() == {2}


# verification of transactions


@kafka("TPS-11")
def test_an_entry_for_verification() -> None:  # rules T10.5, T10.18
    producers = Producers()
    verifications = producers.manager.verifications
    guard = verifications.start(ID, EPOCH, 0, NOW_MS)
    assert verifications.start(ID, EPOCH, 0, NOW_MS) is guard
    entry = verifications.get(ID)
    assert entry is not None
    assert entry.guard is guard
    producers.data(0, 0, transactional=True)
    verifications.end(ID)
    assert verifications.get(ID) is None


@kafka("TPS-12")
def test_sequence_and_epoch_of_a_verification() -> None:  # rule T10.5
    verifications = Producers().manager.verifications
    guard = verifications.start(ID, 0, 1, NOW_MS)
    entry = verifications.get(ID)
    assert entry is not None
    for epoch, sequence, expected in ((0, 1, (0, 1)), (0, 0, (0, 0)), (0, 5, (0, 0)), (1, 2, (1, 2)), (0, 0, (1, 2))):
        assert verifications.start(ID, epoch, sequence, NOW_MS) is guard
        assert (entry.epoch, entry.lowest_sequence) == expected


@kafka("TPS-13")
def test_no_batch_overtakes_one_that_is_not_verified() -> None:  # rule T10.17
    """Whether verification was turned off meanwhile plays no part: producers do not know of it."""
    producers = Producers()
    producers.manager.verifications.start(ID, EPOCH, 0, NOW_MS)
    entry = producers.manager.verifications.get(ID)
    with pytest.raises(OutOfOrderSequence):
        producers.data(4, 0, transactional=True)
    assert producers.manager.verifications.get(ID) is entry


@kafka("TPS-14")
def test_a_verification_expires() -> None:  # rule T10.18
    manager = Producers().manager
    manager.verifications.start(ID, EPOCH, 0, NOW_MS)
    manager.remove_expired(NOW_MS + EXPIRATION_MS // 2)
    assert manager.verifications.get(ID) is not None
    manager.remove_expired(NOW_MS + EXPIRATION_MS + 1)
    assert manager.verifications.get(ID) is None


def test_a_log_with_producers_changes_no_log_without() -> None:
    with_some, with_none = Producers(), Producers()
    assert with_none.manager.producers is with_some.manager.producers  # most logs have none: one table for all
    with_some.data(0, 0, transactional=True)
    with_some.end(1)
    assert (with_none.manager.producers, with_none.manager.first_unstable_offset) == ({}, None)
    assert with_none.manager.is_empty
