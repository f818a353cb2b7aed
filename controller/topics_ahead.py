"""Topics that the controller's node creates, known before they are read after their event.

What the controller's node has written need not be read: its topics are created when the write is answered (the states
of their partitions are written with them, see `prepared_states`). Then the controller must find out what else has
changed, for which it has read everything right behind the write, a round trip earlier than after the event.

ZooKeeper executes the requests of a session in order, and reports a change before it answers a later read. So the
answer of such a read has all changes of /brokers/topics whose events come before it. It may lack those whose events
come after it, and events are handled together if they wait together. The write itself, or a change before it, has an
event before the answer. So the answer is not used if there was another one besides.

A controller that has nothing else to do does not wait for the event. It makes the transitions and the requests while
ZooKeeper writes, and uses the answer in any case, which has the change of the first event that comes before it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import trio

from kce.zookeeper.kafka_zk_client import Creation
from kce.zookeeper.model import TopicAssignment
from kce.zookeeper.store import SessionExpired, StoreError

#: with more topics the controller begins to create the first of them before the last are written
MOST: Final = 16

#: names of all topics, and assignments of those that were asked for
TopicsRead = tuple[set[str], dict[str, TopicAssignment]]


class Ahead:
    """A write, and the read behind it."""

    def __init__(self, creation: Creation, events: int, *, is_early: bool) -> None:
        self.creation = creation
        #: those that waited when the read was sent, as one, and those since then
        self.events = events
        #: handled without an event
        self.is_early = is_early
        self.found: TopicsRead | None = None
        self.done = trio.Event()

    async def written(self) -> Mapping[str, TopicAssignment]:
        """The new topics; none if the write may have failed, or there was another event."""
        if self.events > 1:
            return {}
        await self.creation.ended.wait()
        return self.creation.topics if self.creation.is_written else {}

    async def read(self) -> TopicsRead | None:
        """What was read, with the changes of all events until this was taken; None: read it now."""
        if self.events > 1:
            return None
        await self.done.wait()
        return self.found if self._has_ours else None

    @property
    def _has_ours(self) -> bool:
        """Whether the write was done, and done before the read: after a connection loss it may not be."""
        if self.found is None:
            return False
        names, read = self.found
        topics = self.creation.topics.values()
        return all(
            t.topic in names and t.topic in read and read[t.topic].topic_id == t.topic_id is not None for t in topics
        )


class TopicsAhead:
    """One write whose read is under way, or whose answer is not used yet."""

    def __init__(self, read: Callable[[Collection[str]], Awaitable[TopicsRead]]) -> None:
        self._read = read
        self._ahead: Ahead | None = None
        #: the last that needs no event
        self._early: Ahead | None = None
        #: an event waits to be handled
        self.is_due = False

    async def read(self, creation: Creation, *, is_early: bool = False) -> None:
        """Read the new topics. Call when the write was sent, and nothing since.

        ``is_early``: what is read is used in any case, without an event."""
        ahead = self._ahead = Ahead(creation, int(self.is_due), is_early=is_early)
        self._early = ahead if is_early else None
        try:
            ahead.found = await self._read(creation.topics)
        except (StoreError, SessionExpired):  # whoever needs it reads it again
            pass
        finally:
            ahead.done.set()

    def notified(self) -> bool:
        """An event of /brokers/topics has come. Whether it must be handled: not if a read that is used in any case will
        have its change."""
        early = self._early
        if early is not None and not early.events and not early.done.is_set():
            early.events = 1
            return False
        self.is_due = True
        if self._ahead is not None:
            self._ahead.events += 1
        return True

    def take(self) -> Ahead | None:
        """All events until now are handled with this."""
        ahead, self._ahead, self.is_due = self._ahead, None, False
        return ahead

    def clear(self) -> None:
        """Forget the read: a later one is there, or nobody needs it."""
        self._ahead = self._early = None
