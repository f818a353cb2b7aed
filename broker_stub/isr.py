"""When a leader proposes another ISR, and what it does with the answer.

A stub's replica holds no records, so a live one has always caught up: whoever is assigned, alive and not in the ISR
may join it. A follower that lags is not a thing here, and dead ones are removed by the controller, so nothing shrinks.
A policy driven by followers' fetches (rules 9.43-9.47) takes the same place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from broker_stub.alter_partition_manager import AlterPartitionItem, Callback, Result
from broker_stub.metadata_cache import MetadataCache
from broker_stub.partition import Outcome, Partition
from wire.vocabulary import TopicPartition

logger = logging.getLogger("broker_stub.isr")


class IsrPolicy(Protocol):
    """Told by the replica manager what was applied; none of these awaits."""

    def partition_changed(self, partition: Partition) -> None:
        """A LeaderAndIsr took effect on it, or it is no longer hosted (and leads nothing)."""

    def metadata_changed(self, controller_epoch: int) -> None:
        """An UpdateMetadata of that controller epoch is in the metadata cache."""


class NoIsrChanges:
    """Proposes nothing: for inter-broker protocols that predate AlterPartition (rule 9.60)."""

    def partition_changed(self, partition: Partition) -> None:
        pass

    def metadata_changed(self, controller_epoch: int) -> None:
        pass


class ItemSubmitter(Protocol):
    """AlterPartitionManager, as this module needs it."""

    def submit(self, item: AlterPartitionItem, callback: Callback) -> bool: ...


class LiveReplicasJoin:
    """After every UpdateMetadata that was applied, live replicas that are out of the ISR join it.

    Not after a LeaderAndIsr, before the UpdateMetadata that follows it (rule 8.5): it may be there because a replica
    died, which only the latter says, and no controller before 3.3 would refuse that replica. Nor while the controller
    calls the replica offline, though its broker is there: it shuts down, or lost a disk (rules 5.11, 8.8).

    They are appended in the order of the assignment (rule 9.49), all in one proposal, and there is one proposal at a
    time for a partition (rule 9.48). This is how a broker that returns gets back into the ISRs.

    A replica that the controller refuses is left alone until its answer can be another one: until the replica has been
    gone, the partition has a new leader epoch, or the controller epoch has changed (rules 11.46, 11.74). Asking again
    on the next UpdateMetadata would not do: the refusal itself causes one (rule 11.79), and so a busy loop.
    """

    def __init__(self, metadata_cache: MetadataCache, alter_partition_manager: ItemSubmitter) -> None:
        self._metadata_cache = metadata_cache
        self._alter_partition_manager = alter_partition_manager
        self._controller_epoch = 0
        self._changed: set[TopicPartition] = set()  # since the last UpdateMetadata
        self._incomplete: dict[TopicPartition, Partition] = {}  # led here, with replicas out of the ISR
        #: who was proposed, and has not been gone since: if the answer is no, asking again would be no use
        self._asked_for: dict[TopicPartition, frozenset[int]] = {}
        #: ISRs that grew, and changes that were refused (rule 12.10)
        self.expands = 0
        self.failures = 0

    def partition_changed(self, partition: Partition) -> None:
        self._asked_for.pop(partition.topic_partition, None)
        self._changed.add(partition.topic_partition)
        self._reconsider(partition)

    def metadata_changed(self, controller_epoch: int) -> None:
        if controller_epoch != self._controller_epoch:
            self._controller_epoch = controller_epoch
            self._asked_for.clear()
        self._changed.clear()
        for topic_partition, asked_for in list(self._asked_for.items()):
            self._asked_for[topic_partition] = asked_for.intersection(self._online(topic_partition, asked_for))
        for partition in list(self._incomplete.values()):
            self._propose(partition)

    def _reconsider(self, partition: Partition) -> None:
        if partition.is_leader and not set(partition.isr).issuperset(partition.replicas):
            self._incomplete[partition.topic_partition] = partition
            self._propose(partition)
        else:
            self._incomplete.pop(partition.topic_partition, None)

    def _propose(self, partition: Partition) -> None:
        if partition.pending is not None or partition.topic_partition in self._changed:
            return
        known = self._asked_for.get(partition.topic_partition, frozenset()).union(partition.isr)
        joining = [i for i in self._online(partition.topic_partition, partition.replicas) if i not in known]
        if joining:
            self._submit(partition, (*partition.isr, *joining))

    def _online(self, topic_partition: TopicPartition, replicas: Iterable[int]) -> list[int]:
        snapshot = self._metadata_cache.snapshot
        said = snapshot.partition(topic_partition)
        offline = () if said is None else said.offline_replicas
        return [i for i in replicas if i in snapshot.alive_brokers and i not in offline]

    def _submit(self, partition: Partition, isr: tuple[int, ...]) -> None:
        item = partition.propose_isr(isr)
        if self._alter_partition_manager.submit(item, lambda result: self._completed(partition, item, result)):
            asked_for = self._asked_for.get(item.partition, frozenset())
            self._asked_for[item.partition] = asked_for.union(isr)
        else:  # an item of an earlier leader epoch is still unanswered: its answer comes to `_completed`
            partition.withdraw()

    def _completed(self, partition: Partition, item: AlterPartitionItem, result: Result) -> None:
        outcome = partition.alter_partition_completed(item, result)
        logger.debug("%s: proposed ISR %s: %s, %s", item.partition, item.isr, outcome.name, result)
        self.expands += outcome is Outcome.COMMITTED
        self.failures += isinstance(result, int)
        if outcome is Outcome.COMMITTED:
            self._asked_for.pop(item.partition, None)
            self._reconsider(partition)
        elif outcome is Outcome.SUPERSEDED:  # whatever is led under that name now may have waited for this
            current = self._incomplete.get(item.partition)
            if current is not None:
                self._propose(current)
        elif outcome is Outcome.REVERTED:
            self._propose(partition)  # those who were gone and came back while it was under way
        elif outcome is Outcome.RESUBMIT:
            self._submit(partition, item.isr)
