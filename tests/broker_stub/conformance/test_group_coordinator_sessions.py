"""Kafka's GroupCoordinatorTest: SyncGroup, Heartbeat, LeaveGroup, and what happens when a member is silent."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from kce.broker_stub.groups.group import GroupState
from kce.broker_stub.groups.rebalancing import DelayedHeartbeat
from kce.wire import ErrorCode
from tests.broker_stub.conformance.test_group_coordinator_join import dead_group, two_joined
from tests.broker_stub.groups.support import CONSUMER, DELAY_MS, GROUP, RANGE, TIMEOUT_MS, A, Host

kafka = pytest.mark.kafka

NONE, UNKNOWN, MOVED = ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NOT_COORDINATOR
ILLEGAL, DEAD, REBALANCING = (
    ErrorCode.ILLEGAL_GENERATION, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REBALANCE_IN_PROGRESS,
)  # fmt: skip
INCONSISTENT, FENCED = ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.FENCED_INSTANCE_ID


# SyncGroup


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        pytest.param("whatever", "range", INCONSISTENT, marks=kafka("GC-61")),
        pytest.param(CONSUMER, "whatever", INCONSISTENT, marks=kafka("GC-62")),
        pytest.param(None, None, NONE, marks=kafka("GC-63")),
        pytest.param(CONSUMER, "range", NONE, marks=kafka("GC-64")),
    ],
)
async def test_sync_group_protocol_type_and_name(
    mock_clock: MockClock, kind: str | None, name: str | None, error: ErrorCode
) -> None:
    host = Host(mock_clock)
    leader, follower = await two_joined(host)
    for member_id in (leader, follower):
        sync = host.sync(2, member_id, protocol_type=kind, protocol_name=name)
        assert sync.error == error
        described = (sync.answer.protocol_type, sync.answer.protocol_name)
        assert described == ((CONSUMER, "range") if error is NONE else (None, None))


@kafka("GC-78")
async def test_sync_group_empty_assignment(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.joined()
    synced = host.synced(joined.generation, joined.member_id, {})
    assert (synced.error, synced.assignment) == (NONE, b"")


@kafka("GC-79")
async def test_sync_group_not_coordinator(mock_clock: MockClock) -> None:
    assert Host(mock_clock, owns=False).sync(1, "memberId").error == MOVED


@kafka("GC-80")
async def test_sync_group_from_unknown_group(mock_clock: MockClock) -> None:
    assert Host(mock_clock).sync(1, "memberId").error == UNKNOWN


@kafka("GC-81")
async def test_sync_group_from_unknown_member(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    assert host.sync(joined.generation, "unknown").error == UNKNOWN


@kafka("GC-82")
async def test_sync_group_from_illegal_generation(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.joined()
    assert host.sync(joined.generation + 1, joined.member_id).error == ILLEGAL


@kafka("GC-94")
async def test_sync_group_follower_after_leader(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    leader, follower = await two_joined(host)
    synced = host.synced(2, leader, {leader: b"0", follower: b"1"})
    assert (synced.error, synced.assignment) == (NONE, b"0")
    synced = host.synced(2, follower)
    assert (synced.error, synced.assignment) == (NONE, b"1")


@kafka("GC-95")
async def test_sync_group_leader_after_follower(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    leader, follower = await two_joined(host)
    waits = host.sync(2, follower)
    assert waits.is_parked
    synced = host.synced(2, leader, {leader: b"0", follower: b"1"})
    assert (synced.error, synced.assignment) == (NONE, b"0")
    assert (waits.error, waits.answer.assignment) == (NONE, b"1")


@kafka("GC-93")
async def test_leader_failure_in_sync_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    _, follower = await two_joined(host)
    waits = host.sync(2, follower)
    host.advance(TIMEOUT_MS + 1)
    assert waits.error == REBALANCING


async def three_joined(host: Host) -> tuple[str, str, str]:
    """In generation 1 with 2 seconds for rebalances: (leader, others)."""
    joins = [host.join(rebalance_timeout_ms=2000, session_timeout_ms=1000) for _ in range(3)]
    host.advance(2 * DELAY_MS + 1)
    first, second, third = (join.answer.member_id for join in joins)
    assert {join.answer.leader for join in joins} == {first}
    return first, second, third


def beat(host: Host, members: tuple[str, ...], times: int = 4) -> list[ErrorCode]:
    """Heartbeats every half second; the last answers."""
    codes: list[ErrorCode] = []
    for _ in range(times):
        host.advance(500)
        codes = [host.heartbeat(member_id, 1) for member_id in members]
    return codes


@kafka("GC-89")
async def test_rebalance_times_out_when_sync_request_is_not_received(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    members = await three_joined(host)
    assert beat(host, members, 3) == [NONE] * 3
    assert beat(host, members, 1) == [UNKNOWN] * 3
    assert host.state() is GroupState.EMPTY


@kafka("GC-90")
async def test_rebalance_times_out_when_sync_request_is_not_received_from_followers(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    members = await three_joined(host)
    assert host.synced(1, members[0], {}).error == NONE
    assert beat(host, members, 3) == [NONE] * 3
    assert beat(host, members, 1) == [REBALANCING, UNKNOWN, UNKNOWN]
    assert list(host.group().members) == [members[0]]


@kafka("GC-91")
async def test_rebalance_times_out_when_sync_request_is_not_received_from_leaders(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    members = await three_joined(host)
    syncs = [host.sync(1, follower) for follower in members[1:]]
    assert beat(host, members, 3) == [NONE] * 3
    assert all(sync.is_parked for sync in syncs)
    assert beat(host, members, 1) == [UNKNOWN, REBALANCING, REBALANCING]
    assert [sync.error for sync in syncs] == [REBALANCING] * 2


async def test_a_rebalance_ends_the_wait_for_syncs(mock_clock: MockClock) -> None:  # rules G3.33, G12.7
    host = Host(mock_clock)
    await two_joined(host)
    syncs = host.coordinator.rebalancing.syncs
    assert (syncs.delayed, len(host.group().pending_syncs)) == (1, 2)
    host.join()
    assert (syncs.delayed, host.group().pending_syncs) == (0, set())


@kafka("GC-92")
async def test_rebalance_does_not_time_out_when_all_syncs_are_received(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    members = await three_joined(host)
    assert [host.synced(1, member_id, {}).error for member_id in members] == [NONE] * 3
    assert beat(host, members, 6) == [NONE] * 3
    assert host.state() is GroupState.STABLE


# Heartbeat


@kafka("GC-65")
async def test_heartbeat_wrong_coordinator(mock_clock: MockClock) -> None:
    assert Host(mock_clock, owns=False).heartbeat("memberId", -1) == MOVED


@kafka("GC-66")
async def test_heartbeat_unknown_group(mock_clock: MockClock) -> None:
    assert Host(mock_clock).heartbeat("memberId", -1) == UNKNOWN


@kafka("GC-67")
async def test_heartbeat_dead_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    dead_group(host)
    assert host.heartbeat("memberId", 1, group_id="deadGroup") == DEAD


@kafka("GC-68")
async def test_heartbeat_empty_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    host.group().move_to(GroupState.PREPARING_REBALANCE)
    host.group().move_to(GroupState.EMPTY)
    assert host.heartbeat(joined.member_id, joined.generation) == UNKNOWN


@kafka("GC-69")
async def test_heartbeat_unknown_consumer_existing_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    assert host.heartbeat("otherMemberId", joined.generation) == UNKNOWN


@kafka("GC-70")
async def test_heartbeat_rebalance_in_progress(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.joined()
    assert host.heartbeat(joined.member_id, joined.generation) == NONE


@kafka("GC-71")
async def test_heartbeat_illegal_generation(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    assert host.heartbeat(joined.member_id, joined.generation + 1) == ILLEGAL


@kafka("GC-72")
async def test_valid_heartbeat(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    assert host.heartbeat(joined.member_id, joined.generation) == NONE


@kafka("GC-73")
async def test_session_timeout(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    host.advance(TIMEOUT_MS + 100)
    assert host.heartbeat(joined.member_id, joined.generation) == UNKNOWN


@kafka("GC-74")
async def test_heartbeat_maintains_session(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    for _ in range(3):
        host.advance(TIMEOUT_MS * 2 / 3)
        assert host.heartbeat(joined.member_id, joined.generation) == NONE


@kafka("GC-75")
async def test_commit_maintains_session(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    host.advance(TIMEOUT_MS * 2 / 3)
    assert host.commit({A: 0}, joined.member_id, joined.generation) == {A: NONE}
    host.advance(TIMEOUT_MS * 2 / 3)
    assert host.heartbeat(joined.member_id, joined.generation) == NONE


@kafka("GC-76")
async def test_session_timeout_during_rebalance(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    first = host.stable(rebalance_timeout_ms=2000, session_timeout_ms=1000)
    host.advance(500)
    assert host.heartbeat(first.member_id, 1) == NONE
    second = host.join()
    host.advance(500)
    assert second.is_parked
    assert host.heartbeat(first.member_id, 1) == REBALANCING
    host.advance(1100)
    assert host.heartbeat(first.member_id, 1) == UNKNOWN
    assert (second.error, second.answer.generation) == (NONE, 2)
    assert list(host.group().members) == [second.answer.member_id] == [second.answer.leader]


@kafka("GC-77")
async def test_rebalance_completes_before_member_joins(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    first = host.stable(instance_id="first", rebalance_timeout_ms=1200, session_timeout_ms=1000)
    host.advance(500)
    assert host.heartbeat(first.member_id, 1) == NONE
    second = host.join(rebalance_timeout_ms=1200, session_timeout_ms=1000)
    for _ in range(2):
        host.advance(500)
        assert host.heartbeat(first.member_id, 1) == REBALANCING
    host.advance(500)
    assert second.answer.generation == 2
    other = second.answer.member_id
    assert host.synced(2, other, {}).error == NONE
    assert host.heartbeat(first.member_id, 1) == ILLEGAL
    # the first is still a member, until its session expires
    assert set(host.group().members) == {first.member_id, other}
    host.advance(500)
    assert host.heartbeat(other, 2) == NONE
    host.advance(500)
    assert host.heartbeat(other, 2) == REBALANCING
    assert set(host.group().members) == {other}
    again = host.join(other, rebalance_timeout_ms=1200, session_timeout_ms=1000)
    assert again.answer.generation == 3
    assert host.synced(3, other, {}).error == NONE
    for _ in range(20):
        host.advance(500)
        assert host.heartbeat(other, 3) == NONE


@kafka("GC-120")
async def test_heartbeat_during_rebalance_causes_rebalance_in_progress(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.joined()
    host.join()
    assert host.heartbeat(joined.member_id, joined.generation) == REBALANCING


@kafka("GC-160")
async def test_complete_heartbeat_with_group_dead(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    group = host.group()
    group.move_to(GroupState.DEAD)
    operation = DelayedHeartbeat(host.coordinator.rebalancing, group, joined.member_id, 1000)
    assert operation.try_complete()
    host.coordinator.rebalancing.timer_expired(group, joined.member_id, is_pending=False)
    assert joined.member_id in group.members


@kafka("GC-161")
async def test_complete_heartbeat_with_member_already_removed(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    operation = DelayedHeartbeat(host.coordinator.rebalancing, host.group(), joined.member_id, 1000)
    assert not operation.try_complete()
    host.group().remove(joined.member_id)
    assert operation.try_complete()


# LeaveGroup


@kafka("GC-122")
@kafka("GC-131")
async def test_leave_group_wrong_coordinator(mock_clock: MockClock) -> None:
    host = Host(mock_clock, owns=False)
    assert host.leave("memberId") == (MOVED, [])
    assert host.leave(("", "leader"), ("", "follower")) == (MOVED, [])


@kafka("GC-123")
async def test_leave_group_unknown_group(mock_clock: MockClock) -> None:
    assert Host(mock_clock).leave("memberId") == (NONE, [UNKNOWN])


@kafka("GC-124")
async def test_leave_group_unknown_consumer_existing_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    host.joined()
    assert host.leave("otherMemberId") == (NONE, [UNKNOWN])


async def test_who_leaves_without_ids_is_not_the_member_with_an_empty_instance_id(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    host.joined(instance_id="")
    assert host.leave("") == (NONE, [UNKNOWN])
    assert host.leave(("", "")) == (NONE, [NONE])


@kafka("GC-125")
@kafka("GC-126")
async def test_leave_dead_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    dead_group(host)
    assert host.leave("memberId", group_id="deadGroup") == (DEAD, [])
    assert host.leave("memberId", "otherMemberId", group_id="deadGroup") == (DEAD, [])


@kafka("GC-127")
async def test_valid_leave_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.joined()
    assert host.leave(joined.member_id) == (NONE, [NONE])
    assert host.state() is GroupState.EMPTY


@kafka("GC-128")
async def test_leave_group_with_fenced_instance_id(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    host.joined(instance_id="leader")
    assert host.leave(("some_member", "leader")) == (NONE, [FENCED])


@kafka("GC-129")
async def test_leave_group_static_member_with_unknown_member_id(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    host.joined(instance_id="leader")
    assert host.leave(("", "leader")) == (NONE, [NONE])


def two_static(host: Host) -> None:
    for instance_id in ("leader", "follower"):
        host.join(instance_id=instance_id)
    host.advance(2 * DELAY_MS + 1)


@pytest.mark.parametrize(
    ("members", "codes"),
    [
        pytest.param([("", "leader"), ("", "follower")], [NONE, NONE], marks=kafka("GC-130")),
        pytest.param([("", "leader"), ("invalid", "follower")], [NONE, FENCED], marks=kafka("GC-133")),
        pytest.param([("", "unknown"), ("", "follower")], [UNKNOWN, NONE], marks=kafka("GC-134")),
    ],
)
async def test_static_members_batch_leave_group(
    mock_clock: MockClock, members: list[tuple[str, str]], codes: list[ErrorCode]
) -> None:
    host = Host(mock_clock)
    two_static(host)
    assert host.leave(*members) == (NONE, codes)


@kafka("GC-132")
async def test_static_members_unknown_group_batch_leave_group(mock_clock: MockClock) -> None:
    assert Host(mock_clock).leave(("", "leader"), ("", "follower")) == (NONE, [UNKNOWN, UNKNOWN])


@kafka("GC-135")
async def test_pending_member_batch_leave_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    host.stable()
    pending = host.join(requires_member_id=True).answer.member_id
    assert host.leave(("", "unknown"), pending) == (NONE, [UNKNOWN, NONE])
    assert host.group().pending_members == set()


# unloading


async def test_unloading_answers_what_is_parked(mock_clock: MockClock) -> None:  # rule G9.20
    host = Host(mock_clock)
    first = host.stable()
    second = host.join()  # PreparingRebalance
    host.join("", group_id="other", protocols=RANGE)
    host.advance(DELAY_MS + 1)
    other = host.group("other")
    (leader,) = other.members
    assert other.state is GroupState.COMPLETING_REBALANCE
    parked = host.join("", group_id="other").is_parked
    assert parked
    for group_id in (GROUP, "other"):
        host.manager.unload(host.manager.partition_of(group_id), None)
    await host.work()
    assert second.error == MOVED
    assert (host.heartbeat(first.member_id, 1), host.manager.groups) == (MOVED, {})
    assert host.heartbeat(leader, 1, group_id="other") == MOVED
    host.advance(10 * TIMEOUT_MS)
    assert host.manager.groups == {}
