"""Commits that are handled together share a batch, and each of them is answered for itself.

Covers: broker_stub/groups/commits.py.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from kce import wire
from kce.broker_stub.groups.commits import CommitLog
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC
from kce.broker_stub.log import Log
from kce.wire import ErrorCode
from kce.wire.record_batch import write_values
from kce.wire.records import read_records
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.conformance.test_group_metadata_manager import at
from tests.broker_stub.groups.support import Host, MemoryOffsetsLog
from tests.broker_stub.replication.support import RecordNode, a_node, fetch_request
from tests.broker_stub.support import (
    Client,
    connect,
    lai_state,
    leader_and_isr,
    listener,
    running_server,
    umr_state,
    update_metadata,
)

A, B = TopicPartition("topic", 0), TopicPartition("topic", 1)
OFFSETS = TopicPartition(GROUP_METADATA_TOPIC, 0)
LARGE = b"v" * 1000


class Answers(list[tuple[str, int, ErrorCode]]):
    """Which commit was answered with which offset and code, in order."""

    def of(self, name: str):
        return lambda offset, code: self.append((name, offset, code))


class SmallLog(MemoryOffsetsLog):
    """Refuses batches above a size."""

    def append(self, partition, records, on_appended, guard=None) -> None:
        if len(records) > len(LARGE) + 100:
            on_appended(-1, ErrorCode.MESSAGE_TOO_LARGE)
        else:
            super().append(partition, records, on_appended, guard)


def commit_log(log: MemoryOffsetsLog) -> CommitLog:
    return CommitLog(log, lambda records: write_values(records, 0))


def keys(log: MemoryOffsetsLog, partition: int) -> list[list[bytes | None]]:
    """Of each batch."""
    return [[record.key for record in batch.records] for batch in log.batches[partition]]


def test_what_is_appended_together_shares_a_batch_in_each_partition() -> None:
    log, answers = MemoryOffsetsLog(), Answers()
    commits = commit_log(log)
    commits.append(0, [(b"a", b"1")], answers.of("a"))
    with commits.together():
        commits.append(0, [(b"b", b"1"), (b"c", b"1")], answers.of("bc"))
        commits.append(1, [(b"d", b"1")], answers.of("d"))
        commits.append(0, [(b"b", b"2")], answers.of("b"))
        assert len(answers) == 1
    commits.append(0, [(b"e", b"1")], answers.of("e"))
    assert (keys(log, 0), keys(log, 1)) == ([[b"a"], [b"b", b"c", b"b"], [b"e"]], [[b"d"]])
    none = ErrorCode.NONE
    assert answers == [("a", 0, none), ("bc", 1, none), ("b", 3, none), ("d", 0, none), ("e", 4, none)]


def test_commits_that_are_too_large_together_are_appended_alone() -> None:
    log, answers = SmallLog(), Answers()
    commits = commit_log(log)
    with commits.together():
        commits.append(0, [(b"a", LARGE)], answers.of("a"))
        commits.append(0, [(b"b", LARGE * 2)], answers.of("b"))
        commits.append(0, [(b"c", LARGE)], answers.of("c"))
    assert keys(log, 0) == [[b"a"], [b"c"]]
    assert answers == [("a", 0, ErrorCode.NONE), ("b", -1, ErrorCode.MESSAGE_TOO_LARGE), ("c", 1, ErrorCode.NONE)]


def test_a_failure_after_one_commit_does_not_concern_the_others(caplog: pytest.LogCaptureFixture) -> None:
    log, answers = MemoryOffsetsLog(), Answers()
    commits = commit_log(log)

    def fails(*answer: object) -> None:
        raise ValueError("of a group")

    with caplog.at_level(logging.ERROR), commits.together():
        commits.append(0, [(b"a", b"1")], fails)
        commits.append(0, [(b"b", b"1")], answers.of("b"))
    assert answers == [("b", 1, ErrorCode.NONE)]
    assert "of a group" in caplog.text


async def test_the_last_commit_of_a_partition_wins(mock_clock: trio.testing.MockClock) -> None:  # rules G7.11, G7.12
    host = Host(mock_clock)
    group = host.manager.get_or_create("g")
    host.log.held = True
    with host.manager.commits.together():
        for offset in (5, 9, 7):
            host.manager.store_offsets(group, {A: at(offset), B: at(offset)}, lambda codes: None)
    assert group.offsets.get(A) is None  # not before it is replicated
    host.log.release()
    assert (group.offsets.get(A), group.offsets.get(B), group.offsets.pending) == (at(7), at(7), {})


# requests of one connection


@asynccontextmanager
async def a_coordinator(isr: tuple[int, ...]) -> AsyncIterator[tuple[RecordNode, Client]]:
    """The coordinator of all groups, and a client."""
    async with a_node(offsets_topic_num_partitions="1", min_insync_replicas="1") as node:
        await node.lead()
        await lead(node, isr)
        await node.groups.manager._work.do_next()
        assert node.groups.manager.is_owned("g")
        async with a_client(node) as client:
            yield node, client


@asynccontextmanager
async def a_client(node: RecordNode) -> AsyncIterator[Client]:
    async with running_server(node.apis) as server, connect(listener(server)) as client:
        yield client


async def lead(node: RecordNode, isr: tuple[int, ...], *, leader: int = 1, epoch: int = 0) -> None:
    state = {"leader": leader, "leader_epoch": epoch, "isr": isr, "replicas": (1, 2)}
    topic = {"topic": GROUP_METADATA_TOPIC}
    await node.ask(update_metadata(umr_state(**state), umr_state(), **topic))
    request = leader_and_isr(lai_state(partition_epoch=epoch, is_new=True, **state), **topic)
    assert (await node.ask(request)).error_code == 0


def commit(offset: int, topic: str = "a", metadata: str = "") -> wire.OffsetCommitRequest:
    partition = wire.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=metadata
    )
    topics = (wire.OffsetCommitRequestTopic(name=topic, partitions=(partition,)),)
    return wire.OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)


async def codes(client: Client, count: int) -> list[int]:
    """Of the next responses; the client checks their order."""
    return [(await client.receive()).topics[0].partitions[0].error_code for _ in range(count)]


def batches(log: Log) -> list[int]:
    """How many records each has."""
    return [len(batch.records) for batch in read_records(log.read_bytes(0, 1 << 20)).batches] if log.size else []


async def committed(client: Client) -> int:
    topics = (wire.OffsetFetchRequestTopic(name="a", partition_indexes=(0,)),)
    answer = await client.ask(wire.OffsetFetchRequest(group_id="g", topics=topics), 7)
    return int(answer.topics[0].partitions[0].committed_offset)


async def test_commits_that_arrive_together() -> None:
    """What is refused shares nothing, what lies between others does not delay them, and order is kept."""
    async with a_coordinator((1,)) as (node, client):
        log = node.record_logs.logs[OFFSETS]
        requests = (commit(1), commit(2, "unknown"), commit(3), wire.ListGroupsRequest(), commit(4), commit(5))
        await client.stream.send_all(b"".join(client.encoded(message) for message in requests))
        assert await codes(client, 3) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
        assert (await client.receive()).error_code == 0
        assert await codes(client, 2) == [0, 0]
        assert batches(log) == [2, 2]
        assert await committed(client) == 5


async def test_too_many_commits_for_one_batch() -> None:
    async with a_coordinator((1,)) as (node, client):
        await client.send(*(commit(offset, metadata="m" * 100) for offset in range(100)))
        assert await codes(client, 100) == [0] * 100
        found = batches(node.record_logs.logs[OFFSETS])
        assert sum(found) == 100
        assert 1 < max(found) < 25
        assert await committed(client) == 99


async def test_commits_of_clients_that_are_charged_for_time_share_nothing() -> None:
    """Each may have to wait before the next is read (rules B8.1, B8.5)."""
    async with a_coordinator((1,)) as (node, client):
        node.quotas.on_requests_limited()
        await client.send(commit(1), commit(2), commit(3))
        assert await codes(client, 3) == [0, 0, 0]
        assert batches(node.record_logs.logs[OFFSETS]) == [1, 1, 1]


async def test_commits_are_answered_when_they_are_replicated() -> None:  # rules G7.12, G9.13
    async with a_coordinator((1, 2)) as (node, client), a_client(node) as other:
        await client.send(commit(1), commit(2), commit(3))
        log = node.record_logs.logs[OFFSETS]
        while not log.log_end_offset:
            await trio.lowlevel.checkpoint()
        assert (batches(log), await committed(other)) == ([3], -1)
        fetched = fetch_request(3, topic=GROUP_METADATA_TOPIC, replica=2, epoch=0, max_wait_ms=0)
        await node.ask(fetched, 12)
        assert await codes(client, 3) == [0, 0, 0]
        assert await committed(other) == 3


async def test_the_coordinator_goes_while_commits_wait() -> None:  # rule G7.13
    async with a_coordinator((1, 2)) as (node, client):
        await client.send(commit(1), commit(2), commit(3))
        while not node.record_logs.logs[OFFSETS].log_end_offset:
            await trio.lowlevel.checkpoint()
        await lead(node, (2,), leader=2, epoch=1)
        assert await codes(client, 3) == [ErrorCode.NOT_COORDINATOR] * 3
        group = node.groups.manager.groups["g"]
        assert (group.offsets.stored, group.offsets.pending) == ({}, {})


async def test_an_append_that_fails() -> None:  # rule G7.13
    async with a_coordinator((1,)) as (node, client):
        node.disk.machine.disk_is_full = True
        await client.send(commit(1), commit(2), commit(3))
        assert await codes(client, 3) == [ErrorCode.NOT_COORDINATOR] * 3
        assert node.groups.manager.groups["g"].offsets.is_empty
