"""Kafka's GroupMetadataManagerTest: what is written to a partition of __consumer_offsets, and read from it.

Covers: broker_stub/groups/manager.py, broker_stub/groups/loading.py, broker_stub/groups/records.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from trio.testing import MockClock

from kce.broker_stub.groups.group import Group, GroupState
from kce.broker_stub.groups.loading import group_of
from kce.broker_stub.groups.manager import Producer
from kce.broker_stub.groups.member import Client, Member
from kce.broker_stub.groups.records import (
    CommittedOffset,
    GroupKey,
    GroupMetadataValue,
    MemberMetadataValue,
    OffsetKey,
    UnknownKey,
    group_key,
    group_version,
    offset_key,
    offset_version,
    read_group,
    read_key,
    read_offset,
    write_group,
    write_offset,
)
from kce.broker_stub.groups.storage import ReplicatedOffsetsLog
from kce.broker_stub.log.verification import VerificationGuard
from kce.wire import DecodeError, ErrorCode
from kce.wire.consumer_protocol import ConsumerProtocolSubscription, encode_consumer_protocol
from kce.wire.metadata_version import MetadataVersion
from kce.wire.record import EndTransactionMarker, Record, RecordBatch, TimestampType
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.groups.support import CONSUMER, IBP, START_MS, Host, moved, subscribed

kafka = pytest.mark.kafka

GROUP = "foo"
FOO0, FOO1, BAR0 = TopicPartition("foo", 0), TopicPartition("foo", 1), TopicPartition("bar", 0)
COMMITTED = {FOO0: 23, FOO1: 455, BAR0: 8992}
PRODUCER = 1000
MEMBER = "98098230493"
SUBSCRIPTION = encode_consumer_protocol(ConsumerProtocolSubscription(topics=("topic",)), 1)


def host(clock: MockClock, **properties: str) -> Host:
    """It owns nothing yet; two partitions, like Kafka's."""
    return Host(clock, owns=False, offsets_topic_num_partitions="2", **properties)


def partition(h: Host) -> int:
    return h.manager.partition_of(GROUP)


def at(offset: int, **more: Any) -> CommittedOffset:
    return CommittedOffset(offset=offset, commit_timestamp=START_MS, **more)


def offset_records(offsets: dict[TopicPartition, int], group: str = GROUP) -> list[tuple[bytes, bytes | None]]:
    return [(offset_key(group, tp), write_offset(at(offset), offset_version(IBP))) for tp, offset in offsets.items()]


def group_record(
    generation: int = 15, *, members: tuple[MemberMetadataValue, ...] = (), group: str = GROUP, **more: Any
) -> tuple[bytes, bytes | None]:
    value = GroupMetadataValue(
        **{
            "protocol_type": CONSUMER, "generation": generation, "protocol": "range" if members else None,
            "leader": members[0].member_id if members else None, "current_state_timestamp": START_MS,
            "members": members, **more,
        }
    )  # fmt: skip
    return group_key(group), write_group(value, group_version(IBP))


def member_value(member_id: str = MEMBER, **more: Any) -> MemberMetadataValue:
    return MemberMetadataValue(
        **{
            "member_id": member_id, "client_id": "clientId", "client_host": "clientHost", "rebalance_timeout": 30_000,
            "session_timeout": 10_000, "subscription": SUBSCRIPTION, **more,
        }
    )  # fmt: skip


def put(h: Host, records: list[tuple[bytes, bytes | None]], producer_id: int = -1) -> None:
    """Append a batch to the group's partition, as if another broker had."""
    batches = h.log.batches.setdefault(partition(h), [])
    offset = batches[-1].last_offset + 1 if batches else 0
    made = (Record(offset=i, timestamp=START_MS, key=key, value=value) for i, (key, value) in enumerate(records))
    batch = RecordBatch.of(
        *made, producer_id=producer_id, producer_epoch=-1 if producer_id < 0 else 2, is_transactional=producer_id >= 0
    )
    batches.append(moved(batch, offset))


def end(h: Host, producer_id: int, *, committed: bool) -> None:
    batches = h.log.batches[partition(h)]
    offset = batches[-1].last_offset + 1
    marker = EndTransactionMarker(committed=committed, coordinator_epoch=0).to_record(offset=offset, timestamp=START_MS)
    batches.append(
        RecordBatch.of(marker, producer_id=producer_id, producer_epoch=2, is_transactional=True, is_control=True)
    )


async def load(h: Host, epoch: int = 0) -> None:
    h.manager.load(partition(h), epoch)
    await h.work()
    assert h.manager.is_owned(GROUP)
    assert not h.manager.is_loading


def offsets_of(h: Host) -> dict[TopicPartition, int]:
    group = h.manager.groups[GROUP]
    return {tp: stored.committed.offset for tp, stored in group.offsets.stored.items()}


