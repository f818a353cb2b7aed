"""Delayed events, by trio's clock."""

from __future__ import annotations

from collections.abc import Callable

import trio

from kce.controller.events import ControllerEvent


class Scheduler:
    """Kafka's controller scheduler. Its tasks run in ``nursery`` and only ``put`` events."""

    def __init__(self, nursery: trio.Nursery, put: Callable[[ControllerEvent], None]) -> None:
        self._nursery = nursery
        self._put = put
        self._pending: set[trio.CancelScope] = set()

    def schedule(self, event: ControllerEvent, delay_seconds: float) -> None:
        scope = trio.CancelScope()
        self._pending.add(scope)
        self._nursery.start_soon(self._later, event, delay_seconds, scope)

    def clear(self) -> None:
        """Drop pending events (rule 4.27)."""
        for scope in self._pending:
            scope.cancel()

    async def _later(self, event: ControllerEvent, delay_seconds: float, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await trio.sleep(delay_seconds)
                self._put(event)
        finally:
            self._pending.discard(scope)
