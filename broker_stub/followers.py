"""What a leader knows of its followers (rules 9.43 to 9.51, B4.41, B5.38)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from kce.broker_stub.log.segments import OffsetMetadata

UNKNOWN_OFFSET: Final = -1
_UNKNOWN: Final = OffsetMetadata(UNKNOWN_OFFSET)
#: one object for all followers: each float has 24 bytes
_NEVER: Final = -math.inf


@dataclass(slots=True)
class Follower:
    """One follower, as of its last fetch. Times are in ms of a clock that never goes back."""

    end: OffsetMetadata = _UNKNOWN
    log_start_offset: int = UNKNOWN_OFFSET
    #: when it had everything that the leader had then
    caught_up_ms: float = _NEVER
    fetched_ms: float = _NEVER
    #: the end of the leader's log at that fetch
    leader_end_offset: int = UNKNOWN_OFFSET
    broker_id: int = -1

    def fetched(self, end: OffsetMetadata, log_start_offset: int, now_ms: float, leader_end_offset: int) -> None:
        """Record a fetch: the follower has everything before ``end``."""
        if end.offset >= leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif end.offset >= self.leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.end = end
        self.log_start_offset = log_start_offset
        self.leader_end_offset = max(leader_end_offset, self.leader_end_offset)
        self.fetched_ms = now_ms

    def is_caught_up(self, leader_end_offset: int, now_ms: float, max_lag_ms: float) -> bool:
        return self.end.offset == leader_end_offset or now_ms - self.caught_up_ms <= max_lag_ms


class Followers:
    """The followers of one partition that is led here; empty on a follower.

    Each partition has one: the usual two have places of their own, because a table takes more memory than they do.
    """

    __slots__ = ("_first", "_others", "_second", "_since_ms", "laggards")

    def __init__(self) -> None:
        self._first: Follower | None = None
        self._second: Follower | None = None
        self._others: tuple[Follower, ...] = ()
        #: when the leader's epoch began
        self._since_ms = _NEVER
        #: they lag on command, whatever they have fetched
        self.laggards: Collection[int] = ()

    @property
    def _all(self) -> tuple[Follower, ...]:
        first, second = self._first, self._second
        if first is None:
            return ()
        return (first,) if second is None else (first, second, *self._others)

    def get(self, broker_id: int) -> Follower | None:
        for follower in self._all:
            if follower.broker_id == broker_id:
                return follower
        return None

    def assign(self, broker_ids: Iterable[int]) -> None:
        """These are the followers now; what is known of them stays."""
        followers = [self.get(i) or Follower(broker_id=i) for i in dict.fromkeys(broker_ids)]
        self._first = followers[0] if followers else None
        self._second = followers[1] if len(followers) > 1 else None
        self._others = tuple(followers[2:])

    def was_idle_until(self, broker_id: int, now_ms: float) -> None:
        """A follower had everything all the time, and its last fetch, of which the partition was not part, was then.

        That says nothing if the leader's epoch is newer.
        """
        follower = self.get(broker_id)
        if follower is not None and now_ms > self._since_ms:
            follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
            follower.fetched_ms = max(follower.fetched_ms, now_ms)

    def relocate(self) -> None:
        """The leader's log has its records in other places now."""
        for follower in self._all:
            follower.end = OffsetMetadata(follower.end.offset)

    def new_epoch(
        self, in_sync: Collection[int], leader_end_offset: int, now_ms: float, *, is_new_leader: bool
    ) -> None:
        """The leader has a new epoch: who is in the ISR has the time of a lag to fetch."""
        self._since_ms = now_ms
        for known in self._all:
            known.caught_up_ms = now_ms if known.broker_id in in_sync else _NEVER
            if is_new_leader:
                known.end, known.log_start_offset, known.leader_end_offset = _UNKNOWN, UNKNOWN_OFFSET, UNKNOWN_OFFSET
                known.fetched_ms = _NEVER
            else:
                known.fetched_ms, known.leader_end_offset = known.caught_up_ms, leader_end_offset

    def high_watermark(
        self, end: OffsetMetadata, maximal_isr: Collection[int], joins: Callable[[int, Follower, int], bool]
    ) -> OffsetMetadata:
        """The least end of the leader, the maximal ISR, and of those who are about to join it (rule 9.50)."""
        if self._first is None:
            return end
        lowest = end
        for follower in self._all:
            if follower.end.offset >= lowest.offset:
                continue
            broker_id = follower.broker_id
            if broker_id in maximal_isr or (broker_id not in self.laggards and joins(broker_id, follower, end.offset)):
                lowest = follower.end
        return lowest

    def low_watermark(self, log_start_offset: int, is_alive: Callable[[int], bool]) -> int:
        """The least start of a log, of the leader and of followers that are alive (rule B2.24)."""
        starts = (follower.log_start_offset for follower in self._all if is_alive(follower.broker_id))
        return min((log_start_offset, *starts))

    def lagging(
        self, in_sync: Iterable[int], leader_end_offset: int, now_ms: float, max_lag_ms: float
    ) -> frozenset[int]:
        """Who of the ISR has not had everything for too long (rule 9.44)."""
        return frozenset(
            i
            for i in in_sync
            if (follower := self.get(i)) is None
            or i in self.laggards
            or not follower.is_caught_up(leader_end_offset, now_ms, max_lag_ms)
        )
