"""The clock of serving processes measures what trio's own does."""

from __future__ import annotations

import time

import trio

from kce.harness.world.clock import MonotonicClock


def test_deadlines_and_times() -> None:
    async def run() -> tuple[bool, float, float]:
        began = trio.current_time()
        with trio.move_on_after(0.01) as scope:
            await trio.sleep_forever()
        return scope.cancelled_caught, began, trio.current_time()

    before = time.perf_counter()
    cancelled, began, ended = trio.run(run, clock=MonotonicClock())
    assert cancelled
    assert before <= began <= ended - 0.01
    assert ended <= time.perf_counter()


def test_reading_it_calls_no_python_function() -> None:
    assert MonotonicClock().current_time is time.perf_counter
