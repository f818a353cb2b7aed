"""Turns on the event loop: who has worked for a slice lets the loop look for input (rules B1.5, B1.6).

Covers: broker_stub/reactor/turns.py.
"""

from __future__ import annotations

import gc
import itertools
import math

import pytest
import trio
from trio.testing import assert_checkpoints, assert_no_checkpoints, wait_all_tasks_blocked

from kce.broker_stub.reactor import turns as turns_module
from kce.broker_stub.reactor.turns import (
    BUSY_SECONDS,
    IN_USE_SECONDS,
    LOST_SECONDS,
    PAUSE_SECONDS,
    RELAXED,
    SLICE_SECONDS,
    Turns,
)
from kce.wire.steps import Steps


async def worker(turns: Turns, name: str, seconds: float, log: list[str]) -> None:
    if turns.used_up:
        await turns.wait()
    log.append(name)
    turns.spend(seconds)


async def test_without_a_limit_nobody_waits() -> None:
    turns = Turns()
    turns.spend(math.inf)
    turns = Turns()
    for _ in range(3):
        turns.spend(1e9)
        assert not turns.used_up


async def test_a_used_slice_makes_the_others_wait_first_come_first_served(nursery) -> None:
    turns, log = Turns(0.001), []
    await worker(turns, "first", 0.002, log)
    assert turns.used_up
    for name in ("second", "third", "fourth"):
        nursery.start_soon(worker, turns, name, 0.002, log)
        await wait_all_tasks_blocked()
    assert log == ["first"]
    nursery.start_soon(turns.run)
    await wait_all_tasks_blocked()
    assert log == ["first", "second", "third", "fourth"]


async def test_a_slice_begins_with_each_look_for_input(nursery) -> None:
    turns = Turns(0.001)
    nursery.start_soon(turns.run)
    await wait_all_tasks_blocked()
    turns.spend(0.002)
    assert turns.used_up
    await trio.lowlevel.checkpoint()
    assert not turns.used_up


async def test_what_is_to_be_done_later_is_done_at_the_end_of_the_slice() -> None:
    turns, log = Turns(0.001), []

    def work(name: str) -> None:
        log.append(name)
        assert turns.later(lambda: log.append(f"later {name}"))
        assert turns.later(lambda: turns.later(lambda: log.append(f"last {name}")))

    assert not turns.later(lambda: work("outside of a slice"))
    turns.call(lambda: work("a"))
    turns.call(lambda: work("b"))
    turns.end_slice()
    assert log == ["a", "b", "later a", "later b", "last a", "last b"]
    assert not turns.later(lambda: work("after a slice"))
    turns.end_slice()
    assert len(log) == 6


async def test_slices_of_those_who_had_to_wait_end(nursery) -> None:
    turns, log = Turns(0.01), []
    nursery.start_soon(turns.run)
    await wait_all_tasks_blocked()
    turns.spend(0.02)
    for name in "ab":
        turns.call(lambda name=name: log.append(name) or turns.later(lambda: log.append(f"later {name}")))
    turns.end_slice()
    assert log == []
    await wait_all_tasks_blocked()
    assert log == ["a", "b", "later a", "later b"]


async def test_without_a_limit_nothing_is_done_later() -> None:
    turns, answers = Turns(), []
    turns.call(lambda: answers.append(turns.later(lambda: None)))
    assert answers == [False]


async def test_others_have_a_turn_between_slices(nursery) -> None:
    """A task outside the plane runs at least once for each slice."""
    turns, log = Turns(0.001), []
    nursery.start_soon(turns.run)

    async def bystander() -> None:
        while True:
            log.append("bystander")
            await trio.lowlevel.checkpoint()

    async def busy(name: str) -> None:
        for _ in range(20):
            if turns.used_up:
                await turns.wait()
            log.append(name)
            turns.spend(0.002)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as both:
        other = trio.CancelScope()

        async def run_bystander() -> None:
            with other:
                await bystander()

        nursery.start_soon(run_bystander)
        for name in "abcdef":
            both.start_soon(busy, name)
    other.cancel()
    worked = [i for i, name in enumerate(log) if name != "bystander"]
    assert len(worked) == 120
    # once their turns have become typical, one works in each pass
    assert log[worked[60] :].count("bystander") >= 55


