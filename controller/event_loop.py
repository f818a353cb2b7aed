"""The controller's single writer: one FIFO queue, one task, one event at a time to completion (rules of section 3).

There are no priorities (3.1). The queue is unbounded, but equal pending watch events are one, so what an outage of
ZooKeeper or a storm of watches can put into it is bounded by the number of watched nodes.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Awaitable, Callable

import trio

from controller.events import ControllerEvent, ControllerState, ShutdownRequested

log = logging.getLogger(__name__)

Process = Callable[[ControllerEvent], Awaitable[None]]


class ControllerEventLoop:
    """``process`` handles one event; what escapes from it is logged and the loop goes on (3.4)."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._queue: collections.deque[ControllerEvent] = collections.deque()
        self._pending_watches: set[ControllerEvent] = set()
        self._filled = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._closing = False
        self.state = ControllerState.IDLE

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, event: ControllerEvent) -> None:
        """Append; never waits. After ``close`` the event is preempted at once."""
        if self._closing:
            event.preempt()
            return
        if event.coalesces:
            if event in self._pending_watches:
                return
            self._pending_watches.add(event)
        self._queue.append(event)
        self._idle = trio.Event() if self._idle.is_set() else self._idle
        self._filled.set()

    def clear_and_put(self, event: ControllerEvent) -> None:
        """Preempt all that is queued, in order, then append (rule 3.2). What is being processed goes on (3.40)."""
        drained, self._queue = self._queue, collections.deque()
        self._pending_watches.clear()
        for queued in drained:
            queued.preempt()
        self.put(event)

    def close(self) -> None:
        """Preempt what is queued and let ``run`` return after the event under way (rule 3.5)."""
        if not self._closing:
            self.clear_and_put(ShutdownRequested())
            self._closing = True

    async def run(self) -> None:
        while True:
            while not self._queue:
                self._idle.set()
                self._filled = trio.Event()
                await self._filled.wait()
            event = self._queue.popleft()
            if event.coalesces:
                self._pending_watches.discard(event)
            if isinstance(event, ShutdownRequested):
                self._idle.set()
                return
            self.state = event.state
            try:
                await self._process(event)
            except Exception:
                log.exception("event %s failed and is dropped", event)
            finally:
                self.state = ControllerState.IDLE

    async def wait_idle(self) -> None:
        """Until nothing is queued and nothing is being processed."""
        await self._idle.wait()
