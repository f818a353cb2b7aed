"""The hierarchical timing wheel."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
import trio.testing
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
            assert when == pytest.approx(math.ceil(round(due, 3)), abs=1e-3)
        assert [when for _, when in ran] == sorted(when for _, when in ran)


async def test_what_is_due_soon_runs_later_in_the_slice(autojump_clock: MockClock) -> None:
    ran: list[int] = []
    later: list[Callable[[], None]] = []
    async with running() as timer:
        await trio.testing.wait_all_tasks_blocked()
        timer.later = lambda call: later.append(call) is None
        for number in range(3):
            timer.add(TimerTask(lambda number=number: ran.append(number)), 0, at_once=False)  # type: ignore[misc]
        await trio.testing.wait_all_tasks_blocked()
        assert (ran, len(later)) == ([], 1)
        later.pop()()
        assert (ran, timer.size) == ([0, 1, 2], 0)
        timer.later = lambda _: False  # outside of a slice
        timer.add(TimerTask(lambda: ran.append(3)), 0, at_once=False)
        await trio.testing.wait_all_tasks_blocked()
        assert ran == [0, 1, 2, 3]


async def test_restarted_tasks_wait_from_then_on(autojump_clock: MockClock) -> None:
    """For longer or shorter, again and again, or once more after they ran: each runs once at its last deadline."""
    chance = Random(5)
    async with running() as timer:
        ran: dict[int, list[float]] = {}
        tasks = [
            TimerTask(lambda i=i: ran.setdefault(i, []).append(trio.current_time() * 1000))  # type: ignore[misc]
            for i in range(100)
        ]
        due: dict[int, float] = {}
        for step in range(1000):
            i = chance.randrange(100)
            delay_ms = 20_000 + chance.choice([0, 1, 25, 450, 9000, chance.uniform(0, 10**5)])
            due[i] = math.ceil(round(trio.current_time() * 1000 + delay_ms, 3))
            timer.restart(tasks[i], delay_ms)
            if step % 7 == 0:
                await trio.sleep(chance.random() / 10)
        assert timer.size == len(due)
        await trio.sleep(10**3)
        assert ran == {i: [pytest.approx(when, abs=1e-3)] for i, when in due.items()}
        assert timer.size == 0

        timer.restart(tasks[0], 0, at_once=False)
        timer.restart(tasks[0], 50)
        begun = trio.current_time() * 1000
        await trio.sleep(1)
        assert ran[0][1:] == [pytest.approx(math.ceil(round(begun + 50, 3)), abs=1e-3)]


@kafka("TW-3")
async def test_cancelled_tasks_never_run(autojump_clock: MockClock) -> None:
    ran: list[int] = []
    async with running() as timer:
        tasks = [TimerTask(lambda i=i: ran.append(i)) for i in range(4)]  # type: ignore[misc]
        for i, task in enumerate(tasks):
            timer.add(task, 10.0**i)
        assert timer.size == 4
        tasks[1].take_out()
        tasks[1].take_out()
        tasks[3].take_out()
        assert (timer.size, [task.is_waiting for task in tasks]) == (2, [True, False, True, False])
        await trio.sleep(5)
        assert (ran, timer.size) == ([0, 2], 0)
        tasks[0].take_out()
        assert timer.size == 0


@pytest.mark.parametrize("delay_ms", [0, 5, 50])
async def test_what_a_task_does_to_others_of_its_tick(delay_ms: int, autojump_clock: MockClock) -> None:
    """Tasks that it takes out do not run, and those that it restarts run once, later."""
    ran: list[tuple[str, float]] = []

    def noted(name: str) -> TimerTask:
        return TimerTask(lambda: ran.append((name, round(trio.current_time() * 1000))))

    async with running() as timer:
        cancelled, restarted = noted("cancelled"), noted("restarted")

        def first() -> None:
            noted("first").run()
            cancelled.take_out()
            timer.restart(restarted, 100)

        for task in (TimerTask(first), cancelled, restarted, noted("last")):
            timer.add(task, delay_ms, at_once=False)
        await trio.sleep(1)
        assert ran == [("first", delay_ms), ("last", delay_ms), ("restarted", delay_ms + 100)]
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


async def test_a_task_that_is_due_runs_soon_if_not_at_once(autojump_clock: MockClock) -> None:
    ran: list[str] = []
    async with running() as timer:
        await trio.testing.wait_all_tasks_blocked()
        begin = trio.current_time()
        timer.add(TimerTask(lambda: ran.append("soon")), 0, at_once=False)
        cancelled = TimerTask(lambda: ran.append("cancelled"))
        timer.add(cancelled, 0, at_once=False)
        assert (ran, timer.size) == ([], 2)
        cancelled.take_out()
        await trio.testing.wait_all_tasks_blocked()
        assert (ran, timer.size) == (["soon"], 0)
        assert trio.current_time() == begin


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


def waiting(timer: Timer) -> list[tuple[int, int]]:
    """Of each bucket that is not empty: when its time has come, and how many tasks it has."""
    return sorted((bucket.expiration_ms, len(bucket.tasks)) for bucket in timer._buckets)


async def test_where_tasks_wait(mock_clock: MockClock) -> None:  # rule B2.7
    ran: list[int] = []
    timer = Timer()
    mock_clock.jump(8.005)
    tasks = []
    for delay_ms in (1, 1, 19, 20, 34, 35, 394, 395, 396, 7995, 8000):
        tasks.append(TimerTask(lambda delay_ms=delay_ms: ran.append(delay_ms)))  # type: ignore[misc]
        timer.add(tasks[-1], delay_ms)
    # the first wheel began at 8005, the second at 8000, in the third each bucket lasts 400 ms
    expected = [(8006, 2), (8024, 1), (8020, 2), (8040, 1), (8380, 1), (8400, 2), (16000, 2)]
    assert waiting(timer) == sorted(expected)
    mock_clock.jump(0.019)
    timer.advance()
    assert (ran, timer.size) == ([1, 1, 19], 8)
    assert waiting(timer) == [(8025, 1), (8039, 1), (8040, 1), (8380, 1), (8400, 2), (16000, 2)]
    tasks[3].take_out()
    assert waiting(timer)[0] == (8025, 0)
    mock_clock.jump(0.400)
    timer.advance()
    assert (ran, timer.size) == ([1, 1, 19, 34, 35, 394, 395, 396], 2)
    assert waiting(timer) == [(16000, 2)]
    mock_clock.jump(8)
    timer.advance()
    assert (ran[8:], timer.size, waiting(timer)) == ([7995, 8000], 0, [])
