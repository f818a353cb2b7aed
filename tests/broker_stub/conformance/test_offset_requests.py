"""LOR, LGO, OLE: requests for offsets (section 12c of docs/broker-semantics.md; rules B5.24, B7.15 to B7.20)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.log.lookup import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    find_max_timestamp,
    offsets_before,
)
from kce.wire import ErrorCode
from tests.broker_stub.logs import now_ms
from tests.broker_stub.replication.support import RecordNode, a_node, batch, values_of
from tests.broker_stub.support import umr_state, update_metadata

kafka = pytest.mark.kafka

NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NOT_LEADER, FENCED = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH
UNKNOWN_EPOCH, UNSUPPORTED = ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.UNSUPPORTED_VERSION
CONSUMER, DEBUGGER = -1, -2
#: of two records each
SMALL_SEGMENTS = {"segment.bytes": "140", "flush.messages": "1"}


async def list_offsets(
    node: RecordNode, timestamp: int, version: int = 9, *, replica: int = CONSUMER, epoch: int = -1, most: int = 1
) -> wire.ListOffsetsPartitionResponse:
    entry = wire.ListOffsetsPartition(
        partition_index=0, timestamp=timestamp, current_leader_epoch=epoch, max_num_offsets=most
    )
    request = wire.ListOffsetsRequest(
        replica_id=replica, topics=(wire.ListOffsetsTopic(name="a", partitions=(entry,)),)
    )  # fmt: skip
    (found,) = (await node.ask(request, version)).topics[0].partitions
    assert isinstance(found, wire.ListOffsetsPartitionResponse)
    return found


async def end_of_epoch(node: RecordNode, requested: int, epoch: int = -1) -> tuple[int, int, int]:
    """Error, epoch, end offset."""
    entry = wire.OffsetForLeaderPartition(partition=0, leader_epoch=requested, current_leader_epoch=epoch)
    request = wire.OffsetForLeaderEpochRequest(
        replica_id=1, topics=(wire.OffsetForLeaderTopic(topic="a", partitions=(entry,)),)
    )
    (found,) = (await node.ask(request, 4)).topics[0].partitions
    return found.error_code, found.leader_epoch, found.end_offset


@asynccontextmanager
async def stranger() -> AsyncIterator[RecordNode]:
    """A broker that knows the partition, and hosts no replica of it."""
    async with a_node() as node:
        await node.ask(update_metadata(umr_state(leader=2, isr=(2,), replicas=(2, 3))))
        yield node


@kafka("LOR-1")
async def test_errors_by_role_and_reader() -> None:
    readers = (CONSUMER, 2, DEBUGGER)
    async with a_node() as node:
        assert [(await list_offsets(node, EARLIEST, replica=i)).error_code for i in readers] == [UNKNOWN] * 3
        await node.lead(leader=2, isr=(1, 2))
        codes = [(await list_offsets(node, EARLIEST, replica=i, epoch=0)).error_code for i in readers]
        assert codes == [NOT_LEADER, NOT_LEADER, NONE]
    async with stranger() as node:
        codes = [(await list_offsets(node, EARLIEST, replica=i, epoch=0)).error_code for i in readers]
        assert codes == [NOT_LEADER] * 3


EPOCHS = [(-1, NONE, NOT_LEADER), (1, NONE, NOT_LEADER), (0, FENCED, FENCED), (2, UNKNOWN_EPOCH, UNKNOWN_EPOCH)]


@kafka("LOR-3")
@pytest.mark.parametrize(("epoch", "of_leader", "of_follower"), EPOCHS)
async def test_epochs_of_the_leader_in_requests_for_offsets(epoch: int, of_leader: int, of_follower: int) -> None:
    async with a_node() as node:
        await node.lead(epoch=1)
        assert (await list_offsets(node, EARLIEST, epoch=epoch)).error_code == of_leader
    async with a_node() as node:
        await node.lead(leader=2, isr=(1, 2), epoch=1)
        assert (await list_offsets(node, EARLIEST, epoch=epoch)).error_code == of_follower


async def ten_records(node: RecordNode) -> None:
    """Of epoch 0; the last is the newest."""
    await node.lead()
    for i in range(9):
        await node.produce(batch(b"%d" % i, timestamp=now_ms()))
    await node.produce(batch(b"test-10", timestamp=now_ms() + 10))


@kafka("LOR-4")
async def test_the_epoch_of_what_is_found(autojump_clock: MockClock) -> None:
    async with a_node() as node:
        await ten_records(node)

        async def found(timestamp: int) -> tuple[int, int]:
            answer = await list_offsets(node, timestamp)
            assert answer.error_code == NONE
            return answer.offset, answer.leader_epoch

        for timestamp in (0, EARLIEST, EARLIEST_LOCAL):
            assert await found(timestamp) == (0, 0)
        assert (await found(LATEST), await found(MAX_TIMESTAMP)) == ((10, 0), (9, 0))
        await node.lead(epoch=1, partition_epoch=1)
        for timestamp in (0, EARLIEST, EARLIEST_LOCAL):
            assert await found(timestamp) == (0, 0)
        assert (await found(LATEST), await found(MAX_TIMESTAMP)) == ((10, 1), (9, 0))


@kafka("LOR-5")
@pytest.mark.parametrize("version", range(10))
async def test_what_each_version_answers(version: int, autojump_clock: MockClock) -> None:
    async with a_node() as node:
        await ten_records(node)

        async def found(timestamp: int) -> tuple[int, int, int]:
            answer = await list_offsets(node, timestamp, version)
            offset = next(iter(answer.old_style_offsets), -1) if version == 0 else answer.offset
            return offset, answer.leader_epoch, answer.error_code

        epoch = 0 if version >= 4 else -1
        refused = (-1, -1, UNSUPPORTED)
        assert await found(0) == ((0, epoch, NONE) if version else (-1, -1, NONE))
        assert await found(EARLIEST) == (0, epoch, NONE)
        assert await found(LATEST) == (10, epoch, NONE)
        assert await found(MAX_TIMESTAMP) == ((9, 0, NONE) if version >= 7 else refused)
        assert await found(EARLIEST_LOCAL) == ((0, 0, NONE) if version >= 8 else refused)


@kafka("LOR-2")
@pytest.mark.parametrize(("timestamp", "since"), [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9)])
async def test_the_first_version_of_each_special_timestamp(timestamp: int, since: int) -> None:
    async with a_node() as node:
        await node.lead()
        codes = [(await list_offsets(node, timestamp, version)).error_code for version in range(1, 10)]
        assert codes == [UNSUPPORTED] * (since - 1) + [NONE] * (10 - since)


# offsets before a time: version 0, and the log itself


async def old_offsets(node: RecordNode, timestamp: int, most: int) -> list[int]:
    answer = await list_offsets(node, timestamp, 0, replica=0, most=most)
    assert answer.error_code == NONE
    return list(answer.old_style_offsets)


@asynccontextmanager
async def twenty_records() -> AsyncIterator[RecordNode]:
    async with a_node(SMALL_SEGMENTS) as node:
        await node.lead()
        for _ in range(20):
            await node.produce(batch(b"42"))
        yield node


STARTS = [20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0]


@kafka("LGO-1")
async def test_offsets_of_an_unknown_topic() -> None:
    async with a_node() as node:
        assert (await list_offsets(node, LATEST, 0, most=10)).error_code == UNKNOWN


@kafka("LGO-2")
async def test_offsets_after_records_were_deleted() -> None:
    async with twenty_records() as node:
        node.log.increment_log_start_offset(3)
        node.log.delete_old_segments()
        expected = [20, 18, 16, 14, 12, 10, 8, 6, 4, 3]
        assert offsets_before(node.log, LATEST, 15) == expected
        assert await old_offsets(node, LATEST, 15) == expected


@kafka("LGO-3")
async def test_the_largest_timestamp_is_gone_after_a_truncation() -> None:
    async with a_node(SMALL_SEGMENTS) as node:
        await node.lead()
        for timestamp in range(20):
            await node.produce(batch(b"42", timestamp=timestamp))
        found = find_max_timestamp(node.log)
        assert found is not None
        assert (found.offset, found.timestamp) == (19, 19)
        node.log.truncate_to(0)
        assert find_max_timestamp(node.log) is None


@kafka("LGO-4")
async def test_the_largest_timestamp_is_not_the_last() -> None:
    async with a_node(SMALL_SEGMENTS) as node:
        await node.lead()
        for timestamp in (0, 1, 2, 3, 4, 6, 5):
            await node.produce(batch(b"42", timestamp=timestamp))
        found = find_max_timestamp(node.log)
        assert found is not None
        assert (node.log.log_end_offset, found.offset, found.timestamp) == (7, 5, 6)


@kafka("LGO-5")
async def test_an_empty_log_has_no_largest_timestamp() -> None:
    async with a_node(SMALL_SEGMENTS) as node:
        await node.lead()
        assert (node.log.log_end_offset, find_max_timestamp(node.log)) == (0, None)


@kafka("LGO-6")
async def test_offsets_before_the_latest_time() -> None:
    async with twenty_records() as node:
        assert offsets_before(node.log, LATEST, 15) == STARTS
        assert await old_offsets(node, LATEST, 15) == STARTS
        data = await node.fetch(STARTS[0], version=17)
        assert (data.error_code, values_of(data)) == (NONE, [])


@kafka("LGO-7")
async def test_offsets_of_an_empty_log() -> None:
    async with a_node(SMALL_SEGMENTS) as node:
        await node.lead()
        for _ in range(14):
            assert await old_offsets(node, EARLIEST, 1) == [0]


@kafka("LGO-8")
async def test_offsets_before_a_time_to_come() -> None:
    async with twenty_records() as node:
        later = now_ms() + 30_000
        assert offsets_before(node.log, later, 15) == STARTS
        assert await old_offsets(node, later, 15) == STARTS


@kafka("LGO-9")
async def test_offsets_before_the_earliest_time() -> None:
    async with twenty_records() as node:
        assert offsets_before(node.log, EARLIEST, 10) == [0]
        assert await old_offsets(node, EARLIEST, 10) == [0]


# the ends of leader epochs


@kafka("OLE-1")
async def test_errors_of_the_ends_of_epochs() -> None:
    async with a_node() as node:
        assert (await end_of_epoch(node, 0))[0] == UNKNOWN
        await node.lead(leader=2, isr=(1, 2))
        assert (await end_of_epoch(node, 0))[0] == NOT_LEADER
    async with stranger() as node:
        assert (await end_of_epoch(node, 0))[0] == NOT_LEADER


@kafka("OLE-2")
@pytest.mark.parametrize(("epoch", "of_leader", "of_follower"), EPOCHS)
async def test_epochs_of_the_leader_in_requests_for_the_ends_of_epochs(
    epoch: int, of_leader: int, of_follower: int
) -> None:
    async with a_node() as node:
        await node.lead(epoch=1)
        assert (await end_of_epoch(node, 0, epoch))[0] == of_leader
    async with a_node() as node:
        await node.lead(leader=2, isr=(1, 2), epoch=1)
        assert (await end_of_epoch(node, 0, epoch))[0] == of_follower


@kafka("OLE-3")
async def test_the_end_of_an_epoch() -> None:
    async with a_node() as node:
        await node.lead(epoch=5)
        await node.produce(batch(*[b"x"] * 42))
        assert await end_of_epoch(node, 5) == (NONE, 5, 42)


@kafka("OLE-4")
async def test_a_partition_without_a_replica_here() -> None:
    async with stranger() as node:
        assert await end_of_epoch(node, 5) == (NOT_LEADER, -1, -1)


@kafka("OLE-5")
async def test_a_partition_that_nobody_knows() -> None:
    async with a_node() as node:
        assert await end_of_epoch(node, 5) == (UNKNOWN, -1, -1)
