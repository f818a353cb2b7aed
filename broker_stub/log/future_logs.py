"""Logs that will replace those of their partitions: replicas on their way to another log directory (rule B7.23).

A future log has a folder of its own, which ends with `-future`, also over a restart; somebody fills it, and swaps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from random import Random

from kce.broker_stub.errors import BrokerFailure, KafkaStorageError, Refused
from kce.broker_stub.log.config import LogConfig
from kce.broker_stub.log.directory import LogDirectory
from kce.broker_stub.log.log import Log
from kce.broker_stub.log.names import marked_folder
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

_MAX_NAME = 255


class FutureLogs:
    """``current``: the logs that are in use, where a swap puts the future one. ``logs``: the future ones."""

    def __init__(
        self,
        current: MutableMapping[TopicPartition, Log],
        directories: Sequence[LogDirectory],
        config_of: Callable[[str], LogConfig],
        random: Random,
    ) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        self._current = current
        self._directories = directories
        self._config_of = config_of
        self._random = random
        #: where logs are to be that do not exist yet
        self._preferred: dict[TopicPartition, LogDirectory] = {}

    def directory(self, path: str) -> LogDirectory:
        """Raises Refused if there is none of exactly that path, KafkaStorageError if it is offline."""
        found = next((one for one in self._directories if one.path == path), None)
        if found is None:
            raise Refused(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not in log.dirs")
        if found.is_offline:
            raise KafkaStorageError(f"{path} is offline")
        return found

    def prefer(self, partition: TopicPartition, directory: LogDirectory) -> None:
        """A log that is created later is to be there."""
        if not any(one is not None and one.context is directory for one in self._known(partition)):
            self._preferred[partition] = directory

    def _known(self, partition: TopicPartition) -> tuple[Log | None, Log | None]:
        return self._current.get(partition), self.logs.get(partition)

    def take_preferred(self, partition: TopicPartition) -> LogDirectory | None:
        """Where its new log is to be; None if nobody said so. Raises KafkaStorageError if that directory is offline."""
        directory = self._preferred.get(partition)
        if directory is not None and directory.is_offline:
            raise KafkaStorageError(f"{directory.path}, where {partition} is to be, is offline")
        return self._preferred.pop(partition, None)

    def create(self, partition: TopicPartition, directory: LogDirectory) -> None:
        """A future log in a directory without a log of that partition. Raises KafkaStorageError.

        Also if any directory is offline: the future log may be there already.
        """
        if any(one.is_offline for one in self._directories):
            raise KafkaStorageError(f"a future log of {partition} may be in a log directory that is offline")
        name = self._name(partition, "future")
        made = Log(directory, partition, self._config_of(partition.topic), is_new=True, folder=name)
        topic_id = self._current[partition].topic_id
        if topic_id is not None:
            made.assign_topic_id(topic_id)
        self._preferred.pop(partition, None)
        self.logs[partition] = made
        directory.log_count += 1
        made.make_files()  # so that a broker that starts again goes on

    def check_name(self, partition: TopicPartition) -> None:
        """Raises Refused for a topic whose name leaves no room for the suffix."""
        if len(self._name(partition, "future")) > _MAX_NAME:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"the name of topic {partition.topic} is too long")

    def _name(self, partition: TopicPartition, kind: str) -> str:
        return marked_folder(partition, kind, f"{self._random.getrandbits(128):032x}")

    def loaded(self, found: Log) -> None:
        """Raises BrokerFailure if there is another one (rule B6.32)."""
        other = self.logs.setdefault(found.partition, found)
        if other is not found:
            raise BrokerFailure(f"{found.folder} and {other.folder} are of the same partition: delete one")

    def remove(self, partition: TopicPartition) -> None:
        """It is not wanted any more. Raises KafkaStorageError."""
        found = self.logs.pop(partition, None)
        if found is not None:
            self.delete(found)

    def delete(self, found: Log) -> None:
        """Its folder, if there is one, gets another name at once, and is deleted later (rule B6.18).

        Raises KafkaStorageError.
        """
        directory = found.context
        assert isinstance(directory, LogDirectory)
        directory.log_count -= 1
        if found.has_files:
            found.move(f"{directory.path}/{self._name(found.partition, 'delete')}")
            directory.delete_later([found.folder], directory.delete_delay_ms)

    def swap(self, partition: TopicPartition) -> Log:
        """The future log becomes the one in use, and the other one is deleted. Raises KafkaStorageError.

        Not if the other one cannot be deleted: the future log is in use already, and only that directory is offline.
        A broker that dies in between leaves two logs of one partition, like Kafka (rule B6.32).
        """
        future, current = self.logs[partition], self._current[partition]
        directory = future.context
        assert isinstance(directory, LogDirectory)
        future.move(f"{directory.path}/{partition}")
        del self.logs[partition]
        self._current[partition] = future
        try:
            self.delete(current)
        except KafkaStorageError as e:
            log.warning("%s", e)
        return future

    def failed(self, directory: LogDirectory) -> None:
        """That log directory is offline."""
        for partition, found in list(self.logs.items()):
            if found.context is directory:
                del self.logs[partition]

    def in_directory(self, directory: LogDirectory) -> Mapping[TopicPartition, Log]:
        return {partition: found for partition, found in self.logs.items() if found.context is directory}