async def test_short_turns_share_a_slice(nursery) -> None:
    turns, log = Turns(0.001), []
    for _ in range(200):
        turns.spend(0.0001)  # typical
    nursery.start_soon(turns.run)
    passes = 0

    async def count_passes() -> None:
        nonlocal passes
        while len(log) < 100:
            passes += 1
            await trio.lowlevel.checkpoint()

    for i in range(100):
        nursery.start_soon(worker, turns, str(i), 0.0001, log)
    await count_passes()
    assert len(log) == 100
    assert passes < 40


async def seconds_of_slices(turns: Turns, count: int) -> float:
    """The time between so many used slices, and after the last."""
    began = trio.current_time()
    for _ in range(count):
        turns.spend(0.002)
        await turns.wait()
    return trio.current_time() - began


async def test_the_plane_pauses_between_slices_while_the_other_is_in_use_on_a_busy_machine(
    nursery, autojump_clock
) -> None:
    control = Turns()
    turns = Turns(0.001, precedence=control)
    nursery.start_soon(turns.run)
    control.spend(0.0001)
    assert await seconds_of_slices(turns, 5) == 0  # not busy
    await trio.sleep(IN_USE_SECONDS)
    turns.spend(2 * LOST_SECONDS)
    assert await seconds_of_slices(turns, 5) == 0  # not in use
    for _ in range(2):
        control.spend(0.0001)
        assert await seconds_of_slices(turns, 5) == pytest.approx(5 * PAUSE_SECONDS)
        in_use = IN_USE_SECONDS / PAUSE_SECONDS - 5
        assert await seconds_of_slices(turns, 1000) == pytest.approx(in_use * PAUSE_SECONDS, abs=2 * PAUSE_SECONDS)
    await trio.sleep(BUSY_SECONDS)
    control.spend(0.0001)
    assert await seconds_of_slices(turns, 5) == 0  # not busy any more


async def test_slices_are_longer_while_the_other_plane_is_not_in_use(nursery, autojump_clock) -> None:
    control = Turns()
    turns = Turns(0.001, precedence=control)
    nursery.start_soon(turns.run)
    for seconds, is_used_up in ((0.0015, False), (RELAXED * 0.001, True)):
        await wait_all_tasks_blocked()
        turns.spend(seconds)
        assert turns.used_up is is_used_up
    for _ in range(2):
        control.spend(0.0001)
        await trio.sleep(IN_USE_SECONDS / 2)
        turns.spend(0.001)
        assert turns.used_up
    await trio.sleep(IN_USE_SECONDS)
    turns.spend(0.0015)
    assert not turns.used_up


async def test_steps_leave_turns_to_others(nursery) -> None:
    """With a clock that advances in each step, a waiting task runs after every slice."""
    turns, log = Turns(SLICE_SECONDS), []
    nursery.start_soon(turns.run)
    clock = itertools.count()
    now = trio.current_time()

    def steps() -> Steps[str]:
        for _ in range(50):
            next(clock)
            log.append("step")
            yield
        return "done"

    async def other() -> None:
        while "done" not in log:
            await turns.wait()
            log.append("other")
            turns.spend(SLICE_SECONDS)

    nursery.start_soon(other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns_module.trio, "current_time", lambda: now + next(clock) * SLICE_SECONDS)
        log.append(await turns.take(steps()))
    turns.spend(1)
    await wait_all_tasks_blocked()
    assert log.count("step") == 50
    assert log[: log.index("done")].count("other") >= 20


async def test_pauses_between_pieces_of_work(autojump_clock) -> None:
    """None within a slice. Who has waited for something meanwhile has used one slice, not more."""
    turns = Turns(3 * SLICE_SECONDS)
    began = trio.current_time()
    with assert_no_checkpoints():
        assert await turns.pause(began) == began
    await trio.sleep(5)
    with assert_checkpoints():
        assert await turns.pause(began) == trio.current_time() == began + 5
    assert turns.spent == 1
    assert not turns.used_up
    turns.spend(2 * SLICE_SECONDS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.pause, began)
        await wait_all_tasks_blocked()
        assert nursery.child_tasks  # it waits for a turn
        nursery.start_soon(turns.run)
        while len(nursery.child_tasks) > 1:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def test_only_one_long_request_is_worked_on_and_nothing_is_collected_meanwhile(nursery) -> None:
    turns, working, most = Turns(), 0, 0

    async def long() -> None:
        nonlocal working, most
        async with turns.long_request():
            assert not gc.isenabled()
            working += 1
            most = max(most, working)
            await trio.lowlevel.checkpoint()
            working -= 1

    async with trio.open_nursery() as several:
        for _ in range(3):
            several.start_soon(long)
    assert most == 1
    assert gc.isenabled()
