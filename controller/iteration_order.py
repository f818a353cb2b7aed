"""The orders in which Kafka iterates its collections, where they decide what is sent or written.

Kafka 3.9 is compiled with Scala 2.13. Its maps and sets iterate by hash, so an order depends on the keys alone:

    trie_order      scala.collection.immutable.HashMap and HashSet: a CHAMP trie. The keys of a node come before its
                    children, both by five bits of the improved hash. `groupBy` returns such a map, even a small one
    small_order     immutable Map and Set that grow key by key: insertion order up to four keys, then `trie_order`
    table_order     scala.collection.mutable.HashMap and HashSet: a table of buckets, by the low bits of the hash
    java_order      java.util.HashMap filled by computeIfAbsent: the same buckets, in each the latest key first. Java
                    makes a bucket of more than eight keys a tree, with another order; that is not imitated
    HashTable, HashedSet    a mutable.HashMap and HashSet that live long: they grow, and never shrink

Inside a control request, partitions are in the order of the HashTable that collected them, and topics in that of a
java.util.HashMap, or in StopReplica of a mutable.HashMap (`by_topic`).

Sources: Hashing.scala, immutable/HashMap.scala, mutable/HashMap.scala and IterableOps.groupBy of Scala 2.13;
HashMap and String.hashCode of Java; of Kafka, TopicPartition.java, groupByTopic in LeaderAndIsrRequest.java and
UpdateMetadataRequest.java, sendStopReplicaRequests in ControllerChannelManager.scala.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from kce.zookeeper.model import TopicPartition

K = TypeVar("K", bound=int | str | TopicPartition)
V = TypeVar("V")

_MASK = 0xFFFFFFFF
_SIGN = 0x80000000
#: bits of the hash that one level of the trie uses
_BITS = 5
_SMALL = 4
_FIRST_BUCKETS = 16
_LOAD_FACTOR = 0.75
#: names of topics whose hash is remembered: computing one takes microseconds
_REMEMBERED = 1 << 16


def hash_code(key: int | str | TopicPartition) -> int:
    """Java's hashCode, as 32 unsigned bits."""
    match key:
        case int():
            return key & _MASK
        case str():
            return _hash_of_string(key)
        case _:
            return (31 * (31 + key.partition) + _hash_of_string(key.topic)) & _MASK


@functools.lru_cache(maxsize=_REMEMBERED)
def _hash_of_string(text: str) -> int:
    code = 0
    units = text.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & _MASK
    return code


def trie_order(keys: Iterable[K]) -> list[K]:
    return _trie_order([(_improved(hash_code(key)), key) for key in dict.fromkeys(keys)], 0)


def small_order(keys: Iterable[K]) -> list[K]:
    """``keys`` in the order in which Kafka adds them."""
    distinct = list(dict.fromkeys(keys))
    return distinct if len(distinct) <= _SMALL else trie_order(distinct)


def table_order(keys: Iterable[K]) -> list[K]:
    """Of a table that has the size that ``keys`` need."""
    distinct = list(dict.fromkeys(keys))
    buckets = _FIRST_BUCKETS
    while len(distinct) >= _LOAD_FACTOR * buckets:
        buckets *= 2
    return sorted(distinct, key=lambda key: _place(hash_code(key), buckets))


def java_order(keys: Sequence[str], *, last_is_new: bool = True) -> list[str]:
    """Distinct ``keys`` in the order in which Kafka adds them; it may have asked for known keys after the last."""
    last_bucket = java_bucket_count(len(keys), last_is_new=last_is_new) - 1
    latest_first = list(reversed(keys))
    latest_first.sort(key=lambda key: _spread_hash_of_string(key) & last_bucket)
    return latest_first


def java_bucket_count(keys: int, *, last_is_new: bool) -> int:
    """The table grows when a key is asked for, if it is too full already."""
    buckets = _FIRST_BUCKETS
    while keys - last_is_new > _LOAD_FACTOR * buckets:
        buckets *= 2
    return buckets


def bucket_count(keys: int, buckets: int = _FIRST_BUCKETS) -> int:
    """Of a mutable.HashMap that had so many ``buckets`` and has so many keys."""
    while keys >= _LOAD_FACTOR * buckets:
        buckets *= 2
    return buckets


