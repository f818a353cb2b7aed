"""Damage to requests, in few places as a rule: most of a request that it leaves is read, and answered."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Final

Damage = Callable[[bytes], bytes]

#: API key, version and correlation id, by which the answer is read, and the client id
_UNDAMAGED_BYTES: Final = 14
_BYTES: Final = (0, 1, 2, 3, 0x20, 0x7F, 0x80, 0xFE, 0xFF)
_NUMBERS: Final = (0, 1, 2, -1, -2, 2**31 - 1, -(2**31))


def random_damage(random: Random) -> Damage:
    """One to three changes: bits, bytes and numbers; bytes that are missing, twice or too many."""
    changes = [_change(random) for _ in range(random.choice((1, 1, 1, 2, 3)))]

    def damaged(request: bytes) -> bytes:
        data = bytearray(request)
        for place, change in changes:
            if (size := len(data) - _UNDAMAGED_BYTES) > 0:
                change(data, _UNDAMAGED_BYTES + int(place * size))
        return bytes(data)

    return damaged


def _change(random: Random) -> tuple[float, Callable[[bytearray, int], None]]:
    """Where, as a part of the whole, and what it does there."""
    bit, byte, count = 1 << random.randrange(8), random.choice(_BYTES), random.randrange(1, 8)
    number = struct.pack(">i", random.choice((*_NUMBERS, random.randrange(-(2**31), 2**31))))

    def flip(data: bytearray, at: int) -> None:
        data[at] ^= bit

    def replace(data: bytearray, at: int) -> None:
        data[at] = byte

    def renumber(data: bytearray, at: int) -> None:
        data[at : at + 4] = number[: len(data) - at]

    def cut(data: bytearray, at: int) -> None:
        del data[at : at + count]

    def repeat(data: bytearray, at: int) -> None:
        data[at:at] = data[at : at + count]

    def insert(data: bytearray, at: int) -> None:
        data.insert(at, byte)

    return random.random(), random.choice((flip, replace, renumber, cut, repeat, insert))
