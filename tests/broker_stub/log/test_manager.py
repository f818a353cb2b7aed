"""The logs of a broker in its log directories. Covers: broker_stub/log/directory.py, broker_stub/log/upkeep.py."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from trio.testing import MockClock as Clock

from kce.broker_stub.disk import Disk
from kce.broker_stub.errors import BrokerFailure, KafkaStorageError, OffsetOutOfRange, Refused
from kce.broker_stub.log import Isolation, LogConfig
from kce.broker_stub.log.checkpoints import read_offsets
from kce.broker_stub.log.directory import CHECKPOINTS
from kce.broker_stub.log.lookup import find_timestamp
from kce.broker_stub.log.manager import LogManager
from kce.broker_stub.log.manager_config import LogManagerConfig
from kce.harness.world.memory_disk import MemoryDisk
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.log.support import NOW_MS, append, batch, produced, values
from tests.broker_stub.logs import MemoryLogManager

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
ID = uuid.UUID(int=5)


def clock_ms() -> int:
    return NOW_MS + round(trio.current_time() * 1000)


def manager(disk: Disk, *dirs: str, topic: dict[str, str] | None = None, **properties: str) -> LogManager:
    made = LogManager(
        disk,
        dirs or ("/l",),
        LogManagerConfig.of({key.replace("_", "."): value for key, value in properties.items()}),
        now_ms=clock_ms,
        random=Random(1),
        config_of=lambda name: LogConfig.of(topic or {}),
        on_offline=lambda path, partitions: offline.append((path, partitions)),
    )
    offline: list[tuple[str, list[TopicPartition]]] = []
    made.offline = offline  # type: ignore[attr-defined]
    return made


@asynccontextmanager
async def running(logs: LogManager) -> AsyncIterator[LogManager]:
    await logs.load()
    async with trio.open_nursery() as nursery:
        await nursery.start(logs.run)
        yield logs
        nursery.cancel_scope.cancel()


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk(clock_ms)


async def test_logs_are_the_same_after_a_clean_end(disk: MemoryDisk) -> None:
    logs = manager(disk)
    await logs.load()
    assert not logs.directories[0].had_clean_shutdown
    log = logs.get_or_create_log(A0, is_new=True, topic_id=ID)
    assert logs.get_or_create_log(A0, is_new=True, topic_id=None) is log
    append(log, b"x", b"y", epoch=3)
    log.set_high_watermark(1)
    log.increment_log_start_offset(1)
    append(logs.get_or_create_log(A1, is_new=True, topic_id=None), b"z")
    assert (logs.has_log(A0), logs.topic_id(A0), logs.topic_id(A1), logs.has_log(B0)) == (True, ID, None, False)
    logs.assign_topic_id(A1, ID)
    logs.close(broker_epoch=77)
    assert disk.files("/l") == [
        ".kafka_cleanshutdown", ".lock", "log-start-offset-checkpoint", "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    ]  # fmt: skip
    assert disk.read("/l/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":77}'

    disk.crash()  # which changes nothing: all is flushed
    logs = manager(disk)
    await logs.load()
    assert logs.directories[0].had_clean_shutdown
    assert not disk.exists("/l/.kafka_cleanshutdown")
    log = logs.logs[A0]
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset, log.topic_id) == (1, 1, 2, ID)
    assert (log.recovery_point, log.leader_epochs, values(log)[-1]) == (2, ((3, 1),), (1, b"y"))
    assert logs.topic_id(A1) == ID
    logs.abandon()
    logs = manager(disk)
    await logs.load()
    assert not logs.directories[0].had_clean_shutdown


async def test_nothing_is_written_after_the_end(disk: MemoryDisk, autojump_clock: Clock) -> None:
    """The rest of the node ends later."""
    async with running(manager(disk)) as logs:
        log = logs.get_or_create_log(A0, is_new=True, topic_id=ID)
        append(log, b"x", b"y")
        log.set_high_watermark(2)
        log.increment_log_start_offset(1)
        logs.close()
        await trio.sleep(3600)
        written = [read_offsets(disk, f"/l/{name}") for name in CHECKPOINTS]
        assert written == [{A0: 2}, {A0: 1}, {A0: 2}]


async def test_a_directory_is_used_by_one_broker(disk: MemoryDisk) -> None:
    first = manager(disk)
    await first.load()
    with pytest.raises(BrokerFailure, match="lock is locked"):
        await manager(disk).load()
    first.abandon()
    await manager(disk).load()


@pytest.mark.parametrize("name", ["lost+found", "a", "a-x", "a-0-delete"])
async def test_other_folders_are_refused(disk: MemoryDisk, name: str) -> None:
    disk.make_folder(f"/l/{name}")
    with pytest.raises(BrokerFailure, match=f"/l/{name.replace('+', '.')} is not the folder of a partition"):
        await manager(disk).load()


@pytest.mark.parametrize("name", ["remote-log-index-cache", "__cluster_metadata-0", f"a-0.{'0' * 32}-stray"])
async def test_folders_that_are_left_alone(disk: MemoryDisk, autojump_clock: Clock, name: str) -> None:
    disk.write(f"/l/{name}/kept", b"x")
    async with running(manager(disk)) as logs:
        await trio.sleep(3600)
        assert not logs.logs
        assert disk.exists(f"/l/{name}/kept")


async def test_a_damaged_log_ends_the_start_after_a_clean_end_and_is_then_recovered(disk: MemoryDisk) -> None:
    """Rule B6.34."""
    logs = manager(disk)
    await logs.load()
    log = logs.get_or_create_log(A0, is_new=True, topic_id=None)
    for _ in range(3):
        append(log, b"x")
    logs.close(broker_epoch=1)
    path = "/l/a-0/00000000000000000000.log"
    content = bytearray(disk.read(path) or b"")
    one = len(content) // 3
    content[one + 8 : one + 12] = bytes(4)  # the size
    disk.write(path, bytes(content))
    logs = manager(disk)
    with pytest.raises(BrokerFailure, match=rf"/l/a-0 is damaged, .*: <segment 0, .*byte {one}: .* recovers it"):
        await logs.load()
    logs.abandon()
    logs = manager(disk)
    await logs.load()
    assert values(logs.logs[A0]) == [(0, b"x")]


async def test_a_partition_is_in_one_directory(disk: MemoryDisk) -> None:
    for path in ("/l/a-0", "/m/a-0"):
        disk.make_folder(path)
    with pytest.raises(BrokerFailure, match="/m/a-0 and /l/a-0 are of the same partition"):
        await manager(disk, "/l", "/m").load()


async def test_logs_are_spread_over_the_directories(disk: MemoryDisk) -> None:
    logs = manager(disk, "/l", "/m")
    await logs.load()
    for number in range(5):
        append(logs.get_or_create_log(TopicPartition("a", number), is_new=True, topic_id=None), b"x")
    assert (disk.folders("/l"), disk.folders("/m")) == (["a-0", "a-2", "a-4"], ["a-1", "a-3"])


async def test_a_log_has_files_once_something_is_written(disk: MemoryDisk, autojump_clock: Clock) -> None:
    async with running(manager(disk)) as logs:
        log = logs.get_or_create_log(A0, is_new=True, topic_id=ID)
        deleted = logs.get_or_create_log(A1, is_new=True, topic_id=None)
        deleted.assign_epoch(3)
        log.assign_epoch(5)
        log.assign_epoch(7)
        assert (log.log_end_offset, log.high_watermark, log.last_stable_offset, log.size) == (0, 0, 0, 0)
        assert (log.latest_epoch, log.end_offset_of(7), log.end_offset_of(5)) == (7, (7, 0), (5, 0))
        assert (log.set_high_watermark(9), log.end, log.located_last_stable()) == (0, (0, 0, 0), (0, 0, 0))
        assert log.read(0, 100, Isolation.HIGH_WATERMARK) == ((0, 0, 0), b"", False, ())
        with pytest.raises(OffsetOutOfRange):
            log.read(1, 100, Isolation.LOG_END)
        assert (log.increment_log_start_offset(0), log.truncate_to(0), log.delete_old_segments()) == (False, False, 0)
        await trio.sleep(3600)  # checkpoints are written, retention and flushes are done
        logs.delete_log(A1)
        assert (disk.folders("/l"), log.has_files, logs.has_log(A1)) == ([], False, False)
        looked_at = logs.get_or_create_log(B0, is_new=True, topic_id=None)
        looked_at.assign_epoch(3)
        assert find_timestamp(looked_at, 0) is None
        assert looked_at.leader_epochs == ((3, 0),)
        logs.delete_log(B0)
        append(log, b"x", epoch=7)
        await trio.sleep(3600)
        assert (disk.folders("/l"), log.topic_id, log.leader_epochs) == (["a-0"], ID, ((7, 0),))
    logs.abandon()
    again = manager(disk)
    await again.load()
    assert (again.topic_id(A0), again.logs[A0].leader_epochs, values(again.logs[A0])) == (ID, ((7, 0),), [(0, b"x")])


async def test_a_deleted_log_is_gone_at_once_and_from_the_disk_later(disk: MemoryDisk, autojump_clock: Clock) -> None:
    """Rule B6.18."""
    async with running(manager(disk)) as logs:
        append(logs.get_or_create_log(A0, is_new=True, topic_id=None), b"old")
        logs.delete_log(A0)
        logs.delete_log(B0)
        assert not logs.has_log(A0)
        (name,) = disk.folders("/l")
        assert name.startswith("a-0.")
        assert name.endswith("-delete")
        append(logs.get_or_create_log(A0, is_new=True, topic_id=None), b"new")
        await trio.sleep(59)
        assert disk.folders("/l") == ["a-0", name]
        await trio.sleep(2)
        assert disk.folders("/l") == ["a-0"]
        logs.delete_log(A0)
    logs.abandon()
    async with running(manager(disk)) as logs:  # which finishes what the one before began
        await trio.sleep(0.001)
        assert (disk.folders("/l"), logs.logs) == ([], {})


async def test_how_long_a_deleted_log_stays_is_not_its_topics_choice(
    disk: MemoryDisk, autojump_clock: Clock
) -> None:  # rule B6.18
    topic = {"file.delete.delay.ms": "90000"}
    async with running(manager(disk, topic=topic, log_segment_delete_delay_ms="1000")) as logs:
        append(logs.get_or_create_log(A0, is_new=True, topic_id=None))
        logs.delete_log(A0)
        await trio.sleep(0.9)
        assert len(disk.folders("/l")) == 1
        await trio.sleep(0.2)
        assert disk.folders("/l") == []
        logs.reconfigure(LogManagerConfig.of({"log.segment.delete.delay.ms": "3000"}))
        append(logs.get_or_create_log(A0, is_new=True, topic_id=None))
        logs.delete_log(A0)
        await trio.sleep(2.9)
        assert len(disk.folders("/l")) == 1
        await trio.sleep(0.2)
        assert disk.folders("/l") == []


async def test_what_is_done_while_the_broker_runs(disk: MemoryDisk, autojump_clock: Clock) -> None:
    topic = {"retention.ms": "1000", "segment.bytes": "100", "file.delete.delay.ms": "5000"}
    async with running(manager(disk, topic=topic)) as logs:
        log = logs.get_or_create_log(A0, is_new=True, topic_id=None)
        for i in range(4):
            log.append_as_leader(produced(1, i), 0)
        log.set_high_watermark(3)
        assert log.recovery_point == 0
        await trio.sleep(0.001)
        assert log.recovery_point == 3  # what was rolled is flushed soon
        await trio.sleep(5.01)
        assert read_offsets(disk, "/l/replication-offset-checkpoint") == {A0: 3}
        assert read_offsets(disk, "/l/recovery-point-offset-checkpoint") == {}
        await trio.sleep(90)
        assert read_offsets(disk, "/l/recovery-point-offset-checkpoint") == {A0: 3}
        assert len(log.segments) == 4
        await trio.sleep(236)
        assert [segment.base_offset for segment in log.segments] == [3]
        assert len([name for name in disk.files("/l/a-0") if name.endswith(".deleted")]) > 6
        await trio.sleep(5)
        assert not [name for name in disk.files("/l/a-0") if name.endswith(".deleted")]
        assert 1 in log.producers.producers
        await trio.sleep(86_400)
        assert log.producers.producers == {}


@pytest.mark.parametrize("enabled", [True, False])
async def test_logs_are_compacted_while_the_broker_runs(
    disk: MemoryDisk, autojump_clock: Clock, enabled: bool
) -> None:  # rule B6.22
    topic = {"cleanup.policy": "compact", "segment.bytes": "200", "min.cleanable.dirty.ratio": "0.1"}
    properties = {"log.cleaner.enable": str(enabled).lower(), "log.cleaner.backoff.ms": "1000"}
    async with running(manager(disk, topic=topic, **properties)) as logs:
        log = logs.get_or_create_log(A0, is_new=True, topic_id=None)
        other = logs.get_or_create_log(TopicPartition("empty", 0), is_new=True, topic_id=None)
        for i in range(20):
            log.append_as_leader(batch(b"%d" % i, key=b"k"), 0)
        log.set_high_watermark(20)
        active = log.segments.active.base_offset
        await trio.sleep(1.1)
        assert sum(segment.size > 0 for segment in log.segments) == (2 if enabled else len(log.segments))
        assert not other.has_files
        checkpoint = "/l/cleaner-offset-checkpoint"
        assert (read_offsets(disk, checkpoint) if disk.exists(checkpoint) else {}) == ({A0: active} if enabled else {})
        await logs.checkpoint_recovery_points()
    if enabled:
        logs.abandon()
        again = manager(disk, topic=topic)
        await again.load()
        assert again._cleaner.ends == {A0: active}
        again.delete_log(A0)
        again.checkpoint_deletions()
        assert (again._cleaner.ends, read_offsets(disk, checkpoint)) == ({}, {})


async def test_the_cleaner_looks_at_once_and_when_its_settings_change(
    disk: MemoryDisk, autojump_clock: Clock
) -> None:  # rule B6.22
    logs = manager(disk, log_cleaner_backoff_ms="700000")
    looked: list[float] = []

    async def note() -> None:
        looked.append(trio.current_time() - began)

    logs._compact = note  # type: ignore[method-assign]
    began = trio.current_time()
    async with running(logs):
        await trio.sleep(710)
        for changed in ({"producer.id.expiration.ms": "5"}, {"log.cleaner.backoff.ms": "1000"}):
            logs.reconfigure(LogManagerConfig.of({"log.cleaner.backoff.ms": "700000", **changed}))
            await trio.sleep(0.5)
        await trio.sleep(1)
        assert looked == pytest.approx([0, 700, 710.5, 711.5])
        logs.reconfigure(LogManagerConfig.of({"log.cleaner.backoff.ms": "10000"}))
        await trio.sleep(4.3)
        logs.reconfigure(
            LogManagerConfig.of({"log.cleaner.backoff.ms": "10000", "log.cleaner.dedupe.buffer.size": "9"})
        )
        await trio.sleep(11)
        assert looked[4:] == pytest.approx([712, 716.3, 726.3])
        looked.clear()
        for name in ("log.cleaner.threads", "log.cleaner.io.buffer.size", "message.max.bytes",
                     "log.cleaner.io.buffer.load.factor", "log.cleaner.io.max.bytes.per.second"):  # fmt: skip
            logs.reconfigure(LogManagerConfig.of({"log.cleaner.backoff.ms": "10000", name: "2"}))
            await trio.sleep(1)
        assert looked == pytest.approx([727.3, 728.3, 729.3, 730.3, 731.3])


@pytest.mark.parametrize("enabled", [True, False])
async def test_without_a_cleaner_nothing_is_deleted_of_what_is_compacted(
    disk: MemoryDisk, autojump_clock: Clock, enabled: bool
) -> None:  # rule B6.14
    topic = {"segment.bytes": "100", "retention.ms": "1000"}
    logs = manager(disk, log_cleaner_enable=str(enabled).lower(), log_retention_check_interval_ms="1000")
    logs._config_of = lambda name: LogConfig.of({**topic, "cleanup.policy": name})
    async with running(logs):
        left = {}
        for policy in ("delete", "compact,delete", "compact"):
            log = logs.get_or_create_log(TopicPartition(policy, 0), is_new=True, topic_id=None)
            for i in range(3):
                append(log, key=b"%d" % i)
            log.set_high_watermark(3)
            left[policy] = log
        left["compact"].increment_log_start_offset(2)
        await trio.sleep(40)
        found = {policy: [segment.base_offset for segment in log.segments] for policy, log in left.items()}
    deleted = {"delete": [3], "compact,delete": [3], "compact": [2]}
    assert found == (deleted if enabled else {"delete": [3], "compact,delete": [0, 1, 2], "compact": [0, 1, 2]})


async def test_logs_are_flushed_by_time(disk: MemoryDisk, autojump_clock: Clock) -> None:
    async with running(manager(disk, topic={"flush.ms": "2000"}, log_flush_scheduler_interval_ms="1000")) as logs:
        log = logs.get_or_create_log(A0, is_new=True, topic_id=None)
        append(log)
        await trio.sleep(40)
        assert log.recovery_point == 1


async def test_settings_change(disk: MemoryDisk) -> None:
    topic: dict[str, str] = {}
    logs = manager(disk, topic=topic)
    logs._config_of = lambda name: LogConfig.of(topic)
    await logs.load()
    log = logs.get_or_create_log(A0, is_new=True, topic_id=None)
    topic["max.message.bytes"] = "77"
    logs.update_config(["b"])
    assert log.config.max_message_bytes != 77
    logs.update_config(["a"])
    assert log.config.max_message_bytes == 77


class FailingDisk(MemoryDisk):
    """``broken``: everything below that path fails."""

    broken = "nothing"

    def before(self, path: str, size: int) -> None:
        if path.startswith(self.broken):
            raise OSError(5, "Input/output error")


async def test_a_directory_that_fails_is_offline_and_the_rest_serves() -> None:
    disk = FailingDisk(clock_ms)
    logs = manager(disk, "/l", "/m")
    await logs.load()
    first, second = (logs.get_or_create_log(tp, is_new=True, topic_id=None) for tp in (A0, A1))
    disk.broken = "/l"
    with pytest.raises(KafkaStorageError, match="Input/output error"):
        append(first)
    assert logs.offline == [("/l", [A0])]  # type: ignore[attr-defined]
    append(second)
    assert list(logs.logs) == [A1]
    with pytest.raises(KafkaStorageError, match="may be in a log directory that is offline"):
        logs.get_or_create_log(B0, is_new=False, topic_id=None)  # rule 9.24
    assert logs.get_or_create_log(B0, is_new=True, topic_id=None).folder == "/m/b-0"
    logs.close()
    assert disk.exists("/m/.kafka_cleanshutdown")
    disk.broken = "nothing"
    assert not disk.exists("/l/.kafka_cleanshutdown")


async def test_checkpoints_do_not_read_a_log_that_rests() -> None:
    """It stays at rest, and a disk that cannot be read does not end the broker."""
    disk = FailingDisk(clock_ms)
    logs = manager(disk, "/l", "/m")
    await logs.load()
    found = logs.get_or_create_log(A0, is_new=True, topic_id=None)
    append(found, b"x", b"y")
    found.set_high_watermark(2)
    found.increment_log_start_offset(1)
    assert found.rest()
    await logs.checkpoint_log_starts()
    assert read_offsets(disk, "/l/log-start-offset-checkpoint") == {A0: 1}
    assert found.end.offset == 2
    disk.broken = "/l/a-0"
    await logs.checkpoint_log_starts()
    assert (found._segments, logs.offline) == (None, [])  # type: ignore[attr-defined]


async def test_a_truncation_writes_where_recovery_begins(disk: MemoryDisk) -> None:
    """Rule B5.34: what is appended then is not flushed, whatever the checkpoint said."""
    async with running(manager(disk)) as logs:
        log = logs.get_or_create_log(A0, is_new=True, topic_id=None)
        for _ in range(3):
            append(log)
        log.flush()
        await logs.checkpoint_recovery_points()
        assert read_offsets(disk, "/l/recovery-point-offset-checkpoint") == {A0: 3}
        for cut, end in ((log.truncate_to, 2), (log.truncate_fully, 1)):
            cut(end)
            await trio.testing.wait_all_tasks_blocked()
            assert read_offsets(disk, "/l/recovery-point-offset-checkpoint") == {A0: end}


async def test_a_written_checkpoint_survives_a_crash(disk: MemoryDisk) -> None:
    logs = manager(disk)
    await logs.load()
    (directory,) = logs.online
    for offset in (5, 6):
        await directory.update_checkpoint("recovery-point-offset-checkpoint", {A0: offset})
        disk.crash()
        assert read_offsets(disk, "/l/recovery-point-offset-checkpoint") == {A0: offset}


async def test_of_several_directories_an_empty_log_is_known_to_be_in_one() -> None:  # rule 9.24
    """Without the others it is still served: its files are there, as Kafka's."""
    disk = FailingDisk(clock_ms)
    logs = manager(disk, "/l", "/m")
    await logs.load()
    for partition in (A0, A1):
        logs.get_or_create_log(partition, is_new=True, topic_id=ID)
    logs.close()
    disk.broken = "/l"
    logs = manager(disk, "/l", "/m")
    await logs.load()
    found = logs.get_or_create_log(A1, is_new=False, topic_id=ID)
    assert (found.folder, found.has_files, found.topic_id) == ("/m/a-1", True, ID)
    with pytest.raises(KafkaStorageError, match="may be in a log directory that is offline"):
        logs.get_or_create_log(A0, is_new=False, topic_id=ID)


