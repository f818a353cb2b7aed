"""Which partitions exist on this broker's disk: a port, and a disk that is a dict until there are logs."""

from __future__ import annotations

import uuid
from typing import Protocol

from wire.vocabulary import TopicPartition


class LogManager(Protocol):
    """The logs of a broker, as far as control requests need them. A log knows the id of its topic once it was told."""

    def has_log(self, partition: TopicPartition) -> bool: ...

    def topic_id(self, partition: TopicPartition) -> uuid.UUID | None:
        """None: there is no log, or it has no id."""

    def assign_topic_id(self, partition: TopicPartition, topic_id: uuid.UUID) -> None:
        """Only for a log that has none."""

    def get_or_create_log(self, partition: TopicPartition, *, is_new: bool, topic_id: uuid.UUID | None) -> None:
        """``topic_id`` is assigned to a log without one.

        Raises KafkaStorageError, also when the log is not found, ``is_new`` is false and a directory is offline: it
        may be there (rule 9.24).
        """

    def delete_log(self, partition: TopicPartition) -> None:
        """Nothing happens where there is none. Raises KafkaStorageError."""


class InMemoryLogManager:
    """Logs without records. Handed to the next Broker of the same id, it is what a restart finds on disk."""

    def __init__(self) -> None:
        self._topic_ids: dict[TopicPartition, uuid.UUID | None] = {}

    def has_log(self, partition: TopicPartition) -> bool:
        return partition in self._topic_ids

    def topic_id(self, partition: TopicPartition) -> uuid.UUID | None:
        return self._topic_ids.get(partition)

    def assign_topic_id(self, partition: TopicPartition, topic_id: uuid.UUID) -> None:
        self._topic_ids[partition] = topic_id

    def get_or_create_log(self, partition: TopicPartition, *, is_new: bool, topic_id: uuid.UUID | None) -> None:
        if self._topic_ids.get(partition) is None:
            self._topic_ids[partition] = topic_id

    def delete_log(self, partition: TopicPartition) -> None:
        self._topic_ids.pop(partition, None)
