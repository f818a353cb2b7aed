"""Reads of the partitions that a broker hosts, and the requests that wait for what becomes of them (rules B2).

Everything that may complete a waiting request says so: ``appended``, ``high_watermark_moved``, ``became_leader``,
``role_changed``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from random import Random
from typing import Final, NamedTuple, Protocol

import trio

from kce.broker_stub.errors import ApiException, KafkaStorageError, Refused
from kce.broker_stub.followers import Follower
from kce.broker_stub.log import Log, OffsetMetadata
from kce.broker_stub.log.leader_epochs import UNDEFINED
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.partition import Partition
from kce.broker_stub.purgatory import DelayedOperation, Purgatory, Timer
from kce.broker_stub.replication.delayed import (
    DelayedFetch,
    DelayedProduce,
    SessionWait,
)
from kce.broker_stub.replication.fetch_session import FetchSession
from kce.broker_stub.replication.fetch_sessions import FetchSessions
from kce.broker_stub.replication.reading import FetchParams, PartitionFetch, Read, error_read, read_partition
from kce.broker_stub.replication.throttle import ReplicationQuota
from kce.broker_stub.topic_stats import BrokerTopicStats
from kce.wire import ErrorCode
from kce.wire.errors import CorruptRecord
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

#: not counted as failures of the broker
ORDINARY: Final = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR,
)  # fmt: skip
_ORDINARY_OF_FETCH: Final = frozenset(
    (
        *ORDINARY, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.OFFSET_OUT_OF_RANGE,
    )
)  # fmt: skip


class HostedPartitions(Protocol):
    """The part of ReplicaManager that this module uses."""

    partitions: dict[TopicPartition, Partition]
    offline_partitions: set[TopicPartition]


class DataPlane:
    """Its owner runs ``timer``. ``follower_fetched``: a broker that follows a partition that is led here."""

    def __init__(
        self,
        hosted: Callable[[], HostedPartitions],
        metadata_cache: MetadataCache,
        follower_fetched: Callable[[Partition, int], None],
        timer: Timer,
        random: Random,
        *,
        max_lag_ms: int,
        session_slots: int = 1000,
        quota: ReplicationQuota | None = None,
        future_log: Callable[[TopicPartition], Log | None] = lambda _: None,
    ) -> None:
        """``quota``: of what followers fetch here. ``future_log``: of a partition that moves to another directory."""
        self._find_hosted = hosted
        self._metadata_cache = metadata_cache
        self._on_follower_fetched = follower_fetched
        self._max_lag_ms = max_lag_ms
        self._quota = quota or ReplicationQuota(1, 1)
        self._future_log = future_log
        self.produce_purgatory: Purgatory[TopicPartition, DelayedProduce] = Purgatory(timer)
        #: by partition and by id of a session
        self.fetch_purgatory: Purgatory[TopicPartition | int, DelayedFetch] = Purgatory(timer)
        self.sessions = FetchSessions(session_slots, random, trio.current_time)
        #: how often logs got what readers wait for
        self.changes = 0
        self.stats = BrokerTopicStats()
        self.delete_purgatory: Purgatory[TopicPartition, DelayedOperation] = Purgatory(timer, purge_interval=1)

    @cached_property
    def hosted(self) -> HostedPartitions:
        return self._find_hosted()

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """Raises ApiException (rule B3.11)."""
        hosted = self.hosted
        partition = hosted.partitions.get(topic_partition)
        if partition is not None:
            return partition
        if topic_partition in hosted.offline_partitions:
            raise KafkaStorageError(f"the log directory of {topic_partition} is offline")
        is_known = self._metadata_cache.snapshot.partition(topic_partition) is not None
        raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def is_alive(self, broker_id: int) -> bool:
        return broker_id in self._metadata_cache.snapshot.alive_brokers

    # what completes waiting requests

    def appended(self, partitions: Collection[Partition]) -> None:
        """Records were appended to logs that are led here (rules B2.17, B2.23).

        A fetch that this completes gets those of all, also where its session took a partition to be idle.
        """
        if not partitions:
            return
        self.changes += 1
        are_idle = self.sessions.resting or self.sessions.answers
        woken = {each.topic_partition: self._wake(each.topic_partition) for each in partitions} if are_idle else {}
        moved = [(partition.topic_partition, self._advance(partition)) for partition in partitions]
        for topic_partition, has_moved in moved:
            if has_moved:
                self.high_watermark_moved(topic_partition, woken.get(topic_partition, ()))
            else:
                self.check_fetches(topic_partition, woken.get(topic_partition, ()))

    def _wake(self, topic_partition: TopicPartition) -> Sequence[FetchSession]:
        """The sessions in which the partition was idle; whose followers had everything until now."""
        if topic_partition not in self.sessions.resting and not self.sessions.answers:
            return ()
        woken = self.sessions.touched(topic_partition)
        partition = self.hosted.partitions.get(topic_partition) if woken else None
        if partition is not None:
            for session in woken:
                partition.followers.was_idle_until(session.replica_id, session.last_used * 1000)
        return woken

    def check_fetches(self, topic_partition: TopicPartition, woken: Iterable[FetchSession] = ()) -> None:
        """Its high watermark or its start has moved, or it has more records, or another role."""
        if topic_partition in self.fetch_purgatory.watchers:
            self.fetch_purgatory.check_and_complete(topic_partition)
        for session in (*woken, *self._wake(topic_partition)):
            self.fetch_purgatory.check_and_complete(session.id)

    def high_watermark_moved(self, topic_partition: TopicPartition, woken: Iterable[FetchSession] = ()) -> None:
        self.check_fetches(topic_partition, woken)
        if topic_partition in self.produce_purgatory.watchers:
            self.produce_purgatory.check_and_complete(topic_partition)
        if topic_partition in self.delete_purgatory.watchers:
            self.delete_purgatory.check_and_complete(topic_partition)

    def isr_changed(self, partition: Partition) -> None:
        """The high watermark of a partition that is led here may move."""
        if self._advance(partition):
            self.high_watermark_moved(partition.topic_partition)

    def changed_unnoticed(self, topic_partition: TopicPartition) -> None:
        """As in Kafka nothing that waits is looked at; but a partition that was idle in a session is read then."""
        for session in self._wake(topic_partition):
            for operation in list(self.fetch_purgatory.watchers.get(session.id, ())):
                operation.take_touched()

    def became_leader(self, partition: Partition) -> None:
        """A LeaderAndIsr was applied, also to one that led before: in Kafka only its high watermark matters (2f)."""
        self.changes += 1
        if self._advance(partition):
            self.high_watermark_moved(partition.topic_partition)
        else:
            self.changed_unnoticed(partition.topic_partition)

    def role_changed(self, partition: Partition) -> None:
        """A LeaderAndIsr of a follower or a StopReplica was applied (section 2f)."""
        self.changes += 1
        self.produce_purgatory.check_and_complete(partition.topic_partition)
        self.check_fetches(partition.topic_partition)

    def _advance(self, partition: Partition) -> bool:
        return partition.advance_high_watermark(self._joins)

    def _joins(self, broker_id: int, follower: Follower, end_offset: int) -> bool:
        is_caught_up = follower.is_caught_up(end_offset, trio.current_time() * 1000, self._max_lag_ms)
        return is_caught_up and self.is_alive(broker_id)

    # fetch

    def fetch(
        self,
        params: FetchParams,
        fetches: Sequence[PartitionFetch],
        respond: Callable[[Sequence[Read]], None],
        session: SessionWait | None = None,
    ) -> None:
        """Read each partition; ``respond`` gets what was read, in the same order, at once or later (rule B2.18).

        With a ``session`` its idle partitions wait, too; what they add to the fetches comes last.
        """
        changes = self.changes
        touched = self.sessions.begin_answer()
        try:
            reads = self.read(params, fetches, record_progress=True)
        finally:
            self.sessions.end_answer(touched)
        operation = DelayedFetch(self, params, fetches, reads, respond, session)
        if operation.is_satisfied_by(reads):
            if touched:  # by what a follower has: it must be told of the high watermark that came of it
                pairs = zip(fetches, reads, strict=True)
                reads = [read._replace(bound=UNDEFINED) if of.partition in touched else read for of, read in pairs]
            respond(reads)
            return
        keys: list[TopicPartition | int] = [fetch.partition for fetch in fetches]
        if session is not None:
            keys.append(session.session_id)
        if all(read.is_idle(of.offset) for of, read in zip(fetches, reads, strict=True)):
            self.wait(operation, keys, changes)
        else:  # it may be at the end of a segment, or beyond the high watermark
            self.fetch_purgatory.try_complete_or_watch(operation, keys)

    def wait(self, operation: DelayedFetch, keys: Sequence[TopicPartition | int], changes: int) -> None:
        """Let a fetch wait whose partitions were all idle after so many changes."""
        if changes == self.changes:
            self.fetch_purgatory.watch(operation, keys)
        else:  # what a follower has may let others write
            self.fetch_purgatory.try_complete_or_watch(operation, keys)

    def waits_also_for(self, operation: DelayedFetch, topic_partition: TopicPartition) -> None:
        """For a partition that was idle when the operation began to wait."""
        self.fetch_purgatory.watch_also(operation, topic_partition)

    def read(self, params: FetchParams, fetches: Sequence[PartitionFetch], *, record_progress: bool) -> list[Read]:
        """Rules B4.14, B4.15. ``record_progress``: of a follower, for this is its first read (rule B2.22)."""
        reads = []
        room, at_least_one, is_follower = params.max_bytes, not params.hard_limit, params.is_follower
        for fetch in fetches:
            try:
                partition = self.partition(fetch.partition)
                found = read_partition(
                    partition, fetch, params, room, at_least_one=at_least_one, snapshot=self._metadata_cache.snapshot
                )
                if record_progress and is_follower and found.diverging is None:
                    self._follower_fetched(partition, params.replica_id, fetch, found)
                if is_follower and found.records and self.must_wait(partition, params):
                    found = found._replace(records=b"")
            except ApiException as e:
                found = error_read(e)
                if e.code not in _ORDINARY_OF_FETCH:
                    self.stats.of(fetch.partition.topic).failed_fetches += 1
            except CorruptRecord as e:
                log.error("%s could not be read: %s", fetch.partition, e)
                self.stats.of(fetch.partition.topic).failed_fetches += 1
                found = Read(ErrorCode.CORRUPT_MESSAGE)
            except Exception:  # rule B4.23
                log.exception("%s could not be read", fetch.partition)
                self.stats.of(fetch.partition.topic).failed_fetches += 1
                found = Read(ErrorCode.UNKNOWN_SERVER_ERROR)
            if found.records:
                at_least_one = False
            room = max(0, room - len(found.records))  # of a negative limit only the first partition suffers
            reads.append(found)
        return reads

    def must_wait(self, partition: Partition, params: FetchParams) -> bool:
        """Whether a follower that is not in sync has had enough for now (rule B8.11)."""
        return (
            params.is_follower
            and self._quota.is_throttled(partition.topic_partition)
            and params.replica_id not in partition.isr
            and self._quota.is_exceeded
        )

    def _follower_fetched(self, partition: Partition, broker_id: int, fetch: PartitionFetch, found: Read) -> None:
        """Rule B4.41. Where its log starts completes something only while a deletion waits for it, as in Kafka."""
        followers, start = partition.followers, found.start
        follower = followers.get(broker_id)
        assert follower is not None
        starts_elsewhere = self.delete_purgatory.delayed > 0 and fetch.log_start_offset != follower.log_start_offset
        before = followers.low_watermark(found.log_start_offset, self.is_alive) if starts_elsewhere else 0
        known_end = follower.end.offset
        if start.offset != fetch.offset:
            start = start._replace(offset=fetch.offset)
        follower.fetched(start, fetch.log_start_offset, trio.current_time() * 1000, found.end_offset)
        if broker_id not in partition.isr:
            self._on_follower_fetched(partition, broker_id)
        moved = follower.end.offset != known_end and self._advance(partition)
        if moved or (starts_elsewhere and followers.low_watermark(found.log_start_offset, self.is_alive) > before):
            self.high_watermark_moved(partition.topic_partition)

    def follower_has_all(self, partition: Partition, follower: Follower, end: OffsetMetadata, now: float) -> None:
        """A follower in the ISR has fetched from that end of the log; its own log starts where it did before."""
        known_end = follower.end.offset
        follower.fetched(end, follower.log_start_offset, now * 1000, end.offset)
        if end.offset != known_end and self._advance(partition):
            self.high_watermark_moved(partition.topic_partition)

    def low_watermark(self, partition: Partition) -> int:
        """Rule B2.24. Raises ApiException."""
        start, future = partition.leader_log().log_start_offset, self._future_log(partition.topic_partition)
        if future is not None:
            start = min(start, future.log_start_offset)
        return partition.followers.low_watermark(start, self.is_alive)


class Asked(NamedTuple):
    """The arguments of `DataPlane.fetch`."""

    params: FetchParams
    fetches: list[PartitionFetch]
    respond: Callable[[Sequence[Read]], None]
    session: SessionWait | None
