"""Boundaries of a log: full indexes, time 0, what is cut, moved or flushed in part, settings that change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kce.broker_stub.errors import KafkaStorageError
from kce.broker_stub.log import Log, LogConfig, Origin
from kce.broker_stub.log.segment import Segment
from kce.harness.world.memory_disk import MemoryDisk
from kce.harness.world.real_disk import RealDisk
from kce.wire import Codec, TimestampType
from tests.broker_stub.log.support import (
    FOLDER,
    NOW_MS,
    PARTITION,
    Context,
    a_log,
    append,
    base_offsets,
    batch,
    config,
    marker,
    produced,
)

#: bytes of a batch of one record of one byte
ONE = len(batch(b"v"))


def test_an_index_begins_anew_where_the_log_is_cut() -> None:
    log = a_log(index_interval_bytes=ONE)
    for _ in range(4):
        append(log)
    index = log.segments.active.index
    assert (len(index), index.last_offset) == (1, 2)
    log.truncate_to(2)
    for _ in range(2):
        append(log)
    assert len(index) == 0
    append(log)
    assert (len(index), index.last_offset) == (1, 4)


def test_only_an_open_transaction_is_late() -> None:  # rule T8.6
    context = Context()
    log = Log(context, PARTITION, config(), is_new=True)
    assert not log.has_late_transaction(0)
    log.append_as_leader(produced(1, 0), 0)
    context.time_ms += 100
    assert not log.has_late_transaction(0)
    log.append_as_leader(produced(2, 0, transactional=True), 0)
    assert [log.has_late_transaction(limit) for limit in (99, 100)] == [True, False]


def test_a_moved_start_keeps_the_newest_snapshot() -> None:
    log = a_log(segment_bytes=ONE)
    for i in range(4):
        log.append_as_leader(produced(1, i), 0)
    log.roll()
    log.set_high_watermark(4)
    log.increment_log_start_offset(1)
    path = f"{FOLDER}/{4:020}.snapshot"
    log.context.disk.write(path, b"as it is")
    assert (log.producers.snapshots, log.producers.take_snapshot()) == ((1, 2, 3, 4), None)
    assert log.context.disk.read(path) == b"as it is"


def test_a_segment_that_began_at_time_0() -> None:  # rule B6.11
    log = a_log(segment_ms=1000)
    for timestamp in (0, 1000, 1001):
        append(log, timestamp=timestamp)
    assert base_offsets(log) == [0, 2]


@pytest.mark.parametrize(("policy", "segments"), [("delete", [0]), ("compact", [0, 2]), ("compact,delete", [0, 2])])
def test_what_is_compacted_leaves_the_active_segment_in_time(policy: str, segments: list[int]) -> None:  # rule B6.10
    log = a_log(cleanup_policy=policy, segment_ms=5000, max_compaction_lag_ms=1000)
    for timestamp in (NOW_MS, NOW_MS + 1000, NOW_MS + 1001):
        append(log, key=b"k", timestamp=timestamp)
    assert base_offsets(log) == segments
    log = a_log(cleanup_policy=policy, segment_ms=1000, max_compaction_lag_ms=5000)
    for timestamp in (NOW_MS, NOW_MS + 1000, NOW_MS + 1001):
        append(log, key=b"k", timestamp=timestamp)
    assert base_offsets(log) == [0, 2]


def test_the_indexes_of_a_segment_keep_to_the_settings_that_it_began_with() -> None:  # rule B6.10
    log = a_log(index_interval_bytes=0, segment_index_bytes=40)

    def append_12(**changed: int) -> list[int]:
        log.update_config(replace(log.config, **changed))  # type: ignore[arg-type]
        first = log.log_end_offset
        for i in range(12):
            append(log, timestamp=NOW_MS + first + i)
        return [offset for offset in base_offsets(log) if offset >= first]

    assert append_12() == [0, 3, 6, 9]  # the index of times is full with two entries, and one for the end
    assert append_12(segment_index_bytes=100) == [12, 20]
    assert append_12(segment_index_bytes=40) == [28, 31, 34]
    assert append_12(index_interval_bytes=ONE) == [37, 42, 47]


def test_every_segment_has_a_jitter_of_its_own() -> None:  # rule B6.10
    context = Context()
    settings = {"segment_ms": 10_000, "segment_jitter_ms": 5000}
    log = a_log(context, **settings)  # type: ignore[arg-type]
    append(log)
    log.roll()
    append(log)
    log.close()
    again = a_log(context, **settings)  # type: ignore[arg-type]
    jitters = [segment.jitter_ms for one in (log, again) for segment in one.segments]
    assert len(set(jitters)) == 4
    assert 0 <= min(jitters) <= max(jitters) < 5000


def test_each_setting_of_a_topic() -> None:
    numbers = {
        "segment_bytes": 1000, "segment_ms": 2, "segment_jitter_ms": 3, "segment_index_bytes": 4,
        "index_interval_bytes": 5, "flush_messages": 6, "flush_ms": 7, "retention_bytes": 8, "retention_ms": 9,
        "file_delete_delay_ms": 10, "delete_retention_ms": 12, "min_compaction_lag_ms": 13,
        "max_compaction_lag_ms": 14, "min_insync_replicas": 17,
    }  # fmt: skip
    more = {"max_message_bytes": 11, "message_timestamp_before_max_ms": 15, "message_timestamp_after_max_ms": 16}
    texts = {
        "min_cleanable_dirty_ratio": "0.25", "compression_type": "lz4", "message_timestamp_type": "LogAppendTime",
        "cleanup_policy": "compact", "message_downconversion_enable": "false",
    }  # fmt: skip
    expected = LogConfig(
        **numbers, **more, is_compact=True, is_delete=False, min_cleanable_dirty_ratio=0.25,
        compression_type=Codec.LZ4, message_timestamp_type=TimestampType.LOG_APPEND_TIME,
        message_downconversion_enable=False,
    )  # fmt: skip
    assert config(**numbers, **more, **texts) == expected
    assert (config(retention_ms=0).retention_ms, config(retention_bytes=0).retention_bytes) == (0, 0)
    assert (config(retention_ms=-1).retention_ms, config(retention_bytes=-1).retention_bytes) == (None, None)


def test_a_transaction_that_is_cut_off_is_forgotten() -> None:  # rule B3.65
    log = a_log()
    log.append_as_leader(produced(1, 0, transactional=True), 0)
    log.append_as_leader(marker(1, committed=True), 0, origin=Origin.COORDINATOR)
    log.truncate_to(0)
    for _ in range(3):
        append(log)
    log.set_high_watermark(1)
    assert log.last_stable_offset == 1


def test_an_open_transaction_is_unstable_from_the_start_of_the_log_on() -> None:  # rules T12.6, B6.19
    log = a_log()
    for i in range(3):
        log.append_as_leader(produced(1, i, transactional=True), 0)
    log.set_high_watermark(3)
    assert log.last_stable_offset == 0
    log.increment_log_start_offset(2)
    assert log.last_stable_offset == 2


def test_a_flush_that_fails_is_none() -> None:  # rules B3.20, B6.13
    class Failing(MemoryDisk):
        fails = False

        def flush_folder(self, path: str) -> None:
            if self.fails:
                raise OSError(5, "Input/output error")

    disk = Failing()
    log = a_log(Context(disk))
    append(log)
    disk.fails = True
    with pytest.raises(KafkaStorageError):
        log.flush()
    assert log.recovery_point == 0


def test_an_old_format_has_no_epochs_in_memory_either() -> None:  # rule B5.22
    log = Log(Context(), PARTITION, config(), is_new=True)
    log.assign_epoch(3)
    assert log.leader_epochs == ((3, 0),)
    log.update_config(replace(log.config, segment_ms=5))
    assert log.leader_epochs == ((3, 0),)
    log.update_config(replace(log.config, record_version=1))
    assert (log.leader_epochs, log.has_files) == ((), False)


def test_a_record_of_time_0_is_old() -> None:  # rule B6.15
    log = a_log()
    for timestamp, expected in ((-1, NOW_MS), (0, 0)):
        append(log, timestamp=timestamp)
        assert log.segments.active.largest_timestamp_ms == expected


def test_a_log_moves_on_a_disk(tmp_path: Path) -> None:
    for name in ("l", "m"):
        (tmp_path / name).mkdir()
    log = a_log(Context(RealDisk(), path=f"{tmp_path}/l"), segment_bytes=2 * ONE)
    for _ in range(3):
        log.append_as_leader(produced(1, log.log_end_offset), 0)
    log.move(f"{tmp_path}/m/a-0")
    for _ in range(3):
        log.append_as_leader(produced(1, log.log_end_offset), 1)
    log.close()
    assert [path.name for path in tmp_path.rglob("*.log")] == [path.name for path in (tmp_path / "m/a-0").glob("*.log")]
    again = a_log(Context(RealDisk(), path=f"{tmp_path}/m"), segment_bytes=2 * ONE)
    assert (again.log_end_offset, again.leader_epochs, base_offsets(again)) == (6, ((0, 0), (1, 3)), [0, 2, 4])
    assert (again.producers.producers[1].last_sequence, len(again.producers.snapshots)) == (5, 3)


def test_a_full_index_of_times_ends_its_segment() -> None:  # rule B6.10
    log = a_log(index_interval_bytes=0, segment_index_bytes=48)
    for i in range(9):
        append(log, timestamp=NOW_MS + i)
    assert base_offsets(log) == [0, 4, 8]
    assert [len(segment.time_index) for segment in log.segments] == [3, 3, 0]


def test_an_index_that_was_full_has_room_after_a_truncation() -> None:  # rule B6.10
    log = a_log(index_interval_bytes=0, segment_index_bytes=48)
    for _ in range(9):
        append(log, timestamp=NOW_MS)
    assert base_offsets(log) == [0, 7]
    log.truncate_to(3)  # the batch after it has no entry
    for _ in range(6):
        append(log, timestamp=NOW_MS)
    assert base_offsets(log) == [0, 8]


def test_a_new_segment_has_nothing_of_an_old_one() -> None:
    disk = MemoryDisk()
    for kind in ("log", "index", "timeindex", "txnindex"):
        disk.write(f"{FOLDER}/{7:020}.{kind}.cleaned", b"old")
    segment = Segment.create(disk, FOLDER, 7, config(), now_ms=NOW_MS, suffix=".cleaned")
    assert (segment.size, segment.is_new, len(segment.index), segment.txn_index.transactions) == (0, True, 0, [])
    kinds = ("index", "log", "timeindex")
    assert disk.files(FOLDER) == [f"{7:020}.{kind}.cleaned" for kind in kinds]
    assert [disk.read(f"{FOLDER}/{7:020}.{kind}.cleaned") for kind in kinds] == [b""] * 3