class HashTable(dict[K, V]):
    """A mutable.HashMap: ``buckets``, of which it has at least 4/3 of its keys, decide its order. ``clear`` keeps them.

    Filled by `put` only: Kafka's table grows before a key is added, even if it has that key.
    """

    __slots__ = ("buckets",)

    def __init__(self) -> None:
        super().__init__()
        self.buckets = _FIRST_BUCKETS

    @classmethod
    def of(cls, content: dict[K, V]) -> Self:
        table = cls()
        table.put_all(content)
        return table

    def order(self) -> list[K]:
        return sorted(self, key=lambda key: _place(hash_code(key), self.buckets))

    def put(self, key: K, value: V) -> None:
        if len(self) + 1 >= _LOAD_FACTOR * self.buckets:
            self._grow(len(self) + 1)
        self[key] = value

    def put_all(self, content: dict[K, V]) -> None:
        """`put` of each."""
        last_is_new = bool(content) and next(reversed(content)) not in self
        self.update(content)
        self.grow_as_after(last_is_new=last_is_new)

    def grow_as_after(self, *, last_is_new: bool) -> None:
        """Have the size as after a series of `put`, of which the last was of a new key or not."""
        self._grow(len(self) + (not last_is_new))

    def _grow(self, keys: int) -> None:
        self.buckets = bucket_count(keys, self.buckets)


class HashedSet(set[K]):
    """A mutable.HashSet, filled by `add` only; see HashTable. Keys of equal hash are sorted; in Scala, the older is
    first."""

    def __init__(self) -> None:
        super().__init__()
        self._buckets = _FIRST_BUCKETS

    def order(self) -> list[K]:
        return sorted(self, key=lambda key: (_place(hash_code(key), self._buckets), key))

    def add(self, key: K) -> None:
        while len(self) + 1 >= _LOAD_FACTOR * self._buckets:
            self._buckets *= 2
        super().add(key)


def by_topic(
    table: HashTable[TopicPartition, Any], values: Iterable[V], *, java: bool
) -> dict[str, list[tuple[TopicPartition, V]]]:
    """Partitions of ``table``, each with its one of ``values``, by topic: the partitions of each in the table's order;
    the topics, added as the table has them, in that of a table of ``java`` or of Scala."""
    groups: dict[str, list[tuple[TopicPartition, V]]] = {}
    topic, group = None, []
    for item in zip(table, values, strict=True):
        if item[0][0] != topic:
            topic = item[0][0]
            group = groups.setdefault(topic, [])
        group.append(item)
    first, last, sizes = {}, {}, {}
    for topic, group in groups.items():
        order, places = placed(topic, [tp[1] for tp, _ in group], table.buckets)
        groups[topic] = [group[i] for i in order]
        first[topic], last[topic], sizes[topic] = places[order[0]], places[order[-1]], len(order)
    if len(groups) == 1:
        return groups
    if not java:
        return {topic: groups[topic] for topic in table_order(groups)}
    return {topic: groups[topic] for topic in java_order_of(first, last, sizes)}


def java_order_of(first: Mapping[str, int], last: Mapping[str, int], sizes: Mapping[str, int]) -> list[str]:
    """Topics in `java_order`, added as a table has their partitions: by the places of the first and the last of each,
    and their number. Of topics in the same place, the one that ``first`` has first is first."""
    topics = sorted(first, key=first.__getitem__)
    return java_order(topics, last_is_new=not topics or sizes[max(last, key=last.__getitem__)] == 1)


@functools.lru_cache(maxsize=_REMEMBERED)
def _spread_hash_of_string(text: str) -> int:
    """What `java.util.HashMap` takes its buckets from."""
    code = _hash_of_string(text)
    return code ^ code >> 16


def placed(topic: str, numbers: Iterable[int], buckets: int) -> tuple[list[int], list[int]]:
    """Partitions of one topic in a table with so many buckets: their indexes in its order, and the place of each in the
    whole table."""
    base, last_bucket = 31 * 31 + _hash_of_string(topic), buckets - 1
    codes = [base + 31 * number & _MASK for number in numbers]  # as in `hash_code`, and below as in `_place`
    codes = [code ^ code >> 16 for code in codes]
    places = [(code & last_bucket) << 32 | code ^ _SIGN for code in codes]
    return sorted(range(len(places)), key=places.__getitem__), places


def _place(code: int, buckets: int) -> int:
    """Sorts as a mutable.HashMap does: by bucket, and in a bucket by hash, which is signed."""
    code ^= code >> 16
    return (code & buckets - 1) << 32 | code ^ _SIGN


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
