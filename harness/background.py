"""Tasks that cancellation from outside does not reach."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio


class BackgroundTasks:
    """Tasks that run until they return, or until ``running`` ends.

    A cluster that is cancelled, by Ctrl-C for example, must still close the ZooKeeper sessions of its nodes. The nodes
    and the proxies between them and ZooKeeper have to run until then.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._scopes: set[trio.CancelScope] = set()

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncIterator[BackgroundTasks]:
        """A task that raises cancels the block; the other tasks end with it."""
        async with trio.open_nursery() as nursery:
            tasks = cls(nursery)
            try:
                yield tasks
            finally:
                for scope in tasks._scopes:
                    scope.cancel()

    async def start(self, function: Callable[..., Awaitable[None]], *args: Any) -> Any:
        """Like `start` of a nursery. Until the task has started, cancelling the caller cancels it."""
        return await self._nursery.start(self._run, function, args)

    def start_soon(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Like `start_soon` of a nursery."""
        scope = trio.CancelScope(shield=True)
        self._scopes.add(scope)  # not in the task, which may begin after the end of the block
        self._nursery.start_soon(self._run_shielded, scope, function, args)

    async def _run(
        self, function: Callable[..., Awaitable[None]], args: tuple[Any, ...], task_status: trio.TaskStatus[Any]
    ) -> None:
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                await function(*args, task_status=_ShieldWhenStarted(task_status, scope))
            finally:
                self._scopes.discard(scope)

    async def _run_shielded(
        self, scope: trio.CancelScope, function: Callable[..., Awaitable[None]], args: tuple[Any, ...]
    ) -> None:
        try:
            with scope:
                await function(*args)
        finally:
            self._scopes.discard(scope)


class _ShieldWhenStarted(trio.TaskStatus[Any]):
    def __init__(self, status: trio.TaskStatus[Any], scope: trio.CancelScope) -> None:
        self._status = status
        self._scope = scope

    def started(self, value: Any = None) -> None:
        self._scope.shield = True
        self._status.started(value)
