"""What a leader knows of its followers (rules 9.43 to 9.51)."""

from __future__ import annotations

import math

import pytest

from kce.broker_stub.followers import Follower, Followers
from kce.broker_stub.log.segments import OffsetMetadata


def followers(*ids: int) -> Followers:
    made = Followers()
    made.assign(ids)
    return made


def fetched(known: Followers, broker_id: int, offset: int, now_ms: float, leader_end: int, start: int = 0) -> None:
    follower = known.get(broker_id)
    assert follower is not None
    follower.fetched(OffsetMetadata(offset), start, now_ms, leader_end)


@pytest.mark.parametrize(
    ("offset", "caught_up_ms"),
    [
        (10, 200),  # it has all that the leader has now
        (11, 200),
        (9, 100),  # all that the leader had at its last fetch
        (7, 100),
        (6, 50),  # less than that: as before
    ],
)
def test_when_a_follower_had_everything(offset: int, caught_up_ms: float) -> None:  # rule 9.44
    follower = Follower(OffsetMetadata(6), 0, caught_up_ms=50, fetched_ms=100, leader_end_offset=7)
    follower.fetched(OffsetMetadata(offset), 3, now_ms=200, leader_end_offset=10)
    assert follower.caught_up_ms == caught_up_ms
    assert (follower.end.offset, follower.log_start_offset, follower.fetched_ms, follower.leader_end_offset) == (
        offset, 3, 200, 10,
    )  # fmt: skip
    follower.fetched(OffsetMetadata(offset), 3, now_ms=300, leader_end_offset=8)  # the leader's end does not go back
    assert follower.leader_end_offset == 10


def test_time_of_having_everything_never_goes_back() -> None:
    follower = Follower(caught_up_ms=500, fetched_ms=100, leader_end_offset=5)
    follower.fetched(OffsetMetadata(5), 0, now_ms=200, leader_end_offset=9)
    assert follower.caught_up_ms == 500
    follower.fetched(OffsetMetadata(9), 0, now_ms=300, leader_end_offset=9)
    assert follower.caught_up_ms == 500


@pytest.mark.parametrize(
    ("end", "now_ms", "lags"),
    [(10, 10_000, False), (9, 600, False), (9, 601, True), (11, 601, True)],
)
def test_who_lags(end: int, now_ms: float, lags: bool) -> None:  # rule 9.44
    known = followers(2)
    fetched(known, 2, 10, now_ms=100, leader_end=10)
    fetched(known, 2, end, now_ms=100, leader_end=12)
    assert known.lagging([2], 10, now_ms, max_lag_ms=500) == (frozenset([2]) if lags else frozenset())
    assert known.lagging([2, 7], 10, 10**9, 500) >= {7}  # nobody knows 7


def test_a_new_leader_starts_anew_and_a_new_epoch_keeps_ends() -> None:  # rule 9.43
    for is_new_leader in (True, False):
        known = followers(2, 3)
        for broker_id in (2, 3):
            fetched(known, broker_id, 8, now_ms=100, leader_end=9, start=4)
        known.new_epoch([2], 9, 700, is_new_leader=is_new_leader)
        found = [known.get(2), known.get(3)]
        assert [f.caught_up_ms for f in found if f] == [700, -math.inf]
        assert [f.end.offset for f in found if f] == ([-1, -1] if is_new_leader else [8, 8])
        assert [f.log_start_offset for f in found if f] == ([-1, -1] if is_new_leader else [4, 4])
        assert [f.fetched_ms for f in found if f] == ([-math.inf] * 2 if is_new_leader else [700, -math.inf])
        assert [f.leader_end_offset for f in found if f] == ([-1, -1] if is_new_leader else [9, 9])


def test_what_is_known_of_a_follower_stays_when_others_come_and_go() -> None:
    known = followers(2, 3)
    fetched(known, 2, 8, now_ms=100, leader_end=9)
    known.assign([2, 4])
    assert known.get(3) is None
    assert [f.end.offset for i in (2, 4) if (f := known.get(i))] == [8, -1]


def test_watermarks() -> None:  # rules 9.50, B2.24
    known = followers(2, 3, 4)
    for broker_id, end, start in ((2, 7, 5), (3, 5, 2), (4, 3, 1)):
        fetched(known, broker_id, end, now_ms=100, leader_end=9, start=start)
    end = OffsetMetadata(9)
    assert known.high_watermark(end, [2], lambda i, f, end: False).offset == 7
    assert known.high_watermark(end, [2, 3], lambda i, f, end: False).offset == 5
    assert known.high_watermark(end, [2], lambda i, f, end: f.end.offset == 3).offset == 3
    assert known.high_watermark(end, [], lambda i, f, end: False).offset == 9
    assert known.low_watermark(6, lambda i: i != 4) == 2
    assert known.low_watermark(0, lambda i: True) == 0


def test_a_follower_that_had_nothing_to_fetch_has_fetched() -> None:
    followers = Followers()
    followers.assign((2, 3))
    followers.new_epoch((), 0, 200, is_new_leader=True)
    follower, other = followers.get(2), followers.get(3)
    assert follower is not None
    assert other is not None
    follower.caught_up_ms, follower.fetched_ms = 50, 100
    followers.was_idle_until(2, 200)  # in an older epoch
    assert (follower.caught_up_ms, follower.fetched_ms) == (50, 100)
    followers.was_idle_until(2, 300)
    followers.was_idle_until(4, 300)
    assert (follower.caught_up_ms, follower.fetched_ms) == (300, 300)
    followers.was_idle_until(2, 250)
    assert (follower.caught_up_ms, follower.fetched_ms) == (300, 300)
    assert (other.caught_up_ms, other.fetched_ms) == (-math.inf, -math.inf)


@pytest.mark.parametrize("brokers", [(), (2,), (2, 3), (2, 3, 4), (2, 3, 4, 5)])
def test_as_many_followers_as_there_are_replicas(brokers: tuple[int, ...]) -> None:
    followers = Followers()
    followers.assign((3, 9, 4, 8, 5))
    kept = followers.get(3)
    followers.assign(brokers)
    assert [i for i in range(10) if followers.get(i) is not None] == list(brokers)
    assert followers.get(3) is (kept if 3 in brokers else None)
