"""The names below a znode that is read time and again: of a change that adds or removes one, only that is decoded.

ZooKeeper lists names in the order of a hash set: a name that comes or goes leaves the others as they were, unless the
set is reordered because it grows. To decode 10,000 names takes as long as to create a topic.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from typing import Final

from kce.zookeeper.store import jute

#: shorter answers are decoded faster than they are compared
_LEAST_BYTES: Final = 256
#: longer names are decoded with the others: below this, three zero bytes are the begin of a length, nothing else
_LONGEST: Final = 255
_INT: Final = struct.Struct(">i")


class Children:
    """Remembers the last answer for one znode."""

    def __init__(self) -> None:
        self._answer = b""
        self._names: list[str] = []

    def read(self, buffer: bytes, offset: int) -> list[str]:
        """See `jute.read_names`. Raises ValueError, struct.error."""
        answer = buffer[offset:]
        if answer != self._answer:
            if not self._change(answer):
                self._names = jute.read_names(answer, 0)
            self._answer = answer
        return self._names.copy()

    def _change(self, answer: bytes) -> bool:
        """Add or remove the one name that was added or removed since the last answer; whether that was all."""
        last = self._answer
        if min(len(last), len(answer)) < _LEAST_BYTES:
            return False
        if (added := _additional(last, answer)) is not None:
            insort(self._names, added)
        elif (removed := _additional(answer, last)) is not None:
            del self._names[bisect_left(self._names, removed)]
        else:
            return False
        return True


def _additional(shorter: bytes, longer: bytes) -> str | None:
    """The name which is all that the longer list has more than the shorter; None if that is not so."""
    size = len(longer) - len(shorter)
    length = size - _INT.size
    (fewer,), (more,) = _INT.unpack_from(shorter), _INT.unpack_from(longer)
    if more - fewer != 1 or not 0 < length <= _LONGEST:
        return None
    same = _common_prefix(shorter, longer, _INT.size)
    at = longer.rfind(_INT.pack(length), max(_INT.size, same - size), same + _INT.size)
    if at < 0 or shorter[at:] != longer[at + size :]:
        return None
    return longer[at + _INT.size : at + size].decode()


def _common_prefix(a: bytes, b: bytes, begin: int) -> int:
    """Where the first difference is, from ``begin`` on: to compare slices is much faster than to compare bytes."""
    low, high = begin, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
