"""Replicas move between log directories (rule B7.23), in memory.

Covers: broker_stub/log/future_logs.py, broker_stub/replication/log_dir_moves.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from kce import wire
from kce.broker_stub.errors import BrokerFailure, OffsetOutOfRange
from kce.broker_stub.log import FetchedRecords, Log
from kce.broker_stub.replication.log_dir_moves import LogDirMoves
from kce.broker_stub.replication.throttle import ReplicationQuota
from kce.harness.world.memory_disk import MemoryDisk
from kce.wire import ErrorCode
from kce.wire.errors import CorruptRecord
from tests.broker_stub.log.support import Context, a_log, append
from tests.broker_stub.log.support import everything as everything_in
from tests.broker_stub.logs import MemoryLogManager
from tests.broker_stub.replication.support import A0, Leader, RecordNode, a_node, batch, values_of
from tests.broker_stub.support import ID_A, lai_state, leader_and_isr, umr_state, update_metadata

TWO = ("/a", "/b")


@asynccontextmanager
async def node_with_two(
    topic: dict[str, str] | None = None, disk: MemoryDisk | None = None, **more: Any
) -> AsyncIterator[RecordNode]:
    async with a_node(topic, disk=disk, log_dirs=TWO, **more) as node:
        yield node


async def alter(node: RecordNode, path: str, topic: str = "a", version: int = 2) -> int:
    entry = wire.AlterReplicaLogDirTopic(name=topic, partitions=(0,))
    request = wire.AlterReplicaLogDirsRequest(dirs=(wire.AlterReplicaLogDir(path=path, topics=(entry,)),))
    (answer,) = (await node.ask(request, version)).results
    assert (answer.topic_name, answer.partitions[0].partition_index) == (topic, 0)
    return int(answer.partitions[0].error_code)


async def described(node: RecordNode) -> dict[str, list[tuple[int, bool]]]:
    """Lag, and whether it is a future log, by directory."""
    answer = await node.ask(wire.DescribeLogDirsRequest(topics=None))
    return {
        found.log_dir: [(p.offset_lag, p.is_future_key) for topic in found.topics for p in topic.partitions]
        for found in answer.results
    }


def hold(node: RecordNode) -> None:
    """Nothing is copied until ``go_on``."""
    quota = node.replication.quotas.log_dirs
    quota.rate = 0
    quota.record(1)


def go_on(node: RecordNode) -> None:
    node.replication.quotas.log_dirs.rate = 1e9


async def moved(node: RecordNode) -> None:
    await until(lambda: not node.record_logs.future.logs)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.1)


async def everything(node: RecordNode, start: int = 0) -> list[bytes | None]:
    """All values from that offset on; a fetch reads one segment."""
    values: list[bytes | None] = []
    while start + len(values) < node.log.log_end_offset:
        values += values_of(await node.fetch(start + len(values)))
    return values


def folders(node: RecordNode, path: str) -> list[str]:
    """Without the unique part of names."""
    return sorted(".".join((name.split(".")[0], name.rpartition("-")[2])) for name in node.disk.folders(path))


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_leader_moves(autojump_clock: object, version: int) -> None:
    async with node_with_two({"segment.bytes": "150"}) as node:
        await node.lead()
        for i in range(8):
            assert (await node.produce(batch(b"%d" % i))).base_offset == i
        before = node.log
        assert before.context.path == "/a"
        assert await alter(node, "/b", version=version) == 0
        await moved(node)
        assert node.log is not before
        assert (node.log.context.path, node.log.log_end_offset, node.log.high_watermark) == ("/b", 8, 8)
        assert node.log.leader_epochs == before.leader_epochs
        assert node.log.topic_id == ID_A
        assert await everything(node) == [b"%d" % i for i in range(8)]
        assert (await node.produce(batch(b"8"))).base_offset == 8
        assert folders(node, "/a") == ["a-0.delete"]
        assert folders(node, "/b") == ["a-0.0"]
        node.record_logs.directories[0].delete_due()
        assert folders(node, "/a") == ["a-0.delete"]
        await trio.sleep(61)
        node.record_logs.directories[0].delete_due()
        assert folders(node, "/a") == []


@pytest.mark.kafka("RMT-2")
@pytest.mark.parametrize("epochs", [0, 1, 10])
async def test_new_leader_epochs_do_not_end_a_move(autojump_clock: object, epochs: int) -> None:
    async with node_with_two() as node:
        await node.lead(isr=(1, 2), replicas=(1, 2))
        hold(node)
        assert await alter(node, "/b") == 0
        assert A0 in node.record_logs.future.logs
        for epoch in range(1, epochs + 1):
            await node.lead(isr=(1, 2), replicas=(1, 2), epoch=epoch)
        go_on(node)
        await moved(node)
        assert node.log.context.path == "/b"
        assert node.log.latest_epoch == epochs
        assert await alter(node, "/a") == 0
        await moved(node)
        assert node.log.context.path == "/a"


async def test_records_are_deleted_once_they_are_in_the_future_log_too(autojump_clock: object) -> None:  # rule B2.24
    entry = wire.DeleteRecordsPartition(partition_index=0, offset=2)
    topic = wire.DeleteRecordsTopic(name="a", partitions=(entry,))
    async with node_with_two() as node:
        await node.lead(replicas=(1,))
        for _ in range(3):
            await node.produce(batch(b"x"))
        hold(node)
        assert await alter(node, "/b") == 0

        async def delete() -> tuple[int, int]:
            answer = await node.ask(wire.DeleteRecordsRequest(topics=(topic,), timeout_ms=5000), 2)
            found = answer.topics[0].partitions[0]
            return found.error_code, found.low_watermark

        async def move() -> None:
            await until(lambda: node.log.log_start_offset == 2)
            await trio.sleep(1)
            go_on(node)
            await moved(node)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(move)
            assert await delete() == (ErrorCode.REQUEST_TIMED_OUT, 0)  # nobody looks again (rules B2.25, B2.26)
        assert await delete() == (ErrorCode.NONE, 2)


async def test_what_is_written_meanwhile_moves_too(autojump_clock: object) -> None:
    async with node_with_two() as node:
        await node.lead()
        await node.produce(batch(b"0"))
        hold(node)
        assert await alter(node, "/b") == 0
        await node.produce(batch(b"1"))
        await trio.sleep(5)
        assert await described(node) == {"/a": [(0, False)], "/b": [(2, True)]}
        assert folders(node, "/b") == ["a-0.future"]
        go_on(node)
        await moved(node)
        assert await described(node) == {"/a": [], "/b": [(0, False)]}
        assert await everything(node) == [b"0", b"1"]


async def test_a_waiting_producer_is_acknowledged_over_a_move(autojump_clock: object) -> None:
    """The follower's place in the old log says nothing about the new one."""
    async with node_with_two({"min.insync.replicas": "2", "segment.bytes": "150"}) as node:
        await node.lead(isr=(1, 2))
        for i in range(4):
            await node.produce(batch(b"%d" % i), acks=1)
        await node.fetch(4, replica=2, epoch=0, max_wait_ms=0)
        answers: list[int] = []

        async def produce() -> None:
            answers.append((await node.produce(batch(b"4"), acks=-1, timeout_ms=10_000)).error_code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            await trio.testing.wait_all_tasks_blocked()
            assert await alter(node, "/b") == 0
            await moved(node)
            assert answers == []
            await node.fetch(5, replica=2, epoch=0, max_wait_ms=0)
        assert answers == [0]
        assert node.log.located_high_watermark().offset == 5
        assert node.log.located_high_watermark() == node.log.end


async def test_places_in_the_old_log_mean_nothing_in_the_new_one(autojump_clock: object) -> None:
    """The new log has other segments, and the high watermark moves to an offset that was fetched from the old one."""
    async with node_with_two({"segment.bytes": "1000000"}) as node:
        await node.lead(isr=(1, 2, 3))
        for i in range(6):
            await node.produce(batch(b"%d" % i), acks=1)
        for replica, offset in ((2, 4), (3, 4), (2, 5)):
            await node.fetch(offset, replica=replica, epoch=0)
        assert node.log.high_watermark == 4
        node.topic["segment.bytes"] = "150"
        node.record_logs.update_config()
        assert await alter(node, "/b") == 0
        await moved(node)
        assert len(list(node.log.segments)) == 3
        await node.fetch(6, replica=3, epoch=0)
        assert node.log.high_watermark == 5
        assert node.log.located_high_watermark() == node.log.locate(5)


async def test_a_follower_goes_on_in_the_new_directory(autojump_clock: object) -> None:
    leader = Leader(("host2", 9021, 2, "DATA"), ID_A)
    leader.fetched = [{"records": batch(b"0", leader_epoch=0), "high_watermark": 1}]
    async with node_with_two(dial=leader.dial) as node:
        await node.lead(leader=2, isr=(1, 2))
        await until(lambda: node.log.log_end_offset == 1)
        assert await alter(node, "/b") == 0
        await moved(node)
        assert node.log.high_watermark == 1
        leader.fetched = [{"records": batch(b"1", base_offset=1, leader_epoch=0), "high_watermark": 1}]
        leader.end_wait()
        await until(lambda: node.log.log_end_offset == 2)
        assert (node.log.context.path, node.log.high_watermark) == ("/b", 1)


async def test_what_the_log_loses_is_lost_in_its_future_one(autojump_clock: object) -> None:
    async with node_with_two() as node:
        await node.lead()
        for i in range(3):
            await node.produce(batch(b"%d" % i))
        hold(node)
        assert await alter(node, "/b") == 0
        future = node.record_logs.future.logs[A0]
        for i in range(3):
            future.append_as_follower(batch(b"other", base_offset=i, leader_epoch=0))
        node.log.truncate_to(1)
        await node.lead(epoch=5, partition_epoch=1)
        await node.produce(batch(b"new"))
        go_on(node)
        await moved(node)
        assert node.log.leader_epochs == ((0, 0), (5, 1))
        assert await everything(node) == [b"other", b"new"]  # what has the same epoch is the same


async def test_the_start_of_the_log_moves_while_it_is_copied(autojump_clock: object) -> None:
    async with node_with_two() as node:
        await node.lead()
        for i in range(4):
            await node.produce(batch(b"%d" % i))
        hold(node)
        assert await alter(node, "/b") == 0
        node.log.increment_log_start_offset(2)
        go_on(node)
        await moved(node)
        assert (node.log.log_start_offset, node.log.log_end_offset) == (2, 4)
        assert await everything(node, 2) == [b"2", b"3"]


async def test_a_log_that_starts_within_a_batch_moves(autojump_clock: object) -> None:  # rule B5.19
    """As DeleteRecords has left it."""
    async with node_with_two() as node:
        await node.lead()
        await node.produce(batch(b"0", b"1", b"2", b"3"))
        await node.produce(batch(b"4"))
        node.log.increment_log_start_offset(2)
        assert node.log.leader_epochs == ((0, 2),)
        assert await alter(node, "/b") == 0
        await moved(node)
        assert (node.log.log_start_offset, node.log.log_end_offset) == (2, 5)
        assert node.log.leader_epochs == ((0, 2),)
        assert values_of(await node.fetch(2)) == [b"0", b"1", b"2", b"3", b"4"]  # batches stay whole


async def test_the_start_of_the_log_moves_after_what_is_there_was_copied(autojump_clock: object) -> None:
    async with node_with_two() as node:
        await node.lead()
        for i in range(4):
            await node.produce(batch(b"%d" % i))
        hold(node)
        assert await alter(node, "/b") == 0
        node.record_logs.future.logs[A0].append_as_follower(everything_in(node.log))
        node.log.increment_log_start_offset(2)
        go_on(node)
        await moved(node)
        assert (node.log.log_start_offset, node.log.log_end_offset) == (2, 4)


async def test_what_was_flushed_of_a_future_log_is_remembered(autojump_clock: object) -> None:
    """Its checkpoints are those of its directory."""
    async with node_with_two() as node:
        await node.lead()
        await node.produce(batch(b"0"))
        hold(node)
        assert await alter(node, "/b") == 0
        future = node.record_logs.future.logs[A0]
        future.append_as_follower(everything_in(node.log))
        future.set_high_watermark(1)
        future.flush()
        disk = node.disk
        node.record_logs.close()
    async with node_with_two(disk=disk) as node:
        future = node.record_logs.future.logs[A0]
        assert (future.recovery_point, future.high_watermark) == (1, 1)


async def test_it_goes_on_after_a_restart(autojump_clock: object) -> None:
    async with node_with_two() as node:
        await node.lead()
        await node.produce(batch(b"0"))
        hold(node)
        assert await alter(node, "/b") == 0
        disk = node.disk
        node.record_logs.close()
    async with node_with_two(disk=disk) as node:
        assert await described(node) == {"/a": [(-1, False)], "/b": [(-1, True)]}  # rule B7.22
        await node.lead()
        await moved(node)
        assert node.log.context.path == "/b"
        assert await everything(node) == [b"0"]
        node.record_logs.close()
    async with node_with_two(disk=disk) as node:
        assert await described(node) == {"/a": [], "/b": [(-1, False)]}


async def test_a_future_log_beside_the_log_itself_stays_where_it_is(autojump_clock: object) -> None:
    """As when somebody has put the contents of two directories into one; the log is served."""
    async with node_with_two() as node:
        await node.lead()
        await node.produce(batch(b"0"))
        disk = node.disk
        node.record_logs.close()
    disk.make_folder("/a/a-0.00000000000000000000000000000000-future")
    async with node_with_two(disk=disk) as node:
        await node.lead()
        await trio.sleep(10)
        assert await everything(node) == [b"0"]
        assert (await described(node))["/a"] == [(0, False)]
        assert folders(node, "/a") == ["a-0.0", "a-0.future"]
        assert await alter(node, "/b") == 0
        await moved(node)
        assert await everything(node) == [b"0"]
        assert node.log.context.path == "/b"


async def test_two_future_logs_of_a_partition_end_the_start(autojump_clock: object) -> None:  # rule B6.32
    dirs = ("/a", "/b", "/c")
    async with a_node(log_dirs=dirs) as node:
        await node.lead()
        hold(node)
        assert await alter(node, "/b") == 0
        disk = node.disk
        node.record_logs.close()
    disk.make_folder("/c/a-0.00000000000000000000000000000000-future")
    with pytest.raises(BrokerFailure, match="same partition"):
        await MemoryLogManager(disk=disk, log_dirs=dirs).load()


async def test_another_directory_and_back(autojump_clock: object) -> None:
    """A move to a third directory replaces the first, one to where the log is already ends it."""
    async with a_node(log_dirs=("/a", "/b", "/c")) as node:
        await node.lead()
        await node.produce(batch(b"0"))
        hold(node)
        assert await alter(node, "/b") == 0
        assert await alter(node, "/c") == 0
        assert await described(node) == {"/a": [(0, False)], "/b": [], "/c": [(1, True)]}
        assert folders(node, "/b") == ["a-0.delete"]
        assert await alter(node, "/c") == 0
        assert len(node.disk.folders("/c")) == 1
        assert await alter(node, "/a") == 0
        assert await described(node) == {"/a": [(0, False)], "/b": [], "/c": []}
        go_on(node)
        await trio.sleep(5)
        assert node.log.context.path == "/a"


@pytest.mark.kafka("RMT-27")
async def test_replica_not_available() -> None:
    """The directory is remembered for a replica that comes later."""
    async with node_with_two() as node:
        assert await alter(node, "/b") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await node.ask(update_metadata(umr_state()))
        assert await alter(node, "/b") == ErrorCode.REPLICA_NOT_AVAILABLE
        await node.lead()
        assert node.log.context.path == "/b"
        assert await described(node) == {"/a": [], "/b": [(0, False)]}


async def test_refusals() -> None:
    async with node_with_two() as node:
        await node.lead()
        assert await alter(node, "/nowhere") == ErrorCode.LOG_DIR_NOT_FOUND
        assert await alter(node, "/a") == 0
        assert not node.record_logs.future.logs
        assert await alter(node, "/b", topic="t" * 249) == ErrorCode.INVALID_TOPIC_EXCEPTION
        node.record_logs.fail("/b")
        assert await alter(node, "/b") == ErrorCode.KAFKA_STORAGE_ERROR
        await node.produce(batch(b"0"))


async def test_no_future_log_while_a_directory_is_offline() -> None:
    """There may be a future log in it already."""
    async with a_node(log_dirs=("/a", "/b", "/c")) as node:
        await node.lead()
        node.record_logs.fail("/c")
        assert await alter(node, "/b") == ErrorCode.KAFKA_STORAGE_ERROR
        assert not node.record_logs.future.logs


async def test_the_target_fails(autojump_clock: object) -> None:
    async with node_with_two() as node:
        await node.lead()
        await node.produce(batch(b"0"))
        hold(node)
        assert await alter(node, "/b") == 0
        node.record_logs.fail("/b")
        go_on(node)
        await trio.sleep(5)
        assert not node.record_logs.future.logs
        assert node.log.context.path == "/a"
        assert await everything(node) == [b"0"]


async def test_the_old_directory_fails_when_the_log_has_moved(autojump_clock: object) -> None:
    """What is acknowledged from then on is in the new directory, and not in the old one, which is offline."""

    class OldFails(MemoryDisk):
        def before(self, path: str, size: int) -> None:
            if path == "/a/a-0" and self.exists("/b/a-0"):
                raise OSError("broken")

    async with node_with_two(disk=OldFails()) as node:
        await node.lead()
        await node.produce(batch(b"0"))
        assert await alter(node, "/b") == 0
        await moved(node)
        a, b = node.record_logs.directories
        assert (a.is_offline, b.is_offline) == (True, False)
        assert node.replicas.partitions[A0].log is node.log
        assert (await node.produce(batch(b"1"))).base_offset == 1
        assert (node.log.context.path, await everything(node)) == ("/b", [b"0", b"1"])


async def test_a_deleted_partition_leaves_nothing(autojump_clock: object) -> None:
    async with node_with_two() as node:
        await node.lead()
        await node.produce(batch(b"0"))
        hold(node)
        assert await alter(node, "/b") == 0
        node.record_logs.delete_log(A0)
        assert (folders(node, "/a"), folders(node, "/b")) == (["a-0.delete"], ["a-0.delete"])
        go_on(node)
        await trio.sleep(2)
        assert not node.record_logs.future.logs


async def test_it_is_not_compacted_while_it_moves(autojump_clock: object) -> None:
    async with node_with_two({"cleanup.policy": "compact", "segment.bytes": "150"}) as node:
        await node.lead()
        for _ in range(6):
            await node.produce(batch(b"x", key=b"k"))
        hold(node)
        assert await alter(node, "/b") == 0
        cleaner = node.record_logs._cleaner
        assert await cleaner.clean_next() is None
        go_on(node)
        await moved(node)
        assert await cleaner.clean_next() is node.log


async def test_the_quota_spreads_a_move_over_time(autojump_clock: object) -> None:
    async with node_with_two() as node:
        await node.lead()
        await node.produce(batch(b"x" * 10_000))
        await node.produce(batch(b"x" * 10_000))
        node.replication.quotas.broker_config_changed({"replica.alter.log.dirs.io.max.bytes.per.second": "2000"})
        node.replication.log_dir_moves._max_bytes = 1
        assert await alter(node, "/b") == 0
        began = trio.current_time()
        await moved(node)
        assert 4 < trio.current_time() - began < 11


async def test_others_run_between_steps(autojump_clock: object) -> None:
    async with node_with_two() as node:
        await node.lead()
        for i in range(20):
            await node.produce(batch(b"%d" % i))
        node.replication.log_dir_moves._max_bytes = 1
        assert await alter(node, "/b") == 0
        seen = {0}
        while (future := node.record_logs.future.logs.get(A0)) is not None:
            seen.add(future.log_end_offset)
            await trio.lowlevel.checkpoint()
        assert len(seen) >= 10


async def test_nothing_is_copied_beyond_the_quota_within_one_round(autojump_clock: object) -> None:
    async with node_with_two() as node:
        await node.lead()
        await node.produce(batch(b"0"))
        hold(node)
        assert await alter(node, "/b") == 0
        node.replication.log_dir_moves._step(node.replicas.partitions[A0])
        assert node.record_logs.future.logs[A0].log_end_offset == 0


@pytest.mark.parametrize("error", [OffsetOutOfRange("it is gone"), CorruptRecord("a damaged batch")])
async def test_an_error_ends_the_attempts_until_the_role_changes(autojump_clock: object, error: Exception) -> None:
    """What could not be read or appended does not count as copied."""
    async with node_with_two() as node:
        await node.lead()
        await node.produce(batch(b"0"))
        attempts: list[int] = []

        def fails(current: Log, future: Log) -> None:
            attempts.append(future.log_end_offset)
            raise error

        moves = node.replication.log_dir_moves
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(moves, "_copy", fails)
            assert await alter(node, "/b") == 0
            await trio.sleep(5)
            assert attempts == [0]
        assert A0 in node.record_logs.future.logs
        await node.lead(epoch=1, partition_epoch=1)
        await moved(node)
        assert node.log.context.path == "/b"
        assert (moves._failed, moves._compared) == (set(), {})


@pytest.mark.parametrize("is_empty", [True, False])
async def test_what_was_not_appended_does_not_count_as_copied(is_empty: bool) -> None:
    current, future, quota = a_log(), a_log(Context(path="/b")), ReplicationQuota(10, 1)
    append(current, b"0")
    quota.rate = 0

    def fails(*args: object, **more: object) -> FetchedRecords:
        if is_empty:
            return FetchedRecords(current.end)
        raise OffsetOutOfRange("wrong")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Log, "read" if is_empty else "append_as_follower", fails)
        with pytest.raises(OffsetOutOfRange, match="nothing at offset 0" if is_empty else "wrong"):
            only_copying(quota)._copy(current, future)
    assert (future.log_end_offset, quota.is_exceeded) == (0, False)


