"""Damages encoded messages in ways that break decoders, and checks how a decoder fails."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

from kce import wire

#: boundary values of lengths, counts and varints
_EDGES = (
    b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x00\x00\xff\xff",
    b"\x7f\xff", b"\xff\xff", b"\x80\x00", b"\x00", b"\x01", b"\xff", b"\x80", b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x80\x00", b"\xc3\x28",
)  # fmt: skip

#: a decoder may use 64 bytes for each byte of input, plus this
SPARE_BYTES = 64 * 1024


def damaged(chance: random.Random, data: bytes, least: int = 0) -> bytes:
    """``data`` with one to four changes, all after its first ``least`` bytes."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(least, len(out) + 1) if len(out) >= least else len(out)
        match chance.randrange(8):
            case 0 if at < len(out):
                out[at] ^= 1 << chance.randrange(8)
            case 1:
                out[at : at + 1] = chance.randbytes(1)
            case 2:
                edge = chance.choice(_EDGES)
                out[at : at + len(edge)] = edge
            case 3:
                out[at:at] = chance.choice(_EDGES)
            case 4:
                del out[at : at + chance.choice((1, 1, 2, 4, 9))]
            case 5:
                del out[at:]
            case 6:
                out[at:] = chance.randbytes(chance.randrange(40))
            case _:  # a count, followed by many elements of minimal size
                count = chance.choice((50, 300, 1500))
                count_bytes = chance.choice((count.to_bytes(4, "big"), bytes((count & 0x7F | 0x80, count >> 7))))
                out[at:] = count_bytes + chance.choice((b"\0", b"\1", b"\0\1")) * (count * chance.choice((1, 3, 9)))
    return bytes(out)


def checked(decode: Callable[[], Any], data: bytes, *, measured: bool, allowed: int | None = None) -> Any:
    """The result of ``decode``, or the WireError it raises. Any other exception fails the test, with the input.

    ``measured``: compare its peak memory with ``allowed``, by default 64 bytes per byte of ``data`` and a constant. A
    peak above that is measured twice more, because tracemalloc counts allocations of the whole process.
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
