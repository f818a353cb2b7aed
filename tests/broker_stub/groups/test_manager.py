"""What is written and read of groups as a whole, and what runs in the background.

Covers: broker_stub/groups/manager.py, broker_stub/groups/loading.py.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from kce.broker_stub.groups.group import Group, GroupState, IllegalState
from kce.broker_stub.groups.loading import Fold, group_of
from kce.broker_stub.groups.manager import GroupManager, Producer, group_value
from kce.broker_stub.groups.member import Client, Member
from kce.broker_stub.groups.offsets import Stored
from kce.broker_stub.groups.records import (
    GroupKey,
    GroupMetadataValue,
    MemberMetadataValue,
    OffsetKey,
    group_key,
    group_version,
    offset_key,
    offset_version,
    read_group,
    write_group,
    write_offset,
)
from kce.wire import ErrorCode
from kce.wire.consumer_protocol import ConsumerProtocolSubscription, encode_consumer_protocol
from kce.wire.errors import CorruptRecord, WireError
from kce.wire.record import Codec, EndTransactionMarker, Record, RecordBatch
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.conformance.test_group_metadata_manager import at
from tests.broker_stub.groups.support import CONSUMER, IBP, START_MS, Host

GROUP_VERSION, OFFSET_VERSION = group_version(IBP), offset_version(IBP)
A, B = TopicPartition("topic", 0), TopicPartition("topic", 1)
SUBSCRIPTION = encode_consumer_protocol(ConsumerProtocolSubscription(topics=("topic",)), 1)
VALUE = GroupMetadataValue(
    protocol_type=CONSUMER, generation=7, protocol="range", leader="m2", current_state_timestamp=START_MS - 5,
    members=(
        MemberMetadataValue(member_id="m1", group_instance_id="i", client_id="c1", client_host="/h1",
                            rebalance_timeout=1, session_timeout=2, subscription=SUBSCRIPTION, assignment=b"a1"),
        MemberMetadataValue(member_id="m2", group_instance_id=None, client_id="c2", client_host="/h2",
                            rebalance_timeout=3, session_timeout=4, subscription=SUBSCRIPTION, assignment=b"a2"),
    ),
)  # fmt: skip
FIRST = VALUE.members[0]


def now_ms() -> int:
    return START_MS


def described(member: Member) -> tuple[Any, ...]:
    return (
        member.member_id, member.instance_id, member.client, member.rebalance_timeout_ms, member.session_timeout_ms,
        member.protocol_type, member.protocols, member.assignment, member.is_new, member.was_heard,
    )  # fmt: skip


# formats


def test_a_group_is_what_was_written() -> None:  # rule G9.17
    group = group_of("g", write_group(VALUE, GROUP_VERSION), now_ms)
    assert (group.group_id, group.state, group.state_since_ms) == ("g", GroupState.STABLE, START_MS - 5)
    assert (group.generation, group.protocol_type, group.protocol_name, group.leader) == (7, CONSUMER, "range", "m2")
    assert (group.static_members, group.subscribed_topics) == ({"i": "m1"}, {"topic"})
    protocols = (("range", SUBSCRIPTION),)
    assert [described(member) for member in group.members.values()] == [
        ("m1", "i", Client("c1", "/h1"), 1, 2, CONSUMER, protocols, b"a1", False, False),
        ("m2", None, Client("c2", "/h2"), 3, 4, CONSUMER, protocols, b"a2", False, False),
    ]
    assert (group.awaiting_join, group.pending_members, group.pending_syncs) == (0, set(), set())
    assert group_value(group, {"m1": b"a1", "m2": b"a2"}) == VALUE


def test_what_a_record_does_not_say() -> None:
    """Neither a type nor a time; without members no protocol (rule G8.3)."""
    value = GroupMetadataValue(protocol_type="", generation=1, protocol=None, leader=None)
    group = group_of("g", write_group(value, GROUP_VERSION), now_ms)
    assert (group.state, group.state_since_ms, group.protocol_type) == (GroupState.EMPTY, None, None)
    assert group_value(group, {}) == value


def test_a_member_without_an_assignment_has_an_empty_one() -> None:  # rule G4.5
    group = group_of("g", write_group(VALUE, GROUP_VERSION), now_ms)
    assert [member.assignment for member in group_value(group, {"m2": b"x"}).members] == [b"", b"x"]


def test_members_without_a_protocol_cannot_be_written() -> None:
    group = group_of("g", write_group(VALUE, GROUP_VERSION), now_ms)
    group.protocol_name = None
    with pytest.raises(IllegalState):
        group_value(group, {})


# the records of a partition


def records(*pairs: tuple[bytes | None, bytes | None], first: int = 0, producer_id: int = -1) -> RecordBatch:
    made = (Record(offset=first + i, timestamp=START_MS, key=key, value=value) for i, (key, value) in enumerate(pairs))
    return RecordBatch.of(
        *made, producer_id=producer_id, producer_epoch=0 if producer_id >= 0 else -1, is_transactional=producer_id >= 0
    )


def offset(group: str, partition: TopicPartition, value: int) -> tuple[bytes, bytes]:
    return offset_key(group, partition), write_offset(at(value), OFFSET_VERSION)


def folded(*batches: RecordBatch) -> dict[str, Group]:
    fold = Fold(now_ms)
    for found in batches:
        fold.add(found)
    return {group.group_id: group for group in fold.groups()}


def end(producer_id: int, *, committed: bool) -> RecordBatch:
    marker = EndTransactionMarker(committed=committed, coordinator_epoch=0).to_record(offset=90, timestamp=START_MS)
    return RecordBatch.of(marker, producer_id=producer_id, producer_epoch=0, is_transactional=True, is_control=True)


def test_each_producer_has_its_open_transactions_in_each_group() -> None:
    groups = folded(
        records(offset("g", A, 1), offset("h", A, 2), first=10, producer_id=5),
        records(offset("g", A, 3), offset("g", B, 4), first=20, producer_id=6),
        records(offset("h", B, 5), first=30, producer_id=7),
        end(7, committed=True),
        end(8, committed=True),
    )
    pending = {name: dict(group.offsets.pending_of_producers) for name, group in groups.items()}
    assert pending == {
        "g": {5: {A: Stored(at(1), 10)}, 6: {A: Stored(at(3), 20), B: Stored(at(4), 20)}},
        "h": {5: {A: Stored(at(2), 10)}},
    }
    assert {name: group.offsets.stored for name, group in groups.items()} == {"g": {}, "h": {B: Stored(at(5), 30)}}


def test_tombstones_of_what_is_unknown() -> None:
    group = write_group(VALUE, GROUP_VERSION)
    kept = folded(records((offset_key("g", A), None), (group_key("g"), None), (group_key("h"), group)))
    assert kept.keys() == {"h"}


@pytest.mark.parametrize("later", [write_group(VALUE, GROUP_VERSION), None], ids=["replaced", "deleted"])
@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\0\7",
        write_group(VALUE, GROUP_VERSION)[:-1],
        write_group(
            replace(VALUE, members=(VALUE.members[0], replace(VALUE.members[0], member_id="m3"))), GROUP_VERSION
        ),
    ],
    ids=["empty", "unknown version", "cut", "one instance twice"],
)
def test_a_bad_group_ends_a_load_also_if_a_later_record_replaces_it(bad: bytes, later: bytes | None) -> None:
    """As in Kafka, which reads every value (rule G9.19)."""
    with pytest.raises((WireError, IllegalState)):
        folded(records((group_key("g"), bad), (group_key("g"), later)))


def test_a_record_without_a_key_is_corrupt() -> None:
    with pytest.raises(CorruptRecord, match="offset 41"):
        folded(records(offset("g", A, 1), (None, b"x"), first=40))


# what is appended


async def test_who_appends_what(mock_clock: trio.testing.MockClock) -> None:  # rules G9.10, G9.12
    host = Host(mock_clock, offsets_topic_compression_codec="1")
    group = host.manager.get_or_create("g")
    host.manager.store_group(group, {}, lambda code: None)
    host.manager.store_offsets(group, {A: at(1), B: at(2)}, lambda codes: None)
    host.manager.store_offsets(group, {A: at(3)}, lambda codes: None, Producer(5, 6))
    host.manager.clean_up([group], lambda group: group.offsets.remove([A, B]))
    (batches,) = host.log.batches.values()
    identities = [
        (b.producer_id, b.producer_epoch, b.base_sequence, b.is_transactional, b.codec, len(b.records)) for b in batches
    ]
    assert identities == [
        (-1, -1, -1, False, Codec.GZIP, 1),
        (-1, -1, 0, False, Codec.GZIP, 2),
        (5, 6, 0, True, Codec.GZIP, 1),
        (-1, -1, -1, False, Codec.GZIP, 2),
    ]
    assert {record.timestamp for b in batches for record in b.records} == {START_MS}


@pytest.mark.parametrize(("generation", "removed"), [(0, []), (1, [GroupKey("g")])])
async def test_a_group_that_was_written_gets_a_tombstone(
    mock_clock: trio.testing.MockClock, generation: int, removed: list[object]
) -> None:  # rule G8.9
    host = Host(mock_clock)
    host.manager.get_or_create("g").generation = generation
    assert host.manager.remove_expired_offsets() == 0
    assert host.log.records() == [(key, None) for key in removed]
    assert host.manager.groups == {}


async def test_tombstones_that_cannot_be_appended(mock_clock: trio.testing.MockClock) -> None:  # rule G8.10
    host = Host(mock_clock)
    group = host.manager.get_or_create("g")
    host.manager.store_offsets(group, {A: at(1)}, lambda codes: None)
    host.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert host.manager.clean_up([group], lambda group: group.offsets.remove([A])) == 0
    assert (group.is_dead, host.manager.groups) == (True, {})


async def test_what_is_led_elsewhere_gets_no_tombstones(mock_clock: trio.testing.MockClock) -> None:  # rule G8.8
    host = Host(mock_clock)
    group = host.manager.get_or_create("g")
    host.manager.store_offsets(group, {A: at(1)}, lambda codes: None)
    written = len(host.log.records())
    host.log.online = False
    assert host.manager.clean_up([group], lambda group: group.offsets.remove([A])) == 0
    assert (len(host.log.records()), host.manager.groups) == (written, {"g": group})


async def test_another_group_of_that_name_stays(mock_clock: trio.testing.MockClock) -> None:
    host = Host(mock_clock)
    old = host.manager.get_or_create("g")
    old.generation = 1
    new = host.manager.groups["g"] = Group("g", now_ms)
    assert host.manager.clean_up([old], lambda group: group.offsets.remove([A])) == 0
    assert (host.manager.groups, host.log.records()) == ({"g": new}, [])


async def test_a_dead_group_remembers_no_commit(mock_clock: trio.testing.MockClock) -> None:
    host = Host(mock_clock)
    group = host.manager.get_or_create("g")
    host.log.held = True
    answers: list[Any] = []
    host.manager.store_offsets(group, {A: at(1)}, answers.append)
    group.move_to(GroupState.DEAD)
    host.log.release()
    assert (answers, group.offsets.stored) == ([{A: ErrorCode.NONE}], {})


# the background


async def test_offsets_expire_regularly(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(autojump_clock, offsets_retention_check_interval_ms="70000")
    times: list[float] = []
    began = trio.current_time()
    monkeypatch.setattr(
        GroupManager, "remove_expired_offsets", lambda manager: times.append(trio.current_time() - began)
    )
    with trio.move_on_after(150):
        await host.manager.run()
    assert times == pytest.approx([0, 70, 140])


async def test_work_that_fails_does_not_concern_the_next(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:  # rule G9.19
    host = Host(autojump_clock, owns=False)
    partition = host.manager.partition_of("g")

    def fails(group: Group) -> None:
        raise ValueError("of a group")

    host.manager.on_unloaded = fails
    with caplog.at_level(logging.ERROR), trio.move_on_after(1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.manager.run)
            await trio.testing.wait_all_tasks_blocked()
            host.manager.get_or_create("g")
            host.manager.unload(partition, 4)
            host.manager.load(partition, 4)
    assert "abandoned" in caplog.text
    assert host.manager.is_owned("g")


async def test_a_load_lets_others_run(mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(mock_clock, owns=False)
    partition = host.manager.partition_of("g")
    sizes, read, paused_after = (255, 1, 255, 1, 256, 254, 1), [], []

    def batches(number: int) -> Any:
        for size in sizes:
            read.append((number, host.manager.refusal("g"), host.manager.is_owned("g")))
            yield records(*[offset("g", A, i) for i in range(size)])

    async def checkpoint() -> None:
        paused_after.append(len(read))

    monkeypatch.setattr(host.log, "read", batches)
    monkeypatch.setattr(trio.lowlevel, "checkpoint", checkpoint)
    host.manager.load(partition, 1)
    await host.work()
    monkeypatch.undo()
    assert read == [(partition, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, False)] * len(sizes)
    assert paused_after == [2, 4, 5]
    assert (host.manager.is_loading, host.manager.is_owned("g")) == (False, True)


async def test_a_load_lets_others_run_after_large_groups(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(mock_clock, owns=False)
    large = write_group(replace(VALUE, members=(replace(VALUE.members[0], assignment=bytes(6000)),)), GROUP_VERSION)
    read, paused_after = [], []

    def batches(number: int) -> Any:
        for i in range(5):
            read.append(i)
            yield records((group_key("g"), large))

    async def checkpoint() -> None:
        paused_after.append(len(read))

    monkeypatch.setattr(host.log, "read", batches)
    monkeypatch.setattr(trio.lowlevel, "checkpoint", checkpoint)
    host.manager.load(host.manager.partition_of("g"), 1)
    await host.work()
    monkeypatch.undo()
    assert paused_after == [3]


async def test_a_partition_that_is_being_loaded_is_not_loaded_twice(mock_clock: trio.testing.MockClock) -> None:
    host = Host(mock_clock, owns=False)
    partition = host.manager.partition_of("g")
    host.manager._loading.add(partition)
    host.manager.load(partition, 1)
    await host.work()
    assert not host.manager.is_owned("g")


async def test_a_transaction_ends_in_its_partitions(mock_clock: trio.testing.MockClock) -> None:  # rule G7.21
    host = Host(mock_clock)
    here, elsewhere, dead = (host.manager.get_or_create(name) for name in ("g", "h", "dead"))
    for group in (here, elsewhere, dead):
        host.manager.store_offsets(group, {A: at(1)}, lambda codes: None, Producer(5, 0))
    dead.move_to(GroupState.DEAD)
    partitions = [host.manager.partition_of(name) for name in ("g", "dead")]
    assert host.manager.partition_of("h") not in partitions
    host.manager.transaction_ended(5, iter(partitions), committed=True)
    assert here.offsets.get(A) is None  # it happens in the background
    await host.work()
    assert [group.offsets.get(A) for group in (here, elsewhere, dead)] == [at(1), None, None]
    assert OffsetKey("g", A) in [key for key, _ in host.log.records()]


def test_a_value_is_read_as_it_was_written() -> None:
    assert read_group(write_group(VALUE, GROUP_VERSION)) == VALUE


async def test_a_load_is_measured_from_its_order(mock_clock: trio.testing.MockClock) -> None:  # rule G9.19
    host = Host(mock_clock, owns=False)
    host.manager.load(3, 1)
    mock_clock.jump(0.070)
    await host.work()
    assert (host.manager.load_times.max, host.manager.loaded) == (70, {3: 1})


async def test_the_size_of_metadata(mock_clock: trio.testing.MockClock) -> None:  # rule G7.9
    """In UTF-16, as a Java string has it, whatever it holds."""
    fits = Host(mock_clock, offset_metadata_max_bytes="4").manager.fits
    assert [fits(text) for text in ("", "aaaa", "aaaaa", "\U0001f600" * 2, "\U0001f600" * 2 + "a")] == [
        True, True, False, True, False,
    ]  # fmt: skip
    assert [fits("\ud800" * count) for count in (4, 5)] == [True, False]
