"""Sorts packets by time: capture cards and merged files may have them in another order.

A packet moves by up to ``LOOKAHEAD`` places. If more than ``MAX_LATE`` packets in a row are earlier than one before
them, the clock was set back there, and nothing moves across that place.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import TypeVar

LOOKAHEAD = 4096
MAX_LATE = 256
#: So many packets in a row may have a wrong time, as in a damaged file; more are a clock that was set back.
MAX_WRONG = 3

T = TypeVar("T")


class StepsBack:
    """Where the clock of one capture was set back."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}  # the latest time before a step -> the first one after it

    def add(self, before_ns: int, after_ns: int) -> None:
        self._steps.setdefault(before_ns, after_ns)  # packets are held across a step, which is then seen again

    def notes(self, name: str) -> list[str]:
        """A remark, if there was a step."""
        if not self._steps:
            return []
        before_ns, after_ns = next(iter(self._steps.items()))
        moment = datetime.datetime.fromtimestamp(before_ns // 10**9, datetime.UTC).replace(tzinfo=None)
        often = "once" if len(self._steps) == 1 else f"{len(self._steps):,} times, first"
        return [
            f"{name}: time goes back {often} by {(before_ns - after_ns) / 1e9:,.3f} s at {moment.isoformat()}Z, and "
            "packets are not put in order across that. If files were joined in a wrong order, messages are missing: "
            "give all files instead, or sort the packets with reordercap"
        ]


def chronological(
    items: Iterable[T], time_of: Callable[[T], int], lookahead: int = LOOKAHEAD, steps: StepsBack | None = None
) -> Iterator[T]:
    """``items`` sorted by time, stable. Holds up to twice ``lookahead`` items."""
    source = iter(items)
    held: list[T] = []
    while following := list(islice(source, lookahead)):
        held += following
        times = [time_of(item) for item in held]
        if any(later < earlier for earlier, later in pairwise(times)):
            held = [held[at] for at in order_by_time(times, steps)]
        yield from held[:-lookahead]
        del held[:-lookahead]
    yield from held


def order_by_time(times: Sequence[int], steps: StepsBack | None = None) -> list[int]:
    """Indexes of ``times`` in chronological order. Adds to ``steps`` where the clock was set back."""
    borders = [0, *_steps_back(times, steps or StepsBack()), len(times)]
    return [at for begin, end in pairwise(borders) for at in sorted(range(begin, end), key=times.__getitem__)]


def _steps_back(times: Sequence[int], steps: StepsBack) -> list[int]:
    """Indexes at which the clock was set back."""
    found: list[int] = []
    latest, late = times[0], 0
    for at, time in enumerate(times):
        if time >= latest:
            latest, late = time, 0
            continue
        late += 1
        if late > MAX_LATE:
            begin = at - late + 1
            found.append(begin)
            if begin > MAX_WRONG and min(times[begin - MAX_WRONG - 1 : begin]) > times[begin]:
                steps.add(latest, times[begin])
            latest, late = max(times[begin : at + 1]), 0
    return found
