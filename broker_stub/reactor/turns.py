"""Shares the event loop between planes: the data plane works for a slice of time, then everything else has its turn.

All tasks of a Trio run that can go on do so before it looks for input again. With a thousand ready connections on the
data plane, a control request would wait for all of them. So their tasks ask for turns: once a slice is used up, the
others wait, first come, first served, until the loop has looked for input and has run the control plane's tasks.
"""

from __future__ import annotations

import math
from typing import Final

import trio

#: how long the data plane works between two looks for input
SLICE_SECONDS: Final = 0.0005


class Turns:
    """The turns of one plane. With the default there is no limit, and ``run`` has nothing to do."""

    def __init__(self, slice_seconds: float = math.inf) -> None:
        self.slice_seconds = slice_seconds
        self._left = slice_seconds
        #: seconds of a typical turn
        self._typical = SLICE_SECONDS
        self._line = trio.lowlevel.ParkingLot()
        self._wanted = trio.Event()

    @property
    def used_up(self) -> bool:
        """Whether a task has to ``wait`` before it works."""
        return self._left <= 0 or len(self._line) > 0

    def spend(self, seconds: float) -> None:
        """A task has worked for that long without a pause."""
        self._left -= seconds
        self._typical += (seconds - self._typical) / 16

    async def wait(self) -> None:
        """Wait for a turn."""
        self._wanted.set()
        await self._line.park()

    async def run(self) -> None:
        """Give turns until cancelled."""
        while True:
            if not self._line:
                self._wanted = trio.Event()
                await self._wanted.wait()
            await trio.lowlevel.checkpoint()  # looks for input
            self._left = self.slice_seconds
            self._line.unpark(count=max(1, int(self.slice_seconds / max(self._typical, 1e-6))))
