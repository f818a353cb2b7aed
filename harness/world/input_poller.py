"""Calls back when sockets have input, many of them in one step of one task. Linux only.

A task that waits for a socket costs Trio a registration, a step and an outcome each time. Who can deal with input
outside of its task is called instead, by the poller of its Trio run.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Final

import trio

IS_AVAILABLE: Final = hasattr(select, "epoll")
#: looks for input in one pass of the loop: what came while others were served costs no pass of its own
LOOKS: Final = 3


class InputPoller:
    """``run`` calls back. Who is called must not raise."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._mask = select.EPOLLIN | select.EPOLLONESHOT
        #: by file descriptor that is registered; None if nobody waits
        self._callbacks: dict[int, Callable[[], None] | None] = {}

    def wait(self, fd: int, on_input: Callable[[], None]) -> None:
        """Call it once, as soon as there is input."""
        if fd in self._callbacks:
            self._epoll.modify(fd, self._mask)
        else:
            self._epoll.register(fd, self._mask)
        self._callbacks[fd] = on_input

    def stop(self, fd: int) -> None:
        """Nobody waits for input now."""
        self._callbacks[fd] = None

    def forget(self, fd: int) -> None:
        """Call before it is closed."""
        if fd in self._callbacks:
            del self._callbacks[fd]
            if not self._epoll.closed:  # the Trio run ends
                self._epoll.unregister(fd)

    async def run(self) -> None:
        """Until cancelled."""
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll)
                for _ in range(LOOKS):
                    events = self._epoll.poll(0)
                    if not events:
                        break
                    for fd, _ in events:
                        on_input = self._callbacks.get(fd)
                        if on_input is not None:
                            on_input()


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
