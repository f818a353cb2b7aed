"""Requests that wait for what happens to partitions (rules B2.12 to B2.26)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kce.broker_stub.errors import ApiException
from kce.broker_stub.log import Appended, OffsetMetadata
from kce.broker_stub.partition import Partition
from kce.broker_stub.purgatory import DelayedOperation
from kce.broker_stub.replication.reading import FetchParams, PartitionFetch, Read
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition

#: what became of the records for one partition
Produced = Appended | ApiException


class Plane(Protocol):
    """The part of DataPlane that this module uses."""

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """Raises ApiException."""

    def read(self, params: FetchParams, fetches: Sequence[PartitionFetch], *, record_progress: bool) -> list[Read]: ...

    def must_wait(self, partition: Partition, params: FetchParams) -> bool: ...

    def waits_also_for(self, operation: DelayedFetch, topic_partition: TopicPartition) -> None: ...


class SessionWait(NamedTuple):
    """``more`` takes the partitions that are not idle any more, and says whether all of them can be read.

    ``in_turn``: all that are to be read then, in the order of the session.
    """

    session_id: int
    more: Callable[[], tuple[Sequence[PartitionFetch], bool]]
    in_turn: Callable[[], Sequence[PartitionFetch]]


class DelayedProduce(DelayedOperation):
    """Waits until every replica in the ISR has the records (rules B2.12 to B2.16)."""

    __slots__ = ("_produced", "_respond", "_results", "_settled")

    def __init__(
        self,
        settled: Callable[[TopicPartition, Produced], ErrorCode | None],
        produced: Mapping[TopicPartition, Produced],
        results: dict[TopicPartition, tuple[Produced, ErrorCode]],
        timeout_ms: int,
        respond: Callable[[Mapping[TopicPartition, tuple[Produced, ErrorCode]]], None],
    ) -> None:
        """``results``: of the partitions that need not wait."""
        super().__init__(timeout_ms)
        self._settled = settled
        self._produced = produced
        self._results = results
        self._respond = respond

    def try_complete(self) -> bool:
        for topic_partition, produced in self._produced.items():
            if topic_partition not in self._results:
                code = self._settled(topic_partition, produced)
                if code is not None:
                    self._results[topic_partition] = produced, code
        return len(self._results) == len(self._produced) and self.force_complete()

    def on_complete(self) -> None:
        self._respond(
            {
                topic_partition: self._results.get(topic_partition, (produced, ErrorCode.REQUEST_TIMED_OUT))
                for topic_partition, produced in self._produced.items()
            }
        )


class DelayedFetch(DelayedOperation):
    """Waits until there is something to read (rules B2.18 to B2.23)."""

    __slots__ = ("_fetches", "_params", "_plane", "_respond", "_session", "_starts")

    def __init__(
        self,
        plane: Plane,
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
            if not self.is_completed:  # what was appended may be readable only once it is replicated
                self._plane.waits_also_for(self, fetch.partition)
            try:
                hosted = self._plane.partition(fetch.partition)
                self._starts.append(OffsetMetadata(-1) if hosted.log is None else hosted.log.locate(fetch.offset))
            except ApiException:
                self._starts.append(OffsetMetadata(-1))
        return can_wait

    def take_touched(self) -> None:
        """Wait with the rest for what is not idle any more, although nothing has come that completes anything."""
        if not self.is_completed and not self._add_touched():
            self.force_complete()

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
        fetches = self._fetches if self._session is None else self._session.in_turn()
        self._respond(self._plane.read(self._params, fetches, record_progress=False))
