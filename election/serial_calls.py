"""A queue of calls, run one at a time, in order (rules E3.6, E3.18)."""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import trio

log = logging.getLogger(__name__)

Call = Callable[[], Awaitable[None]]


def start_unless_over(nursery: trio.Nursery, task: Callable[..., Awaitable[None]], *args: object) -> bool:
    """Start the task, unless the nursery is closing: reports that late are dropped (rule E11.16)."""
    try:
        nursery.start_soon(task, *args)
    except RuntimeError as e:
        log.debug("%s comes too late: %s", task, e)
        return False
    return True


class SerialCalls:
    """A queue, and a task that runs while it is not empty.

    ``turn`` gives other tasks the same exclusion.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._queue: collections.deque[Call] = collections.deque()
        self._running = False
        self._lock = trio.Lock()

    def post(self, call: Call) -> None:
        """Never waits."""
        self._queue.append(call)
        if not self._running:
            self._running = start_unless_over(self._nursery, self._run)

    def clear(self) -> None:
        self._queue.clear()

    @property
    def is_mine(self) -> bool:
        """Whether the current task has the turn."""
        return self._lock.statistics().owner is trio.lowlevel.current_task()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Exclude all other calls. Reentrant."""
        if self.is_mine:
            yield
        else:
            async with self._lock:
                yield

    async def _run(self) -> None:
        try:
            while self._queue:
                async with self._lock:
                    if self._queue:
                        await self._one(self._queue.popleft())
        finally:
            self._running = False

    async def _one(self, call: Call) -> None:
        try:
            await call()
        except Exception:
            log.exception("a call of an election service failed")
