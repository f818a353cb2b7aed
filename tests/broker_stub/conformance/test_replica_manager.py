"""ReplicaManagerTest.scala, StopReplicaRequestTest.scala, PartitionTest.scala (RMT, SRR, PT): cases about logs.

Covers: broker_stub/log/manager.py.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce import wire
from kce.broker_stub.log.checkpoints import read_offsets, read_topic_id
from kce.broker_stub.replication.fetcher import FetchState
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.log.support import batch
from tests.broker_stub.replication.support import A0, Leader, RecordNode, a_node, produce_request
from tests.broker_stub.support import (
    ID_A,
    ID_B,
    NO_ID,
    codes,
    lai_state,
    leader_and_isr,
    stop_replica,
    umr_state,
    ungrouped_leader_and_isr,
    update_metadata,
)

kafka = pytest.mark.kafka
A1 = TopicPartition("a", 1)
RECOVERY_POINTS, LOG_STARTS = "/logs/recovery-point-offset-checkpoint", "/logs/log-start-offset-checkpoint"
CURRENT = 5


async def become(node: RecordNode, version: int | None = None, topic_id: uuid.UUID = ID_A, **state: Any) -> int:
    """The error code of a LeaderAndIsr for one partition of `a`."""
    answer = await node.ask(leader_and_isr(lai_state(is_new=True, **state), topic_id=topic_id), version)
    (code,) = codes(answer).values()
    return code


def metadata_file(node: RecordNode, partition: TopicPartition = A0) -> uuid.UUID | None:
    """The topic id in `partition.metadata`, whose version is checked; None without a file. Makes the log's files."""
    if partition in node.record_logs.logs:
        assert len(node.record_logs.logs[partition].segments) == 1
    found = read_topic_id(node.disk, f"/logs/{partition}/partition.metadata")
    assert node.record_logs.topic_id(partition) == found
    return found


# StopReplica


@pytest.mark.parametrize(
    "epoch",
    [
        pytest.param(CURRENT + 1, marks=kafka("RMT-21")),
        pytest.param(CURRENT, marks=kafka("RMT-24")),
        pytest.param(-2, marks=kafka("RMT-25")),
        pytest.param(-1, marks=kafka("RMT-26")),
    ],
)
async def test_a_deletion_leaves_the_checkpoints(epoch: int) -> None:  # rules 9.31, 9.34, B6.18
    async with a_node() as node:
        await node.ask(update_metadata(umr_state()))
        assert await become(node, leader_epoch=CURRENT) == ErrorCode.NONE
        assert (await node.produce(batch(b"v1", b"v2"))).error_code == ErrorCode.NONE
        node.log.set_high_watermark(2)
        node.log.increment_log_start_offset(1)
        await node.record_logs.checkpoint_recovery_points()
        await node.record_logs.checkpoint_log_starts()
        assert read_offsets(node.disk, RECOVERY_POINTS) == {A0: 1}
        assert read_offsets(node.disk, LOG_STARTS) == {A0: 1}
        answer = await node.ask(stop_replica((0, epoch, True)))
        assert (answer.error_code, codes(answer)) == (ErrorCode.NONE, {("a", 0): ErrorCode.NONE})
        assert A0 not in node.replicas.partitions
        assert read_offsets(node.disk, RECOVERY_POINTS) == {}
        assert read_offsets(node.disk, LOG_STARTS) == {}


@kafka("SRR-1")
async def test_deleting_twice_gets_the_same_response() -> None:
    async with a_node(log_dirs=("/logs", "/more")) as node:
        await node.ask(update_metadata(umr_state(0), umr_state(1)))
        for partition in (0, 1):
            assert await become(node, partition=partition, leader_epoch=CURRENT) == ErrorCode.NONE
            for i in range(5):
                assert (await node.produce(batch(b"%d" % i), partition=partition)).error_code == ErrorCode.NONE
        offline = node.record_logs.logs[A1].context
        assert node.log.context is not offline
        offline.failed(OSError("broken"))
        node.replicas.mark_offline(A1)
        for _ in range(2):
            answer = await node.ask(stop_replica((0, CURRENT + 2, True), (1, CURRENT + 2, True)))
            assert answer.error_code == ErrorCode.NONE
            assert codes(answer) == {("a", 0): ErrorCode.NONE, ("a", 1): ErrorCode.KAFKA_STORAGE_ERROR}


# the file partition.metadata


@kafka("RMT-28")
async def test_a_new_log_gets_the_topic_id() -> None:
    async with a_node() as node:
        assert await become(node) == ErrorCode.NONE
        assert metadata_file(node) == ID_A
        assert (node.disk.read("/logs/a-0/partition.metadata") or b"").startswith(b"version: 0\n")


@kafka("RMT-29")
async def test_a_log_from_before_topic_ids_gets_one() -> None:
    async with a_node() as node:
        node.record_logs.get_or_create_log(A0, is_new=True, topic_id=None)
        assert metadata_file(node) is None
        assert await become(node) == ErrorCode.NONE
        assert metadata_file(node) == ID_A


