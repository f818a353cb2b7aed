"""Topics that the controller's node creates, read right behind the write: a round trip less than after its event.

ZooKeeper executes the requests of a session in order, and reports a change before it answers a later read. So the
answer of such a read has all changes of /brokers/topics whose events come before it. It may lack those whose events
come after it, and events are handled together if they wait together. The write itself, or a change before it, has an
event before the answer. So the answer is not used if there was another one besides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final
from uuid import UUID

import trio

from kce.zookeeper.model import TopicAssignment
from kce.zookeeper.store import SessionExpired, StoreError

#: with more topics the controller begins to create the first of them before the last are written
MOST: Final = 16

#: names of all topics, and assignments of those that were asked for
TopicsRead = tuple[set[str], dict[str, TopicAssignment]]


class _Ahead:
    def __init__(self, ids: Mapping[str, UUID], events: int) -> None:
        self._ids = ids
        #: those that waited when the read was sent, as one, and those since then
        self.events = events
        self.found: TopicsRead | None = None
        self.done = trio.Event()

    @property
    def has_ours(self) -> bool:
        """Whether the write was done, and done before the read: after a connection loss it may not be."""
        if self.found is None:
            return False
        names, assignments = self.found
        return all(t in names and t in assignments and assignments[t].topic_id == i for t, i in self._ids.items())


class TopicsAhead:
    """One read that is under way, or whose answer is not used yet."""

    def __init__(self, read: Callable[[Collection[str]], Awaitable[TopicsRead]]) -> None:
        self._read = read
        self._ahead: _Ahead | None = None
        #: an event waits to be handled
        self._is_due = False

    async def read(self, ids: Mapping[str, UUID]) -> None:
        """Read the new topics, by name. Call when the write was sent, and nothing since."""
        ahead = self._ahead = _Ahead(ids, int(self._is_due))
        try:
            ahead.found = await self._read(ids)
        except (StoreError, SessionExpired):  # whoever needs it reads it again
            pass
        finally:
            ahead.done.set()

    def notified(self) -> None:
        """An event of /brokers/topics has come."""
        self._is_due = True
        if self._ahead is not None:
            self._ahead.events += 1

    async def take(self) -> TopicsRead | None:
        """What was read, with the changes of all events until now, which are handled with it; None: read it now."""
        ahead, self._ahead, self._is_due = self._ahead, None, False
        if ahead is None or ahead.events > 1:
            return None
        await ahead.done.wait()
        return ahead.found if ahead.has_ours else None

    def clear(self) -> None:
        """Forget the read: a later one is there, or nobody needs it."""
        self._ahead = None
