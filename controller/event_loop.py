"""The controller's event loop: a FIFO queue and one task, which runs each event to completion (rules of section 3).

Events have no priorities (3.1). The queue is unbounded, but equal pending watch events coalesce, so the number of
watched nodes bounds what an outage of ZooKeeper can queue.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Awaitable, Callable

import trio

from kce.controller import dispatch
from kce.controller.events import ControllerEvent, ControllerState, ShutdownRequested
from kce.metrics import Gauge, Histogram, Meter, MetricName, Metrics, Timer

log = logging.getLogger(__name__)

Process = Callable[[ControllerEvent], Awaitable[None]]

#: the histogram of queue times is cleared after that long without an event (rule 3.6)
QUEUE_TIME_RESET_SECONDS = 300.0

_QUEUE_TIME = MetricName("kafka.controller", "ControllerEventManager", "EventQueueTimeMs")
_QUEUE_SIZE = MetricName("kafka.controller", "ControllerEventManager", "EventQueueSize")


class ControllerEventLoop:
    """``process`` handles one event. An exception that it raises is logged and counted, and the loop continues
    (3.4)."""

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
        #: failed events by name
        self.failures: collections.Counter[str] = collections.Counter()
        self._queue: collections.deque[tuple[ControllerEvent, float]] = collections.deque()
        self._pending_watches: set[ControllerEvent] = set()
        self._filled = trio.Event()
        self._clock = trio.lowlevel.current_clock().current_time
        self._idle_since = self._clock()
        self._closing = False
        self.state = ControllerState.IDLE

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, event: ControllerEvent) -> None:
        """Append; never waits. An event that drains the queue preempts all that is pending first, in order (rule 3.2);
        the event under way goes on (3.40). After ``close`` an event is preempted at once."""
        if self._closing:
            dispatch.preempt(event)
            return
        row = dispatch.row(event)
        if row.drains:
            self._drain()
        if row.coalesces:
            if event in self._pending_watches:
                return
            self._pending_watches.add(event)
        self._queue.append((event, self._clock()))
        self._filled.set()

    @property
    def is_idle(self) -> bool:
        """Whether an event would be processed at once."""
        return self.state is ControllerState.IDLE and not self._queue

    def skip(self, state: ControllerState) -> None:
        """Count an event of this state as processed, without a switch of tasks: the loop is idle, and the event would
        change nothing."""
        self._queue_time.update(0)
        if (timer := self._timers.get(state)) is not None:
            timer.update(0)
        self._idle_since = self._clock()

    def _drain(self) -> None:
        drained, self._queue = self._queue, collections.deque()
        self._pending_watches.clear()
        for queued, _ in drained:
            dispatch.preempt(queued)

    def close(self) -> None:
        """Preempt what is queued and let ``run`` return after the event under way (rule 3.5)."""
        self.put(ShutdownRequested())
        self._closing = True

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._clear_queue_times)
                while not isinstance(event := await self._next(), ShutdownRequested):
                    await self._run_one(event)
                nursery.cancel_scope.cancel()
        finally:
            self._metrics.remove(_QUEUE_TIME)
            self._metrics.remove(_QUEUE_SIZE)

    async def _next(self) -> ControllerEvent:
        while not self._queue:
            self._idle_since = self._clock()
            self._filled = trio.Event()
            await self._filled.wait()
        event, enqueued_at = self._queue.popleft()
        if dispatch.row(event).coalesces:
            self._pending_watches.discard(event)
        self._queue_time.update(1000 * (self._clock() - enqueued_at))
        return event

    async def _clear_queue_times(self) -> None:
        """Rule 3.6."""
        while True:
            await trio.sleep_until(self._idle_since + QUEUE_TIME_RESET_SECONDS)
            if self._clock() >= self._idle_since + QUEUE_TIME_RESET_SECONDS:
                if self.state is ControllerState.IDLE:
                    self._queue_time.clear()
                self._idle_since = self._clock()

    async def _run_one(self, event: ControllerEvent) -> None:
        self.state = dispatch.row(event).state
        started_at = self._clock()
        try:
            await self._process(event)
        except Exception:
            log.exception("event %s failed", event)
            self._count_failure(event.name)
        finally:
            if (timer := self._timers.get(self.state)) is not None:
                timer.update(1000 * (self._clock() - started_at))
            self.state = ControllerState.IDLE

    def _count_failure(self, event: str) -> None:
        if event not in self.failures:
            name = MetricName("kce.controller", "ControllerEventManager", "FailedEventsPerSec", (("event", event),))
            self._metrics.add(name, Meter(lambda: self.failures[event]))
        self.failures[event] += 1
