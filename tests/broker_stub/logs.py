"""A log manager that can fail."""

from __future__ import annotations

import uuid

from kce.broker_stub import InMemoryLogManager, TopicPartition
from kce.broker_stub.errors import KafkaStorageError


class FailingLogManager(InMemoryLogManager):
    """``offline``: a directory failed, and may hold missing logs. ``broken``: partitions whose logs fail."""

    def __init__(self) -> None:
        super().__init__()
        self.offline = False
        self.broken: set[TopicPartition] = set()

    def get_or_create_log(self, partition: TopicPartition, *, is_new: bool, topic_id: uuid.UUID | None) -> None:
        if partition in self.broken or (self.offline and not is_new and not self.has_log(partition)):
            raise KafkaStorageError(f"{partition} is in a directory that is offline")
        super().get_or_create_log(partition, is_new=is_new, topic_id=topic_id)

    def delete_log(self, partition: TopicPartition) -> None:
        super().delete_log(partition)
        if partition in self.broken:
            raise KafkaStorageError(f"{partition} is in a directory that is offline")