async def test_a_new_log_is_where_the_fewest_are(disk: MemoryDisk) -> None:
    """Among them future ones, and those that were loaded; not those that are deleted."""
    logs = manager(disk, "/l", "/m")
    await logs.load()
    numbers = iter(range(10))

    def new() -> str:
        made = logs.get_or_create_log(TopicPartition("new", next(numbers)), is_new=True, topic_id=None)
        return made.context.path

    logs.get_or_create_log(A0, is_new=True, topic_id=None)
    assert [new(), new()] == ["/m", "/l"]
    logs.future.create(A0, logs.future.directory("/m"))
    assert [new(), new()] == ["/l", "/m"]  # 3 in each, and then
    logs.swap(A0)
    assert [new(), new()] == ["/l", "/l"]
    logs.delete_log(A0)
    assert [new(), new()] == ["/m", "/m"]
    logs.delete_log(TopicPartition("new", 1))  # the first one in /l
    logs.close()
    logs = manager(disk, "/l", "/m")
    await logs.load()
    assert [new(), new()] == ["/l", "/l"]


async def test_a_directory_that_takes_no_new_log_is_offline_and_the_next_one_takes_it() -> None:
    disk = FailingDisk(clock_ms)
    logs = manager(disk, "/l", "/m")
    await logs.load()
    disk.broken = "/l/"
    assert logs.get_or_create_log(A0, is_new=True, topic_id=ID).folder == "/m/a-0"
    assert logs.offline == [("/l", [])]  # type: ignore[attr-defined]
    logs = manager(disk, "/n", "/o")
    await logs.load()
    logs.future.prefer(A1, logs.future.directory("/o"))
    disk.broken = "/o/"
    with pytest.raises(KafkaStorageError, match="Input/output error"):  # a directory that was chosen is the only one
        logs.get_or_create_log(A1, is_new=True, topic_id=ID)


