"""The partitions of `__consumer_offsets` as the coordinator uses them, and their place among a broker's logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from kce.broker_stub.group_config import GroupConfig
from kce.broker_stub.internal_log import InternalTopicLog, OnAppended
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC
from kce.broker_stub.log.verification import VerificationGuard
from kce.broker_stub.replication.appends import Appends
from kce.wire.record import RecordBatch


class OffsetsLog(Protocol):
    """The log of each partition of `__consumer_offsets`, by number."""

    def is_online(self, partition: int) -> bool:
        """Whether there is a log of it here."""

    def append(
        self, partition: int, records: bytes, on_appended: OnAppended, guard: VerificationGuard | None = None
    ) -> None:
        """``on_appended`` is called when the required replicas have it, before this returns or later.

        ``guard``: of the transaction that begins with them in the partition, if any (rule T10.14).
        """

    def append_without_waiting(self, partition: int, records: bytes) -> None:
        """Raises ApiException."""

    def read(self, partition: int) -> Iterator[RecordBatch]:
        """From start to end, as long as it is led here (rule G9.14). Raises ApiException, CorruptRecord."""


class ReplicatedOffsetsLog(InternalTopicLog):
    """On the logs of a broker, through its data plane."""

    def __init__(self, config: GroupConfig, appends: Appends) -> None:
        super().__init__(GROUP_METADATA_TOPIC, config.offsets_load_buffer_size, appends)
        self._config = config

    def append(
        self, partition: int, records: bytes, on_appended: OnAppended, guard: VerificationGuard | None = None
    ) -> None:
        acks, timeout_ms = self._config.offsets_commit_required_acks, self._config.offsets_commit_timeout_ms
        self.append_and_wait(partition, records, acks, timeout_ms, on_appended, guard)
