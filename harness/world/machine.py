"""What is wrong with the machine that a node runs on: its clock, its disk. It outlives the node's process."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from kce.harness.errors import InvalidArgument

#: a clock goes wrong by at most so much: ten years
MOST_CLOCK_S: Final = 10 * 365 * 86_400
MOST_DISK_DELAY_S: Final = 60


@dataclass
class _Faults:
    #: how far the clock is ahead
    clock_ns: int = 0
    disk_is_full: bool = False
    #: how much longer each use of the disk takes
    disk_delay_s: float = 0


class Machine(_Faults):
    """``stand_still``: the node does nothing for so many seconds, because its event loop waits for its disk."""

    def __init__(self, stand_still: Callable[[float], None]) -> None:
        super().__init__()
        self._stand_still = stand_still

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def update(self, fields: dict[str, Any]) -> None:
        """With the result of `to_json`."""
        for name, value in fields.items():
            setattr(self, name, value)

    def mend(self) -> None:
        self.update(asdict(_Faults()))

    def jump_clock(self, seconds: float) -> None:
        """Raises InvalidArgument for a clock that would be too wrong."""
        ahead = seconds + self.clock_ns / 1e9
        if not abs(ahead) <= MOST_CLOCK_S:  # nor NaN
            raise InvalidArgument(f"a clock cannot be wrong by {ahead:g} s, only by {MOST_CLOCK_S} s")
        self.clock_ns += round(seconds * 1e9)

    def slow_disk(self, seconds: float) -> None:
        """Raises InvalidArgument for a delay that cannot be."""
        if not (math.isfinite(seconds) and 0 <= seconds <= MOST_DISK_DELAY_S):
            raise InvalidArgument(f"a disk cannot be slower by {seconds:g} s, only by 0 to {MOST_DISK_DELAY_S} s")
        self.disk_delay_s = seconds

    def use_disk(self, written: int = 0) -> None:
        """A use of the disk that writes so many bytes. Raises OSError if it is full."""
        if self.disk_delay_s:
            self._stand_still(self.disk_delay_s)
        if written and self.disk_is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
