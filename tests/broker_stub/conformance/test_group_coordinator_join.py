"""Kafka's GroupCoordinatorTest: JoinGroup of dynamic members, and requests while a partition is loaded."""

from __future__ import annotations

from collections import Counter

import pytest
from trio.testing import MockClock

from kce.broker_stub.groups.group import Group, GroupState
from kce.broker_stub.groups.member import Client, Member
from kce.wire import ErrorCode
from kce.wire.steps import finish
from tests.broker_stub.groups.support import (
    CONSUMER,
    DELAY_MS,
    GROUP,
    RANGE,
    TIMEOUT_MS,
    A,
    Host,
    settings,
)

kafka = pytest.mark.kafka

MAX_SIZE = 4
UNKNOWN, FULL = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED
#: whether a member is static
KINDS = pytest.mark.parametrize("instance_id", [None, "instance"])


def dead_group(host: Host, group_id: str = "deadGroup") -> Group:
    host.manager.groups[group_id] = Group(group_id, host.now_ms, GroupState.DEAD)
    return host.manager.groups[group_id]


@kafka("GC-1")
async def test_request_handling_while_loading_in_progress(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    other = "otherGroup"
    partition = host.manager.partition_of(GROUP)
    host.manager._owned.discard(partition)
    host.manager._loading.add(partition)
    assert host.join("memberId").error == loading
    assert host.join("memberId", instance_id="instance").error == loading
    assert host.sync(1, "memberId").error == ErrorCode.REBALANCE_IN_PROGRESS
    assert host.commit({A: 0}, "memberId", 1) == {A: loading}
    assert host.heartbeat("memberId", 1) == ErrorCode.NONE
    assert host.coordinator.describe(GROUP).error_code == loading
    assert finish(host.coordinator.list_groups())[0] == loading
    assert host.coordinator.delete([GROUP]) == {GROUP: loading}
    # other groups are served
    assert host.coordinator.describe(other).error_code == ErrorCode.NONE
    assert host.heartbeat("memberId", 1, group_id=other) == UNKNOWN
    # after an unload and a load the group is served
    host.manager.unload(partition, 1)
    host.manager.load(partition, 1)
    await host.work()
    assert host.coordinator.describe(GROUP).error_code == ErrorCode.NONE


@kafka("GC-2")
def test_offsets_retention_ms_integer_overflow() -> None:
    assert settings(offsets_retention_minutes=str(2**31 - 1)).offsets_retention_ms == (2**31 - 1) * 60_000


@kafka("GC-3")
async def test_join_group_wrong_coordinator(mock_clock: MockClock) -> None:
    host = Host(mock_clock, owns=False)
    assert host.join().error == ErrorCode.NOT_COORDINATOR
    assert host.join(instance_id="instance").error == ErrorCode.NOT_COORDINATOR


@kafka("GC-4")
async def test_join_group_should_receive_error_if_group_over_max_size(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joins = []
    for i in range(MAX_SIZE):
        joins.append(host.join(rebalance_timeout_ms=60_000))
        if i:
            host.advance(DELAY_MS)
    host.advance(DELAY_MS + 1)
    assert [join.error for join in joins] == [ErrorCode.NONE] * MAX_SIZE
    assert host.join(rebalance_timeout_ms=60_000).error == FULL


def split(errors: list[ErrorCode]) -> dict[ErrorCode, int]:
    return dict(Counter(errors))


ONE_TOO_MANY = {ErrorCode.NONE: MAX_SIZE, FULL: 1}


@kafka("GC-5")
async def test_dynamic_members_join_group_with_max_size_and_required_known_member(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    ids = [host.join(requires_member_id=True).answer.member_id for _ in range(MAX_SIZE + 1)]
    joins = [host.join(member_id, requires_member_id=True) for member_id in ids]
    host.advance(2 * (DELAY_MS + 1))
    errors = [join.error for join in joins]
    assert split(errors) == ONE_TOO_MANY
    assert [host.join(member_id, requires_member_id=True).error for member_id in ids] == errors


@kafka("GC-6")
async def test_dynamic_members_join_group_with_max_size(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joins = [host.join() for _ in range(MAX_SIZE + 1)]
    host.advance(2 * (DELAY_MS + 1))
    errors = [join.error for join in joins]
    assert split(errors) == ONE_TOO_MANY
    assert [host.join(join.answer.member_id).error for join in joins] == errors


@kafka("GC-7")
async def test_static_members_join_group_with_max_size(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    instances = [f"instance-id-{i}" for i in range(MAX_SIZE + 1)]
    joins = [host.join(instance_id=instance) for instance in instances]
    host.advance(2 * (DELAY_MS + 1))
    errors = [join.error for join in joins]
    assert split(errors) == ONE_TOO_MANY
    again = [host.join(j.answer.member_id, instance_id=i) for i, j in zip(instances, joins, strict=True)]
    assert [join.error for join in again] == errors


@kafka("GC-8")
async def test_dynamic_members_can_rejoin_group_with_max_size_while_rebalancing(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    ids = [host.join(requires_member_id=True).answer.member_id for _ in range(MAX_SIZE + 1)]
    first = [host.join(member_id) for member_id in ids]
    joins = [host.join(member_id) for member_id in ids]
    host.advance(2 * (DELAY_MS + 1))
    assert split([join.error for join in joins]) == ONE_TOO_MANY
    assert all(join.is_parked for join in first[:MAX_SIZE]), "rule G3.24: the first is never answered"


@kafka("GC-9")
async def test_last_joining_members_are_kicked_out_when_rejoining_group_with_max_size(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    ids = [f"member-{i}" for i in range(MAX_SIZE + 2)]
    group = host.manager.groups[GROUP] = Group(GROUP, host.now_ms, GroupState.STABLE)
    group.protocol_type = CONSUMER
    for member_id in ids:
        group.add(
            Member(
                member_id=member_id, instance_id=None, client=Client("c", "/h"), rebalance_timeout_ms=TIMEOUT_MS,
                session_timeout_ms=600_000, protocol_type=CONSUMER, protocols=RANGE,
            )
        )  # fmt: skip
    host.coordinator.rebalancing.prepare(group, "")
    joins = [host.join(member_id, session_timeout_ms=600_000) for member_id in ids]
    assert [join.error for join in joins] == [ErrorCode.NONE] * MAX_SIZE + [FULL] * 2
    assert list(group.members) == ids[:MAX_SIZE]


@kafka("GC-10")
async def test_join_group_session_timeout_too_small(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    assert host.join(session_timeout_ms=9).error == ErrorCode.INVALID_SESSION_TIMEOUT
    assert host.joined(session_timeout_ms=10).error == ErrorCode.NONE


@kafka("GC-11")
async def test_join_group_session_timeout_too_large(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    assert host.join(session_timeout_ms=600_001).error == ErrorCode.INVALID_SESSION_TIMEOUT
    assert host.joined(session_timeout_ms=600_000).error == ErrorCode.NONE


@kafka("GC-12")
@KINDS
async def test_join_group_unknown_consumer_new_group(mock_clock: MockClock, instance_id: str | None) -> None:
    host = Host(mock_clock)
    assert host.join("memberId", instance_id=instance_id).error == UNKNOWN
    assert GROUP not in host.manager.groups


@kafka("GC-13")
async def test_invalid_group_id(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    assert host.join(group_id="").error == ErrorCode.INVALID_GROUP_ID


@kafka("GC-14")
async def test_valid_join_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    assert host.joined().error == ErrorCode.NONE


@kafka("GC-15")
async def test_join_group_inconsistent_protocol_type(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    assert host.joined().error == ErrorCode.NONE
    assert host.join(protocol_type="connect").error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@kafka("GC-16")
@KINDS
async def test_join_group_with_empty_protocol_type(mock_clock: MockClock, instance_id: str | None) -> None:
    host = Host(mock_clock)
    assert host.join(protocol_type="", instance_id=instance_id).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@kafka("GC-17")
async def test_join_group_with_empty_group_protocol(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    assert host.join(protocols=()).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


NEW_MEMBER_MS = 5 * 60 * 1000


@kafka("GC-18")
async def test_new_member_timeout_completion(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    session_ms = NEW_MEMBER_MS + 5000
    join = host.join(session_timeout_ms=session_ms, rebalance_timeout_ms=2 * session_ms)
    host.advance(DELAY_MS + 1)
    joined = join.answer
    group = host.group()
    assert host.synced(joined.generation, joined.member_id, {joined.member_id: b""}).error == ErrorCode.NONE
    assert len(group.members) == 1
    host.advance(NEW_MEMBER_MS + 100)
    assert joined.member_id in group.members
    host.advance(session_ms - NEW_MEMBER_MS)
    assert group.members == {}


@kafka("GC-19")
async def test_new_member_join_expiration(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    session_ms = NEW_MEMBER_MS + 5000
    first = host.stable(session_timeout_ms=session_ms, rebalance_timeout_ms=2 * session_ms)
    group = host.group()
    assert host.state() is GroupState.STABLE
    # a second one begins a rebalance that the first does not join
    second = host.join(session_timeout_ms=session_ms, rebalance_timeout_ms=2 * session_ms)
    assert second.is_parked
    assert [member.is_new for member in group.members.values()] == [False, True]
    host.advance(NEW_MEMBER_MS + 1)
    assert (second.error, second.answer.member_id) == (UNKNOWN, "")
    assert list(group.members) == [first.member_id]
    assert group.members[first.member_id].is_new is False


async def two_joined(host: Host) -> tuple[str, str]:
    """Leader and follower of generation 2; nobody has sent SyncGroup."""
    first = host.stable()
    second = host.join()
    again = host.join(first.member_id)
    assert (again.answer.generation, second.answer.generation) == (2, 2)
    return first.member_id, second.answer.member_id


@kafka("GC-20")
async def test_new_member_failure_after_join_group_completion(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    await two_joined(host)
    assert host.state() is GroupState.COMPLETING_REBALANCE
    host.advance(TIMEOUT_MS + 1)
    assert (host.state(), host.group().members) == (GroupState.EMPTY, {})


@kafka("GC-21")
async def test_new_member_failure_after_sync_group_completion(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    leader, follower = await two_joined(host)
    assert host.synced(2, leader, {leader: b""}).error == ErrorCode.NONE
    assert host.synced(2, follower).error == ErrorCode.NONE
    assert host.state() is GroupState.STABLE
    host.advance(TIMEOUT_MS + 1)
    assert (host.state(), host.group().members) == (GroupState.EMPTY, {})


@kafka("GC-22")
async def test_join_group_inconsistent_group_protocol(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    first = host.join(protocols=RANGE)
    second = host.join(protocols=(("roundrobin", b"metadata"),))
    host.advance(DELAY_MS + 1)
    assert first.error == ErrorCode.NONE
    assert second.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@kafka("GC-23")
async def test_join_group_unknown_consumer_existing_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    assert host.joined().error == ErrorCode.NONE
    assert host.join("otherMemberId").error == UNKNOWN


@kafka("GC-24")
async def test_join_group_unknown_consumer_new_dead_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    dead_group(host)
    assert host.join("memberId", group_id="deadGroup").error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert host.join(group_id="deadGroup").error == ErrorCode.COORDINATOR_NOT_AVAILABLE


@kafka("GC-25")
async def test_sync_dead_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    dead_group(host)
    assert host.sync(1, "memberId", group_id="deadGroup").error == ErrorCode.COORDINATOR_NOT_AVAILABLE


@kafka("GC-26")
async def test_join_group_second_join_inconsistent_protocol(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    given = host.join(requires_member_id=True)
    assert given.error == ErrorCode.MEMBER_ID_REQUIRED
    member_id = given.answer.member_id
    assert host.join(member_id, protocols=()).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    join = host.join(member_id)
    assert join.is_parked
    host.advance(DELAY_MS + 1)
    assert join.error == ErrorCode.NONE


@kafka("GC-59")
async def test_join_group_protocol_type_is_not_provided_when_an_error_occurs(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    answer = host.join("memberId").answer
    assert (answer.error, answer.protocol_type, answer.protocol_name) == (UNKNOWN, None, None)


@kafka("GC-60")
async def test_join_group_returns_the_protocol_type(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    leader, follower = host.join(), host.join()
    host.advance(2 * DELAY_MS + 1)
    assert [join.answer.protocol_type for join in (leader, follower)] == [CONSUMER, CONSUMER]
    assert [join.error for join in (leader, follower)] == [ErrorCode.NONE, ErrorCode.NONE]


@kafka("GC-83")
async def test_join_group_from_unchanged_follower_does_not_rebalance(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    leader, follower = await two_joined(host)
    host.synced(2, leader, {leader: b""})
    again = host.join(follower)
    assert (again.error, again.answer.generation, again.answer.members) == (ErrorCode.NONE, 2, ())


@kafka("GC-84")
async def test_join_group_from_unchanged_leader_should_rebalance(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    again = host.join(joined.member_id)
    assert (again.error, again.answer.generation) == (ErrorCode.NONE, joined.generation + 1)


@kafka("GC-121")
async def test_generation_id_increments_on_rebalance(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    assert joined.generation == 1
    assert host.join(joined.member_id).answer.generation == 2


# pending members


@kafka("GC-85")
async def test_second_member_partially_join_and_timeout(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    host_id = host.stable(session_timeout_ms=60_000).member_id
    given = host.join(requires_member_id=True)
    assert given.error == ErrorCode.MEMBER_ID_REQUIRED
    group = host.group()
    assert (group.pending_members, list(group.members)) == ({given.answer.member_id}, [host_id])
    assert host.state() is GroupState.STABLE
    host.advance(TIMEOUT_MS + 1)
    assert (group.pending_members, list(group.members)) == (set(), [host_id])
    assert (host.state(), group.generation) == (GroupState.STABLE, 1)


def rebalance_with_pending(host: Host) -> tuple[list[str], str]:
    """Two members have rejoined, and wait for a third, which has only its id."""
    first = host.join(requires_member_id=True).answer.member_id
    joins = [host.join(first)]
    host.advance(DELAY_MS + 1)
    generation = joins[0].answer.generation
    assert host.synced(generation, first, {first: b""}).error == ErrorCode.NONE
    second = host.join(requires_member_id=True).answer.member_id
    pending = host.join(requires_member_id=True).answer.member_id
    waiting = [host.join(second), host.join(first)]
    assert all(join.is_parked for join in waiting)
    assert host.state() is GroupState.PREPARING_REBALANCE
    host.waiting = waiting  # type: ignore[attr-defined]
    return [second, first], pending


def ended_with(host: Host, count: int) -> bool:
    joins = host.waiting  # type: ignore[attr-defined]
    return [join.error for join in joins] == [ErrorCode.NONE] * 2 and len(host.group().members) == count


@kafka("GC-86")
async def test_join_group_completion_when_pending_member_joins(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    _, pending = rebalance_with_pending(host)
    third = host.join(pending)
    assert third.error == ErrorCode.NONE
    assert ended_with(host, 3)
    assert host.group().pending_members == set()


@kafka("GC-87")
async def test_join_group_completion_when_pending_member_times_out(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    rebalance_with_pending(host)
    host.advance(TIMEOUT_MS + 1)
    assert ended_with(host, 2)
    assert host.group().pending_members == set()


@kafka("GC-88")
async def test_pending_members_leaves_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    _, pending = rebalance_with_pending(host)
    assert host.leave(pending) == (ErrorCode.NONE, [ErrorCode.NONE])
    assert ended_with(host, 2)
    assert host.group().pending_members == set()


# the initial delay


@kafka("GC-157")
async def test_initial_rebalance_is_delayed_on_empty_group(
    mock_clock: MockClock,
) -> None:
    host = Host(mock_clock)
    join = host.join()
    host.advance(DELAY_MS / 2)
    assert join.is_parked
    host.advance(DELAY_MS / 2 + 1)
    assert join.error == ErrorCode.NONE


@kafka("GC-158")
async def test_rebalance_delay_is_reset_when_new_member_joins(
    mock_clock: MockClock,
) -> None:
    host = Host(mock_clock)
    first = host.join(rebalance_timeout_ms=3 * DELAY_MS)
    host.advance(DELAY_MS - 1)
    second = host.join(rebalance_timeout_ms=3 * DELAY_MS)
    host.advance(2)
    assert (first.is_parked, second.is_parked) == (True, True)
    host.advance(DELAY_MS / 2 + 1)
    assert (first.is_parked, second.is_parked) == (True, True)
    host.advance(DELAY_MS / 2)
    assert (first.error, second.error) == (ErrorCode.NONE, ErrorCode.NONE)


@kafka("GC-159")
async def test_should_delay_rebalance_up_to_rebalance_timeout(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joins = []
    for _ in range(2):
        joins.append(host.join(rebalance_timeout_ms=2 * DELAY_MS))
        host.advance(DELAY_MS - 1 if len(joins) == 1 else 0)
    host.advance(1)
    joins.append(host.join(rebalance_timeout_ms=2 * DELAY_MS))
    host.advance(DELAY_MS / 2)
    assert all(join.is_parked for join in joins)
    host.advance(DELAY_MS)
    assert [join.error for join in joins] == [ErrorCode.NONE] * 3
