"""Topics and partition states of a request for many partitions, in Kafka's order, all at once with numpy.

The result is that of `iteration_order.by_topic` and of joining what it groups, in a tenth of the time. This module is
imported for many partitions only (`known_replicas.is_worth_numpy`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from kce import wire
from kce.controller.iteration_order import hash_code, java_bucket_count
from kce.zookeeper.model import TopicPartition

Numbers = NDArray[np.int64]

_INDEX_BYTES = 4
_SIGN = 0x80000000
#: states that are copied at once, to bound memory
_COPIED_AT_ONCE = 1 << 16


class Partitions:
    """Distinct partitions, each of which is of a kind: all of one have the same bytes behind their index."""

    def __init__(self, partitions: Collection[TopicPartition], kinds: Iterable[int]) -> None:
        count = len(partitions)
        #: in the order in which they come first
        self.topics = list(dict.fromkeys(map(itemgetter(0), partitions)))
        places = {topic: i for i, topic in enumerate(self.topics)}
        self._topic = np.fromiter(map(places.__getitem__, map(itemgetter(0), partitions)), np.int64, count)
        self._number = np.fromiter(map(itemgetter(1), partitions), np.int64, count)
        self._kind = np.fromiter(kinds, np.int64, count)
        hashes = np.fromiter(map(hash_code, self.topics), np.uint32, len(self.topics))
        self._spread_of_topic = hashes ^ hashes >> np.uint32(16)
        codes = (31 * 31 + 31 * self._number + hashes[self._topic]).astype(np.uint32)
        self._spread = codes ^ codes >> np.uint32(16)

    def sorted(self, buckets: int) -> Sorted:
        """As a table with so many buckets has those of each topic."""
        bits = buckets.bit_length() - 1
        spread = self._spread.astype(np.int64)
        place = (spread & buckets - 1) << 32 - bits | (spread ^ _SIGN) >> bits  # sorts as `iteration_order.placed`
        order = np.argsort(self._topic << 32 | place)
        return Sorted(
            self.topics,
            self._spread_of_topic.astype(np.int64),
            self._topic[order],
            self._number[order],
            self._kind[order],
            place[order],
        )


class Sorted:
    """`Partitions` by topic, those of each in order."""

    def __init__(
        self,
        topics: list[str],
        spread_of_topic: Numbers,
        topic: Numbers,
        number: Numbers,
        kind: Numbers,
        place: Numbers,
    ) -> None:
        self._topics = topics
        self._spread_of_topic = spread_of_topic
        self._topic = topic
        self._number = number
        self._kind = kind
        self._place = place

    def of(self, kinds: Sequence[bool]) -> Sorted:
        """Those of some of the kinds."""
        rows = np.flatnonzero(np.array(kinds)[self._kind])
        columns = (column[rows] for column in (self._topic, self._number, self._kind, self._place))
        return Sorted(self._topics, self._spread_of_topic, *columns)

    def encoded(self, tails: Sequence[bytes], around: Callable[[str, int], tuple[bytes, bytes]]) -> wire.Encoded:
        """``tails``: of each kind. ``around``: the bytes before and behind so many states of a topic."""
        begins = np.flatnonzero(np.diff(self._topic, prepend=-1))
        sizes = np.diff(begins, append=len(self._topic))
        # the order of a java.util.HashMap, as in `iteration_order.java_order_of`
        added = np.argsort(self._place[begins], kind="stable")
        last_is_new = int(sizes[np.argmax(self._place[begins + sizes - 1])]) == 1
        buckets = java_bucket_count(len(begins), last_is_new=last_is_new)
        latest_first = added[::-1]
        java_places = self._spread_of_topic[self._topic[begins[latest_first]]] & buckets - 1
        in_order = latest_first[np.argsort(java_places, kind="stable")]
        begins, sizes = begins[in_order], sizes[in_order]
        ends = np.cumsum(sizes)
        states, offsets = self._states(np.arange(len(self._topic)) + np.repeat(begins - ends + sizes, sizes), tails)
        pieces: list[bytes | memoryview] = []
        at = 0
        for topic, size, end in zip(
            self._topic[begins].tolist(), sizes.tolist(), offsets[ends - 1].tolist(), strict=True
        ):
            before, behind = around(self._topics[topic], size)
            pieces += (before, states[at:end], behind)
            at = end
        return wire.Encoded(len(sizes), [b"".join(pieces)])

    def _states(self, rows: Numbers, tails: Sequence[bytes]) -> tuple[memoryview, Numbers]:
        """The states of these rows, and where each ends."""
        kinds = self._kind[rows]
        lengths = np.array([_INDEX_BYTES + len(tail) for tail in tails])
        longest = int(lengths.max())
        padded = b"".join([tail.ljust(longest - _INDEX_BYTES, b"\0") for tail in tails])
        table = np.frombuffer(padded, np.uint8).reshape(len(tails), longest - _INDEX_BYTES)
        states = np.empty((len(rows), longest), np.uint8)
        states[:, :_INDEX_BYTES] = self._number[rows].astype(">i4").view(np.uint8).reshape(-1, _INDEX_BYTES)
        for begin in range(0, len(rows), _COPIED_AT_ONCE):
            some = slice(begin, begin + _COPIED_AT_ONCE)
            states[some, _INDEX_BYTES:] = table[kinds[some]]
        used = lengths[kinds]
        if int(used.min()) < longest:
            states = states[np.arange(longest) < used[:, None]]
        return states.reshape(-1).data, np.cumsum(used)
