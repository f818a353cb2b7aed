"""The topics in which coordinators keep what they know, and the partition that a key belongs to (rules G1.1, G1.2)."""

from __future__ import annotations

import functools
import struct
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
    encoded = text.encode("utf-16-be")
    result = 0
    for unit in struct.unpack(f">{len(encoded) // 2}H", encoded):
        result = (31 * result + unit) & 0xFFFFFFFF
    return result
