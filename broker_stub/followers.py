"""What a leader knows of its followers (rules 9.43 to 9.51, B4.41, B5.38)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from kce.broker_stub.log.segments import OffsetMetadata

UNKNOWN_OFFSET: Final = -1
_UNKNOWN: Final = OffsetMetadata(UNKNOWN_OFFSET)


@dataclass(slots=True)
class Follower:
    """One follower, as of its last fetch. Times are in ms of a clock that never goes back."""

    end: OffsetMetadata = _UNKNOWN
    log_start_offset: int = UNKNOWN_OFFSET
    #: when it had everything that the leader had then
    caught_up_ms: float = -math.inf
    fetched_ms: float = -math.inf
    #: the end of the leader's log at that fetch
    leader_end_offset: int = UNKNOWN_OFFSET
    #: when the leader's epoch began
    since_ms: float = -math.inf
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

    def was_idle_until(self, now_ms: float) -> None:
        """It had everything all the time, and its last fetch, of which it was not part, was then.

        That says nothing if the leader's epoch is newer.
        """
        if now_ms <= self.since_ms:
            return
        self.caught_up_ms = max(self.caught_up_ms, now_ms)
        self.fetched_ms = max(self.fetched_ms, now_ms)

    def is_caught_up(self, leader_end_offset: int, now_ms: float, max_lag_ms: float) -> bool:
        return self.end.offset == leader_end_offset or now_ms - self.caught_up_ms <= max_lag_ms


class Followers:
    """The followers of one partition that is led here; empty on a follower.

    They are few: a tuple takes a third of the memory of a table, in each of all partitions.
    """

    __slots__ = ("_all", "laggards")

    def __init__(self) -> None:
        self._all: tuple[Follower, ...] = ()
        #: they lag on command, whatever they have fetched
        self.laggards: Collection[int] = ()

    def get(self, broker_id: int) -> Follower | None:
        for follower in self._all:
            if follower.broker_id == broker_id:
                return follower
        return None

    def assign(self, broker_ids: Iterable[int]) -> None:
        """These are the followers now; what is known of them stays."""
        self._all = tuple(self.get(i) or Follower(broker_id=i) for i in dict.fromkeys(broker_ids))

    def relocate(self) -> None:
        """The leader's log has its records in other places now."""
        for follower in self._all:
            follower.end = OffsetMetadata(follower.end.offset)

    def new_epoch(
        self, in_sync: Collection[int], leader_end_offset: int, now_ms: float, *, is_new_leader: bool
    ) -> None:
        """The leader has a new epoch: who is in the ISR has the time of a lag to fetch."""
        for known in self._all:
            known.since_ms = now_ms
            known.caught_up_ms = now_ms if known.broker_id in in_sync else -math.inf
            if is_new_leader:
                known.end, known.log_start_offset, known.leader_end_offset = _UNKNOWN, UNKNOWN_OFFSET, UNKNOWN_OFFSET
                known.fetched_ms = -math.inf
            else:
                known.fetched_ms, known.leader_end_offset = known.caught_up_ms, leader_end_offset

    def high_watermark(
        self, end: OffsetMetadata, maximal_isr: Collection[int], joins: Callable[[int, Follower], bool]
    ) -> OffsetMetadata:
        """The least end of the leader, the maximal ISR, and of those who are about to join it (rule 9.50)."""
        lowest = end
        for follower in self._all:
            if follower.end.offset >= lowest.offset:
                continue
            broker_id = follower.broker_id
            if broker_id in maximal_isr or (broker_id not in self.laggards and joins(broker_id, follower)):
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
