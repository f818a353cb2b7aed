"""LeaderAndIsr of many existing replicas, as after a failover: what replicas and partitions share is made once.

A million partitions have three million replicas. For each topic the order of the partitions is found, and for each
partition its state is encoded, once and not for every broker; then the states are dealt out to the brokers. The result
is what a `HashTable` for every broker and `by_topic` give, which ``tables`` makes for whoever needs more than that.
"""

from __future__ import annotations

import functools
import importlib.util
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from kce import wire
from kce.controller.context import ControllerContext
from kce.controller.encoded_states import EncodedTopic, encoded_index, leader_and_isr_tail, leader_and_isr_topic
from kce.controller.iteration_order import HashTable, bucket_count, java_order_of, placed, trie_order
from kce.zookeeper.model import BrokerId, Leadership, ReplicaAssignment, TopicPartition

if TYPE_CHECKING:
    from kce.controller.vectorised import Partitions

#: the brokers that a partition with these replicas is sent to; asked for one of those with equal leadership
Recipients = Callable[[TopicPartition, tuple[BrokerId, ...]], tuple[BrokerId, ...]]


#: from so many partitions on it is worth importing numpy, which takes a tenth of a second
_MANY = 20_000


def is_worth_numpy(partitions: Collection[object]) -> bool:
    """Whether `vectorised` is faster, and can be imported: the core has no numpy."""
    return len(partitions) >= _MANY and importlib.util.find_spec("numpy") is not None


class LeaderAndIsrState:
    """One partition in a LeaderAndIsr request; replicas that get the same state share the object."""

    __slots__ = ("_encoded", "assignment", "is_new", "leadership")

    def __init__(self, leadership: Leadership, assignment: ReplicaAssignment, is_new: bool) -> None:
        self.leadership = leadership
        self.assignment = assignment
        self.is_new = is_new
        self._encoded: bytes | None = None

    def encode(self, tp: TopicPartition, version: int) -> bytes:
        """Encoded once for all requests of a batch, which have the same version. Raises EncodeError."""
        if self._encoded is None:
            tail = leader_and_isr_tail(version, self.leadership, self.assignment, self.is_new)
            self._encoded = encoded_index(tp.partition) + tail
        return self._encoded


class _Alike:
    """Partitions with the same leadership and assignment, and so with the same recipients."""

    __slots__ = ("assignment", "brokers", "kind", "leadership", "partitions", "tail", "to")

    def __init__(self, leadership: Leadership, assignment: ReplicaAssignment, brokers: tuple[BrokerId, ...]) -> None:
        self.leadership = leadership
        self.assignment = assignment
        self.brokers = brokers
        #: their number
        self.partitions = 0
        # of `topics`
        self.kind = 0
        self.tail = b""
        self.to: Sequence[BrokerId] = ()


class _Group:
    """The partitions of a topic, and what each is alike in."""

    __slots__ = ("encoded", "numbers", "ones")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.ones: list[_Alike] = []
        # of `topics`
        self.encoded: EncodedTopic


class KnownTopics(NamedTuple):
    """The topics of one broker's request, and who leads their partitions."""

    topics: wire.Encoded
    leaders: set[BrokerId]


class Rows(NamedTuple):
    """Partitions, and the leadership and the assignment of each of their kinds."""

    partitions: Partitions
    kinds: Sequence[tuple[Leadership, ReplicaAssignment]]


class _Added:
    """Partitions as they were added, with what they are alike in; ``sizes`` counts those of each broker."""

    def __init__(
        self, partitions: Mapping[TopicPartition, Leadership], ones: list[_Alike], alike: list[_Alike]
    ) -> None:
        self.partitions = partitions
        self.ones = ones
        #: each of ``ones`` once
        self.alike = alike
        self.sizes: dict[BrokerId, int] = {}
        for kind, one in enumerate(alike):
            one.kind = kind
            for broker in one.brokers:
                self.sizes[broker] = self.sizes.get(broker, 0) + one.partitions

    @functools.cached_property
    def rows(self) -> Partitions | None:
        """None of few partitions, which are not worth it."""
        if not is_worth_numpy(self.partitions):
            return None
        from kce.controller import vectorised

        return vectorised.Partitions(self.partitions, map(attrgetter("kind"), self.ones))

    def by_topic(self) -> dict[str, _Group]:
        groups: dict[str, _Group] = {}
        last, group = None, _Group()
        for (topic, number), one in zip(self.partitions, self.ones, strict=True):
            if topic != last:
                last = topic
                group = groups.setdefault(topic, _Group())
            group.numbers.append(number)
            group.ones.append(one)
        return groups