def only_copying(quota: ReplicationQuota, max_bytes: int = 1000) -> LogDirMoves:
    nothing: Any = None
    return LogDirMoves(nothing, nothing, nothing, quota, max_bytes)


def copy_of(*epochs: int, high_watermark: int = 0) -> Log:
    """A log with a record of each leader epoch."""
    made = a_log(Context())
    for i, epoch in enumerate(epochs):
        made.append_as_follower(batch(b"%d" % i, base_offset=i, leader_epoch=epoch))
    made.set_high_watermark(high_watermark)
    return made


@pytest.mark.parametrize(
    ("current", "future", "high_watermark", "left"),
    [
        ((3, 3, 3), (3, 3), 0, 2),
        ((3, 3), (3, 3, 3), 0, 2),
        # an epoch that the log does not have: what the one before it has in both
        ((3, 3, 6), (3, 5, 5), 0, 1),
        ((3, 6, 6), (3, 3, 3, 5), 0, 1),
        ((3, 3, 6), (5, 5), 0, 0),
        # one that is later than all of the log's: what is acknowledged
        ((3, 3, 3), (7, 7), 1, 1),
        ((3, 3, 3), (3, 7, 7), 2, 2),
        ((3,), (3, 7, 7), 2, 1),
    ],
)
def test_what_the_future_log_may_keep(
    current: tuple[int, ...], future: tuple[int, ...], high_watermark: int, left: int
) -> None:  # rule B5.25
    copy = copy_of(*future, high_watermark=high_watermark)
    only_copying(ReplicationQuota(1, 1))._truncate(copy_of(*current), copy)
    assert copy.log_end_offset == left