@kafka("RMT-30")
async def test_a_repeated_leader_epoch_may_add_the_topic_id() -> None:  # rule 9.19
    """A larger epoch may, too."""
    async with a_node() as node:
        for partition, leader_epoch in ((A0, 0), (A1, 1)):
            assert await become(node, 4, partition=partition.partition) == ErrorCode.NONE
            assert metadata_file(node, partition) is None
            code = await become(node, partition=partition.partition, leader_epoch=leader_epoch)
            assert code == ErrorCode.NONE
            assert metadata_file(node, partition) == ID_A
            code = await become(node, partition=partition.partition, leader_epoch=leader_epoch)
            assert code == ErrorCode.STALE_CONTROLLER_EPOCH


@kafka("RMT-32")
@pytest.mark.parametrize(("version", "topic_id"), [(7, NO_ID), (0, ID_A), (1, ID_A), (2, ID_A), (4, ID_A)])
async def test_requests_without_topic_ids_leave_the_log_without_one(version: int, topic_id: uuid.UUID) -> None:
    async with a_node() as node:
        for leader_epoch in (0, 1):
            flat = ungrouped_leader_and_isr(lai_state(topic="a", leader_epoch=leader_epoch))
            grouped = leader_and_isr(lai_state(leader_epoch=leader_epoch), topic_id=topic_id)
            answer = await node.ask(flat if version < 2 else grouped, version)
            assert set(codes(answer).values()) == {ErrorCode.NONE}
            assert node.partition().is_leader
            assert metadata_file(node) is None


@pytest.mark.parametrize("leader", [pytest.param(1, marks=kafka("PT-28")), pytest.param(2, marks=kafka("PT-29"))])
async def test_a_log_keeps_its_topic_id(leader: int) -> None:  # rule 9.14
    """The second node has the first one's disk."""
    async with a_node() as first:
        await first.ask(update_metadata())
        assert await become(first, leader=leader) == ErrorCode.NONE
        assert first.partition().topic_id == metadata_file(first) == ID_A
        first.record_logs.close()
        async with a_node(disk=first.disk) as second:
            await second.ask(update_metadata())
            assert metadata_file(second) == ID_A
            assert await become(second, leader=leader, topic_id=ID_B) == ErrorCode.INCONSISTENT_TOPIC_ID
            assert (second.partition().topic_id, second.partition().leader) == (ID_A, -1)
            assert await become(second, leader=leader, topic_id=NO_ID) == ErrorCode.NONE
            assert second.partition().topic_id == metadata_file(second) == ID_A
            assert second.partition().leader == leader


# followers


@kafka("RMT-34")
async def test_fetchers_are_not_started_again_in_the_same_leader_epoch() -> None:  # rule 9.19
    async with a_node() as node:
        await node.ask(update_metadata())

        def followed() -> list[tuple[int, FetchState]]:
            """(leader, state) of each fetcher that fetches the partition."""
            fetchers = node.replication.fetchers._fetchers.values()
            return [(fetcher.leader, state) for fetcher in fetchers if (state := fetcher.partitions.get(A0))]

        assert await become(node, leader=2, replicas=(1, 2), isr=(1, 2)) == ErrorCode.NONE
        ((leader, first),) = followed()
        assert (leader, first.leader_epoch, first.offset, first.topic_id) == (2, 0, 0, ID_A)
        assert (node.partition().leader_epoch, node.partition().partition_epoch) == (0, 0)

        code = await become(node, leader=2, replicas=(1, 2, 3), isr=(1, 2), partition_epoch=1)
        assert code == ErrorCode.STALE_CONTROLLER_EPOCH
        assert (node.partition().leader_epoch, node.partition().partition_epoch) == (0, 0)
        assert [state is first for _, state in followed()] == [True]

        code = await become(node, leader=3, leader_epoch=1, partition_epoch=2)
        assert code == ErrorCode.NONE
        assert (node.partition().leader_epoch, node.partition().partition_epoch) == (1, 2)
        ((leader, second),) = followed()
        assert (leader, second.leader_epoch, second.offset, second.topic_id) == (3, 1, 0, ID_A)
        assert second is not first


# unit/kafka/server/EdgeCaseRequestTest.scala


@kafka("EDGE-1")
@pytest.mark.parametrize("client_id", [None, ""])
async def test_records_of_a_client_without_an_id(client_id: str | None) -> None:  # rule B1.42
    async with a_node() as node:
        await node.lead()
        request, captured = node.request(
            produce_request(batch(b"message"), timeout_ms=10_000), 11, client_id=client_id, correlation_id=-1
        )
        waits = node.apis.handle(request)
        if waits is not None:
            await waits
        await captured.answered.wait()
        assert captured.response is not None
        header, answer = wire.decode_response(captured.response.payload, api_key=0, api_version=11)
        assert header.correlation_id == -1
        (topic,) = answer.responses
        (partition,) = topic.partition_responses
        assert partition.error_code == ErrorCode.NONE


