"""A hierarchical timing wheel (rule B2.7): adding and cancelling a task costs the same however many wait.

A wheel has 20 buckets of one tick each; the wheel above it has buckets as long as a whole turn of this one, and so on.
A task waits in the bucket of its deadline, and moves to a lower wheel when the bucket's time has come. A heap knows the
buckets that are not empty, so nothing needs to look at those that are.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Final

import trio

TICK_MS: Final = 1
WHEEL_SIZE: Final = 20


class Timed(ABC):
    """``run`` is called once, at or after the deadline, unless it is taken out."""

    __slots__ = ("bucket", "deadline_ms")

    def __init__(self) -> None:
        self.deadline_ms = 0
        self.bucket: _Bucket | None = None

    @abstractmethod
    def run(self) -> None: ...

    @property
    def is_waiting(self) -> bool:
        return self.bucket is not None

    def take_out(self) -> None:
        """May be called at any time."""
        if self.bucket is not None:
            del self.bucket.tasks[self]
            self.bucket.timer.size -= 1
            self.bucket = None

    def put(self, bucket: _Bucket) -> None:
        """One that does not wait."""
        self.bucket = bucket
        bucket.tasks[self] = None
        bucket.timer.size += 1


class TimerTask(Timed):
    """Calls a function."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self._call = call

    def run(self) -> None:
        self._call()


class _Bucket:
    __slots__ = ("expiration_ms", "tasks", "timer")

    def __init__(self, timer: Timer) -> None:
        self.timer = timer
        self.tasks: dict[Timed, None] = {}
        self.expiration_ms = -1

    def __lt__(self, other: _Bucket) -> bool:
        return self.expiration_ms < other.expiration_ms


class _Wheel:
    __slots__ = ("_above", "_buckets", "_end_ms", "_interval_ms", "_now_ms", "_tick_ms", "_timer")

    def __init__(self, timer: Timer, tick_ms: int, now_ms: int) -> None:
        self._timer = timer
        self._tick_ms = tick_ms
        self._interval_ms = tick_ms * WHEEL_SIZE
        self._begin_turn(now_ms)
        self._buckets = [_Bucket(timer) for _ in range(WHEEL_SIZE)]
        self._above: _Wheel | None = None

    def _begin_turn(self, now_ms: int) -> None:
        self._now_ms = now_ms - now_ms % self._tick_ms
        self._end_ms = self._now_ms + self._interval_ms

    def add(self, task: Timed) -> bool:
        """To this wheel, or to one above it. False if it is due."""
        deadline_ms, wheel = task.deadline_ms, self
        if deadline_ms < wheel._now_ms + wheel._tick_ms:
            return False
        while deadline_ms >= wheel._end_ms:
            above = wheel._above
            if above is None:
                above = wheel._above = _Wheel(self._timer, wheel._interval_ms, wheel._now_ms)
            wheel = above
        ticks = deadline_ms // wheel._tick_ms
        bucket = wheel._buckets[ticks % WHEEL_SIZE]
        task.bucket = bucket
        bucket.tasks[task] = None
        self._timer.size += 1
        expiration_ms = ticks * wheel._tick_ms
        if bucket.expiration_ms != expiration_ms:
            bucket.expiration_ms = expiration_ms
            self._timer.bucket_filled(bucket)
        return True

    def advance(self, now_ms: int) -> None:
        if now_ms >= self._now_ms + self._tick_ms:
            self._begin_turn(now_ms)
            if self._above is not None:
                self._above.advance(self._now_ms)


class Timer:
    """Runs tasks when they are due, from ``run``. ``size``: tasks that wait."""

    def __init__(self) -> None:
        self.size = 0
        self._buckets: list[_Bucket] = []
        self._wheel: _Wheel | None = None
        self._soon = _Bucket(self)
        #: whether it will call what it gets, after the requests that are handled now: see ``Turns.later``
        self.later: Callable[[Callable[[], None]], bool] = lambda _: False
        self._earlier = trio.Event()
        #: trio.current_time, or what it calls; whole microseconds of it count: what is finer comes from how
        #: floating-point numbers are added up
        self._clock = trio.current_time

    def _now_ms(self) -> int:
        return int(self._clock() * 1e6 + 0.5) // 1000

    def add(self, task: Timed, delay_ms: float, *, at_once: bool = True) -> None:
        """A task that is due is run ``at_once``, in this call, or by ``run`` before time passes."""
        if delay_ms <= 0:
            if at_once:
                task.run()
            else:
                is_first = not self._soon.tasks
                task.put(self._soon)
                if is_first and not self.later(self._run_soon):
                    self._earlier.set()
            return
        task.deadline_ms = self._deadline_ms(delay_ms)
        self._add(task)

    def restart(self, task: Timed, delay_ms: float, *, at_once: bool = True) -> None:
        """Let a task wait for so long from now, be it waiting or not.

        One that is to wait longer stays where it is until the time of its bucket, which passes it on.
        """
        bucket = task.bucket
        if delay_ms > 0 and bucket is not None and bucket.expiration_ms >= 0:  # it waits for time to pass
            deadline_ms, before = self._deadline_ms(delay_ms), task.deadline_ms
            task.deadline_ms = deadline_ms
            if deadline_ms < before:
                task.take_out()
                self._add(task)
            return
        task.take_out()
        self.add(task, delay_ms, at_once=at_once)

    def _deadline_ms(self, delay_ms: float) -> int:
        return -(-int((self._clock() + delay_ms / 1000) * 1e6 + 0.5) // 1000)

    def _add(self, task: Timed) -> None:
        if self._wheel is None:
            self._wheel = _Wheel(self, TICK_MS, self._now_ms())
        if not self._wheel.add(task):
            task.run()

    def bucket_filled(self, bucket: _Bucket) -> None:
        heapq.heappush(self._buckets, bucket)
        if self._buckets[0] is bucket:
            self._earlier.set()

    def advance(self) -> None:
        """Run what is due by now."""
        self._run_soon()
        now_ms = self._now_ms()
        while self._buckets and self._buckets[0].expiration_ms <= now_ms:
            bucket = heapq.heappop(self._buckets)
            assert self._wheel is not None
            self._wheel.advance(bucket.expiration_ms)
            bucket.expiration_ms = -1
            for task in self._taken(bucket):
                self._add(task)

    def _run_soon(self) -> None:
        for task in self._taken(self._soon):
            task.run()

    @staticmethod
    def _taken(bucket: _Bucket) -> Iterator[Timed]:
        """One after the other: what one does may take out, or restart, those after it."""
        for task in list(bucket.tasks):
            if task.bucket is bucket:
                task.take_out()
                yield task

    async def run(self) -> None:
        """Until cancelled."""
        self._clock = trio.lowlevel.current_clock().current_time
        while True:
            with trio.CancelScope() as scope:  # until the next bucket's time has come, however often others come first
                while True:
                    self._earlier = trio.Event()
                    self.advance()
                    deadline = self._buckets[0].expiration_ms / 1000 if self._buckets else math.inf
                    if deadline != scope.deadline:
                        scope.deadline = deadline
                    await self._earlier.wait()
