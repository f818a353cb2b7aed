"""What a coordinator does besides its requests, one after the other in one task; and loads that give others a turn."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import trio

from kce.wire.record import RecordBatch

#: a load gives others a turn after so many records
_RECORDS_AT_ONCE: Final = 256
#: of their values: a group with many members takes long
_BYTES_AT_ONCE: Final = 16_384
_WINDOW_MS: Final = 30_000
#: that are remembered, more than a broker leads of an internal topic as a rule
_MOST_LOADS: Final = 1000


class BackgroundWork:
    """Its length is how much waits. ``log`` gets what fails; what comes next is not concerned."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._waiting: deque[Callable[[], Awaitable[None]]] = deque()
        self._came = trio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def later(self, work: Callable[[], Awaitable[None]]) -> None:
        self._waiting.append(work)
        self._came.set()

    async def do_next(self) -> None:
        """Raises what the work raises."""
        await self._waiting.popleft()()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            while self._waiting:
                try:
                    await self.do_next()
                except Exception:  # noqa: BLE001 - logged; what comes next is not concerned (rule G9.19)
                    self._log.exception("work in the background was abandoned")
            self._came = trio.Event()
            await self._came.wait()


class LoadTimes:
    """How long loads of partitions took, in ms, of those that ended in the last 30 s; NaN without any (rule T9.19)."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        #: when it ended, and how long it took
        self._ended: deque[tuple[int, int]] = deque(maxlen=_MOST_LOADS)

    def add(self, started_ms: int) -> None:
        """A load that was asked for then has ended."""
        now = self._now_ms()
        self._ended.append((now, now - started_ms))

    def _recent(self) -> list[int]:
        if not self._ended:
            return []
        since = self._now_ms() - _WINDOW_MS
        return [took for ended, took in self._ended if ended > since]

    @property
    def max(self) -> float:
        return max(self._recent(), default=math.nan)

    @property
    def avg(self) -> float:
        recent = self._recent()
        return sum(recent) / len(recent) if recent else math.nan


async def fold(batches: Iterable[RecordBatch], add: Callable[[RecordBatch], None]) -> None:
    """Call ``add`` with each batch. Raises what either raises."""
    count = size = 0
    for batch in batches:
        add(batch)
        count += len(batch.records)
        size += sum(len(record.value) for record in batch.records if record.value is not None)
        if count >= _RECORDS_AT_ONCE or size >= _BYTES_AT_ONCE:
            count = size = 0
            await trio.lowlevel.checkpoint()
