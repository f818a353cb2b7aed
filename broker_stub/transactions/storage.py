"""The partitions of `__transaction_state` as the coordinator uses them, and their place among a broker's logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from kce.broker_stub.internal_log import InternalTopicLog, OnAppended
from kce.broker_stub.internal_topics import TRANSACTION_STATE_TOPIC
from kce.broker_stub.partition import ALL
from kce.broker_stub.replication.appends import Appends
from kce.broker_stub.transaction_config import TransactionConfig
from kce.wire.record import RecordBatch


class TransactionLog(Protocol):
    """The log of each partition of `__transaction_state`, by number."""

    def max_batch_bytes(self, partition: int) -> int | None:
        """None if there is no log of it here."""

    def append(self, partition: int, records: bytes, timeout_ms: int, on_appended: OnAppended) -> None:
        """``on_appended`` is called when all replicas in the ISR have it, before this returns or later."""

    def read(self, partition: int) -> Iterator[RecordBatch]:
        """From start to end, as long as it is led here (rule T9.13). Raises ApiException, CorruptRecord."""


class ReplicatedTransactionLog(InternalTopicLog):
    """On the logs of a broker, through its data plane."""

    def __init__(self, config: TransactionConfig, appends: Appends) -> None:
        size = config.transaction_state_log_load_buffer_size
        super().__init__(TRANSACTION_STATE_TOPIC, size, appends)

    def max_batch_bytes(self, partition: int) -> int | None:
        hosted = self._data_plane.hosted.partitions.get(self._named(partition))
        return None if hosted is None or hosted.log is None else hosted.log.config.max_message_bytes

    def append(self, partition: int, records: bytes, timeout_ms: int, on_appended: OnAppended) -> None:
        self.append_and_wait(partition, records, ALL, timeout_ms, on_appended)
