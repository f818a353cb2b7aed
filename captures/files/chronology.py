"""Sorts packets by time: capture cards and merged files may have them in another order.

A packet moves by up to ``LOOKAHEAD`` places. If more than ``MAX_LATE`` packets in a row are earlier than one before
them, the clock was set back there, and nothing moves across that place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import TypeVar

LOOKAHEAD = 4096
MAX_LATE = 256

T = TypeVar("T")


def chronological(items: Iterable[T], time_of: Callable[[T], int], lookahead: int = LOOKAHEAD) -> Iterator[T]:
    """``items`` sorted by time, stable. Holds up to twice ``lookahead`` items."""
    source = iter(items)
    held: list[T] = []
    while following := list(islice(source, lookahead)):
        held += following
        times = [time_of(item) for item in held]
        if any(later < earlier for earlier, later in pairwise(times)):
            held = [held[at] for at in order_by_time(times)]
        yield from held[:-lookahead]
        del held[:-lookahead]
    yield from held


def order_by_time(times: Sequence[int]) -> list[int]:
    """Indexes of ``times`` in chronological order."""
    borders = [0, *_steps_back(times), len(times)]
    return [at for begin, end in pairwise(borders) for at in sorted(range(begin, end), key=times.__getitem__)]


def _steps_back(times: Sequence[int]) -> list[int]:
    """Indexes at which the clock was set back."""
    found: list[int] = []
    latest, late = times[0], 0
    for at, time in enumerate(times):
        if time >= latest:
            latest, late = time, 0
            continue
        late += 1
        if late > MAX_LATE:
            found.append(at - late + 1)
            latest, late = max(times[found[-1] : at + 1]), 0
    return found
