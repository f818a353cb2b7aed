"""Runs an async context manager in a trio run of its own, in a thread, for several tests to share."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, Self, TypeVar

import trio

T = TypeVar("T")
R = TypeVar("R")


class InBackground(Generic[T]):
    """Enters and exits ``manager()`` in the thread. ``value`` is the result of entering it."""

    value: T

    def __init__(self, manager: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._manager = manager
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._stop: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as e:  # noqa: BLE001 - raised in the caller's thread
            self._failure = e
        finally:
            self._started.set()

    async def _serve(self) -> None:
        stop = trio.Event()
        self._token = token = trio.lowlevel.current_trio_token()
        self._stop = lambda: token.run_sync_soon(stop.set)
        async with self._manager() as self.value:
            self._started.set()
            await stop.wait()

    def call(self, function: Callable[..., Awaitable[R]], *arguments: object) -> R:
        """Run ``function`` in that trio run, and wait for its result."""
        return trio.from_thread.run(function, *arguments, trio_token=self._token)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure
