"""Operations that wait for a condition or their timeout (rules B2.1 to B2.10).

An operation is watched under several keys. Whoever changes what belongs to a key calls ``check_and_complete`` with it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Hashable
from typing import Any, ClassVar, Final, Generic, TypeVar

from kce.broker_stub.purgatory.timing_wheel import Timed, Timer

#: rule B2.5
PURGE_INTERVAL: Final = 1000

K = TypeVar("K", bound=Hashable)
O = TypeVar("O", bound="DelayedOperation")  # noqa: E741 - of a purgatory's operations


class DelayedOperation(Timed):
    """Completed once: by ``try_complete`` when its condition is met, or when its timeout has passed (rule B2.1)."""

    __slots__ = ("_purgatory", "delay_ms", "is_completed")

    #: whether a timeout of 0 passes in the call that begins to wait
    expires_at_once: ClassVar = True

    def __init__(self, delay_ms: float) -> None:
        self.deadline_ms, self.bucket = 0, None  # without a call of super(): there are many operations
        self.delay_ms = delay_ms
        self.is_completed = False
        #: while it has a timeout
        self._purgatory: Purgatory[Any, Any] | None = None

    @abstractmethod
    def try_complete(self) -> bool:
        """Call ``force_complete`` and return its result if the condition is met; else return False."""

    @abstractmethod
    def on_complete(self) -> None:
        """Called once, whether the condition was met or the timeout has passed."""

    def on_expiration(self) -> None:
        """Called after ``on_complete`` if the timeout has passed."""

    def force_complete(self) -> bool:
        """Whether this call completed it."""
        if self.is_completed:
            return False
        self.is_completed = True
        self.cancel()
        self.on_complete()
        return True

    def run(self) -> None:
        """The timeout has passed."""
        if self.force_complete():
            self.on_expiration()

    def cancel(self) -> None:
        """Cancel the timeout."""
        self.take_out()
        if self._purgatory is not None:
            self._purgatory.delayed -= 1
            self._purgatory = None


class Purgatory(Generic[K, O]):
    """The operations of one kind."""

    def __init__(self, timer: Timer, *, purge_interval: int = PURGE_INTERVAL) -> None:
        self._timer = timer
        self._purge_interval = purge_interval
        #: by key, what `check_and_complete` looks at
        self.watchers: dict[K, dict[O, None]] = {}
        #: operations that wait for their timeout
        self.delayed = 0
        #: the same, and those that were completed since the last purge
        self._estimated = 0

    @property
    def watched(self) -> int:
        """An operation under three keys counts three times; a completed one until it is purged (rule B2.9)."""
        return sum(map(len, self.watchers.values()))

    def try_complete_or_watch(self, operation: O, keys: Collection[K]) -> bool:
        """Whether it is completed. At least one key (rule B2.2)."""
        if operation.try_complete():
            return True
        self._add(operation, keys)
        return operation.try_complete() or self._start(operation)

    def watch(self, operation: O, keys: Collection[K]) -> bool:
        """``try_complete_or_watch`` of an operation whose condition is known not to be met."""
        self._add(operation, keys)
        return self._start(operation)

    def watch_also(self, operation: O, key: K) -> None:
        """Watch an operation that waits under one more key."""
        self._add(operation, (key,))

    def _add(self, operation: O, keys: Collection[K]) -> None:
        assert keys, "an operation without keys is never checked"
        for key in keys:
            watchers = self.watchers.get(key)
            if watchers is None:
                self.watchers[key] = {operation: None}
            else:
                watchers[operation] = None

    def _start(self, operation: O) -> bool:
        """The timeout begins; whether it has passed already."""
        self.delayed += 1
        self._estimated += 1
        operation._purgatory = self
        self._timer.add(operation, operation.delay_ms, at_once=operation.expires_at_once)
        if self._estimated - self.delayed > self._purge_interval:
            self._purge()
        return operation.is_completed

    def restart(self, operation: O, delay_ms: float) -> None:
        """Begin the timeout of an operation that waits again, as if it were completed and another waited."""
        assert operation._purgatory is not None, "only what waits has a timeout"
        self._timer.restart(operation, delay_ms, at_once=operation.expires_at_once)

    def check_and_complete(self, key: K) -> int:
        """Complete the operations under ``key`` whose condition is met now, the oldest first; how many (rule B2.3)."""
        watchers = self.watchers.get(key)
        if watchers is None:
            return 0
        completed = 0
        for operation in list(watchers):
            if operation.is_completed:
                watchers.pop(operation, None)
            elif operation.try_complete():
                watchers.pop(operation, None)
                completed += 1
        if not watchers and self.watchers.get(key) is watchers:
            del self.watchers[key]
        return completed

    def cancel_for_key(self, key: K) -> list[O]:
        """Remove the operations under ``key`` without completing them (rule B2.8)."""
        cancelled = [operation for operation in self.watchers.pop(key, {}) if not operation.is_completed]
        for operation in cancelled:
            operation.cancel()
        return cancelled

    def _purge(self) -> None:
        """Remove what was completed through another key, or by its timeout (rule B2.4)."""
        self._estimated = self.delayed
        for key, watchers in list(self.watchers.items()):
            left = {operation: None for operation in watchers if not operation.is_completed}
            if left:
                self.watchers[key] = left
            else:
                del self.watchers[key]