class KnownReplicas:
    """What is to be sent of existing replicas. The context must not change between additions."""

    def __init__(self) -> None:
        self._added: list[_Added] = []

    def __bool__(self) -> bool:
        return bool(self._added)

    def __contains__(self, broker: BrokerId) -> bool:
        return any(broker in added.sizes for added in self._added)

    def add(
        self, context: ControllerContext, partitions: Iterable[TopicPartition], recipients: Recipients
    ) -> tuple[dict[TopicPartition, Leadership], bool]:
        """Partitions for brokers that nothing was added for, but for partitions without leadership or recipient.

        Returns those that were added, and whether the last of them has no replica on another broker than the last, in
        Kafka's order of brokers.
        """
        sent = context.leadership_of(partitions)
        assignments = context.assignments_of(sent)
        keys = list(zip(map(id, sent.values()), map(id, assignments), strict=True))
        alike: dict[tuple[int, int], _Alike] = {}
        counts = Counter(keys)
        for key, tp in dict(zip(keys, sent, strict=True)).items():
            known, assignment = sent[tp], context.assignment(tp)
            brokers = tuple(broker for broker in recipients(tp, assignment.replicas) if broker >= 0)
            alike[key] = _Alike(known, assignment, brokers)
            alike[key].partitions = counts[key]
        ones = list(map(alike.__getitem__, keys))
        kept = [one for one in alike.values() if one.brokers]
        if len(kept) < len(alike):
            sent = {tp: known for (tp, known), one in zip(sent.items(), ones, strict=True) if one.brokers}
            ones = [one for one in ones if one.brokers]
        if not sent:
            return sent, True
        added = _Added(sent, ones, kept)
        self._added.append(added)
        last = trie_order(added.sizes)[-1]
        return sent, all(one.brokers == (last,) for one in kept if last in one.brokers)

    def tables(self) -> dict[BrokerId, HashTable[TopicPartition, LeaderAndIsrState]]:
        content: dict[BrokerId, dict[TopicPartition, LeaderAndIsrState]] = {}
        for added in self._added:
            for tp, one in zip(added.partitions, added.ones, strict=True):
                state = LeaderAndIsrState(one.leadership, one.assignment, False)
                for broker in one.brokers:
                    content.setdefault(broker, {})[tp] = state
        return {broker: HashTable.of(states) for broker, states in content.items()}

    def topics(self, context: ControllerContext, version: int) -> dict[BrokerId, KnownTopics]:
        """What ``by_topic`` makes of the tables, encoded."""
        found: dict[BrokerId, KnownTopics] = {}
        for added in self._added:
            leaders: dict[BrokerId, set[BrokerId]] = {broker: set() for broker in added.sizes}
            for one in added.alike:
                one.tail = leader_and_isr_tail(version, one.leadership, one.assignment, False)
                for broker in one.brokers:
                    leaders[broker].add(one.leadership.leader_and_isr.leader)
            brokers_of: dict[int, list[BrokerId]] = {}
            for broker, size in added.sizes.items():
                brokers_of.setdefault(bucket_count(size), []).append(broker)
            made = _dealt if added.rows is None else _vectorised
            for broker, encoded in made(added, context, version, brokers_of):
                found[broker] = KnownTopics(encoded, leaders[broker])
        return found

    def rows_of(self, leadership: Mapping[TopicPartition, Leadership]) -> Rows | None:
        """These partitions with these leaderships, if they are all that was added, and in the same order."""
        if len(self._added) != 1:
            return None
        (added,) = self._added
        if added.rows is None or len(leadership) != len(added.partitions):
            return None
        if not all(map(operator.is_, leadership, added.partitions)):
            return None
        if not all(map(operator.is_, leadership.values(), added.partitions.values())):
            return None
        return Rows(added.rows, [(one.leadership, one.assignment) for one in added.alike])


def _vectorised(
    added: _Added, context: ControllerContext, version: int, brokers_of: Mapping[int, Sequence[BrokerId]]
) -> Iterator[tuple[BrokerId, wire.Encoded]]:
    partitions = added.rows
    assert partitions is not None
    topics = {t: leader_and_isr_topic(version, t, context.topic_ids.get(t)) for t in partitions.topics}
    tails = [one.tail for one in added.alike]
    for buckets, brokers in brokers_of.items():
        in_order = partitions.sorted(buckets)
        for broker in brokers:
            here = in_order.of([broker in one.brokers for one in added.alike])
            yield broker, here.encoded(tails, lambda topic, size: topics[topic].around(size))


def _dealt(
    added: _Added, context: ControllerContext, version: int, brokers_of: Mapping[int, Sequence[BrokerId]]
) -> Iterator[tuple[BrokerId, wire.Encoded]]:
    groups = added.by_topic()
    for topic, group in groups.items():
        group.encoded = leader_and_isr_topic(version, topic, context.topic_ids.get(topic))
    for buckets, brokers in brokers_of.items():
        for one in added.alike:
            one.to = one.brokers if len(brokers_of) == 1 else [b for b in one.brokers if b in brokers]
        for broker, dealt in _deal(groups, buckets, brokers).items():
            yield broker, dealt.in_order()


class _Dealt:
    """What one broker gets: the encoded topics, their numbers of partitions, and the places of the first and the last
    of these."""

    __slots__ = ("first", "last", "sizes", "topics")

    def __init__(self) -> None:
        self.topics: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}

    def in_order(self) -> wire.Encoded:
        """As in ``by_topic``."""
        order = java_order_of(self.first, self.last, self.sizes)
        return wire.Encoded(len(order), [self.topics[topic] for topic in order])


def _deal(groups: Mapping[str, _Group], buckets: int, brokers: Iterable[BrokerId]) -> dict[BrokerId, _Dealt]:
    """``brokers``: those whose table has so many ``buckets``."""
    found = {broker: _Dealt() for broker in brokers}
    for topic, group in groups.items():
        numbers, ones = group.numbers, group.ones
        order, places = placed(topic, numbers, buckets)
        here: dict[BrokerId, list[int]] = {}
        for i in order:
            for broker in ones[i].to:
                if broker in here:
                    here[broker].append(i)
                else:
                    here[broker] = [i]
        states = [encoded_index(number) + one.tail for number, one in zip(numbers, ones, strict=True)]
        for broker, indexes in here.items():
            dealt, size = found[broker], len(indexes)
            before, behind = group.encoded.around(size)
            dealt.topics[topic] = b"".join([before, *[states[i] for i in indexes], behind])
            dealt.sizes[topic], dealt.first[topic], dealt.last[topic] = size, places[indexes[0]], places[indexes[-1]]
    return found
