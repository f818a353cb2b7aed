"""From a store's connection thread to the trio task that waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import trio

log = logging.getLogger(__name__)


class Answer:
    """What kazoo tells the answer to one request, or the exception, on its thread; its own results have a lock each."""

    __slots__ = ("_told",)

    def __init__(self, told: Callable[[Any], None]) -> None:
        self._told = told

    def set(self, answer: Any) -> None:
        told, self._told = self._told, _nobody  # kazoo tells of a closed connection twice
        told(answer)

    set_exception = set


def _nobody(answer: Any) -> None:
    pass


class Pending:
    """The answers to one batch of requests; wakes its trio task once, when the last has come."""

    def __init__(self, token: trio.lowlevel.TrioToken, count: int) -> None:
        self.answers: list[Any] = [None] * count
        self._token = token
        self._missing = count
        self._lock = threading.Lock()
        self.done = trio.Event()

    def answer(self, index: int, read: Callable[[Any], Any]) -> Answer:
        """``read`` is given what kazoo has read, on kazoo's thread; exceptions are left to the waiting task."""

        def told(answer: Any) -> None:
            try:
                self.answers[index] = answer if isinstance(answer, Exception) else read(answer)
            except Exception as e:  # noqa: BLE001 - as above
                self.answers[index] = e
            with self._lock:  # a connection that is closed is told of on the trio thread
                self._missing -= 1
                if self._missing:
                    return
            in_trio(self._token, self.done.set)

        return Answer(told)


def in_trio(token: trio.lowlevel.TrioToken, call: Callable[..., object], *args: object) -> None:
    try:
        token.run_sync_soon(call, *args)
    except trio.RunFinishedError:
        log.debug("ZooKeeper said something after the end: %s", call)
