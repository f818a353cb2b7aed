"""Loops of very many elements that let other tasks run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

import trio

T = TypeVar("T")

#: how long a task works before others run
SLICE_SECONDS: Final = 0.0005
#: elements between two looks at the clock
_ELEMENTS: Final = 16


async def let_others_run(began: float) -> float:
    """If the slice that began then is over. When the present one began."""
    if trio.current_time() - began <= SLICE_SECONDS:
        return began
    await trio.lowlevel.checkpoint()
    return trio.current_time()


class Paced(Generic[T]):
    """The items; ``pause`` is awaited between some of them, with the time when the last slice began.

    In virtual time no slice ends, so that the order of events does not depend on the machine.
    """

    def __init__(self, items: Iterable[T], pause: Callable[[float], Awaitable[float]] = let_others_run) -> None:
        self._items = iter(items)
        self._pause = pause
        self._began = trio.current_time()
        self._left = _ELEMENTS

    def __aiter__(self) -> Paced[T]:
        return self

    async def __anext__(self) -> T:
        self._left -= 1
        if self._left < 0:
            self._left = _ELEMENTS
            self._began = await self._pause(self._began)
        try:
            return next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None
