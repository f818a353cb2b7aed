"""The offsets of one group: what is committed, what is being written, what a transaction has not ended (section 7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from kce.broker_stub.groups.records import CommittedOffset
from kce.wire.vocabulary import TopicPartition


class Stored(NamedTuple):
    """A commit and the first offset of the batch that has it; None until the batch is appended."""

    committed: CommittedOffset
    batch_offset: int | None

    def is_older_than(self, other: Stored) -> bool:
        """By position in the log (rules G7.11, G7.22)."""
        assert other.batch_offset is not None
        return self.batch_offset is None or self.batch_offset < other.batch_offset


class GroupOffsets:
    """``stored`` is what OffsetFetch answers."""

    __slots__ = ("pending", "pending_of_producers", "stored")

    def __init__(self) -> None:
        self.stored: dict[TopicPartition, Stored] = {}
        #: commits whose append has not ended
        self.pending: dict[TopicPartition, CommittedOffset] = {}
        #: the same and what was appended in transactions that have not ended, by producer
        self.pending_of_producers: defaultdict[int, dict[TopicPartition, Stored]] = defaultdict(dict)

    @property
    def is_empty(self) -> bool:
        """A producer without partitions counts until its transaction ends (rule G8.11)."""
        return not (self.stored or self.pending or self.pending_of_producers)

    def get(self, partition: TopicPartition) -> CommittedOffset | None:
        found = self.stored.get(partition)
        return None if found is None else found.committed

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Rule G7.27."""
        if partition in self.pending:
            return True
        return any(partition in of_producer for of_producer in self.pending_of_producers.values())

    # commits of consumers

    def prepare(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """They are about to be appended (rule G7.11)."""
        self.pending.update(offsets)

    def appended(self, offsets: Mapping[TopicPartition, CommittedOffset], batch_offset: int) -> None:
        """Rules G7.11, G7.12."""
        for partition, committed in offsets.items():
            staged = self.pending.get(partition)
            if staged is None:
                continue
            self._store(partition, Stored(committed, batch_offset))
            if staged == committed:
                del self.pending[partition]

    def failed(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """They could not be appended."""
        for partition, committed in offsets.items():
            if self.pending.get(partition) == committed:
                del self.pending[partition]

    def _store(self, partition: TopicPartition, stored: Stored) -> None:
        known = self.stored.get(partition)
        if known is None or known.is_older_than(stored):
            self.stored[partition] = stored

    # commits in transactions

    def prepare_in_transaction(self, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        of_producer = self.pending_of_producers[producer_id]
        of_producer.update({partition: Stored(committed, None) for partition, committed in offsets.items()})

    def appended_in_transaction(
        self, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset], batch_offset: int
    ) -> None:
        of_producer = self.pending_of_producers.get(producer_id, {})
        for partition, committed in offsets.items():
            staged = of_producer.get(partition)
            if staged is not None and staged.committed == committed:
                of_producer[partition] = Stored(committed, batch_offset)

    def failed_in_transaction(self, producer_id: int, partitions: Iterable[TopicPartition]) -> None:
        of_producer = self.pending_of_producers.get(producer_id)
        if of_producer is None:
            return
        for partition in partitions:
            of_producer.pop(partition, None)
        if not of_producer:
            del self.pending_of_producers[producer_id]

    def transaction_ended(self, producer_id: int, *, committed: bool) -> None:
        """Rules G7.21, G7.22. Raises ValueError if one of its commits has not been appended."""
        of_producer = self.pending_of_producers.pop(producer_id, {})
        if not committed:
            return
        for partition, stored in of_producer.items():
            if stored.batch_offset is None:
                raise ValueError(f"the commit of producer {producer_id} for {partition} is not in the log")
            self._store(partition, stored)

    # removal

    def remove(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Forget them, whatever their state; those that were committed (rule G13.5)."""
        removed = []
        for partition in partitions:
            self.pending.pop(partition, None)
            for of_producer in self.pending_of_producers.values():
                of_producer.pop(partition, None)
            if self.stored.pop(partition, None) is not None:
                removed.append(partition)
        return removed

    def expire(
        self,
        now_ms: int,
        retention_ms: int,
        base: Callable[[CommittedOffset], int],
        subscribed: Collection[str] = (),
    ) -> list[TopicPartition]:
        """Forget what is too old, ``base`` being the time from which it ages (rules G8.2, G8.6)."""

        def is_expired(committed: CommittedOffset) -> bool:
            if committed.expire_timestamp is not None:
                return now_ms >= committed.expire_timestamp
            return now_ms - base(committed) >= retention_ms

        expired = [
            partition
            for partition, stored in self.stored.items()
            if partition.topic not in subscribed and partition not in self.pending and is_expired(stored.committed)
        ]
        for partition in expired:
            del self.stored[partition]
        return expired
