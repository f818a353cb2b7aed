"""Shares the event loop between planes: the data plane works for a slice of time, then everything else has its turn.

All tasks of a Trio run that can go on do so before it looks for input again. With a thousand ready connections on the
data plane, a control request would wait for all of them. So their tasks ask for turns: once a slice is used up, the
others wait, first come, first served, until the loop has looked for input and has run the control plane's tasks.

On a busy machine the kernel's scheduler takes the processor from whoever has had their share, and a control request
that comes then waits for the next tick, with the whole process. So while control requests come to a process that has
lost the processor, its data plane pauses between slices: some of the share is left, and the process runs as soon as
there is something to do.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import trio

from kce.garbage import no_collection
from kce.wire.steps import Steps

T = TypeVar("T")

#: how long the data plane works between two looks for input
SLICE_SECONDS: Final = 0.0005
#: as many times as long while the plane with precedence is not in use: fewer looks, and more answers leave together
RELAXED: Final = 2
#: between two slices while the plane with precedence is in use and the machine is busy
PAUSE_SECONDS: Final = 0.001
#: the plane with precedence is in use for so long after each of its turns
IN_USE_SECONDS: Final = 0.1
#: the machine is busy for so long after a turn that took so long: the process had lost the processor
BUSY_SECONDS: Final = 1.0
LOST_SECONDS: Final = 0.002


class Turns(trio.abc.Instrument):
    """The turns of one plane. With the default there is no limit, and ``run`` has nothing to do."""

    def __init__(self, slice_seconds: float = math.inf, precedence: Turns | None = None) -> None:
        """While the plane with ``precedence`` is in use, slices are so long; on a busy machine, with pauses between."""
        self.slice_seconds = slice_seconds
        #: turns that were spent
        self.spent = 0
        self._precedence = precedence
        self._seen = 0
        self._in_use_until = self._busy_until = -math.inf
        #: since it was last looked whether to pause
        self._lost_processor = False
        self._left = self._next_slice()
        #: seconds of a typical turn
        self._typical = SLICE_SECONDS
        #: begin the turns of those who wait
        self._line: deque[Callable[[], None]] = deque()
        #: to be called at the end of the slice; None outside of one that ends with ``end_slice``
        self._later: list[Callable[[], None]] | None = None
        self._wanted = trio.Event()
        self._long = trio.Lock()

    @property
    def used_up(self) -> bool:
        """Whether a task has to ``wait`` before it works."""
        return self._left <= 0 or bool(self._line)

    def spend(self, seconds: float) -> None:
        """A task has worked for that long without a pause."""
        self.spent += 1
        self._left -= seconds
        self._lost_processor |= seconds > LOST_SECONDS
        self._typical += (seconds - self._typical) / 16

    def call(self, work: Callable[[], None]) -> None:
        """Call it now, or when it is its turn. It must not raise."""
        if self._left <= 0 or self._line:
            self._line_up(work)
        else:
            self._begin_slice()
            work()

    def later(self, work: Callable[[], None]) -> bool:
        """Whether it is called at the end of the slice: not outside of one, nor without a limit. It must not raise."""
        if self._later is None:
            return False
        self._later.append(work)
        return True

    def _begin_slice(self) -> None:
        if self._later is None and self.slice_seconds < math.inf:
            self._later = []

    def end_slice(self) -> None:
        """See `kce.broker_stub.ports.InTurns`."""
        for work in self._later or ():  # and what they add
            work()
        self._later = None

    def _line_up(self, begin: Callable[[], None]) -> None:
        if not self._line:
            self._wanted.set()
        self._line.append(begin)

    async def wait(self) -> None:
        """Wait for a turn."""
        turn = trio.Event()
        self._line_up(turn.set)
        await turn.wait()

    async def take(self, steps: Steps[T]) -> T:
        """The result of ``steps``, a slice in each turn."""
        began = trio.current_time()
        while True:
            try:
                next(steps)
            except StopIteration as e:
                self.spend(trio.current_time() - began)
                result: T = e.value
                return result
            now = trio.current_time()
            if now - began > SLICE_SECONDS:
                self.spend(now - began)
                if self.used_up:
                    await self.wait()
                else:
                    await trio.lowlevel.checkpoint()
                began = trio.current_time()

    async def pause(self, began: float) -> float:
        """Others have their turns, if the slice that began then is over. When the present one began."""
        elapsed = trio.current_time() - began
        if elapsed <= SLICE_SECONDS:
            return began
        self.spend(SLICE_SECONDS)  # the task may have waited for something, too
        if self.used_up:
            await self.wait()
        else:
            await trio.lowlevel.checkpoint()
        return trio.current_time()

    @asynccontextmanager
    async def long_request(self) -> AsyncIterator[None]:
        """Process one long request at a time in each plane, to bound memory. Disable garbage collection meanwhile:
        scanning millions of objects would stall the broker."""
        async with self._long:
            with no_collection():
                yield

    def after_io_wait(self, timeout: float) -> None:
        """Trio has looked for input: whoever waits has the next turn, else a slice begins."""
        if not self._line:
            self._left = self._next_slice()

    async def run(self) -> None:
        """Give turns until cancelled."""
        if self.slice_seconds == math.inf:
            return
        trio.lowlevel.add_instrument(self)
        try:
            while True:
                if not self._line:
                    self._wanted = trio.Event()
                    await self._wanted.wait()
                if self._is_to_pause():
                    await trio.sleep(PAUSE_SECONDS)
                else:
                    await trio.lowlevel.checkpoint()  # looks for input
                self._left = self._next_slice()
                self._begin_slice()
                for _ in range(min(len(self._line), max(1, int(self._left / max(self._typical, 1e-6))))):
                    self._line.popleft()()
                    if self._left <= 0:
                        break
                self.end_slice()
        finally:
            trio.lowlevel.remove_instrument(self)

    def _next_slice(self) -> float:
        """Seconds of the slice that begins."""
        is_relaxed = self._precedence is not None and not self._is_preceded(self._precedence)
        return self.slice_seconds * RELAXED if is_relaxed else self.slice_seconds

    def _is_preceded(self, precedence: Turns) -> bool:
        """Whether the plane with precedence is in use."""
        if precedence.spent != self._seen:
            self._seen = precedence.spent
            self._in_use_until = trio.current_time() + IN_USE_SECONDS
        elif self._in_use_until > -math.inf and trio.current_time() >= self._in_use_until:
            self._in_use_until = -math.inf
        return self._in_use_until > -math.inf

    def _is_to_pause(self) -> bool:
        if self._precedence is None:
            return False
        if self._lost_processor:
            self._lost_processor = False
            self._busy_until = trio.current_time() + BUSY_SECONDS
        return self._is_preceded(self._precedence) and trio.current_time() < self._busy_until
