"""LeaderAndIsr of many existing replicas, as after a failover: what replicas and partitions share is made once.

A million partitions have three million replicas. For each topic the order of the partitions is found, and for each
partition its state is encoded, once and not for every broker; then the states are dealt out to the brokers. The result
is what a `HashTable` for every broker and `by_topic` give, which ``tables`` makes for whoever needs more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kce import wire
from kce.controller.context import NO_ASSIGNMENT, ControllerContext
from kce.controller.encoded_states import encoded_index, leader_and_isr_tail
from kce.controller.iteration_order import HashTable, bucket_count, java_order, placed, trie_order
from kce.zookeeper.model import BrokerId, Leadership, ReplicaAssignment, TopicPartition

#: the brokers that a partition with these replicas is sent to; asked for one of those with equal leadership
Recipients = Callable[[TopicPartition, tuple[BrokerId, ...]], tuple[BrokerId, ...]]


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

    __slots__ = ("assignment", "brokers", "leadership", "partitions", "tail", "to")

    def __init__(self, leadership: Leadership, assignment: ReplicaAssignment, brokers: tuple[BrokerId, ...]) -> None:
        self.leadership = leadership
        self.assignment = assignment
        self.brokers = brokers
        #: their number
        self.partitions = 0
        # of `_deal`
        self.tail = b""
        self.to: Sequence[BrokerId] = ()


class KnownTopics(NamedTuple):
    """The topics of one broker's request in its order, with their encoded states in theirs, and who leads them."""

    topics: list[tuple[str, wire.Encoded]]
    leaders: set[BrokerId]


class _Added:
    """Partitions as they were added, and by topic; ``sizes`` counts those of each broker."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, Leadership] = {}
        self.groups: dict[str, list[tuple[TopicPartition, _Alike]]] = {}
        self.alike: list[_Alike] = []
        self.sizes: dict[BrokerId, int] = {}


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
        added = _Added()
        leadership, assignments = context.leadership, context.assignments
        groups, sent = added.groups, added.partitions
        alike: dict[tuple[int, int], _Alike] = {}
        for tp in dict.fromkeys(partitions):
            known, assignment = leadership.get(tp), assignments.get(tp, NO_ASSIGNMENT)
            if known is None:
                continue
            one = alike.get((id(known), id(assignment)))
            if one is None:
                brokers = tuple(broker for broker in recipients(tp, assignment.replicas) if broker >= 0)
                one = _Alike(known, assignment, brokers)
                alike[id(known), id(assignment)] = one
            if not one.brokers:
                continue
            one.partitions += 1
            sent[tp] = known
            topic = tp[0]
            if topic in groups:
                groups[topic].append((tp, one))
            else:
                groups[topic] = [(tp, one)]
        if not sent:
            return sent, True
        added.alike = [one for one in alike.values() if one.brokers]
        for one in added.alike:
            for broker in one.brokers:
                added.sizes[broker] = added.sizes.get(broker, 0) + one.partitions
        self._added.append(added)
        last = trie_order(added.sizes)[-1]
        return sent, all(one.brokers == (last,) for one in added.alike if last in one.brokers)

    def tables(self) -> dict[BrokerId, HashTable[TopicPartition, LeaderAndIsrState]]:
        content: dict[BrokerId, dict[TopicPartition, LeaderAndIsrState]] = {}
        for added in self._added:
            alike = {tp: one for group in added.groups.values() for tp, one in group}
            for tp in added.partitions:
                one = alike[tp]
                state = LeaderAndIsrState(one.leadership, one.assignment, False)
                for broker in one.brokers:
                    content.setdefault(broker, {})[tp] = state
        return {broker: HashTable.of(states) for broker, states in content.items()}

    def topics(self, version: int) -> dict[BrokerId, KnownTopics]:
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
            for buckets, brokers in brokers_of.items():
                for one in added.alike:
                    one.to = one.brokers if len(brokers_of) == 1 else [b for b in one.brokers if b in brokers]
                for broker, dealt in _deal(added.groups, buckets, brokers).items():
                    found[broker] = KnownTopics(dealt.in_order(), leaders[broker])
        return found


class _Dealt:
    """What one broker gets: the states of each topic in their order, and the places of the first and the last."""

    __slots__ = ("first", "last", "states")

    def __init__(self) -> None:
        self.states: dict[str, wire.Encoded] = {}
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}

    def in_order(self) -> list[tuple[str, wire.Encoded]]:
        """As in ``by_topic``: of topics in the same place, the one that was added first is first."""
        topics = sorted(self.states, key=self.first.__getitem__)
        last = max(self.states, key=self.last.__getitem__)
        order = java_order(topics, last_is_new=self.states[last].elements == 1)
        return [(topic, self.states[topic]) for topic in order]


def _deal(
    groups: Mapping[str, Sequence[tuple[TopicPartition, _Alike]]], buckets: int, brokers: Iterable[BrokerId]
) -> dict[BrokerId, _Dealt]:
    """``brokers``: those whose table has so many ``buckets``."""
    found = {broker: _Dealt() for broker in brokers}
    for topic, group in groups.items():
        here: dict[BrokerId, list[bytes]] = {}
        last: dict[BrokerId, int] = {}
        for place, (tp, one) in placed(topic, group, buckets):
            state = encoded_index(tp[1]) + one.tail
            for broker in one.to:
                if broker in here:
                    here[broker].append(state)
                else:
                    here[broker] = [state]
                    found[broker].first[topic] = place
                last[broker] = place
        for broker, states in here.items():
            dealt = found[broker]
            dealt.states[topic] = wire.Encoded(len(states), (b"".join(states),))
            dealt.last[topic] = last[broker]
    return found
