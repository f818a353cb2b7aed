"""A group from its first member to its last.

The cases of each request are in tests/broker_stub/conformance/.

Covers: broker_stub/groups/joining.py, broker_stub/groups/rebalancing.py.
"""

from __future__ import annotations

from trio.testing import MockClock

from kce.broker_stub.groups.group import GroupState
from kce.wire import ErrorCode
from tests.broker_stub.groups.support import DELAY_MS, TIMEOUT_MS, A, Host


async def test_a_life(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    first = host.join()
    host.advance(10)
    second = host.join()
    assert first.is_parked
    host.advance(2 * DELAY_MS)
    assert (first.error, second.error) == (ErrorCode.NONE, ErrorCode.NONE)
    leader, follower = first.answer, second.answer
    assert leader.generation == follower.generation == 1
    assert [m.member_id for m in leader.members] == [leader.member_id, follower.member_id]
    assert follower.members == ()
    waits = host.sync(1, follower.member_id)
    assert waits.is_parked
    assert host.sync(1, leader.member_id, {follower.member_id: b"f"}).answer.assignment == b""
    assert waits.answer.assignment == b"f"
    assert host.state() is GroupState.STABLE
    assert host.commit({A: 5}, leader.member_id, 1) == {A: 0}
    assert host.fetch(A) == {A: (5, 0)}
    assert host.leave(follower.member_id) == (0, [0])
    assert host.heartbeat(leader.member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    host.advance(TIMEOUT_MS)
    group = host.group()
    assert (group.state, group.protocol_name, group.leader, group.protocol_type) == (  # rule G2.10
        GroupState.EMPTY, None, None, "consumer",
    )  # fmt: skip


async def test_a_group_that_was_empty_waits_one_delay(mock_clock: MockClock) -> None:  # rule G3.36
    host = Host(mock_clock)
    host.leave(host.stable().member_id)
    joins = [host.join()]
    host.advance(DELAY_MS / 2)
    joins.append(host.join())
    host.advance(DELAY_MS / 2 + 1)
    assert [join.answer.generation for join in joins] == [3, 3]


async def test_the_initial_delay_ends_with_the_rebalance_timeout(mock_clock: MockClock) -> None:  # rule G3.35
    host = Host(mock_clock)
    first = host.join(rebalance_timeout_ms=DELAY_MS + 20)
    host.advance(10)
    second = host.join(rebalance_timeout_ms=DELAY_MS + 20)
    host.advance(DELAY_MS + 9)
    assert (first.is_parked, second.is_parked) == (True, True)
    host.advance(2)
    assert (first.error, second.error) == (ErrorCode.NONE, ErrorCode.NONE)
