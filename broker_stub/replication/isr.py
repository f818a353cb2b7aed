"""A leader's decision to propose ISR changes, from its followers' fetches (rules 9.43 to 9.52)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import trio

from kce.broker_stub.alter_partition_manager import AlterPartitionItem, Callback, Result
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.partition import Partition, ProposalOutcome
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)


class ItemSubmitter(Protocol):
    """The part of AlterPartitionManager that this module uses."""

    def submit(self, item: AlterPartitionItem, callback: Callback) -> bool: ...


class HostedPartitions(Protocol):
    """The part of ReplicaManager that this module uses."""

    partitions: dict[TopicPartition, Partition]


class FollowersCatchUp:
    """A follower joins when it has what the ISR has, and leaves when it has lacked something for too long.

    One proposal per partition is in flight (rule 9.48). ``isr_changed`` is called with each committed change, because
    the high watermark may move with it.
    """

    def __init__(
        self,
        metadata_cache: MetadataCache,
        alter_partition_manager: ItemSubmitter,
        hosted: Callable[[], HostedPartitions],
        *,
        max_lag_ms: int,
        isr_changed: Callable[[Partition], None] = lambda partition: None,
    ) -> None:
        self._metadata_cache = metadata_cache
        self._alter_partition_manager = alter_partition_manager
        self._max_lag_ms = max_lag_ms
        self.isr_changed = isr_changed
        self._hosted = hosted
        #: committed and refused changes (rule 12.10)
        self.expands = 0
        self.shrinks = 0
        self.failures = 0

    def partition_changed(self, partition: Partition) -> None:
        if partition.is_leader:
            self.shrink_laggards(partition)

    def metadata_changed(self, controller_epoch: int) -> None:
        """Only what followers fetch counts."""

    def follower_fetched(self, partition: Partition, broker_id: int) -> None:
        """Rule 9.47: whose broker is alive, and who has what the ISR has, joins."""
        if partition.may_join_isr(broker_id) and broker_id in self._metadata_cache.snapshot.alive_brokers:
            self._submit(partition, (*partition.isr, broker_id))  # rule 9.49

    async def run(self) -> None:
        """Look for lagging followers, every half of the lag (rule 9.43). Until cancelled."""
        while True:
            await trio.sleep(self._max_lag_ms / 2000)
            for partition in list(self._hosted().partitions.values()):
                self.shrink(partition)

    def shrink_laggards(self, partition: Partition) -> None:
        """Who lags on command need not lag for a time."""
        if partition.followers.laggards:
            self.shrink(partition)

    def shrink(self, partition: Partition) -> None:
        """Rules 9.44 to 9.46."""
        if partition.pending is not None or partition.log is None or not partition.is_leader:
            return
        others = [i for i in partition.isr if i != partition.leader]
        now_ms = trio.current_time() * 1000
        lagging = partition.followers.lagging(others, partition.log.log_end_offset, now_ms, self._max_lag_ms)
        if lagging:
            log.info("%s: replicas %s lag, and leave the ISR", partition.topic_partition, sorted(lagging))
            self._submit(partition, tuple(i for i in partition.isr if i not in lagging))

    def _submit(self, partition: Partition, isr: tuple[int, ...]) -> None:
        item = partition.propose_isr(isr)
        if not self._alter_partition_manager.submit(item, lambda result: self._completed(partition, item, result)):
            partition.withdraw()  # an item of an earlier leader epoch is in flight

    def _completed(self, partition: Partition, item: AlterPartitionItem, result: Result) -> None:
        before = len(partition.isr)
        outcome = partition.alter_partition_completed(item, result)
        log.debug("%s: proposed ISR %s: %s, %s", item.partition, item.leader_and_isr.isr, outcome.name, result)
        self.failures += isinstance(result, int)
        if outcome is ProposalOutcome.COMMITTED:
            self.expands += len(partition.isr) > before
            self.shrinks += len(partition.isr) < before
            self.isr_changed(partition)
            self.shrink_laggards(partition)
        elif outcome is ProposalOutcome.RESUBMIT:
            self._submit(partition, item.leader_and_isr.isr)
