"""What the members of a consumer group have committed and owned, as they saw it, and what must hold of that.

A commit is a write, an OffsetFetch a read, of one register for each partition. A write whose outcome is unknown may
take effect at any time; of the others one that was acknowledged before the next one was sent is overwritten by it.
Clients of any kind may be asked: `examples/test_commits.py` does it with librdkafka's.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kce.wire.vocabulary import TopicPartition

#: (invariant, subject, text)
Violated = Callable[[str, object, str], None]
#: what OffsetFetch answers where nothing is committed
NOTHING = -1
MARK_BYTES = 4


@dataclass(slots=True)
class Commit:
    """``sent`` and ``acknowledged`` count the events of the history; the latter is None while it is unknown."""

    offset: int
    generation: int
    sent: int
    acknowledged: int | None = None


class CommitHistory:
    """``violated`` is called with what must not be."""

    def __init__(self, violated: Violated) -> None:
        self._violated = violated
        self._events = itertools.count()
        self._commits: defaultdict[TopicPartition, list[Commit]] = defaultdict(list)
        self._read: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        #: when the assignment of a generation was sent at first: after that it was written
        self._assigned: dict[int, int] = {}
        #: when a leader learned at first that it is written
        self._written: dict[int, int] = {}
        self._has_offsets = False
        self._owners: dict[tuple[bytes, TopicPartition], str] = {}

    @property
    def acknowledged(self) -> int:
        """How many commits."""
        return sum(commit.acknowledged is not None for commits in self._commits.values() for commit in commits)

    def now(self) -> int:
        """This moment, between what was seen before and what will be."""
        return next(self._events)

    # generations

    def assigning(self, generation: int) -> bytes:
        """A leader is about to send an assignment: the mark that makes it unique."""
        now = self.now()
        self._assigned.setdefault(generation, now)
        return now.to_bytes(MARK_BYTES)

    def assigned(self, generation: int) -> int:
        """When the assignment of the generation was sent at first."""
        return self._assigned.get(generation, 0)

    def written(self, generation: int) -> None:
        """The coordinator has answered the leader with the assignment that it had sent; of transactions: the producer
        with this epoch, which is their generation."""
        self._written.setdefault(generation, self.now())

    def owns(self, mark: bytes, member_id: str, partitions: Iterable[TopicPartition]) -> None:
        """The coordinator tells the member that these partitions are its own in the assignment with this mark."""
        for tp in partitions:
            owner = self._owners.setdefault((mark, tp), member_id)
            if owner != member_id:
                self._violated("assigned", (mark, tp), f"{owner} and {member_id} both own {tp} in one generation")

    # commits

    def read(self, tp: TopicPartition, offset: int) -> None:
        """A member has read the record at this offset."""
        self._read[tp].add(offset)

    def begin(self, tp: TopicPartition, offset: int, generation: int = 0) -> Commit:
        commit = Commit(offset, generation, self.now())
        self._commits[tp].append(commit)
        return commit

    def accepted(self, tp: TopicPartition, commit: Commit) -> None:
        """A member of an older generation must not be heard once a newer one is written.

        A group without members and offsets may be forgotten (rules G8.8, G8.9), and its generations begin again: those
        before the first commit count no more.
        """
        commit.acknowledged = self.now()
        if not self._has_offsets:
            self._has_offsets = True
            self._written = {commit.generation: commit.acknowledged}
        newer = [g for g, when in self._written.items() if g > commit.generation and when < commit.sent]
        if newer:
            text = f"a commit of generation {commit.generation} for {tp} was accepted after generation {max(newer)}"
            self._violated("offsets", (tp, commit.generation), text)

    def refused(self, tp: TopicPartition, commit: Commit) -> None:
        """It was certainly not written."""
        self._commits[tp].remove(commit)

    # reads

    def fetched(self, tp: TopicPartition, offset: int, before: int) -> None:
        """The coordinator says that this is committed; what was acknowledged before this moment it knows."""
        commits = self._commits[tp]
        latest = max((c.sent for c in commits if c.acknowledged is not None and c.acknowledged < before), default=-1)
        possible = {c.offset for c in commits if c.acknowledged is None or c.acknowledged > latest}
        if latest < 0:
            possible.add(NOTHING)
        if offset not in possible:
            text = f"{offset} is committed of {tp}, where {sorted(possible)} can be"
            self._violated("offsets", tp, text)
        if missed := set(range(offset)) - self._read[tp]:
            text = f"{offset} is committed of {tp}, but no member has read the record at {min(missed)}"
            self._violated("offsets", (tp, "unseen"), text)