# requests that wait


@asynccontextmanager
async def led() -> AsyncIterator[RecordNode]:
    """Broker 1 leads, 2 is in the ISR and does not fetch."""
    async with a_node() as node:
        await node.lead(epoch=1, isr=(1, 2), replicas=(1, 2))
        yield node


@kafka("RMT-1")
async def test_a_produce_ends_when_its_broker_follows(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:  # B2.14
    async with led() as node:
        answered = waiting(nursery, node.produce(batch(b"first message"), acks=-1, timeout_ms=60_000))
        await wait_all_tasks_blocked()
        assert answered == []
        assert await become(node, leader=2, leader_epoch=2, isr=(1, 2), replicas=(1, 2)) == ErrorCode.NONE
        await wait_all_tasks_blocked()
        assert [data.error_code for data in answered] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize(
    "request_name", [pytest.param("fetch", marks=kafka("RMT-5")), pytest.param("produce", marks=kafka("RMT-6"))]
)
async def test_a_request_ends_when_its_partition_is_deleted(
    request_name: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:  # B2.14, B2.18
    async with led() as node:
        answered = waiting(
            nursery,
            node.fetch(0, max_wait_ms=60_000, epoch=1)
            if request_name == "fetch"
            else node.produce(batch(b"message"), acks=-1, timeout_ms=60_000),
        )
        await wait_all_tasks_blocked()
        assert answered == []
        answer = await node.ask(stop_replica((0, -2, True)))
        assert codes(answer) == {("a", 0): ErrorCode.NONE}
        await wait_all_tasks_blocked()
        assert [data.error_code for data in answered] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def waiting(nursery: trio.Nursery, request: Awaitable[Any]) -> list[Any]:
    """Gets the answer."""
    answers: list[Any] = []

    async def ask() -> None:
        answers.append(await request)

    nursery.start_soon(ask)
    return answers


# who follows again


@pytest.mark.parametrize(
    ("protocol", "asked", "end"),
    [pytest.param("3.9", [], 10, marks=kafka("RMT-3")), pytest.param("2.6", [(3, 1)], 5, marks=kafka("RMT-4"))],
)
async def test_an_unchanged_leader_whose_epoch_was_missed(
    protocol: str, asked: list[tuple[int, int]], end: int
) -> None:  # B5.8, B5.9
    """Since 2.7 the leader says with its records what diverges; before, the follower asks first, and truncates."""
    leader = Leader(("host2", 9021, 2, "DATA"), ID_A)
    leader.ends = [{"leader_epoch": 1, "end_offset": 5}]
    async with a_node(dial=leader.dial, inter_broker_protocol_version=protocol) as node:
        await node.ask(update_metadata())
        log = node.record_logs.get_or_create_log(A0, is_new=True, topic_id=None)
        log.append_as_leader(batch(*[b"v"] * 10), 1)
        node.replication.lag(A0, node.config.broker_id, True)  # it becomes a follower without a fetch
        followed = {"leader": 2, "isr": (1, 2), "replicas": (1, 2)}
        assert await become(node, leader_epoch=1, **followed) == ErrorCode.NONE
        node.replication.lag(A0, node.config.broker_id, False)
        assert await become(node, leader_epoch=3, **followed) == ErrorCode.NONE
        await wait_all_tasks_blocked()
        ends = [r.topics[0].partitions[0] for r in leader.requests if isinstance(r, wire.OffsetForLeaderEpochRequest)]
        assert [(entry.current_leader_epoch, entry.leader_epoch) for entry in ends] == asked
        assert log.log_end_offset == end
        assert leader.fetches() == [(end, 3, 1 if protocol == "3.9" else -1)]


@kafka("RMT-35")
@pytest.mark.parametrize("ids", [(ID_A, NO_ID), (NO_ID, ID_A)])
async def test_a_repeated_leader_epoch_adds_and_removes_the_topic_id_of_a_fetch(
    ids: tuple[uuid.UUID, uuid.UUID],
) -> None:  # rules 9.19, B5.41
    leader = Leader(("host2", 9021, 2, "DATA"), ID_A)
    async with a_node(dial=leader.dial) as node:
        await node.ask(update_metadata())
        for topic_id in ids:
            assert await become(node, leader=2, isr=(1, 2), replicas=(1, 2), topic_id=topic_id) == ErrorCode.NONE
            (fetcher,) = node.replication.fetchers._fetchers.values()
            assert fetcher.partitions[A0].topic_id == (topic_id if topic_id != NO_ID else None)
            await wait_all_tasks_blocked()
            leader.end_wait()
            await wait_all_tasks_blocked()
        assert [leader.versions[i] > 12 for i in (0, -1)] == [topic_id != NO_ID for topic_id in ids]
