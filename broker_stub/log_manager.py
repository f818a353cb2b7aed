"""The partition logs on a broker's disk: the port, and an in-memory implementation without records."""

from __future__ import annotations

import uuid
from typing import Protocol

from kce.broker_stub.log import Log
from kce.wire.vocabulary import TopicPartition


class LogManager(Protocol):
    """The log operations that control requests need. A log stores the id of its topic."""

    def has_log(self, partition: TopicPartition) -> bool: ...

    def topic_id(self, partition: TopicPartition) -> uuid.UUID | None:
        """The topic id of the partition's log; None if there is no log or it has no id."""

    def assign_topic_id(self, partition: TopicPartition, topic_id: uuid.UUID) -> None:
        """Give an existing log without an id its topic id."""

    def get_or_create_log(self, partition: TopicPartition, *, is_new: bool, topic_id: uuid.UUID | None) -> Log | None:
        """A log without an id gets ``topic_id``. None from a manager that keeps no records.

        Raises KafkaStorageError; also if the log is missing, ``is_new`` is false and a directory is offline, because
        the log may be in that directory (rule 9.24).
        """

    def delete_log(self, partition: TopicPartition) -> None:
        """Does nothing if there is no log. Raises KafkaStorageError; the log is gone all the same (rule 9.32).

        ``checkpoint_deletions`` follows the last of a request.
        """

    def checkpoint_deletions(self) -> None:
        """After a crash nothing is left of deleted logs."""


class InMemoryLogManager:
    """Logs without records. Pass it to the next Broker of the same id to simulate a restart with the same disk."""

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

    def checkpoint_deletions(self) -> None:
        pass
