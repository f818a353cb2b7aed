"""The orders in which Kafka iterates its collections, where they decide what is sent or written.

Kafka 3.9 is compiled with Scala 2.13. Its maps and sets iterate by hash, so an order depends on the keys alone:

    trie_order      scala.collection.immutable.HashMap and HashSet: a CHAMP trie. The keys of a node come before its
                    children, both by five bits of the improved hash. `groupBy` returns such a map, even a small one
    small_order     immutable Map and Set that grow key by key: insertion order up to four keys, then `trie_order`
    table_order     scala.collection.mutable.HashMap and HashSet: a table of buckets, by the low bits of the hash

Sources: Hashing.scala, immutable/HashMap.scala, mutable/HashMap.scala and IterableOps.groupBy of Scala 2.13;
String.hashCode of Java; TopicPartition.java of Kafka. A table that has been larger keeps its size in Scala; here it has
the size that its keys need. Inside a message, topics and partitions are not in Kafka's order: no broker depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from kce.zookeeper.model import TopicPartition

K = TypeVar("K", bound=int | str | TopicPartition)

_MASK = 0xFFFFFFFF
#: bits of the hash that one level of the trie uses
_BITS = 5
_SMALL = 4


def hash_code(key: int | str | TopicPartition) -> int:
    """Java's hashCode, as 32 unsigned bits."""
    match key:
        case int():
            return key & _MASK
        case str():
            code = 0
            units = key.encode("utf-16-be", "surrogatepass")
            for high, low in zip(units[::2], units[1::2], strict=True):
                code = (31 * code + (high << 8 | low)) & _MASK
            return code
        case _:
            return (31 * (31 + key.partition) + hash_code(key.topic)) & _MASK


def trie_order(keys: Iterable[K]) -> list[K]:
    return _trie_order([(_improved(hash_code(key)), key) for key in dict.fromkeys(keys)], 0)


def small_order(keys: Iterable[K]) -> list[K]:
    """``keys`` in the order in which Kafka adds them."""
    distinct = list(dict.fromkeys(keys))
    return distinct if len(distinct) <= _SMALL else trie_order(distinct)


def table_order(keys: Iterable[K]) -> list[K]:
    distinct = list(dict.fromkeys(keys))
    size = 16
    while len(distinct) >= 0.75 * size:
        size *= 2
    hashes = {key: (code := hash_code(key)) ^ code >> 16 for key in distinct}
    return sorted(distinct, key=lambda key: (hashes[key] & size - 1, _signed(hashes[key])))


def _improved(code: int) -> int:
    """scala.collection.Hashing.improve."""
    code = (code + ~(code << 9)) & _MASK
    code ^= code >> 14
    code = (code + (code << 4)) & _MASK
    return code ^ code >> 10


def _trie_order(hashed: list[tuple[int, K]], shift: int) -> list[K]:
    slots: dict[int, list[tuple[int, K]]] = {}
    for code, key in hashed:
        slots.setdefault(code >> shift & 31, []).append((code, key))
    order = [slots[slot][0][1] for slot in sorted(slots) if len(slots[slot]) == 1]
    for slot in sorted(slots):
        below = slots[slot]
        if len(below) > 1:
            is_collision = len({code for code, _ in below}) == 1
            order += [key for _, key in below] if is_collision else _trie_order(below, shift + _BITS)
    return order


def _signed(code: int) -> int:
    return code - (1 << 32) if code >> 31 else code
