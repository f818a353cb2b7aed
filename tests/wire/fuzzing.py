"""Bytes that are nearly messages: what was written by us, spoilt in the ways that decoders stumble over."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import wire

#: lengths, counts and varints at the edges of their types
_EDGES = (
    b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x00\x00\xff\xff",
    b"\x7f\xff", b"\xff\xff", b"\x80\x00", b"\x00", b"\x01", b"\xff", b"\x80", b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x80\x00", b"\xc3\x28",
)  # fmt: skip

#: peak of a decoder for an input of n bytes: 64 n and this
SPARE_BYTES = 64 * 1024


def spoilt(chance: random.Random, data: bytes, least: int = 0) -> bytes:
    """``data`` after one to four changes, all behind its first ``least`` bytes."""
    spoiling = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(least, len(spoiling) + 1) if len(spoiling) >= least else len(spoiling)
        match chance.randrange(8):
            case 0 if at < len(spoiling):
                spoiling[at] ^= 1 << chance.randrange(8)
            case 1:
                spoiling[at : at + 1] = chance.randbytes(1)
            case 2:
                edge = chance.choice(_EDGES)
                spoiling[at : at + len(edge)] = edge
            case 3:
                spoiling[at:at] = chance.choice(_EDGES)
            case 4:
                del spoiling[at : at + chance.choice((1, 1, 2, 4, 9))]
            case 5:
                del spoiling[at:]
            case 6:
                spoiling[at:] = chance.randbytes(chance.randrange(40))
            case _:  # room for as many elements as can be: what is allocated for the least of bytes
                count = chance.choice((50, 300, 1500))
                count_bytes = chance.choice((count.to_bytes(4, "big"), bytes((count & 0x7F | 0x80, count >> 7))))
                spoiling[at:] = count_bytes + chance.choice((b"\0", b"\1", b"\0\1")) * (
                    count * chance.choice((1, 3, 9))
                )
    return bytes(spoiling)


def judged(decode: Callable[[], Any], data: bytes, *, measured: bool, allowed: int | None = None) -> Any:
    """What ``decode`` gives, or the WireError it raises; an assertion with the input if it raises anything else.

    ``measured``: its peak of memory is held against ``allowed``, or 64 bytes for each of ``data`` and a little. What is
    over that is measured twice more: the whole process is traced, and only what ``decode`` needs is needed each time.
    """
    try:
        result = decode()
    except wire.WireError as e:
        result = e
    except Exception as e:
        raise AssertionError(f"{type(e).__name__} escaped: {e}; input {data.hex()}") from e
    if measured:
        most = 64 * len(data) + SPARE_BYTES if allowed is None else allowed
        peaks: list[int] = []
        while len(peaks) < 3 and min(peaks, default=most + 1) > most:
            peaks.append(_peak(decode))
        assert min(peaks) <= most, f"{peaks} bytes for an input of {len(data)}: {data.hex()}"
    return result


def _peak(decode: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        with contextlib.suppress(wire.WireError):
            decode()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
