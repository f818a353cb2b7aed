"""One fetch session: its partitions, what was last said of each, and the order in which they are read."""

from __future__ import annotations

import itertools
import operator
from typing import Final, NamedTuple
from uuid import UUID

from kce.broker_stub.replication.reading import PartitionFetch, Read
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition

NO_SESSION: Final = 0
#: epochs of a full fetch (rule B4.24)
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MAX_EPOCH: Final = 2**31 - 1
UNKNOWN: Final = -1

#: a partition of a topic by the number that is its id (a UUID's own hash costs more), or by name without ids
Key = tuple[int | str, int]


def next_epoch(epoch: int) -> int:
    """Rule B4.28."""
    return epoch + 1 if 0 <= epoch < MAX_EPOCH else 1


class Wanted(NamedTuple):
    """One partition of a request. ``topic_id`` is None in requests by name; ``topic`` is empty until it is resolved."""

    topic: str
    topic_id: UUID | None
    partition: int
    offset: int
    max_bytes: int
    log_start_offset: int
    leader_epoch: int
    last_fetched_epoch: int

    @property
    def key(self) -> Key:
        return (self.topic if self.topic_id is None else self.topic_id.int), self.partition


class Requested(NamedTuple):
    """One partition to read, or with its answer where it needs no read (rules B4.2, B4.3)."""

    wanted: Wanted
    fetch: PartitionFetch
    answer: Read | None


class Cached:
    """``high_watermark`` and ``log_start_offset`` as last answered. ``turn``: partitions are read in its order."""

    __slots__ = ("high_watermark", "log_start_offset", "turn", "wanted")

    def __init__(self, wanted: Wanted, turn: int) -> None:
        self.wanted = wanted
        self.turn = turn
        self.high_watermark = self.log_start_offset = UNKNOWN

    def is_told(self, read: Read) -> bool:
        """Whether an incremental response has the answer (rule B4.29)."""
        return (
            bool(read.records)
            or self.high_watermark != read.high_watermark
            or self.log_start_offset != read.log_start_offset
            or read.preferred_replica != UNKNOWN
            or read.diverging is not None
            or read.error != ErrorCode.NONE
        )

    def answered(self, read: Read) -> bool:
        """Remember the answer; whether an incremental response has it."""
        changed = self.is_told(read)
        self.high_watermark = UNKNOWN if read.error != ErrorCode.NONE else read.high_watermark
        self.log_start_offset = read.log_start_offset
        return changed


class FetchSession:
    """``replica_id``: of a follower, or -1."""

    __slots__ = (
        "_turns", "awake", "checked_at", "created_at", "epoch", "id", "idle", "isolation_level", "last_used",
        "partitions", "replica_id", "uses_topic_ids",
    )  # fmt: skip

    def __init__(self, session_id: int, replica_id: int, uses_topic_ids: bool, now: float) -> None:
        self.id = session_id
        self.replica_id = replica_id
        self.uses_topic_ids = uses_topic_ids
        self._turns = itertools.count()
        self.partitions: dict[Key, Cached] = {}
        #: those of which nothing is to be said; the partition by which they are touched
        self.idle: dict[Key, TopicPartition] = {}
        #: the others
        self.awake: dict[Key, Cached] = {}
        self.epoch = 1
        #: of its last request
        self.isolation_level = 0
        self.created_at = self.last_used = self.checked_at = now

    def want(self, key: Key, wanted: Wanted) -> None:
        """Another partition, or otherwise; not an idle one."""
        cached = self.partitions.get(key)
        if cached is None:
            self.partitions[key] = self.awake[key] = Cached(wanted, next(self._turns))
        else:
            cached.wanted = wanted if wanted.topic else Wanted(cached.wanted.topic, *wanted[1:])

    def forget(self, key: Key) -> None:
        """Not an idle one."""
        self.partitions.pop(key, None)
        self.awake.pop(key, None)

    def read_last(self, cached: Cached) -> None:
        """Rule B4.30."""
        cached.turn = next(self._turns)

    def in_turn(self) -> list[Cached]:
        """Those that are not idle."""
        return sorted(self.awake.values(), key=_turn)

    @property
    def rank(self) -> tuple[bool, int, int]:
        """The order of eviction: followers' sessions stay longest, then those with many partitions."""
        return self.replica_id >= 0, len(self.partitions), self.id


_turn: Final = operator.attrgetter("turn")
