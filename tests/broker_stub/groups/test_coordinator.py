"""Members of a group: joining, syncing, heartbeats, leaving (sections 2 to 6 of the group rules).

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
    assert host.state() is GroupState.EMPTY
