"""Kafka's GroupCoordinatorTest: static members (KIP-345, KIP-814)."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from trio.testing import MockClock

from kce.broker_stub.groups.group import GroupState, IllegalState
from kce.broker_stub.groups.member import JoinResult
from kce.wire import ErrorCode
from tests.broker_stub.groups.support import CONSUMER, DELAY_MS, GROUP, RANGE, TIMEOUT_MS, A, Host

kafka = pytest.mark.kafka

LEADER, FOLLOWER = "leader", "follower"
BOTH = {LEADER, FOLLOWER}
SUPERSET = (("range", b"metadata"), ("roundrobin", b"metadata"))
ROUND_ROBIN = (("roundrobin", b"metadata"),)
NONE, FENCED, UNKNOWN = ErrorCode.NONE, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNKNOWN_MEMBER_ID
PREPARING, COMPLETING, STABLE = (
    GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE, GroupState.STABLE,
)  # fmt: skip


class Pair(NamedTuple):
    """A stable group of two static members, in generation 1."""

    host: Host
    leader_id: str
    follower_id: str
    generation: int = 1

    def join(self, member_id: str = "", instance_id: str = FOLLOWER, **more: Any) -> Any:
        return self.host.join(member_id, instance_id=instance_id, **{"protocols": SUPERSET, **more})


def pair(clock: MockClock, session_timeout_ms: int = TIMEOUT_MS) -> Pair:
    host = Host(clock)
    joins = [
        host.join(instance_id=i, protocols=SUPERSET, session_timeout_ms=session_timeout_ms) for i in (LEADER, FOLLOWER)
    ]
    host.advance(2 * DELAY_MS + 1)
    leader, follower = (join.answer for join in joins)
    assert leader.generation == follower.generation == 1
    assert host.synced(1, leader.member_id, {follower.member_id: b"follower's"}).error == NONE
    assert host.synced(1, follower.member_id).assignment == b"follower's"
    assert host.state() is STABLE
    return Pair(host, leader.member_id, follower.member_id)


def check(
    answer: JoinResult, error: ErrorCode, generation: int, instances: set[str], host: Host, state: GroupState
) -> None:
    assert (answer.error, answer.generation) == (error, generation)
    assert {member.group_instance_id for member in answer.members} == instances
    assert host.state() is state
    assert answer.protocol_type == (None if generation < 0 else CONSUMER)


@kafka("GC-27")
async def test_static_member_join_as_first_member(mock_clock: MockClock) -> None:
    assert Host(mock_clock).joined(instance_id="instance", requires_member_id=False).error == NONE


@kafka("GC-28")
async def test_static_member_rejoin_with_explicit_unknown_member_id(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    assert host.joined(instance_id="instance").error == NONE
    assert host.join("unknown_member", instance_id="instance").error == FENCED


@kafka("GC-29")
async def test_static_member_fence_duplicate_rejoined_follower(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    p.host.join()  # a third one, for a rebalance
    assert p.host.state() is PREPARING
    old = p.join(p.follower_id)
    duplicate = p.join()
    check(old.answer, FENCED, -1, set(), p.host, PREPARING)
    assert duplicate.is_parked


@kafka("GC-30")
async def test_static_member_fence_duplicate_syncing_follower_after_member_id_changed(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    leader = p.join(p.leader_id, LEADER)
    assert p.host.state() is PREPARING
    follower = p.join(p.follower_id)
    check(leader.answer, NONE, 2, BOTH, p.host, COMPLETING)
    check(follower.answer, NONE, 2, set(), p.host, COMPLETING)
    assert (leader.answer.member_id, leader.answer.leader) == (p.leader_id, p.leader_id)
    assert (follower.answer.member_id, follower.answer.leader) == (p.follower_id, p.leader_id)
    sync = p.host.sync(2, p.follower_id, instance_id=FOLLOWER)
    duplicate = p.join()
    assert sync.error == FENCED
    assert p.host.state() is PREPARING
    p.host.advance(TIMEOUT_MS + 1)
    check(duplicate.answer, NONE, 3, {FOLLOWER}, p.host, COMPLETING)
    assert duplicate.answer.leader == duplicate.answer.member_id


@kafka("GC-31")
async def test_static_member_fence_duplicate_rejoining_follower_after_member_id_changed(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    leader = p.join(p.leader_id, LEADER)
    assert p.host.state() is PREPARING
    duplicate = p.join()
    old = p.join(p.follower_id)
    check(leader.answer, NONE, 2, BOTH, p.host, COMPLETING)
    check(duplicate.answer, NONE, 2, set(), p.host, COMPLETING)
    assert duplicate.answer.member_id != p.follower_id
    check(old.answer, FENCED, -1, set(), p.host, COMPLETING)


@kafka("GC-32")
async def test_static_member_rejoin_with_known_member_id(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.joined(instance_id="instance")
    assert host.state() is COMPLETING
    again = host.join(joined.member_id, instance_id="instance").answer
    assert (again.error, host.state()) == (NONE, COMPLETING)
    assert host.synced(again.generation, joined.member_id, {}, instance_id="instance").error == NONE
    assert host.state() is STABLE


@kafka("GC-33")
@pytest.mark.parametrize("skips", [True, False])
async def test_static_member_rejoin_with_leader_id_and_unknown_member_id(mock_clock: MockClock, skips: bool) -> None:
    p = pair(mock_clock)
    written = len(p.host.log.records())
    answer = p.join("", LEADER, can_skip_assignment=skips).answer
    check(answer, NONE, 1, BOTH if skips else set(), p.host, STABLE)
    assert (answer.leader, answer.skip_assignment) == (answer.member_id if skips else p.leader_id, skips)
    assert len(p.host.log.records()) == written + 1
    assert p.join(p.leader_id, LEADER).error == FENCED
    assert p.host.sync(1, p.leader_id, instance_id=LEADER).error == FENCED
    assert p.host.sync(1, p.leader_id).error == UNKNOWN


@kafka("GC-34")
async def test_static_member_rejoin_with_leader_id_and_known_member_id(mock_clock: MockClock) -> None:
    p = pair(mock_clock, session_timeout_ms=TIMEOUT_MS // 2)
    join = p.join(p.leader_id, LEADER)
    p.host.advance(TIMEOUT_MS + 1)
    assert p.host.group().static_members == {LEADER: p.leader_id}
    check(join.answer, NONE, 2, {LEADER}, p.host, COMPLETING)
    assert (join.answer.leader, join.answer.member_id) == (p.leader_id, p.leader_id)


@kafka("GC-35")
async def test_static_member_rejoin_with_leader_id_and_unexpected_dead_group(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    p.host.group().move_to(GroupState.DEAD)
    assert p.join(p.leader_id, LEADER).error == ErrorCode.COORDINATOR_NOT_AVAILABLE


def force_empty(host: Host) -> None:
    host.group().move_to(PREPARING)
    host.group().move_to(GroupState.EMPTY)


@kafka("GC-36")
async def test_static_member_rejoin_with_leader_id_and_unexpected_empty_group(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    force_empty(p.host)
    assert p.join(p.leader_id, LEADER).error == UNKNOWN


@kafka("GC-37")
async def test_static_member_rejoin_with_follower_id_and_change_of_protocol(mock_clock: MockClock) -> None:
    p = pair(mock_clock, session_timeout_ms=2 * TIMEOUT_MS)
    join = p.join(p.follower_id, protocols=ROUND_ROBIN)
    p.host.advance(TIMEOUT_MS + 1)
    check(join.answer, NONE, 2, BOTH, p.host, COMPLETING)
    assert (join.answer.leader, join.answer.member_id) == (p.follower_id, p.follower_id)
    assert LEADER in p.host.group().static_members


@kafka("GC-38")
async def test_static_member_rejoin_with_selected_protocol_changed(mock_clock: MockClock) -> None:
    p = pair(mock_clock, session_timeout_ms=2 * TIMEOUT_MS)
    assert p.host.group().select_protocol() == "range"
    join = p.join(protocols=ROUND_ROBIN)
    p.host.advance(TIMEOUT_MS + 1)
    check(join.answer, NONE, 2, BOTH, p.host, COMPLETING)
    assert p.host.group().leader == join.answer.member_id != p.follower_id
    assert join.answer.protocol_name == "roundrobin"


@kafka("GC-39")
async def test_static_member_rejoin_while_protocol_unchanged_persistence_failure(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    p.host.log.error = ErrorCode.MESSAGE_TOO_LARGE
    answer = p.join(protocols=RANGE).answer
    check(answer, ErrorCode.UNKNOWN_SERVER_ERROR, 1, set(), p.host, STABLE)
    assert answer.member_id == ""
    assert p.join(p.follower_id, protocols=RANGE).error == NONE
    assert p.host.sync(1, p.follower_id, instance_id=FOLLOWER).error == NONE


def timeouts(host: Host) -> set[tuple[int, int]]:
    return {(m.session_timeout_ms, m.rebalance_timeout_ms) for m in host.group().members.values()}


TWICE = {"session_timeout_ms": 2 * TIMEOUT_MS, "rebalance_timeout_ms": 2 * TIMEOUT_MS}


@kafka("GC-40")
async def test_static_member_rejoin_with_updated_timeouts_but_cannot_persist_change(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    p.host.log.error = ErrorCode.MESSAGE_TOO_LARGE
    check(p.join(**TWICE).answer, ErrorCode.UNKNOWN_SERVER_ERROR, 1, set(), p.host, STABLE)
    assert timeouts(p.host) == {(TIMEOUT_MS, TIMEOUT_MS)}


@kafka("GC-41")
async def test_static_member_rejoin_with_updated_timeouts_and_persist_change(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    check(p.join(**TWICE).answer, NONE, 1, set(), p.host, STABLE)
    answer = p.join("", LEADER, **TWICE).answer
    check(answer, NONE, 1, BOTH, p.host, STABLE)
    assert (answer.leader, answer.skip_assignment) == (answer.member_id, True)
    assert timeouts(p.host) == {(2 * TIMEOUT_MS, 2 * TIMEOUT_MS)}


@kafka("GC-42")
async def test_static_member_rejoin_while_select_protocol_unchanged(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    answer = p.join(protocols=RANGE).answer
    check(answer, NONE, 1, set(), p.host, STABLE)
    assert answer.member_id != p.follower_id
    assert p.join(p.follower_id, protocols=RANGE).error == FENCED
    assert p.host.sync(1, p.follower_id, instance_id=FOLLOWER).error == FENCED
    synced = p.host.synced(1, answer.member_id, instance_id=FOLLOWER)
    assert (synced.error, synced.assignment) == (NONE, b"follower's")


@kafka("GC-43")
async def test_known_leader_rejoins_and_follower_changes_protocol(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    leader, follower = p.join(p.leader_id, LEADER), p.join(p.follower_id)
    check(leader.answer, NONE, 2, BOTH, p.host, COMPLETING)
    check(follower.answer, NONE, 2, set(), p.host, COMPLETING)
    assert {leader.answer.leader, follower.answer.leader} == {p.leader_id}
    changed = p.join(p.follower_id, protocols=RANGE)
    assert p.host.state() is PREPARING
    p.host.advance(TIMEOUT_MS + 1)
    check(changed.answer, NONE, 3, {FOLLOWER}, p.host, COMPLETING)
    assert (changed.answer.leader, changed.answer.member_id) == (p.follower_id, p.follower_id)


@kafka("GC-44")
async def test_static_member_rejoin_as_follower_with_unknown_member_id(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    answer = p.join().answer
    check(answer, NONE, 1, set(), p.host, STABLE)
    assert LEADER in p.host.group().static_members
    assert answer.member_id != p.follower_id
    synced = p.host.synced(1, answer.member_id)
    assert (synced.error, synced.assignment) == (NONE, b"follower's")


async def test_a_replaced_member_has_the_old_session_timeout_first(mock_clock: MockClock) -> None:  # rule G3.26
    p = pair(mock_clock)
    p.host.advance(TIMEOUT_MS / 2)
    assert p.host.heartbeat(p.leader_id, 1) == NONE
    assert p.join(session_timeout_ms=10 * TIMEOUT_MS).error == NONE
    p.host.advance(TIMEOUT_MS - 1)
    assert set(p.host.group().static_members) == BOTH
    p.host.advance(1)
    assert p.host.group().static_members == {}, "both were silent"


@kafka("GC-45")
async def test_static_member_rejoin_as_follower_with_known_member_id_and_no_change(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    answer = p.join(p.follower_id).answer
    check(answer, NONE, 1, set(), p.host, STABLE)
    assert LEADER in p.host.group().static_members
    assert (answer.leader, answer.member_id) == (p.leader_id, p.follower_id)


@kafka("GC-46")
async def test_static_member_rejoin_as_follower_with_mismatched_member_id(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    assert p.join(p.follower_id, LEADER).error == FENCED


@kafka("GC-47")
async def test_static_member_rejoin_as_leader_with_mismatched_member_id(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    assert p.join(p.leader_id, FOLLOWER).error == FENCED


@kafka("GC-48")
async def test_static_member_sync_as_leader_with_invalid_member_id(mock_clock: MockClock) -> None:
    assert pair(mock_clock).host.sync(1, "invalid", instance_id=LEADER).error == FENCED


@kafka("GC-49")
async def test_static_member_heartbeat_leader_with_invalid_member_id(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    assert p.host.sync(1, p.leader_id).error == NONE
    assert p.host.heartbeat(p.leader_id, 1) == NONE
    assert p.host.heartbeat("invalid", 1, instance_id=LEADER) == FENCED


@kafka("GC-50")
async def test_should_get_different_static_member_id_after_each_rejoin(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    ids = [p.leader_id, *(p.join("", LEADER, protocols=RANGE).answer.member_id for _ in range(5))]
    assert len(set(ids)) == 6
    assert all(member_id.startswith(f"{LEADER}-") for member_id in ids)


@kafka("GC-52")
async def test_static_member_commit_offset_with_invalid_member_id(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    assert p.host.sync(1, p.leader_id).error == NONE
    assert p.host.commit({A: 0}, p.leader_id, 1) == {A: NONE}
    assert p.host.commit({A: 0}, "invalid", 1, instance_id=LEADER) == {A: FENCED}


@kafka("GC-53")
async def test_static_member_join_with_unknown_instance_id_and_known_member_id(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    assert p.join(p.leader_id, "unknown_instance").error == UNKNOWN


@kafka("GC-54")
async def test_static_member_rejoin_with_illegal_state_as_unknown_member(mock_clock: MockClock) -> None:
    p = pair(mock_clock)
    force_empty(p.host)
    with pytest.raises(IllegalState) as caught:
        p.join()
    assert GROUP in str(caught.value)
    assert FOLLOWER in str(caught.value)


def stuck(clock: MockClock) -> Pair:
    """Only the absent static leader is left, and the join phase cannot end."""
    p = pair(clock, session_timeout_ms=2 * TIMEOUT_MS)
    group = p.host.group()
    dynamic = p.host.join(protocols=SUPERSET, session_timeout_ms=2 * TIMEOUT_MS)
    p.host.advance(TIMEOUT_MS + 1)
    answer = dynamic.answer
    assert (answer.error, answer.generation, answer.leader) == (NONE, 2, answer.member_id)
    assert (len(answer.members), group.state) == (3, COMPLETING)
    assert set(group.members) == {p.leader_id, p.follower_id, answer.member_id}
    assert p.host.leave(p.follower_id) == (NONE, [NONE])
    assert group.state is PREPARING
    p.host.advance(TIMEOUT_MS + 1)
    assert set(group.members) == {p.leader_id}
    assert (group.generation, group.state) == (2, PREPARING)
    return p


@kafka("GC-55")
async def test_leader_fail_to_rejoin_before_final_rebalance_timeout(mock_clock: MockClock) -> None:
    p = stuck(mock_clock)
    p.host.advance(TIMEOUT_MS + 1)
    group = p.host.group()
    assert (group.members, group.leader, group.generation, group.state) == ({}, None, 3, GroupState.EMPTY)


@kafka("GC-56")
async def test_leader_rejoin_before_final_rebalance_timeout(mock_clock: MockClock) -> None:
    p = stuck(mock_clock)
    answer = p.host.joined(instance_id=LEADER)
    check(answer, NONE, 3, {LEADER}, p.host, COMPLETING)
    group = p.host.group()
    assert (set(group.members), group.leader, group.generation) == ({answer.member_id}, answer.member_id, 3)


@kafka("GC-57")
async def test_static_member_follower_fail_to_rejoin_before_rebalance_timeout(mock_clock: MockClock) -> None:
    p = pair(mock_clock, session_timeout_ms=2 * TIMEOUT_MS)
    newcomer = p.join("", "newMember")
    assert p.host.state() is PREPARING
    leader = p.join(p.leader_id, LEADER)
    p.host.advance(TIMEOUT_MS + 1)
    check(leader.answer, NONE, 2, {*BOTH, "newMember"}, p.host, COMPLETING)
    check(newcomer.answer, NONE, 2, set(), p.host, COMPLETING)
    assert {leader.answer.leader, newcomer.answer.leader, leader.answer.member_id} == {p.leader_id}


@kafka("GC-58")
async def test_static_member_leader_fail_to_rejoin_before_rebalance_timeout(mock_clock: MockClock) -> None:
    p = pair(mock_clock, session_timeout_ms=2 * TIMEOUT_MS)
    newcomer = p.join("", "newMember")
    assert p.host.state() is PREPARING
    follower = p.join(p.follower_id)
    p.host.advance(TIMEOUT_MS + 1)
    answers = [newcomer.answer, follower.answer]
    (leads,) = [answer for answer in answers if answer.leader == answer.member_id]
    (follows,) = [answer for answer in answers if answer is not leads]
    check(leads, NONE, 2, {*BOTH, "newMember"}, p.host, COMPLETING)
    check(follows, NONE, 2, set(), p.host, COMPLETING)
    assert follows.leader == leads.member_id != p.leader_id
