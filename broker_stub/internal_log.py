"""The partitions of an internal topic among a broker's logs, as a coordinator uses them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TypeAlias

from kce.broker_stub.errors import ApiException
from kce.broker_stub.log import Appended
from kce.broker_stub.log.producer_state import COORDINATOR
from kce.broker_stub.log.verification import VerificationGuard
from kce.broker_stub.replication.appends import Appends
from kce.broker_stub.replication.delayed import Produced
from kce.wire import ErrorCode
from kce.wire.record import RecordBatch
from kce.wire.records import read_records, spans
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

#: first offset of the batch, -1 if it is unknown; and what became of it
OnAppended: TypeAlias = Callable[[int, ErrorCode], None]


class InternalTopicLog:
    """Partitions are named by number. ``load_buffer_size``: bytes that are read at once, more for a larger batch."""

    def __init__(self, topic: str, load_buffer_size: int, appends: Appends) -> None:
        self._topic = topic
        self._load_buffer_size = load_buffer_size
        self._appends = appends
        self._data_plane = appends.plane
        self._names: dict[int, TopicPartition] = {}

    def _named(self, partition: int) -> TopicPartition:
        known = self._names.get(partition)
        if known is None:
            known = self._names[partition] = TopicPartition(self._topic, partition)
        return known

    def is_online(self, partition: int) -> bool:
        hosted = self._data_plane.hosted.partitions.get(self._named(partition))
        return hosted is not None and hosted.log is not None

    def append_and_wait(
        self,
        partition: int,
        records: bytes,
        acks: int,
        timeout_ms: int,
        on_appended: OnAppended,
        guard: VerificationGuard | None = None,
    ) -> None:
        """``on_appended`` is called when the required replicas have it, before this returns or later.

        ``guard``: of the transaction that begins with them in the partition, if any.
        """
        topic_partition = self._named(partition)

        def respond(produced: Produced, code: ErrorCode) -> None:
            try:
                on_appended(produced.first_offset if isinstance(produced, Appended) else -1, code)
            except Exception:  # whoever advanced the high watermark is not concerned
                log.exception("the end of an append to %s could not be processed", topic_partition)

        self._appends.append_one(topic_partition, records, acks, timeout_ms, respond, origin=COORDINATOR, guard=guard)

    def append_without_waiting(self, partition: int, records: bytes) -> None:
        """Raises ApiException."""
        failures: list[ApiException] = []

        def respond(produced: Produced, code: ErrorCode) -> None:
            if isinstance(produced, ApiException):
                failures.append(produced)

        self._appends.append_one(self._named(partition), records, 0, 0, respond, origin=COORDINATOR)
        if failures:
            raise failures[0]

    def read(self, partition: int) -> Iterator[RecordBatch]:
        """From start to end, as long as it is led here (rules G9.14, T9.13). Raises ApiException, CorruptRecord."""
        hosted = self._data_plane.partition(self._named(partition))
        offset = hosted.leader_log().log_start_offset
        while hosted.is_leader and hosted.log is not None and offset < hosted.log.log_end_offset:
            data = memoryview(hosted.log.read_bytes(offset, self._load_buffer_size))
            before = offset
            for span in spans(data):
                for batch in read_records(data[span.start : span.end]).batches:
                    yield batch
                    offset = batch.last_offset + 1
            if offset == before:
                return
