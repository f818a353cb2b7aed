"""Loops of very many elements let other tasks run (kce/pauses.py)."""

from __future__ import annotations

import trio

from kce.pauses import SLICE_SECONDS, Paced


async def test_all_items_and_no_pause_in_virtual_time(autojump_clock: trio.testing.MockClock) -> None:
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            await trio.lowlevel.checkpoint()
            others += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        assert [one async for one in Paced(range(1000))] == list(range(1000))
        assert others == 0
        nursery.cancel_scope.cancel()


async def test_others_run_whenever_a_slice_is_over(mock_clock: trio.testing.MockClock) -> None:
    runs = 0

    async def other() -> None:
        nonlocal runs
        while True:
            await trio.lowlevel.checkpoint()
            runs += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        async for _ in Paced(range(160)):
            mock_clock.jump(SLICE_SECONDS / 8)
        assert 4 <= runs <= 10
        nursery.cancel_scope.cancel()


async def test_the_pause_can_be_another() -> None:
    began: list[float] = []

    async def pause(at: float) -> float:
        began.append(at)
        return len(began)

    assert len([one async for one in Paced(range(100), pause)]) == 100
    assert began[1:] == [1, 2, 3, 4, 5][: len(began) - 1]
    assert len(began) == 5
