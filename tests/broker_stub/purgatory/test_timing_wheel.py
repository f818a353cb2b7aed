"""The hierarchical timing wheel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from trio.testing import MockClock

from kce.broker_stub.purgatory import Timer, TimerTask

kafka = pytest.mark.kafka


@asynccontextmanager
async def running() -> AsyncIterator[Timer]:
    timer = Timer()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timer.run)
        yield timer
        nursery.cancel_scope.cancel()


@kafka("TW-1")
async def test_already_expired_task(autojump_clock: MockClock) -> None:
    ran: list[int] = []
    timer = Timer()
    for delay_ms in (-5, 0, -1000):
        timer.add(TimerTask(lambda delay_ms=delay_ms: ran.append(delay_ms)), delay_ms)  # type: ignore[misc]
    assert (ran, timer.size) == ([-5, 0, -1000], 0)


@kafka("TW-2")
async def test_task_expiration(autojump_clock: MockClock) -> None:
    """Random tasks on all levels expire in order, never before their deadline and at most a tick later."""
    chance = Random(2)
    async with running() as timer:
        ran: list[tuple[float, float]] = []
        delays = [chance.choice([1, 19, 20, 21, 399, 400, 401, 8000]) for _ in range(50)]
        delays += [chance.uniform(0, 10 ** chance.randrange(8)) for _ in range(500)]
        for delay_ms in delays:
            due = trio.current_time() * 1000 + delay_ms
            timer.add(TimerTask(lambda due=due: ran.append((due, trio.current_time() * 1000))), delay_ms)  # type: ignore[misc]
            if chance.random() < 0.1:
                await trio.sleep(chance.random())
        await trio.sleep(10**5)
        assert len(ran) == len(delays)
        assert timer.size == 0
        for due, when in ran:
            assert due <= when + 1e-3
            assert when <= due + 2
        assert [when for _, when in ran] == sorted(when for _, when in ran)


@kafka("TW-3")
async def test_cancelled_tasks_never_run(autojump_clock: MockClock) -> None:
    ran: list[int] = []
    async with running() as timer:
        tasks = [TimerTask(lambda i=i: ran.append(i)) for i in range(4)]  # type: ignore[misc]
        for i, task in enumerate(tasks):
            timer.add(task, 10.0**i)
        assert timer.size == 4
        tasks[1].cancel()
        tasks[1].cancel()
        tasks[3].cancel()
        assert (timer.size, [task.is_waiting for task in tasks]) == (2, [True, False, True, False])
        await trio.sleep(5)
        assert (ran, timer.size) == ([0, 2], 0)
        tasks[0].cancel()
        assert timer.size == 0


@kafka("TW-4")
async def test_a_task_may_be_added_again_and_add_others(autojump_clock: MockClock) -> None:
    ran: list[float] = []
    async with running() as timer:

        def again() -> None:
            ran.append(trio.current_time())
            if len(ran) < 4:
                timer.add(TimerTask(again), 50)

        timer.add(TimerTask(again), 1000)
        timer.add(TimerTask(lambda: None), 10**7)
        await trio.sleep(3)
        assert ran == pytest.approx([1, 1.05, 1.1, 1.15], abs=0.002)


async def test_a_task_that_is_due_earlier_wakes_the_timer(autojump_clock: MockClock) -> None:
    ran: list[float] = []
    async with running() as timer:
        timer.add(TimerTask(lambda: ran.append(trio.current_time())), 60_000)
        await trio.sleep(1)
        timer.add(TimerTask(lambda: ran.append(trio.current_time())), 500)
        await trio.sleep(1)
        assert ran == pytest.approx([1.5], abs=0.002)


async def test_a_hundred_thousand_tasks_cost_nothing_while_they_wait(autojump_clock: MockClock) -> None:
    class Counted(Timer):
        turns = 0

        def advance(self) -> None:
            self.turns += 1
            super().advance()

    timer = Counted()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timer.run)
        for _ in range(100_000):
            timer.add(TimerTask(lambda: None), 30_000)
        await trio.sleep(0.001)
        before = timer.turns
        await trio.sleep(20)
        assert timer.turns - before < 10
        await trio.sleep(11)
        assert timer.size == 0
        nursery.cancel_scope.cancel()