async def test_a_directory_that_fails_at_the_start() -> None:
    disk = FailingDisk(clock_ms)
    disk.broken = "/l"
    logs = manager(disk, "/l", "/m")
    await logs.load()
    assert [directory.path for directory in logs.online] == ["/m"]
    early = manager(MemoryDisk(clock_ms), "/l", "/m")
    await early.load({"/l": OSError("no such device")})
    assert [directory.path for directory in early.online] == ["/m"]
    assert early.offline == [("/l", [])]  # type: ignore[attr-defined]
    disk.broken = "/"
    with pytest.raises(BrokerFailure, match="no log directory can be used: /l, /m"):
        await manager(disk, "/l", "/m").load()


async def test_a_checkpoint_with_a_bad_number_is_ignored(disk: MemoryDisk) -> None:
    """Rule B6.6: where recovery and logs start is the beginning then."""
    logs = manager(disk)
    await logs.load()
    append(logs.get_or_create_log(A0, is_new=True, topic_id=None))
    logs.close()
    for name in ("log-start-offset-checkpoint", "recovery-point-offset-checkpoint"):
        disk.write(f"/l/{name}", b"0\n1\na 0 x\n")
    logs = manager(disk)
    await logs.load()
    assert values(logs.logs[A0]) == [(0, b"v")]


