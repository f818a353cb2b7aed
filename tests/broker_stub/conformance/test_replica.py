"""unit/kafka/cluster/ReplicaTest.scala and unit/kafka/server/IsrExpirationTest.scala (REP, IE).

Kafka writes a time at which nothing happened as 0, ours is minus infinity.
"""

from __future__ import annotations

import math

import pytest

from kce.broker_stub.followers import Follower, Followers
from kce.broker_stub.log.segments import OffsetMetadata

kafka = pytest.mark.kafka
NEVER, UNKNOWN = -math.inf, -1
NOW_MS = 1_000_000.0


class Replica:
    """Follower 2 of a partition, and a clock. ``max_lag_ms``: `replica.lag.time.max.ms`."""

    def __init__(self, max_lag_ms: float = 30_000) -> None:
        self.followers = Followers()
        self.followers.assign([2])
        self.now_ms = NOW_MS
        self._max_lag_ms = max_lag_ms

    @property
    def follower(self) -> Follower:
        found = self.followers.get(2)
        assert found is not None
        return found

    def fetch(self, offset: int, start: int, leader_end: int) -> float:
        self.follower.fetched(OffsetMetadata(offset), start, self.now_ms, leader_end)
        return self.now_ms

    def reset(self, leader_end: int, *, is_new_leader: bool, in_sync: bool) -> float:
        self.followers.new_epoch([2] if in_sync else [], leader_end, self.now_ms, is_new_leader=is_new_leader)
        return self.now_ms

    def state(self) -> tuple[int, int, float, int, float]:
        """(log start, log end, when it was caught up, the leader's end at its last fetch, when that was)."""
        f = self.follower
        return f.log_start_offset, f.end.offset, f.caught_up_ms, f.leader_end_offset, f.fetched_ms

    def is_caught_up(self, leader_end: int) -> bool:
        return self.follower.is_caught_up(leader_end, self.now_ms, self._max_lag_ms)

    def is_in_sync(self, leader_end: int) -> bool:
        out = self.followers.lagging([2], leader_end, self.now_ms, self._max_lag_ms)
        assert out <= {2}
        return not out


@kafka("REP-1")
def test_initial_state() -> None:
    assert Replica().state() == (UNKNOWN, UNKNOWN, NEVER, UNKNOWN, NEVER)


@kafka("REP-2")
def test_fetches() -> None:  # rule 9.44
    replica = Replica()
    first = replica.fetch(5, 1, 10)
    assert replica.state() == (1, 5, NEVER, 10, first)
    replica.now_ms += 10
    second = replica.fetch(10, 2, 15)
    assert replica.state() == (2, 10, first, 15, second)
    replica.now_ms += 10
    third = replica.fetch(15, 3, 15)
    assert replica.state() == (3, 15, third, 15, third)


@pytest.mark.parametrize(
    "in_sync", [pytest.param(True, marks=kafka("REP-3")), pytest.param(False, marks=kafka("REP-4"))]
)
def test_a_leader_that_is_elected_again(in_sync: bool) -> None:  # rule 9.43
    replica = Replica()
    replica.fetch(10, 1, 10)
    replica.now_ms += 10
    when = replica.reset(11, is_new_leader=False, in_sync=in_sync)
    assert replica.state() == (1, 10, when if in_sync else NEVER, 11, when if in_sync else NEVER)


@pytest.mark.parametrize(
    "in_sync", [pytest.param(True, marks=kafka("REP-5")), pytest.param(False, marks=kafka("REP-6"))]
)
def test_a_new_leader(in_sync: bool) -> None:  # rule 9.43
    replica = Replica()
    replica.fetch(10, 1, 10)
    replica.now_ms += 10
    when = replica.reset(11, is_new_leader=True, in_sync=in_sync)
    assert replica.state() == (UNKNOWN, UNKNOWN, when if in_sync else NEVER, UNKNOWN, NEVER)


@kafka("REP-7")
def test_whoever_is_at_the_leaders_end_is_caught_up() -> None:  # rule 9.44
    replica = Replica()
    assert not replica.is_caught_up(10)
    replica.fetch(10, 1, 10)
    assert replica.is_caught_up(10)
    replica.now_ms += 30_001
    assert replica.is_caught_up(10)


@kafka("REP-8")
def test_whoever_was_at_the_leaders_end_lately_is_caught_up() -> None:  # rule 9.44
    replica = Replica()
    assert not replica.is_caught_up(10)
    replica.fetch(5, 1, 10)
    assert not replica.is_caught_up(10)
    replica.fetch(10, 1, 15)
    assert replica.is_caught_up(16)
    replica.now_ms += 30_001
    assert not replica.is_caught_up(16)


LEADER_END = 20


@pytest.fixture
def in_isr() -> Replica:
    """In the ISR of a leader that had nothing when the follower fetched."""
    replica = Replica(max_lag_ms=100)
    replica.fetch(0, 0, 0)
    return replica


@kafka("IE-1")
def test_a_follower_that_is_stuck(in_isr: Replica) -> None:  # rule 9.44
    in_isr.fetch(LEADER_END - 1, 0, LEADER_END)
    assert in_isr.is_in_sync(LEADER_END)
    in_isr.now_ms += 150
    assert not in_isr.is_in_sync(LEADER_END)


@kafka("IE-2")
def test_a_follower_that_does_not_fetch(in_isr: Replica) -> None:  # rule 9.44
    in_isr.now_ms += 150
    assert not in_isr.is_in_sync(LEADER_END)


@kafka("IE-3")
def test_a_follower_that_is_slow(in_isr: Replica) -> None:  # rule 9.44
    in_isr.fetch(LEADER_END - 2, 0, LEADER_END)
    assert in_isr.is_in_sync(LEADER_END)
    in_isr.now_ms += 75
    in_isr.fetch(LEADER_END - 1, 0, LEADER_END)
    assert in_isr.is_in_sync(LEADER_END)
    in_isr.now_ms += 75
    assert not in_isr.is_in_sync(LEADER_END)
    in_isr.fetch(LEADER_END, 0, LEADER_END)
    assert in_isr.is_in_sync(LEADER_END)


@kafka("IE-4")
def test_a_follower_that_has_everything(in_isr: Replica) -> None:  # rule 9.44
    in_isr.fetch(LEADER_END, 0, LEADER_END)
    assert in_isr.is_in_sync(LEADER_END)
    in_isr.now_ms += 150
    assert in_isr.is_in_sync(LEADER_END)
