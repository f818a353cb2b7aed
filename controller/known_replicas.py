"""LeaderAndIsr of many existing replicas, as after a failover: what the replicas of a partition share is made once.

A million partitions have three million replicas. For each partition its state is built, and for each topic the order of
the partitions is found, once and not for every broker; then the states are dealt out to the brokers. The result is what
a `HashTable` for every broker and `by_topic` give, which ``tables`` makes for whoever needs more than that.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence

from kce import wire
from kce.controller.context import ControllerContext
from kce.controller.iteration_order import HashTable, bucket_count, java_order, placed
from kce.zookeeper.model import BrokerId, Leadership, ReplicaAssignment, TopicPartition

_leader_and_isr_partition_state = wire.maker(wire.LeaderAndIsrPartitionState)


class LeaderAndIsrState:
    """One partition in a LeaderAndIsr request; replicas that get the same state share the object."""

    __slots__ = ("_built", "assignment", "is_new", "leadership")

    def __init__(self, leadership: Leadership, assignment: ReplicaAssignment, is_new: bool) -> None:
        self.leadership = leadership
        self.assignment = assignment
        self.is_new = is_new
        self._built: wire.LeaderAndIsrPartitionState | None = None

    def build(self, tp: TopicPartition, version: int) -> wire.LeaderAndIsrPartitionState:
        """Built once for all requests of a batch, which have the same version (rules 13.7-13.11)."""
        if self._built is None:
            decided, controller_epoch = self.leadership
            self._built = _leader_and_isr_partition_state(
                topic_name=tp.topic if version < 2 else "",
                partition_index=tp.partition,
                controller_epoch=controller_epoch,
                leader=decided.leader,
                leader_epoch=decided.leader_epoch,
                isr=decided.isr,
                partition_epoch=decided.partition_epoch,
                replicas=self.assignment.replicas,
                adding_replicas=self.assignment.adding,
                removing_replicas=self.assignment.removing,
                is_new=self.is_new,
                leader_recovery_state=decided.recovery_state if version >= 6 else 0,
            )
        return self._built


class KnownState(LeaderAndIsrState):
    """The cached leadership of a partition, for ``brokers``."""

    __slots__ = ("brokers",)

    def __init__(self, leadership: Leadership, assignment: ReplicaAssignment, broker: BrokerId) -> None:
        self.leadership = leadership
        self.assignment = assignment
        self.is_new = False
        self._built = None
        self.brokers = [broker]


#: the topics of one broker's request, in its order, with their states in theirs
Topics = list[tuple[str, list[wire.LeaderAndIsrPartitionState]]]


class KnownReplicas:
    """What is to be sent of existing replicas. The context must not change between additions."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, KnownState] = {}
        self._groups: dict[str, list[tuple[TopicPartition, KnownState]]] = {}
        self._partitions: dict[BrokerId, Sequence[TopicPartition]] = {}
        self._sizes: dict[BrokerId, int] = {}

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def __contains__(self, broker: BrokerId) -> bool:
        return broker in self._sizes

    def size(self, broker: BrokerId) -> int:
        return self._sizes[broker]

    def add(
        self, context: ControllerContext, broker: BrokerId, partitions: Sequence[TopicPartition]
    ) -> tuple[bool, dict[TopicPartition, Leadership]]:
        """The replicas of a broker that was not added before, but for partitions without leadership.

        Returns whether there are any, and the partitions that no other broker had.
        """
        states, groups, leadership, assignment = self._states, self._groups, context.leadership, context.assignment
        new: dict[TopicPartition, Leadership] = {}
        count = 0
        for tp in partitions:
            state = states.get(tp)
            if state is None:
                known = leadership.get(tp)
                if known is None:
                    continue
                new[tp] = known
                state = states[tp] = KnownState(known, assignment(tp), broker)
                topic = tp[0]
                if topic in groups:
                    groups[topic].append((tp, state))
                else:
                    groups[topic] = [(tp, state)]
            else:
                brokers = state.brokers
                if brokers[-1] == broker:
                    continue  # it is listed twice
                brokers.append(broker)
            count += 1
        if count:
            self._sizes[broker] = count
            self._partitions[broker] = partitions
        return count > 0, new

    def tables(self) -> dict[BrokerId, HashTable[TopicPartition, LeaderAndIsrState]]:
        states = self._states
        return {
            broker: HashTable.of({tp: states[tp] for tp in partitions if tp in states})
            for broker, partitions in self._partitions.items()
        }

    def topics(self, version: int) -> dict[BrokerId, Topics]:
        """What ``by_topic`` makes of the tables, built."""
        sizes: dict[int, list[BrokerId]] = {}
        for broker, size in self._sizes.items():
            sizes.setdefault(bucket_count(size), []).append(broker)
        found: dict[BrokerId, Topics] = {}
        for buckets, brokers in sizes.items():
            for broker, dealt in _deal(self._groups, buckets, brokers, version).items():
                found[broker] = dealt.in_order(self._added(broker))
        return found

    def _added(self, broker: BrokerId) -> dict[str, None]:
        """The topics in the order in which they were added for a broker."""
        partitions = self._partitions[broker]
        if len(partitions) > self._sizes[broker]:
            partitions = [tp for tp in partitions if tp in self._states]
        return dict.fromkeys(map(operator.itemgetter(0), partitions))


class _Dealt:
    """What one broker gets: the states of each topic in their order, and the places of the first and the last."""

    __slots__ = ("first", "last", "states")

    def __init__(self) -> None:
        self.states: dict[str, list[wire.LeaderAndIsrPartitionState]] = {}
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}

    def in_order(self, added: Iterable[str]) -> Topics:
        """As in ``by_topic``: of topics in the same place, the one that was added first is first."""
        topics = sorted(added, key=self.first.__getitem__)
        last = max(added, key=self.last.__getitem__)
        order = java_order(topics, last_is_new=len(self.states[last]) == 1)
        return [(topic, self.states[topic]) for topic in order]


def _deal(
    groups: Mapping[str, Sequence[tuple[TopicPartition, KnownState]]],
    buckets: int,
    brokers: Iterable[BrokerId],
    version: int,
) -> dict[BrokerId, _Dealt]:
    """``brokers``: those whose table has so many ``buckets``."""
    found = {broker: _Dealt() for broker in brokers}
    for topic, group in groups.items():
        here: dict[BrokerId, list[wire.LeaderAndIsrPartitionState]] = {}
        lasts: dict[BrokerId, int] = {}
        for place, (tp, state) in placed(topic, group, buckets):
            built = state.build(tp, version)
            for broker in state.brokers:
                if broker in here:
                    here[broker].append(built)
                elif broker in found:
                    here[broker] = [built]
                    found[broker].first[topic] = place
                lasts[broker] = place
        for broker, states in here.items():
            dealt = found[broker]
            dealt.states[topic] = states
            dealt.last[topic] = lasts[broker]
    return found
