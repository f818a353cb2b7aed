"""When a leader proposes an ISR change, and how it handles the response.

A stub's replica holds no records, so every live replica is caught up: any assigned, live replica outside the ISR may
join. No follower lags, and the controller removes dead ones, so a leader never shrinks an ISR. A policy driven by
followers' fetches (rules 9.43-9.47) can implement the same protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from kce.broker_stub.alter_partition_manager import AlterPartitionItem, Callback, Result
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.partition import Partition, ProposalOutcome
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)


class IsrPolicy(Protocol):
    """The replica manager calls it after each change that it applied. No method awaits."""

    def partition_changed(self, partition: Partition) -> None:
        """A LeaderAndIsr changed the partition, or the partition is no longer hosted (and not led)."""

    def partition_stopped(self, partition: Partition) -> None:
        """A StopReplica without deletion: the partition is hosted, but no longer fetched (rules 9.31, 9.34)."""

    def metadata_changed(self, controller_epoch: int) -> None:
        """The metadata cache applied an UpdateMetadata of that controller epoch."""


class NoIsrChanges:
    """Proposes nothing, for inter-broker protocols before AlterPartition (rule 9.60)."""

    def partition_changed(self, partition: Partition) -> None:
        pass

    def partition_stopped(self, partition: Partition) -> None:
        pass

    def metadata_changed(self, controller_epoch: int) -> None:
        pass


class ItemSubmitter(Protocol):
    """The part of AlterPartitionManager that this module uses."""

    def submit(self, item: AlterPartitionItem, callback: Callback) -> bool: ...


class LiveReplicasJoin:
    """After each applied UpdateMetadata, propose that live replicas outside the ISR join it.

    A LeaderAndIsr alone does not trigger a proposal; the UpdateMetadata that follows it does (rule 8.5). A dead replica
    may have caused the LeaderAndIsr, which only the UpdateMetadata shows, and controllers before 3.3 would accept that
    replica. Replicas that the controller marks offline do not join although their broker is alive: the broker is
    shutting down or lost a disk (rules 5.11, 8.8).

    One proposal per partition is in flight (rule 9.48). It contains all joining replicas in the order of the assignment
    (rule 9.49). This is how a restarted broker returns to its ISRs.

    A refused replica is not proposed again until the result can differ: until the replica was gone, the partition has
    a new leader epoch, or the controller epoch changed (rules 11.46, 11.74). A retry on the next UpdateMetadata would
    loop, because the refusal itself causes one (rule 11.79).
    """

    def __init__(self, metadata_cache: MetadataCache, alter_partition_manager: ItemSubmitter) -> None:
        self._metadata_cache = metadata_cache
        self._alter_partition_manager = alter_partition_manager
        self._controller_epoch = 0
        self._changed: set[TopicPartition] = set()  # by a LeaderAndIsr since the last UpdateMetadata
        self._incomplete: dict[TopicPartition, Partition] = {}  # led here, with replicas outside the ISR
        #: replicas that were proposed and have been alive since: a retry would be refused again
        self._proposed: dict[TopicPartition, frozenset[int]] = {}
        #: committed and refused changes (rule 12.10)
        self.expands = 0
        self.failures = 0

    def partition_changed(self, partition: Partition) -> None:
        self._proposed.pop(partition.topic_partition, None)
        self._changed.add(partition.topic_partition)
        self._reconsider(partition)

    def metadata_changed(self, controller_epoch: int) -> None:
        if controller_epoch != self._controller_epoch:
            self._controller_epoch = controller_epoch
            self._proposed.clear()
        self._changed.clear()
        for topic_partition, proposed in list(self._proposed.items()):
            self._proposed[topic_partition] = proposed.intersection(self._online(topic_partition, proposed))
        for partition in list(self._incomplete.values()):
            self._propose(partition)

    def partition_stopped(self, partition: Partition) -> None:
        """Nothing is fetched."""

    def _reconsider(self, partition: Partition) -> None:
        if partition.is_leader and not set(partition.isr).issuperset(partition.replicas):
            self._incomplete[partition.topic_partition] = partition
            self._propose(partition)
        else:
            self._incomplete.pop(partition.topic_partition, None)

    def _propose(self, partition: Partition) -> None:
        if partition.pending is not None or partition.topic_partition in self._changed:
            return
        known = self._proposed.get(partition.topic_partition, frozenset()).union(partition.isr)
        joining = [i for i in self._online(partition.topic_partition, partition.replicas) if i not in known]
        if joining:
            self._submit(partition, (*partition.isr, *joining))

    def _online(self, topic_partition: TopicPartition, replicas: Iterable[int]) -> list[int]:
        snapshot = self._metadata_cache.snapshot
        state = snapshot.partition(topic_partition)
        offline = () if state is None else state.offline_replicas
        return [i for i in replicas if i in snapshot.alive_brokers and i not in offline]

    def _submit(self, partition: Partition, isr: tuple[int, ...]) -> None:
        item = partition.propose_isr(isr)
        if self._alter_partition_manager.submit(item, lambda result: self._completed(partition, item, result)):
            proposed = self._proposed.get(item.partition, frozenset())
            self._proposed[item.partition] = proposed.union(isr)
        else:  # an item of an earlier leader epoch is in flight: its result comes to `_completed`
            partition.withdraw()

    def _completed(self, partition: Partition, item: AlterPartitionItem, result: Result) -> None:
        outcome = partition.alter_partition_completed(item, result)
        log.debug("%s: proposed ISR %s: %s, %s", item.partition, item.leader_and_isr.isr, outcome.name, result)
        self.expands += outcome is ProposalOutcome.COMMITTED
        self.failures += isinstance(result, int)
        if outcome is ProposalOutcome.COMMITTED:
            self._proposed.pop(item.partition, None)
            self._reconsider(partition)
        elif outcome is ProposalOutcome.SUPERSEDED:  # the current partition of that name may have waited for this
            current = self._incomplete.get(item.partition)
            if current is not None:
                self._propose(current)
        elif outcome is ProposalOutcome.REVERTED:
            self._propose(partition)  # replicas that left and returned while it was in flight
        elif outcome is ProposalOutcome.RESUBMIT:
            self._submit(partition, item.leader_and_isr.isr)
