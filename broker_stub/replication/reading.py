"""Reads from the partitions that a broker hosts, for consumers and followers (sections 4a, 4b, 4e)."""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from kce.broker_stub.disk import Slice
from kce.broker_stub.errors import ApiException, Refused
from kce.broker_stub.log import Isolation, Log, OffsetMetadata
from kce.broker_stub.log.indexes import AbortedTransaction
from kce.broker_stub.log.leader_epochs import UNDEFINED, EpochEnd
from kce.broker_stub.log.segments import FetchedRecords
from kce.broker_stub.metadata_cache import MetadataSnapshot
from kce.broker_stub.partition import Partition
from kce.broker_stub.replication.read_replica import Consumer, preferred_follower
from kce.wire import ErrorCode
from kce.wire.vocabulary import NO_EPOCH, TopicPartition

CONSUMER: Final = -1
#: a consumer that reads everything, from any replica
DEBUGGING_CONSUMER: Final = -2
FUTURE_LOCAL_REPLICA: Final = -3


class PartitionFetch(NamedTuple):
    """A fetch of one partition."""

    partition: TopicPartition
    topic_id: uuid.UUID | None
    offset: int
    max_bytes: int
    log_start_offset: int = UNDEFINED
    current_leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH


class FetchParams(NamedTuple):
    """``replica_id``: of a follower, or CONSUMER. ``hard_limit``: no batch is returned that exceeds it (rule B4.15).

    ``consumer``: who may read from a follower.
    """

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: Isolation
    leader_only: bool = True
    hard_limit: bool = False
    consumer: Consumer | None = None

    @property
    def is_follower(self) -> bool:
        return self.replica_id >= 0


class Read(NamedTuple):
    """The answer of one partition. Offsets are -1 with an error (rule B4.12)."""

    error: ErrorCode = ErrorCode.NONE
    records: Slice = b""
    high_watermark: int = UNDEFINED
    last_stable_offset: int = UNDEFINED
    log_start_offset: int = UNDEFINED
    diverging: EpochEnd | None = None
    aborted: tuple[AbortedTransaction, ...] | None = None
    start: OffsetMetadata = OffsetMetadata(UNDEFINED)
    #: the end of the log when it was read
    end_offset: int = UNDEFINED
    #: the end of what the reader may see; -1 if the partition must be read again
    bound: int = UNDEFINED
    preferred_replica: int = UNDEFINED

    def is_idle(self, offset: int) -> bool:
        """Whether a reader at ``offset`` has all there is."""
        return offset == self.bound and not self.records and not self.error and self.diverging is None


def error_read(error: ApiException) -> Read:
    return Read(error.code)


def read_partition(
    partition: Partition,
    fetch: PartitionFetch,
    params: FetchParams,
    max_bytes: int,
    *,
    at_least_one: bool,
    snapshot: MetadataSnapshot,
) -> Read:
    """Rules B4.7 to B4.15, B4.39. Raises ApiException."""
    log_id = partition.topic_id
    if fetch.topic_id is not None and log_id is not None and fetch.topic_id != log_id:
        raise Refused(ErrorCode.INCONSISTENT_TOPIC_ID)
    log = partition.log_for(fetch.current_leader_epoch, leader_only=params.leader_only)
    if params.is_follower and partition.followers.get(params.replica_id) is None:  # rule B4.10
        has_epoch = fetch.current_leader_epoch != NO_EPOCH
        raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH if has_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER)
    bound, nothing = _bound(log, params.isolation), FetchedRecords(OffsetMetadata(fetch.offset))
    if params.is_follower and params.replica_id not in partition.isr:  # each of its fetches is a chance to join
        bound = UNDEFINED
    if params.consumer is not None:
        bound = UNDEFINED
        preferred = preferred_follower(partition, fetch.offset, params.consumer, snapshot)
        if preferred is not None:
            return _read(log, nothing, bound)._replace(preferred_replica=preferred)
    diverging = _diverging_epoch(log, fetch)
    if diverging is not None:
        return _read(log, nothing, bound)._replace(diverging=diverging)
    size = min(fetch.max_bytes, max_bytes)
    fetched = log.read(fetch.offset, size, params.isolation, at_least_one=at_least_one)
    if size < 0 and fetch.offset < log.located_end(params.isolation).offset:
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"max bytes {size}")
    if fetched.is_incomplete and size and not params.hard_limit:
        # Kafka's list of aborted transactions is null then, not empty
        return _read(log, FetchedRecords(fetched.start), bound)
    return _read(log, fetched, bound, fetched.aborted if params.isolation is Isolation.COMMITTED else None)


def _read(log: Log, found: FetchedRecords, bound: int, aborted: tuple[AbortedTransaction, ...] | None = None) -> Read:
    return Read(
        ErrorCode.NONE, found.records, log.high_watermark, log.last_stable_offset, log.log_start_offset, None, aborted,
        found.start, log.log_end_offset, bound,
    )  # fmt: skip


def _bound(log: Log, isolation: Isolation) -> int:
    match isolation:
        case Isolation.LOG_END:
            return log.log_end_offset
        case Isolation.HIGH_WATERMARK:
            return log.high_watermark
        case Isolation.COMMITTED:
            return log.last_stable_offset


def _diverging_epoch(log: Log, fetch: PartitionFetch) -> EpochEnd | None:
    """Rule B4.11. Raises Refused."""
    if fetch.last_fetched_epoch == NO_EPOCH:
        return None
    if fetch.last_fetched_epoch == log.latest_epoch and log.log_start_offset <= fetch.offset <= log.log_end_offset:
        return None  # as of every follower in sync
    end = log.end_offset_of(fetch.last_fetched_epoch)
    if end.epoch == UNDEFINED or fetch.offset < log.log_start_offset:
        raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
    return end if end.epoch < fetch.last_fetched_epoch or end.end_offset < fetch.offset else None


def isolation_of(isolation_level: int, *, is_consumer: bool) -> Isolation:
    """Rule B4.1. Raises Refused for an unknown level."""
    if isolation_level not in (0, 1):
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"unknown isolation level {isolation_level}")
    if not is_consumer:
        return Isolation.LOG_END
    return Isolation.COMMITTED if isolation_level == 1 else Isolation.HIGH_WATERMARK
