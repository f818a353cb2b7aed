"""Calls back when sockets have input, many of them in one step of one task. Linux only.

A task that waits for a socket costs Trio a registration, a step and an outcome each time. Who can deal with input
outside of its task is called instead, by the poller of its Trio run.

A peer that sends its next request as soon as it has its answer would find this process asleep each time, and to wake it
takes as long as to serve the request. So where requests come that soon, the poller stays awake for them.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import trio

IS_AVAILABLE: Final = hasattr(select, "epoll")
#: looks for input in one pass of the loop: what came while others were served costs no pass of its own
LOOKS: Final = 3
#: how long the poller stays awake for the next input
AWAKE_SECONDS: Final = 0.00015
#: after which it stays awake no longer in one pass of the loop: other tasks run
PASS_SECONDS: Final = 0.0005
#: who looks twice in a longer time has left the processor to somebody else
OTHERS_SECONDS: Final = 0.00002

clock = time.perf_counter


class Patience:
    """Whether it is worth staying awake for the next input, from when the last ones came.

    It costs ``AWAKE_SECONDS`` of the processor if nothing comes, and never succeeds if the peer runs in this thread.
    """

    #: inputs in a row that must have come soon: at first, and at most if to stay awake was in vain time and again
    LEAST, MOST = 8, 1024
    #: failures count that much more than successes, of which so many count
    FAILURE, SUCCESSES = 16, 32
    #: what a failure counts that ended early, because others took the processor: it cost little
    SHORT_FAILURE = 2

    def __init__(self) -> None:
        self.is_worth_it = False
        self._soon = 0
        self._wanted = self.LEAST
        self._credit = 0

    def slept(self, seconds: float) -> None:
        """Until the next input, as long as it takes to wake up included."""
        self._soon = self._soon + 1 if seconds < 2 * AWAKE_SECONDS else 0
        if self._soon >= self._wanted:
            self.is_worth_it = True

    def succeeded(self) -> None:
        self._credit = min(self._credit + 1, self.SUCCESSES)
        self._wanted = self.LEAST

    def failed(self, cost: int = FAILURE) -> None:
        self._credit -= cost
        if self._credit < 0:
            self.is_worth_it = False
            self._soon = self._credit = 0
            self._wanted = min(2 * self._wanted, self.MOST)


class Waiter(NamedTuple):
    """Who waits for input. Neither call may raise."""

    on_input: Callable[[], None]
    #: at the end of a look for input that found some, once for all who share it
    after_look: Callable[[], None]


class InputPoller:
    """``run`` calls back. Sockets are registered once, edge-triggered: to wait again costs no system call."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._mask = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
        #: by file descriptor that is registered; None if nobody waits
        self._waiters: dict[int, Waiter | None] = {}
        #: what came for them is not announced again: nobody waited, or it has ended
        self._stale: set[int] = set()

    def wait(self, fd: int, waiter: Waiter, *, is_drained: bool) -> None:
        """Call it once, as soon as there is input. ``is_drained``: the last read got all that had come."""
        if fd not in self._waiters:
            self._epoll.register(fd, self._mask)
        elif not is_drained or fd in self._stale:
            self._stale.discard(fd)
            self._epoll.modify(fd, self._mask)
        self._waiters[fd] = waiter

    def stop(self, fd: int) -> None:
        """Nobody waits for input now."""
        self._waiters[fd] = None

    def forget(self, fd: int) -> None:
        """Call before it is closed."""
        if fd in self._waiters:
            del self._waiters[fd]
            self._stale.discard(fd)
            if not self._epoll.closed:  # the Trio run ends
                self._epoll.unregister(fd)

    async def run(self) -> None:
        """Until cancelled."""
        patience, looked_at = Patience(), -math.inf
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll)
                began = clock()
                if not patience.is_worth_it:
                    patience.slept(began - looked_at)
                looks, ends_at, all_wait = 0, began + PASS_SECONDS, False
                while looks < LOOKS or (all_wait and clock() < ends_at):
                    events = self._epoll.poll(0)
                    if not events and all_wait and patience.is_worth_it:
                        events = self._awake(patience)
                    if not events:
                        break
                    all_wait = self._call(events)
                    looks += 1
                looked_at = clock()

    def _call(self, events: Sequence[tuple[int, int]]) -> bool:
        """Call those who wait for this input; whether all of them wait again, and so no task is to run."""
        waiters = self._waiters
        ends = set()
        for fd, event in events:
            waiter = waiters.get(fd)
            if waiter is None or event != select.EPOLLIN:
                self._stale.add(fd)
            if waiter is not None:
                waiters[fd] = None
                waiter.on_input()
                ends.add(waiter.after_look)
        for after_look in ends:
            after_look()
        return all(waiters.get(fd) for fd, _ in events)

    def _awake(self, patience: Patience) -> list[tuple[int, int]]:
        """Look for input for a while, or until somebody else has had the processor and none came: then it is scarce."""
        now = clock()
        ends_at = now + AWAKE_SECONDS
        while now < ends_at:
            os.sched_yield()
            events = self._epoll.poll(0)
            before, now = now, clock()
            if events:
                patience.succeeded()
                return events
            if now - before > OTHERS_SECONDS:
                patience.failed(Patience.SHORT_FAILURE)
                return []
        patience.failed()
        return []


_of_run: Final[trio.lowlevel.RunVar[InputPoller]] = trio.lowlevel.RunVar("input poller")


def input_poller() -> InputPoller:
    """That of this Trio run, which runs until its end."""
    try:
        return _of_run.get()
    except LookupError:
        poller = InputPoller()
        _of_run.set(poller)
        trio.lowlevel.spawn_system_task(poller.run)
        return poller
