"""Calls of functions on the Trio thread, in the order in which any thread asks for them."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator

import trio

log = logging.getLogger(__name__)


class TrioCalls:
    """Calls of one Trio run; after its end, they are dropped."""

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self._token = token
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._are_held = False

    def soon(self, call: Callable[..., object], *args: object) -> None:
        """Call ``call(*args)`` soon; any thread may ask for it."""
        self._calls.append((call, args))
        if self._are_held:
            return
        try:
            self._token.run_sync_soon(self._run, idempotent=True)
        except trio.RunFinishedError:
            log.debug("dropped, because the trio run has ended: %s", call)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """On the Trio thread: make the calls at the end of the block, which saves waking that thread."""
        self._are_held = True
        try:
            yield
        finally:
            self._are_held = False
            self._run()

    def _run(self) -> None:
        while self._calls:
            call, args = self._calls.popleft()
            call(*args)
