"""A disk that can fail."""

from __future__ import annotations

import uuid

from broker_stub import InMemoryLogManager, TopicPartition
from broker_stub.errors import KafkaStorageError


class FailingLogManager(InMemoryLogManager):
    """``offline``: a directory is gone, logs that are not found may be in it. ``broken``: partitions that fail."""

    def __init__(self) -> None:
        super().__init__()
        self.offline = False
        self.broken: set[TopicPartition] = set()

    def get_or_create_log(self, partition: TopicPartition, *, is_new: bool, topic_id: uuid.UUID | None) -> None:
        if partition in self.broken or (self.offline and not is_new and not self.has_log(partition)):
            raise KafkaStorageError(f"{partition} is in a directory that is offline")
        super().get_or_create_log(partition, is_new=is_new, topic_id=topic_id)

    def delete_log(self, partition: TopicPartition) -> None:
        if partition in self.broken:
            raise KafkaStorageError(f"{partition} is in a directory that is offline")
        super().delete_log(partition)
