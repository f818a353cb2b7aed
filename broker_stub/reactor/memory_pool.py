"""The memory for requests that are received or wait to be handled: `queued.max.request.bytes` (rule B1.25)."""

from __future__ import annotations

import trio


class MemoryPool:
    """Counts bytes, and never more than ``capacity``. Who needs more than is left waits; whose need fits is served.

    A need above the capacity can never be met: `queued.max.request.bytes` is at least `socket.request.max.bytes`.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._given_back = trio.Event()

    def try_take(self, count: int) -> bool:
        if self.used + count > self.capacity:
            return False
        self.used += count
        return True

    async def take(self, count: int) -> None:
        while not self.try_take(count):
            await self._given_back.wait()

    def give_back(self, count: int) -> None:
        self.used -= count
        if self._given_back.statistics().tasks_waiting:
            self._given_back.set()
            self._given_back = trio.Event()