@pytest.mark.parametrize(
    "name",
    [
        "replication-offset-checkpoint", "cleaner-offset-checkpoint", "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
    ],
)  # fmt: skip
async def test_without_a_checkpoint_a_directory_is_offline(disk: MemoryDisk, name: str) -> None:
    """Rule B6.6: without the high watermarks, say, a follower may cut off what is committed."""
    disk.write(f"/l/{name}", b"0\n5\na 0 1\n")
    logs = manager(disk, "/l", "/m")
    await logs.load()
    assert [directory.path for directory in logs.online] == ["/m"]


async def test_a_new_log_does_not_start_where_a_deleted_one_did(disk: MemoryDisk) -> None:  # rule B6.18
    """Not even after a crash, when the checkpoints of the deleted one are read."""
    logs = manager(disk)
    await logs.load()
    for value in (b"old", b"new"):
        log = logs.get_or_create_log(A0, is_new=True, topic_id=None)
        append(log, value, value, value)
        log.flush(3)
        log.set_high_watermark(3)
        if value == b"old":
            log.increment_log_start_offset(2)
            await logs.checkpoint_recovery_points()
            await logs.checkpoint_log_starts()
            assert read_offsets(disk, "/l/recovery-point-offset-checkpoint") == {A0: 3}
            assert read_offsets(disk, "/l/log-start-offset-checkpoint") == {A0: 2}
            logs.delete_log(A0)
            logs.checkpoint_deletions()
            assert read_offsets(disk, "/l/recovery-point-offset-checkpoint") == {}
            assert read_offsets(disk, "/l/log-start-offset-checkpoint") == {}
    logs.abandon()
    again = manager(disk)
    await again.load()
    assert again.logs[A0].log_start_offset == 0
    assert [value for _, value in values(again.logs[A0])] == [b"new"] * 3


