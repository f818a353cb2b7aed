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
    """The followers of one partition that is led here; empty on a follower."""

    __slots__ = ("_by_id", "laggards")

    def __init__(self) -> None:
        self._by_id: dict[int, Follower] = {}
        #: they lag on command, whatever they have fetched
        self.laggards: Collection[int] = ()

    def get(self, broker_id: int) -> Follower | None:
        return self._by_id.get(broker_id)

    def assign(self, broker_ids: Iterable[int]) -> None:
        """These are the followers now; what is known of them stays."""
        self._by_id = {i: self._by_id.get(i) or Follower() for i in broker_ids}

    def relocate(self) -> None:
        """The leader's log has its records in other places now."""
        for follower in self._by_id.values():
            follower.end = OffsetMetadata(follower.end.offset)

    def new_epoch(
        self, in_sync: Collection[int], leader_end_offset: int, now_ms: float, *, is_new_leader: bool
    ) -> None:
        """The leader has a new epoch: who is in the ISR has the time of a lag to fetch."""
        for broker_id, known in self._by_id.items():
            is_in_sync = broker_id in in_sync
            since = now_ms if is_in_sync else -math.inf
            self._by_id[broker_id] = (
                Follower(caught_up_ms=since, since_ms=now_ms)
                if is_new_leader
                else Follower(known.end, known.log_start_offset, since, since, leader_end_offset, now_ms)
            )

    def high_watermark(
        self, end: OffsetMetadata, maximal_isr: Collection[int], joins: Callable[[int, Follower], bool]
    ) -> OffsetMetadata:
        """The least end of the leader, the maximal ISR, and of those who are about to join it (rule 9.50)."""
        lowest = end
        for broker_id, follower in self._by_id.items():
            counts = broker_id in maximal_isr or (broker_id not in self.laggards and joins(broker_id, follower))
            if follower.end.offset < lowest.offset and counts:
                lowest = follower.end
        return lowest

    def low_watermark(self, log_start_offset: int, is_alive: Callable[[int], bool]) -> int:
        """The least start of a log, of the leader and of followers that are alive (rule B2.24)."""
        starts = (follower.log_start_offset for i, follower in self._by_id.items() if is_alive(i))
        return min((log_start_offset, *starts))

    def lagging(
        self, in_sync: Iterable[int], leader_end_offset: int, now_ms: float, max_lag_ms: float
    ) -> frozenset[int]:
        """Who of the ISR has not had everything for too long (rule 9.44)."""
        return frozenset(
            i
            for i in in_sync
            if (follower := self._by_id.get(i)) is None
            or i in self.laggards
            or not follower.is_caught_up(leader_end_offset, now_ms, max_lag_ms)
        )
