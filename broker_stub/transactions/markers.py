"""Sends the markers of ended transactions to the leaders of their partitions (section 6 of the transaction rules).

One task and one request in flight per broker. Markers whose leader is unknown, or that are to be sent again, wait a
moment, then their leaders are looked up anew.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.internal_topics import TRANSACTION_STATE_TOPIC
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.transactions.connection import BrokerConnection
from kce.wire import (
    ErrorCode,
    WireError,
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    error_name,
)
from kce.wire.metadata_version import IBP_2_8_IV0
from kce.wire.transport import Dial
from kce.wire.vocabulary import Endpoint, TopicPartition, by_topic

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.02
#: rule T6.7
RETRIED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
#: there is a newer coordinator, as a rule (T6.8)
FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
#: the partition has no data of the transaction (rule T6.9)
NOTHING_TO_MARK: Final = frozenset({ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION})


class Ending(Protocol):
    """A transaction whose markers are sent. Two are the same only if they are one object (rule T6.14)."""

    @property
    def transactional_id(self) -> str: ...

    @property
    def state_partition(self) -> int:
        """Of `__transaction_state`."""

    @property
    def producer_id(self) -> int: ...

    @property
    def producer_epoch(self) -> int: ...

    @property
    def committed(self) -> bool: ...

    @property
    def coordinator_epoch(self) -> int: ...

    @property
    def is_current(self) -> bool:
        """Whether this broker still coordinates it, in that epoch (rule T6.11)."""

    @property
    def remaining(self) -> Collection[TopicPartition]:
        """The partitions whose marker is not written."""

    def marker_written(self, partition: TopicPartition) -> None:
        """Or not needed any more."""

    def finished(self) -> None:
        """Nothing remains."""


@dataclass(frozen=True, slots=True)
class Marker:
    """What one broker has to write for one transaction."""

    ending: Ending
    partitions: frozenset[TopicPartition]

    def for_wire(self) -> WritableTxnMarker:
        ending = self.ending
        topics = by_topic(dict.fromkeys(sorted(self.partitions)))
        return WritableTxnMarker(
            producer_id=ending.producer_id,
            producer_epoch=ending.producer_epoch,
            transaction_result=ending.committed,
            topics=tuple(
                WritableTxnMarkerTopic(name=topic, partition_indexes=tuple(numbers))
                for topic, numbers in topics.items()
            ),
            coordinator_epoch=ending.coordinator_epoch,
        )


class MarkerSender:
    """``run`` sends, with a task for each broker that was ever needed."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata_cache: MetadataCache,
        dial: Dial,
    ) -> None:
        self._config = config
        self._metadata_cache = metadata_cache
        self._dial = dial
        self._version = int(config.inter_broker_protocol_version >= IBP_2_8_IV0)  # rule T6.2
        self._endings: dict[str, Ending] = {}
        self._queues: dict[int, list[Marker]] = {}
        self._came: defaultdict[int, trio.Event] = defaultdict(trio.Event)
        #: their leaders are looked up after a moment
        self._again: list[Marker] = []
        self._again_came = trio.Event()
        self._new_broker = trio.Event()

    @property
    def unknown_destinations(self) -> int:
        """How many markers wait for a leader, or to be sent again (rule T6.16)."""
        return sum(bool(marker.partitions) for marker in self._again)

    @property
    def appends_to_retry(self) -> int:
        """How many transactions wait for their last record to be appended again (rules T6.13, T6.16)."""
        return len(self._again) - self.unknown_destinations

    # what is to be sent

    def send(self, ending: Ending) -> None:
        """Rules T5.11, T6.14."""
        self._endings[ending.transactional_id] = ending
        if ending.remaining:
            self._enqueue(Marker(ending, frozenset(ending.remaining)))
        else:
            self._finish(ending)

    def forget(self, state_partition: int) -> None:
        """Another broker coordinates these, or this one in another epoch (rule T6.15)."""
        for ending in list(self._endings.values()):
            if ending.state_partition == state_partition:
                del self._endings[ending.transactional_id]
        self._again = [marker for marker in self._again if self._is_wanted(marker)]

    def _is_wanted(self, marker: Marker) -> bool:
        return self._endings.get(marker.ending.transactional_id) is marker.ending and marker.ending.is_current

    def _enqueue(self, marker: Marker) -> None:
        """By leader (rules T6.1, T6.4, T6.5). Nothing is gone as long as the cache does not know the partition that
        makes this broker the coordinator: it is a failover's LeaderAndIsr ahead of its UpdateMetadata."""
        snapshot = self._metadata_cache.snapshot
        is_behind = snapshot.partition(TopicPartition(TRANSACTION_STATE_TOPIC, marker.ending.state_partition)) is None
        by_leader: defaultdict[int, set[TopicPartition]] = defaultdict(set)
        homeless: set[TopicPartition] = set()
        gone: set[TopicPartition] = set()
        for partition in marker.partitions:
            state = snapshot.partition(partition)
            if state is None and not is_behind:
                gone.add(partition)
            elif state is None or self._endpoint(state.leader) is None:
                homeless.add(partition)
            else:
                by_leader[state.leader].add(partition)
        for broker_id, partitions in by_leader.items():
            if broker_id not in self._queues:
                self._queues[broker_id] = []
                self._new_broker.set()
            self._queues[broker_id].append(Marker(marker.ending, frozenset(partitions)))
            self._came[broker_id].set()
        if homeless:
            self._later(Marker(marker.ending, frozenset(homeless)))
        self._done(marker.ending, gone)

    def _endpoint(self, broker_id: int) -> Endpoint | None:
        return self._metadata_cache.snapshot.endpoint(broker_id, self._config.inter_broker_listener_name)

    def finish_later(self, ending: Ending) -> None:
        """Its ``finished`` is to be called again (rule T6.13)."""
        self._endings[ending.transactional_id] = ending
        self._later(Marker(ending, frozenset()))

    def _later(self, marker: Marker) -> None:
        self._again.append(marker)
        self._again_came.set()

    def _done(self, ending: Ending, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            if partition in ending.remaining:
                ending.marker_written(partition)
        if not ending.remaining:
            self._finish(ending)

    def _finish(self, ending: Ending) -> None:
        if self._endings.get(ending.transactional_id) is ending:
            del self._endings[ending.transactional_id]
            ending.finished()

    # sending

    async def run(self) -> None:
        """Until cancelled."""
        started: set[int] = set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_up_again)
            while True:
                self._new_broker = trio.Event()
                for broker_id in self._queues.keys() - started:
                    started.add(broker_id)
                    nursery.start_soon(self._send_to, broker_id)
                await self._new_broker.wait()

    async def _look_up_again(self) -> None:
        while True:
            await self._again_came.wait()
            await trio.sleep(RETRY_SECONDS)
            self._again_came = trio.Event()
            again, self._again = self._again, []
            for marker in again:
                if self._is_wanted(marker):
                    self._enqueue(marker)

    async def _send_to(self, broker_id: int) -> None:
        client_id = f"broker-{self._config.broker_id}-txn-marker-sender"
        connection = BrokerConnection(broker_id, self._dial, client_id, self._config.request_timeout_ms)
        try:
            while True:
                await self._came[broker_id].wait()
                self._came[broker_id] = trio.Event()
                queue, self._queues[broker_id] = self._queues[broker_id], []
                markers = [marker for marker in queue if self._is_wanted(marker)]
                if markers:
                    await self._write(connection, markers)
        finally:
            await connection.aclose()

    async def _write(self, connection: BrokerConnection, markers: list[Marker]) -> None:
        endpoint = self._endpoint(connection.broker_id)
        try:
            if endpoint is None:
                raise ConnectionRefusedError(f"broker {connection.broker_id} is not alive")
            request = WriteTxnMarkersRequest(markers=tuple(marker.for_wire() for marker in markers))
            response = await connection.request(endpoint, request, self._version)
            assert isinstance(response, WriteTxnMarkersResponse)
        except (OSError, trio.TooSlowError, WireError) as e:  # rule T6.6
            log.info("markers could not be sent to broker %d: %r", connection.broker_id, e)
            for marker in markers:
                self._later(marker)
            return
        results = {result.producer_id: result for result in response.markers}
        for marker in markers:
            if self._is_wanted(marker):
                self._answered(marker, results.get(marker.ending.producer_id))

    def _answered(self, marker: Marker, result: WritableTxnMarkerResult | None) -> None:
        """Rules T6.7 to T6.10."""
        ending = marker.ending
        codes = {} if result is None else {
            TopicPartition(topic.name, entry.partition_index): entry.error_code
            for topic in result.topics
            for entry in topic.partitions
        }  # fmt: skip
        again = {partition for partition in marker.partitions if codes.get(partition) in RETRIED}
        written = {
            partition
            for partition in marker.partitions
            if codes.get(partition) == ErrorCode.NONE or codes.get(partition) in NOTHING_TO_MARK
        }
        lost = marker.partitions - again - written
        for partition in written & set(ending.remaining):
            ending.marker_written(partition)
        if lost:
            names = {str(p): "no answer" if p not in codes else error_name(codes[p]) for p in sorted(lost)}
            level = logging.INFO if all(codes.get(p) in FENCED for p in lost) else logging.ERROR
            log.log(level, "the end of the transaction of %r is not marked: %s", ending.transactional_id, names)
            del self._endings[ending.transactional_id]
            return
        if again:
            self._later(Marker(ending, frozenset(again)))
        self._done(ending, ())
