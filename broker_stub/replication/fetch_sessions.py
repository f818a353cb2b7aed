"""Fetch sessions on the leader's side (KIP-227, rules B4.24 to B4.35).

A session remembers the partitions of a fetcher, so that a request lists only what has changed. It also remembers which
partitions are idle: their fetcher has all there is, and was told all. Those are not read again until ``touched`` says
that something happened to them, so that 100,000 idle partitions cost a fetch nothing. All of a session's partitions are
read at least every `RECHECK_S`.

    sessions = FetchSessions(slots, random, now)
    context = finish(sessions.context(...))     # what a request asks for; or raises Refused
    context.wanted()                            # its partitions that must be read
    finish(context.answered(reads))             # those to answer with; a new session is made now

A session may have very many partitions: what is done for each of them is done in steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from random import Random
from typing import Final, NamedTuple

from kce.broker_stub.errors import Refused
from kce.broker_stub.replication.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MAX_EPOCH,
    NO_SESSION,
    UNKNOWN,
    FetchSession,
    Key,
    Requested,
    Wanted,
    next_epoch,
)
from kce.broker_stub.replication.reading import Read
from kce.wire import ErrorCode
from kce.wire.long_messages import SHORT
from kce.wire.steps import STEP_MASK, Steps
from kce.wire.vocabulary import TopicPartition

#: rule B4.34
EVICTION_S: Final = 120.0
#: idle partitions are read that often, for what happens to a log by itself, such as its retention
RECHECK_S: Final = 30.0


class Newcomer(NamedTuple):
    """Whose fetch asks for a session."""

    replica_id: int
    uses_topic_ids: bool
    isolation_level: int


class FetchContext:
    """What one request asks for. ``session`` is None without one, and of a ``newcomer`` until the answer."""

    def __init__(
        self,
        sessions: FetchSessions,
        session: FetchSession | None,
        wanted: Iterable[Wanted] = (),
        *,
        newcomer: Newcomer | None = None,
        epoch: int | None = None,
    ) -> None:
        """``epoch``: of the session once it has the request, if that is some time ago."""
        self.session = session
        self._newcomer = newcomer
        self._sessions = sessions
        self._wanted = wanted
        self._epoch = epoch or (UNKNOWN if session is None else session.epoch)
        self._touched: set[TopicPartition] | None = None

    @property
    def session_id(self) -> int:
        """As the response has it, if that was ``answered``."""
        return NO_SESSION if self.session is None else self.session.id

    def wanted(self) -> list[Wanted]:
        """The partitions that must be read; idle ones are left out."""
        session = self.session
        if session is None:
            return list(self._wanted)
        return [cached.wanted for cached in session.in_turn()]

    def turn(self, requested: Requested) -> float:
        """When it is to be read, among the partitions of the session."""
        cached = None if self.session is None else self.session.partitions.get(requested.wanted.key)
        return math.inf if cached is None else cached.turn

    def resolved(self, wanted: Wanted, topic: str) -> None:
        """The session keeps the name, also when the broker forgets the topic, or knows another of that name."""
        cached = None if self.session is None else self.session.partitions.get(wanted.key)
        if cached is not None:
            cached.wanted = cached.wanted._replace(topic=topic)

    def touched(self, requested: Iterable[Requested]) -> list[Wanted]:
        """The partitions that something has happened to since they were idle, and that are not ``requested``."""
        session = self.session
        if session is None or not (keys := self._sessions.take_touched(session)):
            return []
        known = {one.wanted.key for one in requested}
        return [session.partitions[key].wanted for key in keys if key not in known and key in session.partitions]

    def begins_answer(self) -> None:
        """The partitions are read, and there are pauses before and while they are ``answered``.

        What happens to one of them until ``ends_answer`` is noticed: it is not idle then.
        """
        if self.session is not None or self._newcomer is not None:
            self._touched = self._sessions.begin_answer()

    def ends_answer(self) -> None:
        if self._touched is not None:
            self._sessions.end_answer(self._touched)

    def told(self, answers: Sequence[tuple[Requested, Read]]) -> Steps[list[tuple[Requested, Read]]]:
        """What the response would have."""
        session = self.session
        if session is None:
            return list(answers)
        told = []
        for i, (requested, read) in enumerate(answers, 1):
            known = session.partitions.get(requested.wanted.key)
            if known is not None and known.is_told(read):
                told.append((requested, read))
            if not i & STEP_MASK:
                yield
        return told

    def throttled(self) -> int:
        """The session of a response without partitions: a new one is not made (rule B4.32). Raises Refused."""
        if self.session is not None:
            self._check_epoch(self.session)
        return self.session_id

    def _check_epoch(self, session: FetchSession) -> None:
        """Raises Refused (rule B4.31)."""
        if session.epoch != self._epoch:
            raise Refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)

    def answered(self, answers: Sequence[tuple[Requested, Read]]) -> Steps[Sequence[tuple[Requested, Read]]]:
        """What the response has. Raises Refused (rule B4.31)."""
        if self._newcomer is not None:
            touched = () if self._touched is None else self._touched
            self.session = yield from self._sessions.new_session(self._newcomer, answers, touched)
            return answers
        session = self.session
        if session is None:
            return answers
        self._check_epoch(session)
        told = []
        for i, (requested, read) in enumerate(answers, 1):
            if self._is_told(session, requested, read):
                told.append((requested, read))
            if not i & STEP_MASK:
                yield
        return told

    def _is_told(self, session: FetchSession, requested: Requested, read: Read) -> bool:
        """Whether the response has it. The session remembers the answer."""
        key, partition = requested.wanted.key, requested.fetch.partition
        cached = session.partitions.get(key)
        if cached is None:
            return False
        is_told = cached.answered(read)
        if read.records:  # rule B4.30
            session.read_last(cached)
        if read.is_idle(requested.fetch.offset) and not (self._touched and partition in self._touched):
            self._sessions.rests(session, key, partition)
        return is_told


class FetchSessions:
    """The sessions of one broker. ``now``: seconds of a clock that never goes back."""

    def __init__(self, slots: int, random: Random, now: Callable[[], float], *, eviction_s: float = EVICTION_S) -> None:
        self._slots = slots
        self._eviction_s = eviction_s
        self._random = random
        self._now = now
        #: the least recently used first
        self._sessions: dict[int, FetchSession] = {}
        #: who has an idle partition, under which key
        self.resting: dict[TopicPartition, dict[int, Key]] = {}
        self._touched: dict[int, dict[Key, None]] = {}
        #: what was touched since each of the answers began that are under way
        self.answers: list[set[TopicPartition]] = []
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    @property
    def cached_partitions(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    # requests

    def context(
        self,
        session_id: int,
        epoch: int,
        replica_id: int,
        wanted: Sequence[Wanted],
        forgotten: Iterable[Key],
        *,
        uses_topic_ids: bool,
        isolation_level: int = 0,
    ) -> Steps[FetchContext]:
        """Raises Refused: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.remove(session_id)
            is_new = epoch == INITIAL_EPOCH
            newcomer = Newcomer(replica_id, uses_topic_ids, isolation_level) if is_new else None
            return FetchContext(self, None, wanted, newcomer=newcomer)
        known = self._sessions.get(session_id)
        if known is None:
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if known.epoch != epoch:
            raise Refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if known.uses_topic_ids != uses_topic_ids:
            raise Refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        known.epoch = next_epoch(epoch)
        yield from self._update(known, wanted, forgotten)
        if not known.partitions:
            self.remove(session_id)
            return FetchContext(self, None, wanted)
        yield from self._used(known)
        if known.isolation_level != isolation_level:  # who sees more has not all there is (rule B4.1)
            known.isolation_level = isolation_level
            yield from self._wake_each(known)
        return FetchContext(self, known)

    def in_step(self, session_id: int, epoch: int, replica_id: int, key: Key, now: float) -> FetchSession | None:
        """A follower's session, if that is its next epoch and all but that partition are idle, and need no look."""
        session = self._sessions.get(session_id)
        if session is None or session.epoch != epoch or session.replica_id != replica_id:
            return None
        if len(session.awake) != 1 or key not in session.awake or session_id in self._touched:
            return None
        return None if now - session.checked_at >= RECHECK_S or not session.uses_topic_ids else session

    def has_touched(self, session: FetchSession) -> bool:
        """Whether something happened to partitions that were idle."""
        return session.id in self._touched

    def used(self, session: FetchSession, key: Key, wanted: Wanted, now: float) -> None:
        """A request of a session ``in_step``."""
        session.want(key, wanted)
        session.epoch = next_epoch(session.epoch)
        session.last_used = now
        self._sessions[session.id] = self._sessions.pop(session.id)

    def _update(self, session: FetchSession, wanted: Iterable[Wanted], forgotten: Iterable[Key]) -> Steps[None]:
        """Rule B4.28."""
        for i, one in enumerate(wanted, 1):
            key = one.key
            self._wakes(session, key)
            session.want(key, one)
            if not i & STEP_MASK:
                yield
        for i, key in enumerate(forgotten, 1):
            self._wakes(session, key)
            session.forget(key)
            if not i & STEP_MASK:
                yield

    def _used(self, session: FetchSession) -> Steps[None]:
        session.last_used = now = self._now()
        if self._sessions.get(session.id) is session:  # otherwise it was evicted in a pause
            self._sessions[session.id] = self._sessions.pop(session.id)
        for key in self._touched.pop(session.id, ()):
            self._wakes(session, key)
        if now - session.checked_at >= RECHECK_S:
            session.checked_at = now
            yield from self._wake_each(session)

    def is_long(self, session_id: int) -> bool:
        """Whether the next request of the session asks for very many partitions that it does not name."""
        session = self._sessions.get(session_id)
        if session is None or len(session.partitions) <= SHORT:
            return False
        return len(session.awake) > SHORT or self._now() - session.checked_at >= RECHECK_S

    def new_session(
        self, newcomer: Newcomer, answers: Sequence[tuple[Requested, Read]], touched: Collection[TopicPartition]
    ) -> Steps[FetchSession | None]:
        """Make a session of its first response; None if there is no room (rules B4.25, B4.26, B4.34).

        ``touched``: what is not idle, by the time that it is looked at.
        """
        session = FetchSession(NO_SESSION, newcomer.replica_id, newcomer.uses_topic_ids, self._now())
        session.isolation_level = newcomer.isolation_level
        idle: list[tuple[Key, TopicPartition]] = []
        for i, (requested, read) in enumerate(answers, 1):
            key, partition = requested.wanted.key, requested.fetch.partition
            session.want(key, Wanted(partition.topic, *requested.wanted[1:]))
            session.partitions[key].answered(read)
            if read.is_idle(requested.fetch.offset):
                idle.append((key, partition))
            if not i & STEP_MASK:
                yield
        if not self._enter(session):
            return None
        for i, (key, partition) in enumerate(idle, 1):
            if partition not in touched:
                self.rests(session, key, partition)
            if not i & STEP_MASK:
                yield
        return session

    def _enter(self, session: FetchSession) -> bool:
        """Give it a place and an id, if there is room."""
        is_follower, size = session.replica_id >= 0, len(session.partitions)
        if len(self._sessions) >= self._slots and not self._evict(is_follower, size, session.created_at):
            return False
        session.id = self._random.randrange(1, MAX_EPOCH)
        while session.id in self._sessions:
            session.id = self._random.randrange(1, MAX_EPOCH)
        self._sessions[session.id] = session
        return True

    def _evict(self, is_follower: bool, size: int, now: float) -> bool:
        """Make room for a session of so many partitions; whether there is (rule B4.34)."""
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now - oldest.last_used > self._eviction_s:
            self.remove(oldest.id)
            self.evictions += 1
            return True
        candidates = [
            session
            for session in self._sessions.values()
            if session.last_used - session.created_at > self._eviction_s or (is_follower and session.replica_id < 0)
        ]
        least = min(candidates, key=lambda session: session.rank, default=None)
        if least is None or least.rank > (is_follower, size, NO_SESSION):
            return False
        self.remove(least.id)
        self.evictions += 1
        return True

    def remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._wake_all(session)
            self._touched.pop(session_id, None)

    # idle partitions

    def rests(self, session: FetchSession, key: Key, partition: TopicPartition) -> None:
        """There is nothing to say of it until it is touched."""
        if self._sessions.get(session.id) is session:
            session.idle[key] = partition
            session.awake.pop(key, None)
            self.resting.setdefault(partition, {})[session.id] = key

    def _wakes(self, session: FetchSession, key: Key) -> None:
        partition = session.idle.pop(key, None)
        if partition is not None:
            session.awake[key] = session.partitions[key]
            resting = self.resting[partition]
            resting.pop(session.id, None)
            if not resting:
                del self.resting[partition]

    def _wake_all(self, session: FetchSession) -> None:
        for key in list(session.idle):
            self._wakes(session, key)

    def _wake_each(self, session: FetchSession) -> Steps[None]:
        """`_wake_all` with pauses."""
        for i, key in enumerate(list(session.idle), 1):
            self._wakes(session, key)
            if not i & STEP_MASK:
                yield

    def begin_answer(self) -> set[TopicPartition]:
        """What is touched from now on, until ``end_answer``."""
        touched = set[TopicPartition]()
        self.answers.append(touched)
        return touched

    def end_answer(self, touched: set[TopicPartition]) -> None:
        self.answers = [answer for answer in self.answers if answer is not touched]

    def touched(self, partition: TopicPartition) -> list[FetchSession]:
        """Something happened to a partition: the sessions in which it was idle, and is not any more."""
        for answer in self.answers:
            answer.add(partition)
        resting = self.resting.get(partition)
        if resting is None:
            return []
        woken = []
        for session_id, key in list(resting.items()):
            session = self._sessions[session_id]
            self._wakes(session, key)
            self._touched.setdefault(session_id, {})[key] = None
            woken.append(session)
        return woken

    def take_touched(self, session: FetchSession) -> Collection[Key]:
        return self._touched.pop(session.id, ())
