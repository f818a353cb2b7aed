"""The partitions of `__consumer_offsets` as the coordinator uses them, and their place among a broker's logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeAlias

from kce.broker_stub.errors import ApiException
from kce.broker_stub.group_config import GroupConfig
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC
from kce.broker_stub.log import Appended, Isolation, Origin
from kce.broker_stub.replication.data_plane import DataPlane, HostedPartitions, Produced
from kce.wire import ErrorCode
from kce.wire.record import RecordBatch
from kce.wire.records import read_records, spans
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

#: first offset of the batch, -1 if it is unknown; and what became of it
OnAppended: TypeAlias = Callable[[int, ErrorCode], None]


class OffsetsLog(Protocol):
    """The log of each partition of `__consumer_offsets`, by number."""

    def is_online(self, partition: int) -> bool:
        """Whether there is a log of it here."""

    def append(self, partition: int, records: bytes, on_appended: OnAppended) -> None:
        """``on_appended`` is called when the required replicas have it, before this returns or later."""

    def append_without_waiting(self, partition: int, records: bytes) -> None:
        """Raises ApiException."""

    def read(self, partition: int) -> Iterator[RecordBatch]:
        """From start to end, as long as it is led here (rule G9.14). Raises ApiException, CorruptRecord."""


class ReplicatedOffsetsLog:
    """On the logs of a broker, through its data plane."""

    def __init__(self, config: GroupConfig, data_plane: DataPlane, hosted: Callable[[], HostedPartitions]) -> None:
        self._config = config
        self._data_plane = data_plane
        self._hosted = hosted

    def is_online(self, partition: int) -> bool:
        hosted = self._hosted().partitions.get(_named(partition))
        return hosted is not None and hosted.log is not None

    def append(self, partition: int, records: bytes, on_appended: OnAppended) -> None:
        topic_partition = _named(partition)

        def respond(results: Mapping[TopicPartition, tuple[Produced, ErrorCode]]) -> None:
            produced, code = results[topic_partition]
            first_offset = produced.first_offset if isinstance(produced, Appended) else -1
            try:
                on_appended(first_offset, code)
            except Exception:  # whoever advanced the high watermark is not concerned
                log.exception("the end of an append to %s could not be processed", topic_partition)

        self._data_plane.append(
            {topic_partition: records},
            self._config.offsets_commit_required_acks,
            self._config.offsets_commit_timeout_ms,
            respond,
            origin=Origin.COORDINATOR,
        )

    def append_without_waiting(self, partition: int, records: bytes) -> None:
        failures: list[ApiException] = []

        def respond(results: Mapping[TopicPartition, tuple[Produced, ErrorCode]]) -> None:
            failures.extend(produced for produced, _ in results.values() if isinstance(produced, ApiException))

        self._data_plane.append({_named(partition): records}, 0, 0, respond, origin=Origin.COORDINATOR)
        if failures:
            raise failures[0]

    def read(self, partition: int) -> Iterator[RecordBatch]:
        hosted = self._data_plane.partition(_named(partition))
        offset = hosted.leader_log().log_start_offset
        while hosted.is_leader and hosted.log is not None and offset < hosted.log.log_end_offset:
            found = hosted.log.read(offset, self._config.offsets_load_buffer_size, Isolation.LOG_END, at_least_one=True)
            data = memoryview(found.records)
            before = offset
            for span in spans(data):
                for batch in read_records(data[span.start : span.end]).batches:
                    yield batch
                    offset = batch.last_offset + 1
            if offset == before:
                return


def _named(partition: int) -> TopicPartition:
    return TopicPartition(GROUP_METADATA_TOPIC, partition)
