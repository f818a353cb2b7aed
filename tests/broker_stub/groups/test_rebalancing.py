"""When rebalances and sessions end, to the millisecond, and that nothing waits for what is over (section 12)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trio.testing import MockClock

from kce.broker_stub.groups.coordinator import Sync
from kce.broker_stub.groups.group import Group, GroupState, IllegalState
from kce.broker_stub.groups.joining import Join
from kce.broker_stub.groups.member import Client, JoinResult, Member, SyncResult
from kce.broker_stub.groups.rebalancing import DelayedSync
from kce.wire import ErrorCode
from tests.broker_stub.groups.support import DELAY_MS, GROUP, TIMEOUT_MS, Host, Result

LONG = {"session_timeout_ms": 5000, "rebalance_timeout_ms": 300}


def waiting(host: Host) -> tuple[int, int, int]:
    """How many session timers, joins and syncs there are."""
    of = host.coordinator.rebalancing
    return of.heartbeats.delayed, of.joins.delayed, of.syncs.delayed


def answered_after(host: Host, result: Result) -> int:
    """Milliseconds, below 1000."""
    for passed in range(1000):
        if not result.is_parked:
            return passed
        host.advance(1)
    raise AssertionError("it is still parked")


@pytest.mark.parametrize(
    ("delay_ms", "timeout_ms", "expected"), [(50, 500, 50), (50, 30, 50), (0, 500, 1), (0, 0, 1), (50, 0, 50)]
)
async def test_the_first_member_waits_for_others(
    mock_clock: MockClock, delay_ms: int, timeout_ms: int, expected: int
) -> None:  # rules G3.34, G12.2
    host = Host(mock_clock, group_initial_rebalance_delay_ms=str(delay_ms))
    first = host.join(rebalance_timeout_ms=timeout_ms)
    assert first.is_parked
    assert answered_after(host, first) == expected


@pytest.mark.parametrize(("timeout_ms", "expected"), [(500, 250), (130, 130), (200, 200), (60, 60)])
async def test_each_who_comes_meanwhile_extends_the_wait(
    mock_clock: MockClock, timeout_ms: int, expected: int
) -> None:  # rule G3.35
    host = Host(mock_clock, group_max_size="9")
    joins = [host.join(rebalance_timeout_ms=timeout_ms)]
    for _ in range(4):
        host.advance(DELAY_MS - 1)
        if not joins[0].is_parked:
            break
        joins.append(host.join(rebalance_timeout_ms=timeout_ms))
    came = (len(joins) - 1) * (DELAY_MS - 1)
    if joins[0].is_parked:
        assert came + answered_after(host, joins[0]) == expected
    assert {join.answer.generation for join in joins} == {1}


async def test_who_does_not_rejoin_in_time_is_left_out(mock_clock: MockClock) -> None:  # rules G3.37, G3.39
    host = Host(mock_clock)
    old = host.stable(**LONG)
    new = host.join(**LONG)
    assert answered_after(host, new) == 300
    assert list(host.group().members) == [new.answer.member_id]
    assert waiting(host) == (1, 0, 1)
    assert host.heartbeat(old.member_id, 2) == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_static_member_that_does_not_rejoin_stays(mock_clock: MockClock) -> None:  # rules G3.39, G3.40
    host = Host(mock_clock)
    old = host.stable(instance_id="i", **LONG)
    new = host.join(**LONG)
    host.advance(300)
    assert (new.answer.leader, len(host.group().members)) == (new.answer.member_id, 2)
    assert host.group().pending_syncs == {old.member_id, new.answer.member_id}
    # nobody has rejoined: the phase goes on
    host.leave(new.answer.member_id)
    assert host.state() is GroupState.PREPARING_REBALANCE
    host.advance(300)
    assert (host.state(), host.group().generation, waiting(host)[1]) == (GroupState.PREPARING_REBALANCE, 2, 1)
    again = host.join(old.member_id, instance_id="i", **LONG)
    assert (again.answer.generation, again.answer.leader) == (3, old.member_id)


async def test_who_does_not_sync_in_time_is_left_out(mock_clock: MockClock) -> None:  # rule G4.10
    host = Host(mock_clock)
    joined = host.join(**LONG)
    host.advance(DELAY_MS)
    assert waiting(host) == (1, 0, 1)
    host.advance(299)
    assert list(host.group().members) == [joined.answer.member_id]
    host.advance(1)
    assert (host.group().members, host.state(), waiting(host)) == ({}, GroupState.EMPTY, (0, 0, 0))


async def test_a_deadline_of_an_earlier_generation_does_nothing(mock_clock: MockClock) -> None:  # rule G4.10
    host = Host(mock_clock)
    host.stable(**LONG)
    rebalancing, group = host.coordinator.rebalancing, host.group()
    group.add_pending_sync(next(iter(group.members)))
    rebalancing.sync_deadline_passed(group, 0)
    assert group.state is GroupState.STABLE
    rebalancing.sync_deadline_passed(group, 1)
    assert group.state is GroupState.EMPTY


async def test_nothing_waits_for_who_has_left(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    pending = host.join(requires_member_id=True).answer.member_id
    assert waiting(host) == (2, 0, 0)
    host.leave(pending)
    assert host.group().pending_members == set()
    host.leave(joined.member_id)
    assert waiting(host) == (1, 0, 0)  # the pending id's timer ends by itself
    host.advance(TIMEOUT_MS)
    assert waiting(host) == (0, 0, 0)
    assert host.coordinator.rebalancing.heartbeats.watched == 0
    assert host.state() is GroupState.EMPTY


async def test_a_pending_id_holds_a_rebalance_up_until_it_is_gone(mock_clock: MockClock) -> None:  # rule G3.37
    host = Host(mock_clock)
    joined = host.stable(**LONG)
    host.join(requires_member_id=True, session_timeout_ms=100)
    again = host.join(joined.member_id, **LONG)
    assert again.is_parked
    assert answered_after(host, again) == 100
    assert again.answer.generation == 2


async def test_a_join_is_answered_when_its_member_leaves(mock_clock: MockClock) -> None:  # rule G5.5
    host = Host(mock_clock)
    host.stable(**LONG)
    new = host.join(instance_id="i", **LONG)
    host.leave(("", "i"))
    assert new.answer == JoinResult(member_id="", error=ErrorCode.UNKNOWN_MEMBER_ID)


async def test_a_member_whose_join_is_parked_lives_longer_than_its_session(mock_clock: MockClock) -> None:  # G12.8
    host = Host(mock_clock)
    first = host.stable(session_timeout_ms=100, rebalance_timeout_ms=400)
    host.advance(50)
    host.join(session_timeout_ms=5000, rebalance_timeout_ms=400)
    host.join(first.member_id, session_timeout_ms=100, rebalance_timeout_ms=400)
    assert host.state() is GroupState.COMPLETING_REBALANCE
    host.advance(99)
    assert first.member_id in host.group().members
    host.advance(1)
    assert first.member_id not in host.group().members


async def test_a_session_is_as_long_as_its_last_sign_of_life_says(mock_clock: MockClock) -> None:  # rule G12.9
    host = Host(mock_clock)
    joined = host.stable()
    host.advance(TIMEOUT_MS - 1)
    assert host.heartbeat(joined.member_id, 1) == ErrorCode.NONE
    assert not host.group().members[joined.member_id].was_heard
    host.advance(TIMEOUT_MS - 1)
    assert waiting(host) == (1, 0, 0)
    host.advance(1)
    assert (host.group().members, waiting(host)) == ({}, (0, 0, 0))


async def test_who_replaces_a_static_member_has_a_session_of_its_own(mock_clock: MockClock) -> None:  # rule G3.25
    host = Host(mock_clock)
    old = host.stable(instance_id="i")
    new = host.joined(instance_id="i")
    assert (new.error, new.member_id == old.member_id) == (ErrorCode.NONE, False)
    host.advance(TIMEOUT_MS - 1)
    assert list(host.group().members) == [new.member_id]
    host.advance(2)
    assert host.group().members == {}


async def test_a_parked_member_that_is_heard_of_has_no_timer(mock_clock: MockClock) -> None:  # rule G12.8
    host = Host(mock_clock)
    first = host.join(**LONG)
    second = host.join(**LONG)
    host.advance(2 * DELAY_MS + 1)
    joined = host.join(first.answer.member_id, protocols=(("range", b"other"),), **LONG)
    assert joined.is_parked
    assert waiting(host)[0] == 2
    member_id, generation = first.answer.member_id, second.answer.generation
    assert host.heartbeat(member_id, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert waiting(host)[0] == 1


async def test_all_that_is_parked_is_answered_when_the_group_is_led_elsewhere(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    host.stable(**LONG)
    join = host.join(**LONG)
    (new,) = (m.member_id for m in host.group().members.values() if m.on_join is not None)
    other = [host.join(group_id="other", **LONG) for _ in range(2)]
    host.advance(2 * DELAY_MS)
    sync = host.sync(1, other[1].answer.member_id, group_id="other")
    assert (join.is_parked, sync.is_parked, waiting(host)) == (True, True, (4, 1, 1))
    groups = [host.group(), host.group("other")]
    for name in (GROUP, "other"):
        host.manager.unload(host.manager.partition_of(name), None)
    await host.work()
    assert join.answer == JoinResult(member_id=new, error=ErrorCode.NOT_COORDINATOR)
    assert sync.answer == SyncResult(ErrorCode.NOT_COORDINATOR)
    assert [group.state for group in groups] == [GroupState.DEAD] * 2
    assert waiting(host) == (0, 1, 0)  # the join phase ends by itself
    host.advance(300)
    assert waiting(host) == (0, 0, 0)
    assert [group.pending_syncs for group in groups] == [set(), set()]


async def test_a_rebalance_takes_assignments_back(mock_clock: MockClock) -> None:  # rules G3.33, G4.7
    host = Host(mock_clock)
    joins = [host.join(**LONG) for _ in range(2)]
    host.advance(2 * DELAY_MS)
    leader, other = (join.answer.member_id for join in joins)
    parked = host.sync(1, other)
    host.join(leader, protocols=(("range", b"new"),), **LONG)
    assert parked.answer == SyncResult(ErrorCode.REBALANCE_IN_PROGRESS)
    assert (host.state(), host.group().pending_syncs, waiting(host)) == (
        GroupState.PREPARING_REBALANCE, set(), (2, 1, 0),
    )  # fmt: skip
    assert [member.assignment for member in host.group().members.values()] == [b"", b""]


async def test_a_loaded_group_has_session_timers(mock_clock: MockClock) -> None:  # rule G9.18
    first = Host(mock_clock, group_max_size="2")
    joins = [first.join(**LONG) for _ in range(2)]
    first.advance(2 * DELAY_MS)
    first.synced(1, joins[0].answer.member_id, {})
    for most, state in (("2", GroupState.STABLE), ("1", GroupState.PREPARING_REBALANCE)):
        second = Host(mock_clock, owns=False, group_max_size=most)
        second.log = second.manager._log = first.log  # type: ignore[assignment]
        second.manager.load(second.manager.partition_of(GROUP), 1)
        await second.work()
        assert (second.state(), waiting(second)[0]) == (state, 2)


async def test_an_answer_that_cannot_be_given_leaves_nothing_undone(mock_clock: MockClock) -> None:
    def fails(result: object) -> None:
        raise ValueError("the connection is gone")

    host = Host(mock_clock)
    joins = [host.join(**LONG) for _ in range(2)]
    host.advance(2 * DELAY_MS)
    leader, other = (join.answer.member_id for join in joins)
    host.synced(1, leader, {})
    assert host.group().pending_syncs == {other}
    with pytest.raises(ValueError, match="gone"):
        host.coordinator.sync(Sync(GROUP, 1, other), fails)
    assert host.group().pending_syncs == set()
    with pytest.raises(ValueError, match="gone"):
        host.coordinator.join(
            Join(
                group_id="g", member_id="", client=Client("c", "/h"), session_timeout_ms=100, rebalance_timeout_ms=100,
                protocol_type="consumer", protocols=(("range", b""),), requires_member_id=True,
            ),
            fails,
        )  # fmt: skip
    assert (len(host.group("g").pending_members), waiting(host)) == (1, (3, 0, 0))


async def test_what_waits_for_syncs_is_over(mock_clock: MockClock) -> None:  # rule G12.7
    host = Host(mock_clock)
    host.join(**LONG)
    host.advance(DELAY_MS)
    group, rebalancing = host.group(), host.coordinator.rebalancing
    known = {name: getattr(group, name) for name in Group.__slots__}
    others = (
        {"generation": 2}, {"pending_syncs": set()}, {"state": GroupState.PREPARING_REBALANCE},
        {"state": GroupState.EMPTY}, {"state": GroupState.DEAD},
    )  # fmt: skip
    assert not DelayedSync(rebalancing, group, 300).try_complete()
    for change in others:
        operation = DelayedSync(rebalancing, group, 300)
        for name, value in change.items():
            setattr(group, name, value)
        assert (operation.try_complete(), operation.is_completed) == (True, True), change
        for name, value in known.items():
            setattr(group, name, value)
    group.state = GroupState.STABLE
    assert not DelayedSync(rebalancing, group, 300).try_complete()


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("is_stable", [True, False])
async def test_other_protocols_begin_a_rebalance(
    mock_clock: MockClock, is_stable: bool, leads: bool, caplog: pytest.LogCaptureFixture
) -> None:  # rules G3.20, G3.21
    host = Host(mock_clock)
    joins = [host.join(**LONG) for _ in range(2)]
    host.advance(2 * DELAY_MS)
    leader, other = (join.answer.member_id for join in joins)
    if is_stable:
        host.synced(1, leader, {})
    who = leader if leads else other
    caplog.set_level("INFO")
    again = host.join(who, protocols=(("range", b"new"),), session_timeout_ms=4000, rebalance_timeout_ms=200)
    assert (again.is_parked, host.state()) == (True, GroupState.PREPARING_REBALANCE)
    (line,) = (message for message in caplog.messages if "rebalance, because" in message)
    kind = "leader" if leads else "member"
    assert line.endswith(f"rebalance, because {kind} {who} rejoins; its reason: not provided")
    member = host.group().members[who]
    assert (member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms) == (
        (("range", b"new"),), 4000, 200,
    )  # fmt: skip


async def test_only_members_sync(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    host.stable()
    for change in (host.group().add_pending_sync, host.group().remove_pending_sync):
        with pytest.raises(IllegalState, match="other is no member"):
            change("other")
    assert host.group().pending_syncs == set()


async def test_nothing_is_watched_that_is_over(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    of = host.coordinator.rebalancing
    joins = [host.join(**LONG) for _ in range(2)]
    host.advance(2 * DELAY_MS)
    leader, other = (join.answer.member_id for join in joins)
    assert (of.joins.watched, of.syncs.watched) == (2, 1)  # those that end with a delay stay until they are purged
    for member_id in (other, leader):
        host.sync(1, member_id)
    assert of.syncs.watched == 0
    host.join(other, protocols=(("range", b"new"),), **LONG)
    assert of.joins.watched == 1
    host.join(leader, **LONG)
    assert (host.group().generation, of.joins.watched, of.syncs.watched) == (2, 0, 1)
    assert (of.heartbeats.watched, waiting(host)) == (2, (2, 0, 1))


async def test_who_does_not_fit_is_no_member(mock_clock: MockClock) -> None:  # rule G3.15
    host = Host(mock_clock)
    host.stable(instance_id="i")
    group = host.group()
    (known,) = group.members.values()
    before = dict(group.members)
    for change in ({"member_id": "x"}, {"member_id": "x", "instance_id": None, "protocols": (("other", b""),)}):
        with pytest.raises(IllegalState):
            group.add(replace(known, **change))  # type: ignore[arg-type]
    assert (group.members, group.static_members, group.awaiting_join) == (before, {"i": known.member_id}, 0)


async def test_a_parked_member_that_is_removed_is_waited_for_no_more(mock_clock: MockClock) -> None:  # rule G3.37
    host = Host(mock_clock)
    host.join(**LONG)
    group = host.group()
    (member_id,) = group.members
    assert group.awaiting_join == 1
    group.remove(member_id)
    assert (group.awaiting_join, group.members) == (0, {})


def test_of_a_protocol_that_is_named_twice_the_first_counts() -> None:
    """As in Kafka's `MemberMetadata.metadata`."""
    protocols = (("range", b"first"), ("other", b""), ("range", b"second"))
    member = Member(
        member_id="a", instance_id=None, client=Client("", ""), rebalance_timeout_ms=1, session_timeout_ms=1,
        protocol_type="consumer", protocols=protocols,
    )  # fmt: skip
    assert [member.metadata(name) for name in ("range", "other")] == [b"first", b""]
    with pytest.raises(KeyError):
        member.metadata("none")