def unstable(h: Host) -> set[TopicPartition]:
    return {tp for tp in COMMITTED if h.manager.groups[GROUP].offsets.is_unstable(tp)}


@kafka("GMM-2")
async def test_load_offsets_without_group(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, offset_records(COMMITTED))
    await load(h)
    group = h.manager.groups[GROUP]
    assert (group.state, group.generation, group.protocol_type) == (GroupState.EMPTY, 0, None)
    assert offsets_of(h) == COMMITTED
    assert all(stored.committed.expire_timestamp is None for stored in group.offsets.stored.values())


@kafka("GMM-3")
async def test_load_empty_group_with_offsets(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, [*offset_records(COMMITTED), group_record(15)])
    await load(h)
    group = h.manager.groups[GROUP]
    assert (group.state, group.generation, group.protocol_type) == (GroupState.EMPTY, 15, CONSUMER)
    assert (group.leader, group.protocol_name, offsets_of(h)) == (None, None, COMMITTED)


@kafka("GMM-4")
async def test_load_transactional_offsets_without_group(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, offset_records(COMMITTED), PRODUCER)
    end(h, PRODUCER, committed=True)
    await load(h)
    assert (h.manager.groups[GROUP].state, offsets_of(h)) == (GroupState.EMPTY, COMMITTED)


@kafka("GMM-5")
async def test_do_not_load_aborted_transactional_offset_commits(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, offset_records(COMMITTED), PRODUCER)
    end(h, PRODUCER, committed=False)
    await load(h)
    assert GROUP not in h.manager.groups


@kafka("GMM-6")
async def test_group_loaded_with_pending_commits(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, offset_records(COMMITTED), PRODUCER)
    await load(h)
    assert h.manager.groups[GROUP].state is GroupState.EMPTY
    assert (offsets_of(h), unstable(h)) == ({}, set(COMMITTED))


@kafka("GMM-7")
async def test_load_with_committed_and_aborted_transactional_offset_commits(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, offset_records({TopicPartition("abort", 0): 132, FOO0: 1}), PRODUCER)
    end(h, PRODUCER, committed=False)
    put(h, offset_records(COMMITTED), PRODUCER)
    end(h, PRODUCER, committed=True)
    await load(h)
    assert (offsets_of(h), unstable(h)) == (COMMITTED, set())
    assert h.manager.groups[GROUP].offsets.pending_of_producers == {}


@kafka("GMM-8")
async def test_load_with_committed_and_aborted_and_pending_offset_commits(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, offset_records({TopicPartition("abort", 0): 132}), PRODUCER)
    end(h, PRODUCER, committed=False)
    put(h, offset_records(COMMITTED), PRODUCER)
    end(h, PRODUCER, committed=True)
    pending = TopicPartition("pending", 0)
    put(h, offset_records({pending: 5}), PRODUCER)
    await load(h)
    assert offsets_of(h) == COMMITTED
    assert h.manager.groups[GROUP].offsets.is_unstable(pending)
    h.manager.transaction_ended(PRODUCER, [partition(h)], committed=True)
    await h.work()
    assert offsets_of(h) == {**COMMITTED, pending: 5}


@kafka("GMM-9")
async def test_load_transactional_offset_commits_from_multiple_producers(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, offset_records({FOO0: 23, FOO1: 455}), PRODUCER)
    end(h, PRODUCER, committed=True)
    put(h, offset_records({BAR0: 8992}), PRODUCER + 1)
    end(h, PRODUCER + 1, committed=True)
    await load(h)
    assert offsets_of(h) == COMMITTED
    stored = h.manager.groups[GROUP].offsets.stored
    assert [stored[tp].batch_offset for tp in (FOO0, FOO1, BAR0)] == [0, 0, 3]


@kafka("GMM-10")
async def test_group_load_with_consumer_and_transactional_offset_commits_consumer_wins(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, offset_records(COMMITTED), PRODUCER)
    put(h, offset_records({FOO0: 24, FOO1: 456, BAR0: 8993}))
    end(h, PRODUCER, committed=True)
    await load(h)
    assert offsets_of(h) == {FOO0: 24, FOO1: 456, BAR0: 8993}


@kafka("GMM-11")
async def test_group_load_with_consumer_and_transactional_offset_commits_transaction_wins(
    mock_clock: MockClock,
) -> None:
    h = host(mock_clock)
    put(h, offset_records({FOO0: 24, FOO1: 456, BAR0: 8993}))
    put(h, offset_records(COMMITTED), PRODUCER)
    end(h, PRODUCER, committed=True)
    await load(h)
    assert offsets_of(h) == COMMITTED


