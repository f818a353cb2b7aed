"""Fetches of followers in sync: what a leader is asked all the time while records come, one by one or in small batches.

The follower has all that the log has, and its other partitions are idle: it waits for the next batch, and gets it from
where that was appended. This does what `fetch` does, with less work, and leaves to it whatever is special.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias
from uuid import UUID

import trio

from kce.broker_stub.disk import Slice
from kce.broker_stub.followers import Follower
from kce.broker_stub.handlers.base import Services, answer_by
from kce.broker_stub.log import Isolation, Log, OffsetMetadata
from kce.broker_stub.partition import Partition
from kce.broker_stub.purgatory import DelayedOperation
from kce.broker_stub.reactor import Request
from kce.broker_stub.replication.data_plane import Asked
from kce.broker_stub.replication.delayed import DelayedFetch
from kce.broker_stub.replication.fetch_session import FetchSession, Requested, Wanted
from kce.broker_stub.replication.fetch_sessions import FetchContext
from kce.broker_stub.replication.reading import PartitionFetch
from kce.wire import FetchRequest
from kce.wire.single_fetch import Found, SingleFetch, encode_response, errors_of
from kce.wire.vocabulary import TopicPartition

#: what a request asks of the data plane
AskedBy: TypeAlias = Callable[[Request, FetchRequest, int, FetchContext, list[Requested], int | None, Services], Asked]


def park(request: Request, ask: SingleFetch, services: Services, asked_by: AskedBy) -> bool:
    """Let the fetch of a follower in sync wait. False if it is none: nothing is done then."""
    plane, topic_id, now = services.data_plane, ask.topic_id, trio.current_time()
    key = topic_id.int, ask.partition
    session = plane.sessions.in_step(ask.session_id, ask.session_epoch, ask.replica_id, key, now)
    if session is None or services.authorization.is_on or request.is_timed:
        return False
    if (
        ask.max_wait_ms <= 0
        or ask.max_bytes > services.config.fetch_max_bytes
        or not 0 < min(ask.min_bytes, ask.max_bytes) <= ask.partition_max_bytes
    ):
        return False
    name = TopicPartition(session.awake[key].wanted.topic, ask.partition)
    partition = services.replica_manager.partitions.get(name)
    if partition is None or services.metadata_cache.snapshot.partition(name) is None:
        return False
    log, follower = partition.log, partition.followers.get(ask.replica_id)
    if log is None or follower is None or not _has_all(partition, log, topic_id, follower, ask):
        return False
    end, changes = log.end, plane.changes
    plane.follower_has_all(partition, follower, end, now)  # first: producers wait for it
    wanted = Wanted(
        name.topic, topic_id, ask.partition, ask.offset, ask.partition_max_bytes, ask.log_start_offset,
        ask.leader_epoch, ask.last_fetched_epoch,
    )  # fmt: skip
    plane.sessions.used(session, key, wanted, now)
    operation = InSyncFetch(request, ask, services, asked_by, session, wanted, partition, log, end)
    plane.wait(operation, (name, session.id) if session.idle else (name,), changes)
    return True


def _has_all(partition: Partition, log: Log, topic_id: UUID, follower: Follower, ask: SingleFetch) -> bool:
    """Whether a follower in the ISR asks for what comes next in the log, and nothing has changed but its end."""
    log_id = log.topic_id
    return (
        ask.offset == log.log_end_offset
        and ask.leader_epoch == partition.leader_epoch
        and partition.is_leader
        and ask.last_fetched_epoch == log.latest_epoch
        and log_id is not None
        and log_id.int == topic_id.int
        and ask.replica_id in partition.isr
        and ask.log_start_offset == follower.log_start_offset
    )


class InSyncFetch(DelayedFetch):
    """Waits for the next batch; from when something special happens on, for what any fetch waits for."""

    __slots__ = (
        "_ask", "_asked_by", "_epoch", "_has_idle", "_is_enough", "_is_special", "_key", "_log", "_partition",
        "_request", "_services", "_session_used", "_start", "_wanted",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        ask: SingleFetch,
        services: Services,
        asked_by: AskedBy,
        session: FetchSession,
        wanted: Wanted,
        partition: Partition,
        log: Log,
        end: OffsetMetadata,
    ) -> None:
        """``session`` has the request already. ``end``: of the log when it came."""
        DelayedOperation.__init__(self, ask.max_wait_ms)
        self._plane = services.data_plane
        self._request = request
        self._ask = ask
        self._services = services
        self._asked_by = asked_by
        self._session_used = session
        self._has_idle = bool(session.idle)
        self._epoch = session.epoch
        self._wanted = wanted
        self._key = wanted.key
        self._partition = partition
        self._log = log
        self._start = end
        self._is_special = False
        #: ``try_complete`` has found enough to read
        self._is_enough = False

    def try_complete(self) -> bool:
        if not self._is_special:
            size = self._appended_bytes()
            if size is not None:
                self._is_enough = size >= min(self._ask.min_bytes, self._ask.max_bytes)
                return self._is_enough and self.force_complete()
            self._become_usual()
        return super().try_complete()

    def take_touched(self) -> None:
        if not self._is_special and not self.is_completed:
            self._become_usual()
        super().take_touched()

    def on_complete(self) -> None:
        if not self._is_special:
            if (self._is_enough or self._appended_bytes()) and self._answered():
                return
            self._become_usual()
        super().on_complete()

    def _appended_bytes(self) -> int | None:
        """So many since it waits; None if something special has happened."""
        partition, ask, start, end = self._partition, self._ask, self._start, self._log.end
        if (
            partition.log is not self._log
            or partition.leader_epoch != ask.leader_epoch
            or end.segment != start.segment
            or end.position < start.position
            or self._session_used.epoch != self._epoch
            or self._services.data_plane.sessions.has_touched(self._session_used)
            or self._services.leader_quota.is_throttled(partition.topic_partition)
            or self._request.is_timed
            or partition.adding_replicas
        ):
            return None
        return end.position - start.position

    def _answered(self) -> bool:
        """Answer with what was appended; false if that is not all there is to say."""
        ask, log, session = self._ask, self._log, self._session_used
        cached = session.awake.get(self._key)
        if cached is None:
            return False
        try:
            max_bytes = min(ask.partition_max_bytes, ask.max_bytes)
            found = log.read(ask.offset, max_bytes, Isolation.LOG_END, at_least_one=True)
        except Exception:  # noqa: BLE001 - met again by who handles it
            return False
        if found.is_incomplete or not found.records:
            return False
        cached.high_watermark, cached.log_start_offset = log.high_watermark, log.log_start_offset
        session.read_last(cached)
        answer_by(self._request, lambda: self._answer(found.records))
        return True

    def _answer(self, records: Slice) -> None:
        ask, log = self._ask, self._log
        payload = encode_response(
            self._request.context.header.correlation_id,
            ask.session_id,
            ask.topic,
            (Found(ask.partition, log.high_watermark, log.last_stable_offset, log.log_start_offset, records),),
        )
        self._services.data_plane.stats.replication_bytes_out += len(records)
        self._request.respond_payload(payload, errors_of(1))

    def _become_usual(self) -> None:
        """Be what `fetch` had made of the request."""
        self._is_special = True
        ask, services, session = self._ask, self._services, self._session_used
        fetching = FetchContext(services.data_plane.sessions, session, epoch=self._epoch)
        fetch = PartitionFetch(
            self._partition.topic_partition, ask.topic_id, ask.offset, ask.partition_max_bytes, ask.log_start_offset,
            ask.leader_epoch, ask.last_fetched_epoch,
        )  # fmt: skip
        requested = [Requested(self._wanted, fetch, None)]
        session_id = session.id if self._has_idle else None
        self._params, self._fetches, self._respond, self._session = self._asked_by(
            self._request, ask.message(), ask.replica_id, fetching, requested, session_id, services
        )
        self._starts = [self._start]