async def test_a_checkpoint_that_is_being_written_does_not_bring_a_deleted_log_back(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule B6.18
    logs = manager(disk)
    await logs.load()
    for partition in (A0, A1):
        append(logs.get_or_create_log(partition, is_new=True, topic_id=None), b"x")
    flush_all = disk.flush_all

    async def delete_meanwhile(paths: list[str]) -> None:
        await flush_all(paths)
        if paths == ["/l/recovery-point-offset-checkpoint.tmp"]:
            logs.delete_log(A0)
            logs.checkpoint_deletions()

    monkeypatch.setattr(disk, "flush_all", delete_meanwhile)
    await logs.checkpoint_recovery_points()
    assert read_offsets(disk, "/l/recovery-point-offset-checkpoint") == {A1: 0}
    assert logs.online
    await logs.checkpoint_recovery_points()
    assert read_offsets(disk, "/l/recovery-point-offset-checkpoint") == {A1: 0}


async def test_a_disk_that_fails_when_deletions_are_noted_is_offline(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule B3.20
    logs = manager(disk, "/l", "/m")
    await logs.load()
    for partition in (A0, A1):
        append(logs.get_or_create_log(partition, is_new=True, topic_id=None), b"x")
    logs.delete_log(A0)
    write = disk.write

    def fails(path: str, content: bytes) -> None:
        if path.startswith("/l/"):
            raise OSError("broken")
        write(path, content)

    monkeypatch.setattr(disk, "write", fails)
    logs.checkpoint_deletions()
    assert [directory.path for directory in logs.online] == ["/m"]
    logs.checkpoint_deletions()  # nothing is left to do


async def test_who_never_had_a_log_directory_gives_none_back() -> None:
    first = MemoryLogManager()
    await first.load()
    other = MemoryLogManager(disk=first.disk)
    other.abandon()
    assert not first.disk.lock("/logs/.lock")
    first.abandon()
    assert first.disk.lock("/logs/.lock")


async def test_without_checkpoints_a_log_begins_anew(disk: MemoryDisk) -> None:  # rule B6.6
    logs = manager(disk)
    await logs.load()
    append(logs.get_or_create_log(A0, is_new=True, topic_id=None), b"x", b"y")
    logs.abandon()
    logs = manager(disk)
    await logs.load()
    log = logs.logs[A0]
    assert (log.log_start_offset, log.recovery_point, log.high_watermark, log.log_end_offset) == (0, 0, 0, 2)


async def test_when_what_happens(disk: MemoryDisk, autojump_clock: Clock) -> None:
    logs = manager(
        disk, log_initial_task_delay_ms="7000", log_retention_check_interval_ms="100000",
        log_flush_scheduler_interval_ms="200000", log_flush_offset_checkpoint_interval_ms="300000",
        log_flush_start_offset_checkpoint_interval_ms="400000", replica_high_watermark_checkpoint_interval_ms="500000",
        producer_id_expiration_check_interval_ms="600000", log_cleaner_backoff_ms="700000",
    )  # fmt: skip
    seconds = {
        "_retain": 107, "_flush_dirty": 207, "checkpoint_recovery_points": 307, "checkpoint_log_starts": 407,
        "checkpoint_high_watermarks": 500, "_expire_producers": 600, "_compact": 0,
    }  # fmt: skip
    times: dict[str, float] = {}
    for name in seconds:

        async def note(name: str = name) -> None:
            times.setdefault(name, trio.current_time() - began)

        setattr(logs, name, note)
    began = trio.current_time()
    async with running(logs):
        await trio.sleep(701)
    assert times == pytest.approx(seconds, abs=1e-6)


async def test_without_a_directory_there_is_no_new_log(disk: MemoryDisk) -> None:  # rule B3.20
    logs = manager(disk, "/l", "/m")
    await logs.load()
    for path in ("/l/", "/m"):
        logs.fail(path)
    with pytest.raises(KafkaStorageError, match="no log directory is left for a-0"):
        logs.get_or_create_log(A0, is_new=True, topic_id=None)
    with pytest.raises(ValueError, match="/l"):
        logs.fail("/l")
    assert logs.offline == [("/l", []), ("/m", [])]  # type: ignore[attr-defined]


async def test_a_crash_soon_after_a_clean_end(disk: MemoryDisk) -> None:  # rule B6.9
    for expected in (False, True, False):
        logs = manager(disk)
        await logs.load()
        assert logs.directories[0].had_clean_shutdown is expected
        if not expected:
            logs.close()
        disk.crash()


async def test_a_failed_directory_has_no_logs_any_more_when_that_is_told(disk: MemoryDisk) -> None:
    logs = manager(disk, "/l", "/m")
    await logs.load()
    for partition, path in ((A0, "/l"), (A1, "/m")):
        logs.future.prefer(partition, logs.future.directory(path))
        logs.get_or_create_log(partition, is_new=True, topic_id=None)
    for partition, path in ((A0, "/m"), (A1, "/l")):
        logs.future.create(partition, logs.future.directory(path))
    told: list[tuple[str, list[TopicPartition], list[TopicPartition], list[TopicPartition]]] = []
    logs._on_offline = lambda path, gone: told.append((path, gone, list(logs.logs), list(logs.future.logs)))
    logs.fail("/m")
    with pytest.raises(KafkaStorageError, match="/m is offline"):
        logs.future.directory("/m")
    for path in ("/n", "/l/", "/n/../l"):  # rule B7.23
        with pytest.raises(Refused, match=rf"{path} is not in log\.dirs"):
            logs.future.directory(path)
    with pytest.raises(KafkaStorageError, match="a future log of b-0"):
        logs.future.create(B0, logs.future.directory("/l"))
    assert told == [("/m", [A1], [A0], [A1])]


async def test_a_future_log_that_cannot_be_made() -> None:  # rule B3.20
    class Full(MemoryDisk):
        is_full = False

        def before(self, path: str, size: int) -> None:
            if self.is_full:
                raise OSError(28, "No space left on device")

    disk = Full()
    logs = manager(disk, "/l", "/m")
    await logs.load()
    logs.get_or_create_log(A0, is_new=True, topic_id=ID)
    disk.is_full = True
    with pytest.raises(KafkaStorageError, match="No space left"):
        logs.future.create(A0, logs.future.directory("/m"))
    assert logs.offline == [("/m", [])]  # type: ignore[attr-defined]
    assert logs.future.logs == {}


async def test_the_space_of_a_directory(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: str) -> tuple[int, int]:
        raise OSError(5, "Input/output error")

    logs = manager(disk)
    await logs.load()
    monkeypatch.setattr(disk, "space", lambda path: (7, 5))
    assert logs.directories[0].space() == (7, 5)
    monkeypatch.setattr(disk, "space", fails)
    assert logs.directories[0].space() == (-1, -1)


async def test_after_the_end_there_are_no_logs(disk: MemoryDisk) -> None:
    logs = manager(disk, "/l", "/m")
    await logs.load()
    logs.get_or_create_log(A0, is_new=True, topic_id=None)
    logs.future.create(A0, logs.future.directory("/m"))
    logs.close()
    assert (logs.logs, logs.future.logs) == ({}, {})
    await manager(disk, "/l", "/m").load()  # the locks are given back