@kafka("GMM-12")
async def test_group_not_exists(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    assert not h.manager.does_not_exist(GROUP)
    await load(h)
    assert h.manager.does_not_exist(GROUP)
    group = h.manager.get_or_create(GROUP)
    assert not h.manager.does_not_exist(GROUP)
    group.move_to(GroupState.DEAD)
    assert h.manager.does_not_exist(GROUP)


@kafka("GMM-13")
async def test_load_offsets_with_tombstones(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, [*offset_records(COMMITTED), (offset_key(GROUP, FOO1), None)])
    await load(h)
    assert offsets_of(h) == {FOO0: 23, BAR0: 8992}


@kafka("GMM-14")
async def test_load_offsets_and_group(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, [*offset_records(COMMITTED), group_record(935, members=(member_value(),))])
    await load(h)
    group = h.manager.groups[GROUP]
    assert (group.state, group.leader, group.generation) == (GroupState.STABLE, MEMBER, 935)
    assert (group.protocol_type, group.protocol_name, list(group.members)) == (CONSUMER, "range", [MEMBER])
    assert offsets_of(h) == COMMITTED
    assert all(stored.committed.expire_timestamp is None for stored in group.offsets.stored.values())


@kafka("GMM-15")
async def test_load_offsets_and_group_ignored(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, [*offset_records(COMMITTED), group_record(935, members=(member_value(),))])
    h.manager._epochs[partition(h)] = 5
    h.manager.load(partition(h), 4)
    await h.work()
    assert (GROUP in h.manager.groups, h.manager.is_owned(GROUP)) == (False, False)
    assert h.manager._epochs[partition(h)] == 5


async def loaded(clock: MockClock) -> Host:
    h = host(clock)
    put(h, [*offset_records(COMMITTED), group_record(935, members=(member_value(),))])
    await load(h, 2)
    return h


async def test_a_partition_that_is_owned_is_not_loaded_again(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule G9.21
    h = await loaded(mock_clock)
    group = h.manager.groups[GROUP]
    monkeypatch.setattr(h.log, "read", lambda number: pytest.fail("it is read"))
    await load(h, 3)
    assert h.manager.groups[GROUP] is group
    assert h.manager._epochs[partition(h)] == 3


async def test_a_group_that_is_there_is_not_replaced_by_a_load(mock_clock: MockClock) -> None:  # rule G9.17
    h = host(mock_clock)
    put(h, [group_record(935, members=(member_value(),))])
    group = h.manager.get_or_create(GROUP)
    await load(h)
    assert h.manager.groups[GROUP] is group
    assert group.members == {}


@kafka("GMM-16")
async def test_unload_offsets_and_group(mock_clock: MockClock) -> None:
    h = await loaded(mock_clock)
    h.manager.unload(partition(h), 2)
    await h.work()
    assert (h.manager.groups, h.manager.is_owned(GROUP)) == ({}, False)


@kafka("GMM-17")
async def test_unload_offsets_and_group_ignored(mock_clock: MockClock) -> None:
    h = await loaded(mock_clock)
    h.manager.unload(partition(h), 1)
    await h.work()
    assert (offsets_of(h), h.manager._epochs[partition(h)]) == (COMMITTED, 2)


@kafka("GMM-18")
async def test_unload_offsets_and_group_ignored_after_stop_replica(mock_clock: MockClock) -> None:
    h = await loaded(mock_clock)
    h.manager.unload(partition(h), None)
    await h.work()
    assert (h.manager.groups, h.manager._epochs[partition(h)]) == ({}, 2)
    await load(h, 3)
    assert (offsets_of(h), h.manager._epochs[partition(h)]) == (COMMITTED, 3)


@kafka("GMM-19")
async def test_load_group_with_tombstone(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, [group_record(15, members=(member_value(),)), (group_key(GROUP), None)])
    await load(h)
    assert GROUP not in h.manager.groups


@kafka("GMM-21")
async def test_load_group_and_offsets_with_corrupted_log(mock_clock: MockClock) -> None:
    """The log says that it ends at 10, and there is nothing to read."""
    h = host(mock_clock)
    log = SimpleNamespace(log_start_offset=0, log_end_offset=10, read_bytes=lambda *_: b"")
    hosted: Any = SimpleNamespace(is_leader=True, log=log, leader_log=lambda: log)
    appends: Any = SimpleNamespace(plane=SimpleNamespace(partition=lambda partition: hosted))
    h.manager._log = ReplicatedOffsetsLog(h.config, appends)
    await load(h)
    assert h.manager.groups == {}


@kafka("GMM-22")
async def test_offset_write_after_group_removed(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, [*offset_records({FOO0: 1}), group_record(293, members=(member_value(),))])
    put(h, [(group_key(GROUP), None), *offset_records(COMMITTED)])
    await load(h)
    group = h.manager.groups[GROUP]
    assert (group.state, group.members, offsets_of(h)) == (GroupState.EMPTY, {}, COMMITTED)


@kafka("GMM-23")
async def test_load_group_and_offsets_from_different_segments(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, [*offset_records({FOO0: 23, FOO1: 455}), group_record(15, members=(member_value("a"),))])
    put(h, [*offset_records({FOO0: 24, BAR0: 3}), group_record(16, members=(member_value("b"),))])
    await load(h)
    group = h.manager.groups[GROUP]
    assert (group.leader, list(group.members), group.generation) == ("b", ["b"], 16)
    assert offsets_of(h) == {FOO0: 24, FOO1: 455, BAR0: 3}


@kafka("GMM-24")
async def test_add_group(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    group = h.manager.get_or_create("foo")
    assert h.manager.get_or_create("foo") is group is h.manager.groups["foo"]


@kafka("GMM-25")
async def test_load_group_with_static_member(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, [group_record(3, members=(member_value("a", group_instance_id="instance"), member_value("b")))])
    await load(h)
    group = h.manager.groups[GROUP]
    assert (group.static_members, group.members["a"].is_static) == ({"instance": "a"}, True)
    assert [m.member_id for m in group.members.values() if not m.is_static] == ["b"]


async def test_two_members_with_one_instance_id_abandon_the_load(mock_clock: MockClock) -> None:  # rule G9.19
    h = host(mock_clock)
    twice = (member_value("a", group_instance_id="instance"), member_value("b", group_instance_id="instance"))
    put(h, [group_record(3, members=twice)])
    await load(h)
    assert GROUP not in h.manager.groups


@kafka("GMM-26")
async def test_load_consumer_group(mock_clock: MockClock) -> None:
    h = await loaded(mock_clock)
    assert h.manager.groups[GROUP].subscribed_topics == {"topic"}


@kafka("GMM-27")
async def test_load_empty_consumer_group(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, [group_record(15)])
    await load(h)
    assert h.manager.groups[GROUP].subscribed_topics == frozenset()


@kafka("GMM-28")
async def test_load_consumer_group_with_faulty_consumer_protocol(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, [group_record(15, members=(member_value(subscription=b""),))])
    await load(h)
    assert h.manager.groups[GROUP].state is GroupState.STABLE
    assert h.manager.groups[GROUP].subscribed_topics is None


@kafka("GMM-65")
async def test_load_offsets_with_empty_control_batch(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, [*offset_records(COMMITTED), group_record(15)])
    end(h, PRODUCER, committed=True)
    last = h.log.batches[partition(h)][-1]
    h.log.batches[partition(h)][-1] = replace(last, records=())
    await load(h)
    assert offsets_of(h) == COMMITTED


@kafka("GMM-69")
async def test_load_groups_and_offsets_will_ignore_unknown_message(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, [*offset_records(COMMITTED), (b"\x7f\xff", b"x"), group_record(15), (b"\0\x05abc", None)])
    await load(h)
    assert (offsets_of(h), h.manager.groups[GROUP].generation) == (COMMITTED, 15)


# storing


def served(clock: MockClock, **properties: str) -> Host:
    """It owns everything."""
    h = Host(clock, offsets_topic_num_partitions="2", **properties)
    h.manager.get_or_create(GROUP)
    return h


def consumer_group(h: Host, generation: int = 1, *, state: GroupState = GroupState.EMPTY) -> Group:
    group = h.manager.groups[GROUP] = Group(GROUP, h.now_ms, state)
    group.protocol_type = CONSUMER
    group.generation = generation
    return group


def stored(h: Host, group: Group, **assignments: bytes) -> ErrorCode:
    codes: list[ErrorCode] = []
    h.manager.store_group(group, assignments, codes.append)
    (code,) = codes
    return code


@kafka("GMM-32")
async def test_store_empty_group(mock_clock: MockClock) -> None:
    h = served(mock_clock)
    assert stored(h, consumer_group(h, 27)) == ErrorCode.NONE
    ((key, value),) = h.log.records()
    read = group_of(GROUP, value or b"", h.now_ms)
    assert key == GroupKey(GROUP)
    assert (read.state, read.generation, read.protocol_type) == (GroupState.EMPTY, 27, CONSUMER)


@kafka("GMM-33")
async def test_store_empty_simple_group(mock_clock: MockClock) -> None:
    h = served(mock_clock)
    assert stored(h, h.manager.groups[GROUP]) == ErrorCode.NONE
    ((_, value),) = h.log.records()
    read = group_of(GROUP, value or b"", h.now_ms)
    assert (read.state, read.generation, read.protocol_type) == (GroupState.EMPTY, 0, None)


TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE)
MOVED = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.CORRUPT_MESSAGE: ErrorCode.CORRUPT_MESSAGE,
}


@kafka("GMM-34")
@pytest.mark.parametrize(
    ("append", "answer"),
    [
        *MOVED.items(),
        *((code, ErrorCode.UNKNOWN_SERVER_ERROR) for code in TOO_LARGE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REBALANCE_IN_PROGRESS),
    ],
)
async def test_store_group_error_mapping(mock_clock: MockClock, append: ErrorCode, answer: ErrorCode) -> None:
    h = served(mock_clock)
    h.log.error = append
    assert stored(h, consumer_group(h)) == answer


def with_member(h: Host) -> Group:
    group = consumer_group(h, 0)
    group.add(
        Member(
            member_id=MEMBER, instance_id=None, client=Client("c", "/h"), rebalance_timeout_ms=60_000,
            session_timeout_ms=10_000, protocol_type=CONSUMER, protocols=(("range", SUBSCRIPTION),),
        )
    )  # fmt: skip
    group.move_to(GroupState.PREPARING_REBALANCE)
    group.next_generation()
    return group


@kafka("GMM-35")
async def test_store_non_empty_group(mock_clock: MockClock) -> None:
    h = served(mock_clock)
    group = with_member(h)
    assert stored(h, group, **{MEMBER: b"assigned"}) == ErrorCode.NONE
    ((_, value),) = h.log.records()
    (member,) = read_group(value or b"").members
    assert (member.member_id, member.assignment, member.subscription) == (MEMBER, b"assigned", SUBSCRIPTION)


@kafka("GMM-36")
async def test_store_non_empty_group_when_coordinator_has_moved(mock_clock: MockClock) -> None:
    h = served(mock_clock)
    h.log.online = False
    assert stored(h, with_member(h)) == ErrorCode.NOT_COORDINATOR
    assert h.log.batches == {}


async def commits(h: Host, offsets: dict[TopicPartition, CommittedOffset], producer: Producer | None = None) -> Any:
    answers: list[Any] = []
    h.manager.store_offsets(h.manager.groups[GROUP], offsets, answers.append, producer)
    (answer,) = answers
    return answer


@kafka("GMM-37")
async def test_commit_offset(mock_clock: MockClock) -> None:
    h = served(mock_clock)
    h.log.held = True
    answers: list[Any] = []
    group = h.manager.groups[GROUP]
    h.manager.store_offsets(group, {FOO0: at(37)}, answers.append)
    assert (answers, group.offsets.is_empty, offsets_of(h)) == ([], False, {})
    assert h.manager.offset_commits == 0
    h.log.release()
    assert (answers, offsets_of(h)) == ([{FOO0: ErrorCode.NONE}], {FOO0: 37})
    assert h.manager.offset_commits == 1
    (batch,) = h.log.batches[partition(h)]
    assert (batch.base_sequence, batch.timestamp_type) == (0, TimestampType.CREATE_TIME)  # rule G9.12


@kafka("GMM-38")
async def test_transactional_commit_offset_committed(mock_clock: MockClock) -> None:
    h = served(mock_clock)
    guard = VerificationGuard()
    assert await commits(h, {FOO0: at(37)}, Producer(232, 0, guard)) == {FOO0: ErrorCode.NONE}
    assert h.log.guards == [guard]
    assert (offsets_of(h), unstable(h)) == ({}, {FOO0})
    (batch,) = h.log.batches[partition(h)]
    assert (batch.is_transactional, batch.producer_id, batch.producer_epoch) == (True, 232, 0)
    h.manager.transaction_ended(232, [partition(h)], committed=True)
    await h.work()
    assert (offsets_of(h), unstable(h)) == ({FOO0: 37}, set())


@kafka("GMM-39")
async def test_transactional_commit_offset_append_failure(mock_clock: MockClock) -> None:
    h = served(mock_clock)
    h.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await commits(h, {FOO0: at(37)}, Producer(232, 0)) == {FOO0: code}
    assert h.manager.groups[GROUP].offsets.is_empty


@kafka("GMM-40")
async def test_transactional_commit_offset_aborted(mock_clock: MockClock) -> None:
    h = served(mock_clock)
    await commits(h, {FOO0: at(37)}, Producer(232, 0))
    h.manager.transaction_ended(232, [partition(h)], committed=False)
    await h.work()
    assert h.manager.groups[GROUP].offsets.is_empty


@kafka("GMM-41")
async def test_commit_offset_when_coordinator_has_moved(mock_clock: MockClock) -> None:
    h = served(mock_clock)
    h.log.online = False
    assert await commits(h, {FOO0: at(37)}) == {FOO0: ErrorCode.NOT_COORDINATOR}


@kafka("GMM-42")
@pytest.mark.parametrize(
    ("append", "answer"),
    [
        *MOVED.items(),
        *((code, ErrorCode.INVALID_COMMIT_OFFSET_SIZE) for code in TOO_LARGE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
async def test_commit_offset_failure(mock_clock: MockClock, append: ErrorCode, answer: ErrorCode) -> None:
    h = served(mock_clock)
    h.log.error = append
    assert await commits(h, {FOO0: at(37)}) == {FOO0: answer}
    assert h.manager.groups[GROUP].offsets.is_empty
    assert h.manager.offset_commits == 0


LONG = "m" * 4097


@kafka("GMM-43")
async def test_commit_offset_partial_failure(mock_clock: MockClock) -> None:
    h = served(mock_clock)
    answer = await commits(h, {FOO0: at(37, metadata=LONG), FOO1: at(37, metadata="m" * 4096)})
    assert answer == {FOO0: ErrorCode.OFFSET_METADATA_TOO_LARGE, FOO1: ErrorCode.NONE}
    assert offsets_of(h) == {FOO1: 37}
    assert h.manager.offset_commits == 1


@kafka("GMM-44")
async def test_offset_metadata_too_large(mock_clock: MockClock) -> None:
    h = served(mock_clock)
    assert await commits(h, {FOO0: at(37, metadata=LONG)}) == {FOO0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert h.log.batches == {}


async def test_the_length_of_metadata_counts_utf16_units(mock_clock: MockClock) -> None:  # rule G7.9
    h = served(mock_clock, offset_metadata_max_bytes="2")
    answer = await commits(h, {FOO0: at(1, metadata="😀"), FOO1: at(1, metadata="éé"), BAR0: at(1, metadata="😀é")})
    assert answer == {FOO0: 0, FOO1: 0, BAR0: ErrorCode.OFFSET_METADATA_TOO_LARGE}


@kafka("GMM-45")
async def test_offset_metadata_too_large_partial_failure(mock_clock: MockClock) -> None:
    h = served(mock_clock)
    await commits(h, {FOO0: at(37, metadata=LONG), FOO1: at(37)})
    group = h.manager.groups[GROUP]
    found = h.coordinator.fetch_offsets(GROUP, [FOO0, FOO1], require_stable=True)[1]
    assert {tp: fetched.error for tp, fetched in found.items()} == {FOO0: 0, FOO1: 0}
    assert (group.offsets.pending, found[FOO0].committed, found[FOO1].committed) == ({}, None, at(37))


@kafka("GMM-46")
async def test_transactional_commit_offset_with_metadata_too_large_partial_failure(mock_clock: MockClock) -> None:
    h = served(mock_clock)
    answer = await commits(h, {FOO0: at(37, metadata=LONG), FOO1: at(37)}, Producer(232, 0))
    assert answer == {FOO0: ErrorCode.OFFSET_METADATA_TOO_LARGE, FOO1: ErrorCode.NONE}
    assert unstable(h) == {FOO1}
    h.manager.transaction_ended(232, [partition(h)], committed=True)
    await h.work()
    assert (offsets_of(h), unstable(h)) == ({FOO1: 37}, set())


# expiry


def removed(h: Host) -> Iterator[Any]:
    """The keys of tombstones."""
    return (key for key, value in h.log.records() if value is None)


@kafka("GMM-47")
async def test_expire_offset(mock_clock: MockClock) -> None:
    h = served(mock_clock)
    expiring = {FOO0: at(37, expire_timestamp=START_MS + 1), FOO1: at(7, expire_timestamp=START_MS + 3)}
    await commits(h, expiring)
    h.advance(2)
    assert h.manager.remove_expired_offsets() == 1
    assert offsets_of(h) == {FOO1: 7}
    assert list(removed(h)) == [OffsetKey(GROUP, FOO0)]
    assert (h.manager.offset_commits, h.manager.offset_expirations) == (2, 1)


@kafka("GMM-1")
async def test_log_info_from_cleanup_group_metadata(mock_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    h = served(mock_clock)
    caplog.set_level("INFO", "kce.broker_stub.groups.manager")
    await commits(h, {FOO0: at(37, expire_timestamp=START_MS + 1)})
    assert h.manager.remove_expired_offsets() == 0
    assert "expired offsets" not in caplog.text
    h.advance(1)
    assert h.manager.remove_expired_offsets() == 1
    assert "removed 1 expired offsets" in caplog.text


@kafka("GMM-48")
async def test_group_metadata_removal(mock_clock: MockClock) -> None:
    h = served(mock_clock)
    consumer_group(h, 5)
    h.manager.remove_expired_offsets()
    (batch,) = h.log.batches[partition(h)]
    assert list(removed(h)) == [GroupKey(GROUP)]
    assert (batch.timestamp_type, batch.records[0].timestamp) == (TimestampType.CREATE_TIME, START_MS)
    assert GROUP not in h.manager.groups


@kafka("GMM-50")
async def test_expire_group_with_offsets_only(mock_clock: MockClock) -> None:
    h = served(mock_clock)
    await commits(h, {FOO0: at(37, expire_timestamp=START_MS), FOO1: at(7, expire_timestamp=START_MS)})
    assert h.manager.remove_expired_offsets() == 2
    assert list(removed(h)) == [OffsetKey(GROUP, FOO0), OffsetKey(GROUP, FOO1)]
    assert GROUP not in h.manager.groups


RETENTION_MINUTES = "1"
RETENTION_MS = 60_000


@kafka("GMM-51")
async def test_offset_expiration_semantics(mock_clock: MockClock) -> None:
    h = served(mock_clock, offsets_retention_minutes=RETENTION_MINUTES)
    group = with_member(h)
    group.move_to(GroupState.STABLE)
    group.subscribe((subscribed("foo"), subscribed("bar")))
    await commits(h, {FOO0: at(37, expire_timestamp=START_MS + 2 * RETENTION_MS), FOO1: at(7), BAR0: at(8)})
    h.advance(2 * RETENTION_MS)
    assert h.manager.remove_expired_offsets() == 0
    group.move_to(GroupState.PREPARING_REBALANCE)
    group.remove(MEMBER)
    group.next_generation()
    assert h.manager.remove_expired_offsets() == 1, "the explicit expiry has passed"
    h.advance(RETENTION_MS - 1)
    assert h.manager.remove_expired_offsets() == 0
    h.advance(1)
    assert h.manager.remove_expired_offsets() == 2
    assert (group.state, GROUP in h.manager.groups) == (GroupState.DEAD, False)
    assert list(removed(h))[-1] == GroupKey(GROUP)


@kafka("GMM-52")
async def test_offset_expiration_of_simple_consumer(mock_clock: MockClock) -> None:
    h = served(mock_clock, offsets_retention_minutes=RETENTION_MINUTES)
    group = h.manager.groups[GROUP]
    await commits(h, {FOO0: at(37)})
    h.advance(RETENTION_MS - 1)
    assert (h.manager.remove_expired_offsets(), offsets_of(h)) == (0, {FOO0: 37})
    h.advance(1)
    assert h.manager.remove_expired_offsets() == 1
    assert group.is_dead


async def test_an_offset_that_is_being_written_does_not_expire(mock_clock: MockClock) -> None:  # rule G8.6
    h = served(mock_clock)
    await commits(h, {FOO0: at(37, expire_timestamp=START_MS), FOO1: at(7, expire_timestamp=START_MS)})
    h.log.held = True
    h.manager.store_offsets(h.manager.groups[GROUP], {FOO0: at(38)}, lambda codes: None)
    assert h.manager.remove_expired_offsets() == 1
    assert offsets_of(h) == {FOO0: 37}


@kafka("GMM-53")
async def test_offset_expiration_of_active_group_semantics(mock_clock: MockClock) -> None:
    h = served(mock_clock, offsets_retention_minutes=RETENTION_MINUTES)
    group = with_member(h)
    group.subscribe((subscribed("foo"),))
    await commits(h, {FOO0: at(37), FOO1: at(7), BAR0: at(8)})
    h.advance(RETENTION_MS)
    assert h.manager.remove_expired_offsets() == 0, "not in CompletingRebalance"
    group.move_to(GroupState.STABLE)
    assert h.manager.remove_expired_offsets() == 1
    assert (offsets_of(h), group.state) == ({FOO0: 37, FOO1: 7}, GroupState.STABLE)


# formats


@kafka("GMM-29")
def test_should_throw_exception_for_unsupported_group_metadata_version() -> None:
    with pytest.raises(DecodeError, match="versions 0-4, not -32768"):
        read_group(b"\x80\x00")


OLD = ("0.9.0", "0.10.1", "2.1")


@kafka("GMM-30")
@pytest.mark.parametrize("ibp", [*OLD, "2.3", "3.9"])
async def test_current_state_timestamp_for_all_group_metadata_versions(mock_clock: MockClock, ibp: str) -> None:
    h = Host(mock_clock)
    version = MetadataVersion.parse(ibp)
    value = GroupMetadataValue(protocol_type=CONSUMER, generation=1, current_state_timestamp=5)
    group = group_of(GROUP, write_group(value, group_version(version)), h.now_ms)
    assert group.state_since_ms == (5 if version >= MetadataVersion.parse("2.1-IV0") else None)


@kafka("GMM-31")
@pytest.mark.parametrize("ibp", OLD)
async def test_read_from_old_group_metadata(mock_clock: MockClock, ibp: str) -> None:
    value = GroupMetadataValue(
        protocol_type=CONSUMER, generation=1, protocol="range", leader=MEMBER, members=(member_value(),)
    )
    group = group_of(GROUP, write_group(value, group_version(MetadataVersion.parse(ibp))), Host(mock_clock).now_ms)
    assert (group.generation, group.protocol_type, group.protocol_name, group.leader) == (1, CONSUMER, "range", MEMBER)
    member = group.members[MEMBER]
    assert (member.is_static, member.session_timeout_ms) == (False, 10_000)
    assert member.rebalance_timeout_ms == (10_000 if ibp == "0.9.0" else 30_000)  # rule G9.6


@kafka("GMM-54")
@pytest.mark.parametrize("expires", [START_MS + 5])
def test_load_offset_from_old_commit(expires: int) -> None:
    old = at(37, expire_timestamp=expires)
    assert read_offset(write_offset(old, offset_version(MetadataVersion.parse("1.1-IV0")))) == old


@kafka("GMM-55")
async def test_load_offset_with_explicit_retention(mock_clock: MockClock) -> None:
    h = host(mock_clock)
    put(h, [(offset_key(GROUP, FOO0), write_offset(at(37, expire_timestamp=START_MS + 5), offset_version(IBP)))])
    await load(h)
    assert h.manager.groups[GROUP].offsets.get(FOO0) == at(37, expire_timestamp=START_MS + 5)


#: inter.broker.protocol.version -> version of an offset's value (rule G9.4)
OFFSET_VERSIONS = {"1.1-IV0": 1, "2.0-IV1": 1, "2.1-IV0": 2, "2.1-IV1": 3, "3.9-IV0": 3}


@kafka("GMM-56")
@kafka("GMM-58")
@pytest.mark.parametrize(("ibp", "version"), OFFSET_VERSIONS.items())
def test_serde_offset_commit_value(ibp: str, version: int) -> None:
    committed = at(37, metadata="m", leader_epoch=15)
    written = write_offset(committed, offset_version(MetadataVersion.parse(ibp)))
    assert int.from_bytes(written[:2]) == version
    assert read_offset(written) == (committed if version == 3 else committed._replace(leader_epoch=-1))


@kafka("GMM-57")
@pytest.mark.parametrize("ibp", OFFSET_VERSIONS)
def test_serde_offset_commit_value_with_expire_timestamp(ibp: str) -> None:
    committed = at(37, metadata="m", expire_timestamp=START_MS + 1)
    written = write_offset(committed, offset_version(MetadataVersion.parse(ibp)))
    assert (int.from_bytes(written[:2]), read_offset(written)) == (1, committed)


@kafka("GMM-59")
def test_serialize_group_metadata_value_to_highest_non_flexible_version() -> None:
    value = GroupMetadataValue(protocol_type=CONSUMER, generation=1, members=(member_value(group_instance_id="i"),))
    written = write_group(value, group_version(IBP))
    assert (int.from_bytes(written[:2]), read_group(written)) == (3, value)


@kafka("GMM-60")
def test_serialize_offset_commit_value_to_highest_non_flexible_version() -> None:
    assert int.from_bytes(write_offset(at(1), offset_version(IBP))[:2]) == 3


def flexible_offset(tags: bytes = b"\0") -> bytes:
    return b"\0\4" + (1).to_bytes(8) + (2).to_bytes(4) + b"\3ab" + (3).to_bytes(8) + tags


FLEXIBLE_GROUP = b"\0\4" + b"\x09consumer" + (5).to_bytes(4) + b"\x06range" + b"\2m" + (7).to_bytes(8) + b"\2"
FLEXIBLE_MEMBER = b"\2m" + b"\0" + b"\2c" + b"\3/h" + (1).to_bytes(4) + (2).to_bytes(4) + b"\2s" + b"\2a"
#: one unknown tagged field
TAGS = b"\1\x07\2xy"


@kafka("GMM-62")
@kafka("GMM-63")
@pytest.mark.parametrize("tags", [b"\0", TAGS])
def test_deserialize_future_offset_commit_value(tags: bytes) -> None:
    expected = CommittedOffset(offset=1, leader_epoch=2, metadata="ab", commit_timestamp=3)
    assert read_offset(flexible_offset(tags)) == expected


@kafka("GMM-61")
@kafka("GMM-64")
@pytest.mark.parametrize("tags", [b"\0", TAGS])
def test_deserialize_future_group_metadata_value(tags: bytes) -> None:
    read = read_group(FLEXIBLE_GROUP + FLEXIBLE_MEMBER + tags + tags)
    assert (read.protocol_type, read.generation, read.protocol, read.leader) == (CONSUMER, 5, "range", "m")
    (member,) = read.members
    assert (member.member_id, member.group_instance_id) == ("m", None)
    assert (member.subscription, member.assignment) == (b"s", b"a")


@kafka("GMM-68")
def test_read_message_key_can_read_unknown_message() -> None:
    assert read_key(b"\x7f\xff") == UnknownKey(32767)
