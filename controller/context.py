"""The controller's mutable state: its view of the cluster (rules of section 5).

Only the event loop's task uses it. Unknown topics and partitions read as empty, never as errors (5.12).
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from uuid import UUID

from kce.controller.iteration_order import HashedSet
from kce.controller.states import PartitionState, ReplicaState, ReplicaStates
from kce.zookeeper.errors import IllegalState
from kce.zookeeper.model import (
    EPOCH_DURING_DELETE,
    NO_EPOCH,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    EpochZkVersion,
    Leadership,
    PartitionReplica,
    RegisteredBroker,
    ReplicaAssignment,
    TopicPartition,
)


class ControllerContext:
    """Brokers, topics, assignments, leadership, and the states of partitions and replicas."""

    def __init__(self) -> None:
        self.being_reassigned: HashedSet[TopicPartition] = HashedSet()
        self.clear()

    def clear(self) -> None:
        """Forget everything; the epoch reads 0 afterwards (rule 4.31)."""
        self.epoch = ControllerEpoch(0)
        self.epoch_zk_version = EpochZkVersion(0)
        self._brokers: dict[BrokerId, RegisteredBroker] = {}
        self._broker_epochs: dict[BrokerId, BrokerEpoch] = {}
        self.shutting_down: set[BrokerId] = set()
        self.topics: set[str] = set()
        self.topic_ids: dict[str, UUID] = {}
        self.topic_names: dict[UUID, str] = {}
        # a partition is the same object wherever it is a key
        #: changed by ``set_assignment`` and ``remove_topic``
        self.assignments: dict[TopicPartition, ReplicaAssignment] = {}
        self._partitions: dict[str, dict[int, TopicPartition]] = {}
        self.leadership: dict[TopicPartition, Leadership] = {}
        #: partitions of topics not queued for deletion that are not led by their preferred replica (5.20)
        self.preferred_replica_imbalance_count = 0
        self.being_reassigned.clear()  # it keeps its order
        self.partition_states: dict[TopicPartition, PartitionState] = {}
        self.replica_states = ReplicaStates()
        self.replicas_on_offline_dirs: dict[BrokerId, set[TopicPartition]] = {}
        self.topics_to_delete: set[str] = set()
        self.topics_with_deletion_started: set[str] = set()
        self.topics_ineligible_for_deletion: set[str] = set()
        self.offline_partition_count = 0

    # brokers, 5.1, 5.2

    def set_live_brokers(self, brokers: Iterable[tuple[RegisteredBroker, BrokerEpoch]]) -> None:
        self._brokers.clear()
        self._broker_epochs.clear()
        self.add_live_brokers(brokers)

    def add_live_brokers(self, brokers: Iterable[tuple[RegisteredBroker, BrokerEpoch]]) -> None:
        for broker, epoch in brokers:
            self._brokers[broker.id] = broker
            self._broker_epochs[broker.id] = epoch

    def remove_live_brokers(self, ids: Iterable[BrokerId]) -> None:
        for broker in ids:
            self._brokers.pop(broker, None)
            self._broker_epochs.pop(broker, None)

    def update_broker(self, broker: RegisteredBroker) -> None:
        """Replace the descriptor only; the epoch stays (rule 5.2)."""
        self._brokers[broker.id] = broker

    @property
    def broker_epochs(self) -> dict[BrokerId, BrokerEpoch]:
        """The epoch of every registered broker, shutting down or not."""
        return self._broker_epochs

    @property
    def live_or_shutting_down_brokers(self) -> list[RegisteredBroker]:
        return list(self._brokers.values())

    @property
    def controller_only_ids(self) -> set[BrokerId]:
        """Live nodes that take no replicas."""
        return {broker.id for broker in self._brokers.values() if broker.controller_only}

    @property
    def live_broker_ids(self) -> set[BrokerId]:
        return set(self._broker_epochs) - self.shutting_down

    @property
    def live_or_shutting_down_broker_ids(self) -> set[BrokerId]:
        return set(self._broker_epochs)

    def broker(self, broker_id: BrokerId) -> RegisteredBroker | None:
        return self._brokers.get(broker_id)

    # topics and assignments

    def set_topics(self, topics: Iterable[str]) -> None:
        self.topics = set(topics)

    def add_topic_id(self, topic: str, topic_id: UUID) -> None:
        """Rule 5.5. Raises IllegalState for an unknown topic, and for an id or a name that is bound to another."""
        if topic not in self.topics:
            raise IllegalState(f"{topic} is not a known topic")
        if self.topic_ids.get(topic, topic_id) != topic_id:
            raise IllegalState(f"{topic} has id {self.topic_ids[topic]}, not {topic_id}")
        if self.topic_names.get(topic_id, topic) != topic:
            raise IllegalState(f"topic id {topic_id} belongs to {self.topic_names[topic_id]}, not to {topic}")
        self.topic_ids[topic] = topic_id
        self.topic_names[topic_id] = topic

    def assignment(self, tp: TopicPartition) -> ReplicaAssignment:
        return self.assignments.get(tp, NO_ASSIGNMENT)

    def replicas(self, tp: TopicPartition) -> tuple[BrokerId, ...]:
        return self.assignment(tp).replicas

    def set_assignment(self, tp: TopicPartition, assignment: ReplicaAssignment) -> None:
        known = self.leadership.get(tp)
        if known is not None and tp.topic not in self.topics_to_delete:
            before = self.assignment(tp)
            self.preferred_replica_imbalance_count += _is_imbalanced(assignment, known) - _is_imbalanced(before, known)
        self.assignments[tp] = assignment
        self._partitions.setdefault(tp.topic, {}).setdefault(tp.partition, tp)

    def add_topic(self, topic: str, assignments: Mapping[int, ReplicaAssignment]) -> list[TopicPartition]:
        """Set the assignments of a topic's partitions, which are new or known; returns the partitions."""
        if topic in self._partitions:
            for number, assignment in assignments.items():
                self.set_assignment(TopicPartition(topic, number), assignment)
            return [self._partitions[topic][number] for number in assignments]
        partitions = list(map(_partition, zip(itertools.repeat(topic), assignments)))
        self._partitions[topic] = dict(zip(assignments, partitions, strict=True))
        self.assignments.update(zip(partitions, assignments.values(), strict=True))
        return partitions

    def assignments_of(self, partitions: Mapping[TopicPartition, object]) -> Iterable[ReplicaAssignment]:
        """One for each. Without looking them up if they are all that there are, as after a failover."""
        assignments = self.assignments
        if _are_same(partitions, assignments):
            return assignments.values()
        return list(map(assignments.get, partitions, itertools.repeat(NO_ASSIGNMENT)))

    def leadership_of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Leadership]:
        """Of those that have one."""
        leadership = self.leadership
        if partitions is self.assignments and _are_same(leadership, self.assignments):
            return leadership.copy()
        return {tp: known for tp in partitions if (known := leadership.get(tp)) is not None}

    def is_assigned(self, tp: TopicPartition) -> bool:
        return tp in self.assignments

    def topic_assignments(self, topic: str) -> dict[int, ReplicaAssignment]:
        return {p: self.assignments[tp] for p, tp in self._partitions.get(topic, {}).items()}

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return list(self._partitions.get(topic, {}).values())

    def all_partitions(self) -> Iterator[TopicPartition]:
        return iter(self.assignments)

    def remove_topic(self, topic: str) -> None:
        """Rule 5.17: partition and replica states stay, as in Kafka."""
        self._forget_imbalance_of(topic)
        self.topics_to_delete.discard(topic)
        self.topics_with_deletion_started.discard(topic)
        self.topics.discard(topic)
        if (topic_id := self.topic_ids.pop(topic, None)) is not None:
            self.topic_names.pop(topic_id, None)
        for tp in self._partitions.pop(topic, {}).values():
            self.assignments.pop(tp, None)
            self.leadership.pop(tp, None)

    def forget_topic(self, topic: str) -> None:
        """``remove_topic`` of one that was not there, with the states of its partitions and replicas."""
        for tp in self.partitions_of(topic):
            for broker in self.replicas(tp):
                self.replica_states.put(broker, [tp], ReplicaState.NON_EXISTENT)
            self.put_partition_state(tp, PartitionState.NON_EXISTENT)
        self.remove_topic(topic)

    # replicas

    def is_replica_online(self, broker: BrokerId, tp: TopicPartition, *, include_shutting_down: bool = False) -> bool:
        """Rule 5.11."""
        if broker not in self._broker_epochs or (broker in self.shutting_down and not include_shutting_down):
            return False
        return tp not in self.replicas_on_offline_dirs.get(broker, ())

    def partitions_on_broker(self, broker: BrokerId) -> list[TopicPartition]:
        return [tp for tp, assignment in self.assignments.items() if broker in assignment.replicas]

    def partitions_by_broker(self, brokers: Iterable[BrokerId]) -> dict[BrokerId, list[TopicPartition]]:
        """Partitions with a replica on each of these brokers that has any."""
        found = {broker: self.partitions_on_broker(broker) for broker in brokers}
        return {broker: partitions for broker, partitions in found.items() if partitions}

    def replicas_of_partitions(self, partitions: Iterable[TopicPartition]) -> list[PartitionReplica]:
        return [PartitionReplica(tp, r) for tp in partitions for r in self.replicas(tp)]

    def replicas_of_topic(self, topic: str) -> list[PartitionReplica]:
        return self.replicas_of_partitions(self.partitions_of(topic))

    def replicas_by_broker(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[BrokerId, list[TopicPartition]], dict[BrokerId, list[TopicPartition]]]:
        """(online, offline)."""
        online: dict[BrokerId, list[TopicPartition]] = {}
        offline: dict[BrokerId, list[TopicPartition]] = {}
        is_offline = self.offline_replicas()
        additions: dict[int, list[Callable[[TopicPartition], None]]] = {}  # of equal assignments, which are one object
        for tp in partitions:
            assignment = self.assignments[tp]
            add = additions.get(id(assignment))
            if add is None or self.replicas_on_offline_dirs:
                gone = is_offline(tp, assignment.replicas)
                add = additions[id(assignment)] = [
                    (offline if replica in gone else online).setdefault(replica, []).append
                    for replica in assignment.replicas
                ]
            for add_to_broker in add:
                add_to_broker(tp)
        return online, offline

    def online_among(self, tp: TopicPartition, replicas: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
        """Those on available brokers, each once, whatever is known of log directories."""
        available = self.live_broker_ids
        return tuple(broker for broker in dict.fromkeys(replicas) if broker in available)

    def has_replicas_offline(self) -> bool:
        """Whether a replica is on a broker that is gone, or in a log directory that is."""
        if self.replicas_on_offline_dirs:
            return True
        live, all_of = self.live_broker_ids, self.assignments.values()
        distinct = dict(zip(map(id, all_of), all_of, strict=True)).values()
        return not all(live.issuperset(assignment.replicas) for assignment in distinct)

    def offline_replicas(self) -> Callable[[TopicPartition, tuple[BrokerId, ...]], tuple[BrokerId, ...]]:
        """A function of a partition and its replicas: those that are offline. Fast for many partitions; stale as soon
        as the context changes."""
        if self.replicas_on_offline_dirs:
            return lambda tp, replicas: tuple(r for r in replicas if not self.is_replica_online(r, tp))
        offline: dict[tuple[BrokerId, ...], tuple[BrokerId, ...]] = {}

        def of(tp: TopicPartition, replicas: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
            found = offline.get(replicas)
            if found is None:
                found = offline[replicas] = tuple(r for r in replicas if not self.is_replica_online(r, tp))
            return found

        return of

    def topics_with_offline_replicas(self) -> set[str]:
        if not self.has_replicas_offline():
            return set()
        of = self.offline_replicas()
        return {tp.topic for tp, assignment in self.assignments.items() if of(tp, assignment.replicas)}

    # leadership

    def put_leadership(self, tp: TopicPartition, leadership: Leadership) -> None:
        self.put_all_leadership({tp: leadership})

    def put_all_leadership(self, found: Mapping[TopicPartition, Leadership], *, are_new: bool = False) -> None:
        """``put_leadership`` of each; ``are_new``: none has one yet."""
        leadership, deleted = self.leadership, self.topics_to_delete
        counted = {tp: known for tp, known in found.items() if tp.topic not in deleted} if deleted else found
        assignments = self.assignments_of(counted)
        self.preferred_replica_imbalance_count += _imbalance(assignments, counted.values())
        if not are_new:
            self.preferred_replica_imbalance_count -= _imbalance(assignments, map(leadership.get, counted))
        leadership.update(found)

    def partitions_without_leadership(self) -> Collection[TopicPartition]:
        if _are_same(self.leadership, self.assignments):
            return ()
        return self.assignments.keys() - self.leadership.keys()

    def clear_leadership(self) -> None:
        self.leadership.clear()
        self.preferred_replica_imbalance_count = 0

    @property
    def partitions_with_leaders(self) -> list[TopicPartition]:
        """The partitions with known leadership, even if nobody leads them (rule 5.14)."""
        return [tp for tp in self.leadership if not self.is_queued_for_deletion(tp.topic)]

    @property
    def partitions_with_offline_leader(self) -> list[TopicPartition]:
        deleted = self.topics_to_delete
        return [tp for tp in self.partitions_without_online_leader() if tp.topic not in deleted]

    def partitions_without_online_leader(self) -> list[TopicPartition]:
        """Of those with known leadership, whether their topic is queued for deletion or not."""
        if self.replicas_on_offline_dirs:
            online = self.is_replica_online
            return [tp for tp, known in self.leadership.items() if not online(known.leader_and_isr.leader, tp)]
        live = self.live_broker_ids
        return [tp for tp, known in self.leadership.items() if known[0][0] not in live]

    def leader_epoch_for_stop_replica(self, tp: TopicPartition) -> int:
        """Rule 5.13."""
        if self.is_queued_for_deletion(tp.topic):
            return EPOCH_DURING_DELETE
        known = self.leadership.get(tp)
        return NO_EPOCH if known is None else known.leader_and_isr.leader_epoch

    # deletion

    def is_queued_for_deletion(self, topic: str) -> bool:
        return topic in self.topics_to_delete

    def queue_for_deletion(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._forget_imbalance_of(topic)
            self.topics_to_delete.add(topic)

    def _forget_imbalance_of(self, topic: str) -> None:
        """Topics queued for deletion do not count (rule 5.20)."""
        if topic not in self.topics_to_delete:
            known = self.leadership_of(self.partitions_of(topic))
            self.preferred_replica_imbalance_count -= _imbalance(self.assignments_of(known), known.values())

    # states, 5.19, 5.22

    def put_partition_state(self, tp: TopicPartition, state: PartitionState) -> None:
        before = self.partition_states.get(tp, PartitionState.NON_EXISTENT)
        if tp.topic not in self.topics_with_deletion_started:
            self.offline_partition_count += (state is PartitionState.OFFLINE) - (before is PartitionState.OFFLINE)
        if state is PartitionState.NON_EXISTENT:
            self.partition_states.pop(tp, None)
        else:
            self.partition_states[tp] = state

    def put_partition_states(self, states: dict[TopicPartition, PartitionState]) -> None:
        """``put_partition_state`` of each."""
        if self.partition_states:
            for tp, state in states.items():
                self.put_partition_state(tp, state)
            return
        self.partition_states = states
        self.offline_partition_count = sum(
            tp.topic not in self.topics_with_deletion_started for tp in self.partitions_in_state(PartitionState.OFFLINE)
        )

    def partition_state(self, tp: TopicPartition) -> PartitionState:
        return self.partition_states.get(tp, PartitionState.NON_EXISTENT)

    def partitions_in_state(self, *states: PartitionState) -> list[TopicPartition]:
        wanted = set(states)  # quicker than a tuple
        if wanted.isdisjoint(self.partition_states.values()):  # as mostly
            return []
        return [tp for tp, state in self.partition_states.items() if state in wanted]

    def set_replica_states(self, partitions: Iterable[TopicPartition]) -> None:
        """Those of new partitions: online, or ineligible for deletion where the replica is offline."""
        of_equal: dict[int, Mapping[BrokerId, ReplicaState]] = {}  # assignments, which are one object
        is_offline = self.offline_replicas()
        added = list(partitions)
        found = []
        for tp, assignment in zip(added, map(self.assignments.__getitem__, added), strict=True):
            states = of_equal.get(id(assignment))
            if states is None or self.replicas_on_offline_dirs:
                gone = is_offline(tp, assignment.replicas)
                states = of_equal[id(assignment)] = {
                    r: ReplicaState.DELETION_INELIGIBLE if r in gone else ReplicaState.ONLINE
                    for r in assignment.replicas
                }
            found.append(states)
        self.replica_states.add(added, found)

    def replicas_in_state(self, topic: str, state: ReplicaState) -> list[PartitionReplica]:
        return [r for r in self.replicas_of_topic(topic) if self.replica_states.known(r) is state]

    def replica_states_of_topic(self, topic: str) -> set[ReplicaState | None]:
        """The states that its replicas have; None for one without."""
        return set(map(self.replica_states.get, self.replicas_of_topic(topic)))

    def all_replicas_in_state(self, topic: str, state: ReplicaState) -> bool:
        """Raises KeyError for a replica without a state (rule 5.23)."""
        return all(self.replica_states.known(r) is state for r in self.replicas_of_topic(topic))

    def any_replica_in_state(self, topic: str, state: ReplicaState) -> bool:
        return any(self.replica_states.known(r) is state for r in self.replicas_of_topic(topic))


NO_ASSIGNMENT = ReplicaAssignment()


_partition: Callable[[tuple[str, int]], TopicPartition] = functools.partial(tuple.__new__, TopicPartition)


def _are_same(some: Mapping[TopicPartition, object], others: Mapping[TopicPartition, object]) -> bool:
    """Whether two have the same partitions in the same order; without looking them up, as often as they do."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _imbalance(assignments: Iterable[ReplicaAssignment], known: Iterable[Leadership | None]) -> int:
    """How many partitions are not led by their preferred replica; those without leadership do not count."""
    return sum(map(_is_imbalanced, assignments, known))


def _is_imbalanced(assignment: ReplicaAssignment, known: Leadership | None) -> bool:
    """Whether the preferred replica does not lead (rule 5.21). One that is being added counts once it is in the ISR."""
    replicas, adding = assignment.replicas, assignment.adding
    if known is None or not replicas:
        return False
    if adding and replicas[0] in adding:
        return replicas[0] in known.leader_and_isr.isr
    return known[0][0] != replicas[0]  # faster than by name: this is done a million times