def test_without_epochs_what_is_acknowledged_stays_after_a_truncation() -> None:
    moves = only_copying(ReplicationQuota(1, 1))
    current, future = a_log(Context()), a_log(Context())
    for made in (current, future):
        for i in range(4):
            made.append_as_follower(batch(b"%d" % i, base_offset=i, magic=1))
    future.set_high_watermark(2)
    moves._truncate(current, future)
    assert future.log_end_offset == 4
    current.truncate_to(3)
    current.append_as_follower(batch(b"other", base_offset=3, magic=1))
    moves._truncate(current, future)
    assert future.log_end_offset == 2
    current.truncate_to(1)
    moves._truncate(current, future)
    assert future.log_end_offset == 1


def test_without_epochs_what_is_longer_is_cut() -> None:
    current, future = a_log(Context()), a_log(Context())
    current.append_as_follower(batch(b"0", magic=1))
    for i in range(2):
        future.append_as_follower(batch(b"%d" % i, base_offset=i, magic=1))
    only_copying(ReplicationQuota(1, 1))._truncate(current, future)
    assert future.log_end_offset == 1


# the logs that are on their way


async def test_a_preference_is_for_a_log_that_is_not_there_yet() -> None:
    async with a_node(log_dirs=("/a", "/b", "/c")) as node:
        await node.lead()
        logs = node.record_logs.future
        a, b, c = (logs.directory(path) for path in ("/a", "/b", "/c"))
        logs.prefer(A0, a)
        assert logs.take_preferred(A0) is None
        logs.prefer(A0, c)
        assert [logs.take_preferred(A0), logs.take_preferred(A0)] == [c, None]
        logs.prefer(A0, b)
        logs.create(A0, b)
        assert logs.take_preferred(A0) is None
        logs.prefer(A0, b)
        assert logs.take_preferred(A0) is None
        assert (logs.in_directory(a), logs.in_directory(b)) == ({}, {A0: logs.logs[A0]})
        logs.remove(A0)
        logs.remove(A0)
        logs.create(A0, c)  # nobody preferred it
        logs.failed(b)
        assert logs.logs.keys() == {A0}
        logs.failed(c)
        assert logs.logs == {}


async def test_a_replica_whose_preferred_directory_fails_is_offline() -> None:  # rule B7.23
    async with node_with_two() as node:
        assert await alter(node, "/b") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        node.record_logs.fail("/b")
        answer = await node.ask(leader_and_isr(lai_state(isr=(1,), replicas=(1,), is_new=True)))
        assert answer.topics[0].partition_errors[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert A0 in node.replicas.offline_partitions
        assert await described(node) == {"/a": [], "/b": []}


async def test_what_is_wrong_first_is_answered() -> None:
    async with node_with_two() as node:
        await node.lead()
        assert await alter(node, "/nowhere", topic="t" * 249) == ErrorCode.INVALID_TOPIC_EXCEPTION
        node.record_logs.fail("/a")
        node.replicas.mark_offline(A0)
        assert await alter(node, "/nowhere") == ErrorCode.LOG_DIR_NOT_FOUND
        assert await alter(node, "/b") == ErrorCode.KAFKA_STORAGE_ERROR
        assert node.record_logs.future.take_preferred(A0) is None
