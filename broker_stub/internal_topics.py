"""The topics in which coordinators keep what they know, and the partition that a key belongs to (rules G1.1, G1.2)."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from operator import mul
from typing import Final

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})

_SIGN: Final = 2**31


@functools.lru_cache(maxsize=1024)
def partition_for(key: str, count: int) -> int:
    """The key's partition of ``count``, from the absolute value of Java's hash, not its low bits."""
    hashed = _java_hash(key)
    if hashed >= _SIGN:
        hashed = (2 * _SIGN - hashed) % _SIGN  # -2^31 has no absolute value: Kafka uses 0
    return hashed % count


def _java_hash(text: str) -> int:
    """Java's String.hashCode as an unsigned number, over UTF-16 code units."""
    units: Sequence[int] = text.encode()
    if len(units) > len(text):  # not ASCII
        encoded = text.encode("utf-16-be")
        units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    result: int = sum(map(mul, units, _powers(len(units))))
    return result & 0xFFFFFFFF


@functools.lru_cache(maxsize=256)
def _powers(count: int) -> tuple[int, ...]:
    """What Java multiplies that many units with."""
    return tuple(pow(31, i, 2**32) for i in reversed(range(count)))
