"""The controller's single writer: one FIFO queue, one task, one event at a time to completion (rules of section 3).

There are no priorities (3.1). The queue is unbounded, but equal pending watch events are one, so what an outage of
ZooKeeper or a storm of watches can put into it is bounded by the number of watched nodes.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Awaitable, Callable

import trio

from controller.events import ControllerEvent, ControllerState, ShutdownRequested
from controller.metrics import Gauge, Histogram, Meter, MetricName, Metrics, Timer

log = logging.getLogger(__name__)

Process = Callable[[ControllerEvent], Awaitable[None]]

#: after that long without an event the times in the queue are forgotten (rule 3.6)
QUEUE_TIME_RESET_SECONDS = 300.0

_QUEUE_TIME = MetricName("kafka.controller", "ControllerEventManager", "EventQueueTimeMs")
_QUEUE_SIZE = MetricName("kafka.controller", "ControllerEventManager", "EventQueueSize")


class ControllerEventLoop:
    """``process`` handles one event; what escapes from it is logged and counted, and the loop goes on (3.4)."""

    def __init__(self, process: Process, metrics: Metrics | None = None) -> None:
        self._process = process
        self._metrics = Metrics() if metrics is None else metrics
        self._queue_time = Histogram()
        self._metrics.add(_QUEUE_TIME, self._queue_time)
        self._metrics.add(_QUEUE_SIZE, Gauge(lambda: len(self._queue)))
        self._timers: dict[ControllerState, Timer] = {}
        for state in ControllerState:
            if (name := state.timer_name) is not None:
                timer = self._timers[state] = Timer()
                self._metrics.add(MetricName("kafka.controller", "ControllerStats", name), timer)
        #: events that failed unexpectedly, by their name
        self.failures: collections.Counter[str] = collections.Counter()
        self._queue: collections.deque[tuple[ControllerEvent, float]] = collections.deque()
        self._pending_watches: set[ControllerEvent] = set()
        self._filled = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._closing = False
        self.state = ControllerState.IDLE

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, event: ControllerEvent) -> None:
        """Append; never waits. After ``close`` the event is preempted at once."""
        if self._closing:
            event.preempt()
            return
        if event.coalesces:
            if event in self._pending_watches:
                return
            self._pending_watches.add(event)
        self._queue.append((event, trio.current_time()))
        self._idle = trio.Event() if self._idle.is_set() else self._idle
        self._filled.set()

    def clear_and_put(self, event: ControllerEvent) -> None:
        """Preempt all that is queued, in order, then append (rule 3.2). What is being processed goes on (3.40)."""
        drained, self._queue = self._queue, collections.deque()
        self._pending_watches.clear()
        for queued, _ in drained:
            queued.preempt()
        self.put(event)

    def close(self) -> None:
        """Preempt what is queued and let ``run`` return after the event under way (rule 3.5)."""
        if not self._closing:
            self.clear_and_put(ShutdownRequested())
            self._closing = True

    async def run(self) -> None:
        try:
            while not isinstance(event := await self._next(), ShutdownRequested):
                await self._run_one(event)
        finally:
            self._metrics.remove(_QUEUE_TIME)
            self._metrics.remove(_QUEUE_SIZE)
            self._idle.set()

    async def _next(self) -> ControllerEvent:
        while not self._queue:
            self._idle.set()
            self._filled = trio.Event()
            if self._queue_time.count:
                with trio.move_on_after(QUEUE_TIME_RESET_SECONDS):
                    await self._filled.wait()
                    continue
                self._queue_time.clear()
            else:
                await self._filled.wait()
        event, enqueued_at = self._queue.popleft()
        if event.coalesces:
            self._pending_watches.discard(event)
        self._queue_time.update(1000 * (trio.current_time() - enqueued_at))
        return event

    async def _run_one(self, event: ControllerEvent) -> None:
        self.state = event.state
        begun_at = trio.current_time()
        try:
            await self._process(event)
        except Exception:
            log.exception("event %s failed and is dropped", event)
            self._count_failure(type(event).__name__)
        finally:
            if (timer := self._timers.get(event.state)) is not None:
                timer.update(1000 * (trio.current_time() - begun_at))
            self.state = ControllerState.IDLE

    def _count_failure(self, event: str) -> None:
        if event not in self.failures:
            name = MetricName("kce.controller", "ControllerEventManager", "FailedEventsPerSec", (("event", event),))
            self._metrics.add(name, Meter(lambda: self.failures[event]))
        self.failures[event] += 1

    async def wait_idle(self) -> None:
        """Until nothing is queued and nothing is being processed."""
        await self._idle.wait()
