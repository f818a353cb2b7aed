"""Appends, reads and look-ups on the partitions that a broker hosts, and the requests that wait for them (rules B2).

Everything that may complete a waiting request says so: ``appended``, ``high_watermark_moved``, ``role_changed``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeAlias

import trio

from kce.broker_stub.disk import Buffer
from kce.broker_stub.errors import ApiException, KafkaStorageError, Refused
from kce.broker_stub.log import Appended, Isolation, OffsetMetadata, Origin
from kce.broker_stub.log.verification import EXEMPT, VerificationGuard
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.partition import ALL, Partition
from kce.broker_stub.purgatory import DelayedOperation, Purgatory, Timer
from kce.broker_stub.replication.fetch_sessions import FetchSession, FetchSessions
from kce.broker_stub.replication.reading import FetchParams, PartitionFetch, Read, error_read, read_partition
from kce.broker_stub.replication.throttle import ReplicationQuota
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

#: what became of the records for one partition
Produced = Appended | ApiException
Guards: TypeAlias = Mapping[TopicPartition, VerificationGuard]
_NO_GUARDS: Final[Guards] = MappingProxyType({})


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
        zstd_allowed: bool = True,
        session_slots: int = 1000,
        quota: ReplicationQuota | None = None,
    ) -> None:
        """``quota``: of what followers fetch here."""
        self._hosted = hosted
        self._metadata_cache = metadata_cache
        self._on_follower_fetched = follower_fetched
        self._max_lag_ms = max_lag_ms
        self._zstd_allowed = zstd_allowed
        #: `transaction.partition.verification.enable` (rule T10.15)
        self.verifies_transactions = False
        self._quota = quota or ReplicationQuota(1, 1)
        self.produce_purgatory: Purgatory[TopicPartition, DelayedProduce] = Purgatory(timer)
        #: by partition and by id of a session
        self.fetch_purgatory: Purgatory[TopicPartition | int, DelayedFetch] = Purgatory(timer)
        self.sessions = FetchSessions(session_slots, random, trio.current_time)
        #: how often logs got what readers wait for
        self._changes = 0
        self.delete_purgatory: Purgatory[TopicPartition, DelayedDeleteRecords] = Purgatory(timer, purge_interval=1)

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """Raises ApiException (rule B3.11)."""
        hosted = self._hosted()
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

    def appended(self, partition: Partition) -> None:
        """Records were appended to a log that is led here (rules B2.17, B2.23)."""
        self._changes += 1
        woken = self._wake(partition.topic_partition)
        if self._advance(partition):
            self.high_watermark_moved(partition.topic_partition, woken)
        else:
            self._check_fetches(partition.topic_partition, woken)

    def _wake(self, topic_partition: TopicPartition) -> list[FetchSession]:
        """The sessions in which the partition was idle; whose followers had everything until now."""
        woken = self.sessions.touched(topic_partition)
        partition = self._hosted().partitions.get(topic_partition) if woken else None
        for session in woken:
            follower = None if partition is None else partition.followers.get(session.replica_id)
            if follower is not None:
                follower.was_idle_until(session.last_used * 1000)
        return woken

    def _check_fetches(self, topic_partition: TopicPartition, woken: Iterable[FetchSession] = ()) -> None:
        self.fetch_purgatory.check_and_complete(topic_partition)
        for session in (*woken, *self._wake(topic_partition)):
            self.fetch_purgatory.check_and_complete(session.id)

    def high_watermark_moved(self, topic_partition: TopicPartition, woken: Iterable[FetchSession] = ()) -> None:
        self._check_fetches(topic_partition, woken)
        self.produce_purgatory.check_and_complete(topic_partition)
        self.delete_purgatory.check_and_complete(topic_partition)

    def isr_changed(self, partition: Partition) -> None:
        """The high watermark of a partition that is led here may move."""
        if self._advance(partition):
            self.high_watermark_moved(partition.topic_partition)

    def role_changed(self, partition: Partition) -> None:
        """A LeaderAndIsr or a StopReplica was applied (section 2f)."""
        self._changes += 1
        self._advance(partition)
        self._check_fetches(partition.topic_partition)
        self.produce_purgatory.check_and_complete(partition.topic_partition)

    def _advance(self, partition: Partition) -> bool:
        return partition.advance_high_watermark(trio.current_time() * 1000, self._max_lag_ms, self.is_alive)

    # produce

    def append(
        self,
        records: Mapping[TopicPartition, Buffer],
        acks: int,
        timeout_ms: int,
        respond: Callable[[Mapping[TopicPartition, tuple[Produced, ErrorCode]]], None],
        *,
        origin: Origin = Origin.CLIENT,
        guards: Guards = _NO_GUARDS,
    ) -> None:
        """Append to each partition; ``respond`` gets what became of it, and the code to answer.

        ``guards``: of transactions that begin in a partition.

        With acks=-1 it may be called later: when every replica in the ISR has the records, or after the timeout.
        """
        produced = {
            topic_partition: self._append(topic_partition, data, acks, origin, guards.get(topic_partition))
            for topic_partition, data in records.items()
        }
        appended = [tp for tp, result in produced.items() if isinstance(result, Appended)]
        for topic_partition in appended:
            self.appended(self.partition(topic_partition))
        results: dict[TopicPartition, tuple[Produced, ErrorCode]] = {}
        for topic_partition, result in produced.items():
            code = self._settled(topic_partition, result) if acks == ALL else _code(result)
            if code is None:
                operation = DelayedProduce(self._settled, produced, timeout_ms, respond)
                self.produce_purgatory.watch(operation, appended)
                return
            results[topic_partition] = result, code
        respond(results)

    def _settled(self, topic_partition: TopicPartition, result: Produced) -> ErrorCode | None:
        """The code to answer with acks=-1; None as long as replicas in the ISR do not have the records."""
        if isinstance(result, ApiException):
            return result.code
        try:
            return self.partition(topic_partition).is_acknowledged(result.last_offset + 1)
        except ApiException as e:
            return e.code

    def _append(
        self,
        topic_partition: TopicPartition,
        records: Buffer,
        acks: int,
        origin: Origin,
        guard: VerificationGuard | None,
    ) -> Produced:
        try:
            partition = self.partition(topic_partition)
            return partition.append(
                records, acks, origin=origin, zstd_allowed=self._zstd_allowed,
                guard=guard if self.verifies_transactions else EXEMPT,
            )  # fmt: skip
        except ApiException as e:
            return e
        except Exception as e:  # the other partitions are served
            log.exception("records for %s could not be appended", topic_partition)
            return ApiException(str(e))

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
        changes = self._changes
        reads = self.read(params, fetches, record_progress=True)
        operation = DelayedFetch(self, params, fetches, reads, respond, session)
        if operation.is_satisfied_by(reads):
            respond(reads)
            return
        keys: list[TopicPartition | int] = [fetch.partition for fetch in fetches]
        if session is not None:
            keys.append(session.session_id)
        if changes == self._changes:
            self.fetch_purgatory.watch(operation, keys)
        else:  # what a follower has may let others write
            self.fetch_purgatory.try_complete_or_watch(operation, keys)

    def read(self, params: FetchParams, fetches: Sequence[PartitionFetch], *, record_progress: bool) -> list[Read]:
        """Rules B4.14, B4.15. ``record_progress``: of a follower, for this is its first read (rule B2.22)."""
        reads = []
        room, at_least_one = params.max_bytes, not params.hard_limit
        for fetch in fetches:
            try:
                partition = self.partition(fetch.partition)
                found = read_partition(
                    partition, fetch, params, room, at_least_one=at_least_one, snapshot=self._metadata_cache.snapshot
                )
                if record_progress and params.is_follower and found.diverging is None:
                    found = self._follower_fetched(partition, params.replica_id, fetch, found)
                if found.records and self.must_wait(partition, params):
                    found = found._replace(records=b"")
            except ApiException as e:
                found = error_read(e)
            except Exception:  # rule B4.23
                log.exception("%s could not be read", fetch.partition)
                found = Read(ErrorCode.UNKNOWN_SERVER_ERROR)
            if found.records:
                at_least_one = False
                room = max(0, room - len(found.records))
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

    def _follower_fetched(self, partition: Partition, broker_id: int, fetch: PartitionFetch, found: Read) -> Read:
        """Rule B4.41."""
        followers, start = partition.followers, found.start
        follower = followers.get(broker_id)
        assert follower is not None
        starts_elsewhere = fetch.log_start_offset != follower.log_start_offset
        before = followers.low_watermark(found.log_start_offset, self.is_alive) if starts_elsewhere else 0
        known_end = follower.end.offset
        now_ms = trio.current_time() * 1000
        if broker_id not in partition.isr:  # each of its fetches is a chance to join
            found = found._replace(bound=-1)
        if start.offset != fetch.offset:
            start = start._replace(offset=fetch.offset)
        follower.fetched(start, fetch.log_start_offset, now_ms, found.end_offset)
        self._on_follower_fetched(partition, broker_id)
        moved = follower.end.offset != known_end and self._advance(partition)
        if moved or (starts_elsewhere and followers.low_watermark(found.log_start_offset, self.is_alive) > before):
            self.high_watermark_moved(partition.topic_partition)
        return found

    # delete records

    def delete_records(
        self,
        offsets: Mapping[TopicPartition, int],
        timeout_ms: int,
        respond: Callable[[Mapping[TopicPartition, tuple[int, ErrorCode]]], None],
    ) -> None:
        """Move the starts of logs; ``respond`` gets low watermark and code of each (rules B6.20, B2.24)."""
        results: dict[TopicPartition, tuple[int, ErrorCode]] = {}
        wanted: dict[TopicPartition, int] = {}
        for topic_partition, offset in offsets.items():
            try:
                wanted[topic_partition] = self._delete_before(topic_partition, offset)
            except ApiException as e:
                results[topic_partition] = -1, e.code
        operation = DelayedDeleteRecords(self, wanted, results, timeout_ms, respond)
        if wanted:
            self.delete_purgatory.try_complete_or_watch(operation, wanted)
        else:
            operation.force_complete()

    def _delete_before(self, topic_partition: TopicPartition, offset: int) -> int:
        """The offset that the low watermark must reach. Raises ApiException."""
        found = self.partition(topic_partition).leader_log()
        if not found.config.is_delete:
            raise Refused(ErrorCode.POLICY_VIOLATION)
        if offset == -1:
            offset = found.high_watermark
        if offset < 0:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        if found.increment_log_start_offset(offset):
            self._check_fetches(topic_partition)
        return offset

    def low_watermark(self, partition: Partition) -> int:
        """Raises ApiException."""
        return partition.followers.low_watermark(partition.leader_log().log_start_offset, self.is_alive)


class SessionWait(NamedTuple):
    """``more`` takes the partitions that are not idle any more, and says whether all of them can be read."""

    session_id: int
    more: Callable[[], tuple[Sequence[PartitionFetch], bool]]


def _code(result: Produced) -> ErrorCode:
    return result.code if isinstance(result, ApiException) else ErrorCode.NONE


class DelayedProduce(DelayedOperation):
    """Waits until every replica in the ISR has the records (rules B2.12 to B2.16)."""

    __slots__ = ("_codes", "_produced", "_respond", "_settled")

    def __init__(
        self,
        settled: Callable[[TopicPartition, Produced], ErrorCode | None],
        produced: Mapping[TopicPartition, Produced],
        timeout_ms: int,
        respond: Callable[[Mapping[TopicPartition, tuple[Produced, ErrorCode]]], None],
    ) -> None:
        super().__init__(timeout_ms)
        self._settled = settled
        self._produced = produced
        self._respond = respond
        #: None while it waits
        self._codes: dict[TopicPartition, ErrorCode | None] = dict.fromkeys(produced)

    def try_complete(self) -> bool:
        for topic_partition, code in self._codes.items():
            if code is None:
                self._codes[topic_partition] = self._settled(topic_partition, self._produced[topic_partition])
        return None not in self._codes.values() and self.force_complete()

    def on_complete(self) -> None:
        self._respond(
            {
                topic_partition: (
                    self._produced[topic_partition],
                    ErrorCode.REQUEST_TIMED_OUT if code is None else code,
                )
                for topic_partition, code in self._codes.items()
            }
        )


class DelayedFetch(DelayedOperation):
    """Waits until there is something to read (rules B2.18 to B2.23)."""

    __slots__ = ("_fetches", "_params", "_plane", "_respond", "_session", "_starts")

    def __init__(
        self,
        plane: DataPlane,
        params: FetchParams,
        fetches: Sequence[PartitionFetch],
        reads: Sequence[Read],
        respond: Callable[[Sequence[Read]], None],
        session: SessionWait | None = None,
    ) -> None:
        super().__init__(params.max_wait_ms)
        self._plane = plane
        self._params = params
        self._fetches = list(fetches)
        self._session = session
        self._starts = [read.start for read in reads]
        self._respond = respond

    def is_satisfied_by(self, reads: Sequence[Read]) -> bool:
        """Rule B2.18."""
        return (
            self._params.max_wait_ms <= 0
            or (not reads and self._session is None)
            or sum(len(read.records) for read in reads) >= self._params.min_bytes
            or any(read.error or read.diverging is not None or read.preferred_replica >= 0 for read in reads)
        )

    def _add_touched(self) -> bool:
        """Whether what is not idle any more can wait with the rest."""
        if self._session is None:
            return True
        added, can_wait = self._session.more()
        for fetch in added:
            self._fetches.append(fetch)
            try:
                hosted = self._plane.partition(fetch.partition)
                self._starts.append(OffsetMetadata(-1) if hosted.log is None else hosted.log.locate(fetch.offset))
            except ApiException:
                self._starts.append(OffsetMetadata(-1))
        return can_wait

    def try_complete(self) -> bool:
        if not self._add_touched():
            return self.force_complete()
        readable = 0
        for fetch, start in zip(self._fetches, self._starts, strict=True):
            try:
                found = self._readable(fetch, start.segment, start.position)
            except ApiException:
                found = None
            if found is None:
                return self.force_complete()
            readable += found
        return readable >= self._params.min_bytes and self.force_complete()

    def _readable(self, fetch: PartitionFetch, segment: int, position: int) -> int | None:
        """Bytes of one partition; None if it must be answered at once (rules B2.19, B2.20). Raises ApiException."""
        partition = self._plane.partition(fetch.partition)
        found = partition.log_for(fetch.current_leader_epoch, leader_only=self._params.leader_only)
        end = found.located_end(self._params.isolation)
        if fetch.offset > end.offset:
            return None
        if fetch.last_fetched_epoch >= 0 and fetch.last_fetched_epoch != found.latest_epoch:
            known = found.end_offset_of(fetch.last_fetched_epoch)
            if known.epoch < fetch.last_fetched_epoch or known.end_offset < fetch.offset:
                return None
        if fetch.offset == end.offset or segment < 0 or not end.is_located:
            return 0
        if self._plane.must_wait(partition, self._params):
            return 0
        if segment < end.segment:
            return None
        return min(end.position - position, fetch.max_bytes)

    def on_complete(self) -> None:
        self._add_touched()
        self._respond(self._plane.read(self._params, self._fetches, record_progress=False))


class DelayedDeleteRecords(DelayedOperation):
    """Waits until every live replica has moved the start of its log (rules B2.24 to B2.26)."""

    __slots__ = ("_plane", "_respond", "_results", "_wanted")

    def __init__(
        self,
        plane: DataPlane,
        wanted: Mapping[TopicPartition, int],
        results: dict[TopicPartition, tuple[int, ErrorCode]],
        timeout_ms: int,
        respond: Callable[[Mapping[TopicPartition, tuple[int, ErrorCode]]], None],
    ) -> None:
        super().__init__(timeout_ms)
        self._plane = plane
        self._wanted = dict(wanted)
        self._results = results
        self._respond = respond

    def try_complete(self) -> bool:
        for topic_partition, offset in list(self._wanted.items()):
            try:
                low_watermark = self._plane.low_watermark(self._plane.partition(topic_partition))
            except ApiException as e:
                self._settle(topic_partition, -1, e.code)
            else:
                if low_watermark >= offset:
                    self._settle(topic_partition, low_watermark, ErrorCode.NONE)
        return not self._wanted and self.force_complete()

    def _settle(self, topic_partition: TopicPartition, low_watermark: int, code: ErrorCode) -> None:
        del self._wanted[topic_partition]
        self._results[topic_partition] = low_watermark, code

    def on_complete(self) -> None:
        for topic_partition in list(self._wanted):
            try:
                low_watermark = self._plane.low_watermark(self._plane.partition(topic_partition))
            except ApiException:
                low_watermark = -1
            self._settle(topic_partition, low_watermark, ErrorCode.REQUEST_TIMED_OUT)
        self._respond(self._results)


def isolation_of(replica_id: int, isolation_level: int) -> Isolation:
    """Rule B4.1."""
    if replica_id != -1:
        return Isolation.LOG_END
    return Isolation.COMMITTED if isolation_level == 1 else Isolation.HIGH_WATERMARK
