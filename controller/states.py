"""The states of partitions and replicas (rules 6.1, 6.2, 6.18, 6.19)."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping

from kce.zookeeper.model import BrokerId, PartitionReplica, TopicPartition


class PartitionState(enum.Enum):
    """Rules 6.1 and 6.2. The value is Kafka's code for metrics."""

    NEW = 0
    ONLINE = 1
    OFFLINE = 2
    NON_EXISTENT = 3

    __hash__ = object.__hash__  # members compare by identity; Enum's hash is ten times slower


class ReplicaState(enum.Enum):
    """Rules 6.18 and 6.19."""

    NEW = 1
    ONLINE = 2
    OFFLINE = 3
    DELETION_STARTED = 4
    DELETION_SUCCESSFUL = 5
    DELETION_INELIGIBLE = 6
    NON_EXISTENT = 7

    __hash__ = object.__hash__  # as in PartitionState


class ReplicaStates:
    """The state of each replica. Those of partitions with equal replicas are mostly one object, which never changes."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, Mapping[BrokerId, ReplicaState]] = {}

    def __iter__(self) -> Iterator[tuple[TopicPartition, Mapping[BrokerId, ReplicaState]]]:
        """The partitions that have any, and their states by broker."""
        return iter(self._states.items())

    def add(self, partitions: Iterable[TopicPartition], states: Iterable[Mapping[BrokerId, ReplicaState]]) -> None:
        """All states of each partition, by broker."""
        self._states.update(zip(partitions, states, strict=True))

    def put(self, broker: BrokerId, partitions: Iterable[TopicPartition], state: ReplicaState) -> None:
        """The state of the replica of each on one broker. ``state`` NON_EXISTENT: it has none any more."""
        states, of_equal = self._states, dict[int, tuple[object, Mapping[BrokerId, ReplicaState]]]()
        for tp in partitions:
            before = states.get(tp, _NO_STATES)
            changed = of_equal.get(id(before))
            if changed is None:
                after = {**before, broker: state}
                if state is ReplicaState.NON_EXISTENT:
                    del after[broker]
                changed = of_equal[id(before)] = before, after  # it keeps ``before``, and so the id is of no other
            if changed[1]:
                states[tp] = changed[1]
            else:
                states.pop(tp, None)

    def on(self, broker: BrokerId, partitions: Iterable[TopicPartition]) -> list[ReplicaState]:
        """Of the replica of each on one broker."""
        states = self._states
        return [states.get(tp, _NO_STATES).get(broker, ReplicaState.NON_EXISTENT) for tp in partitions]

    def of(self, replica: PartitionReplica) -> ReplicaState:
        return self.get(replica) or ReplicaState.NON_EXISTENT

    def get(self, replica: PartitionReplica) -> ReplicaState | None:
        return self._states.get(replica[0], _NO_STATES).get(replica[1])

    def known(self, replica: PartitionReplica) -> ReplicaState:
        """Raises KeyError for a replica without a state (rule 5.23)."""
        return self._states[replica.topic_partition][replica.replica]


_NO_STATES: Mapping[BrokerId, ReplicaState] = {}
