"""Appends to the partitions that are led here, answered at once or when the replicas have the records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Final, TypeAlias

from kce.broker_stub.disk import Buffer
from kce.broker_stub.errors import ApiException, KafkaStorageError
from kce.broker_stub.log import Log, Origin
from kce.broker_stub.log.producer_state import CLIENT
from kce.broker_stub.log.verification import EXEMPT, VerificationGuard
from kce.broker_stub.partition import ALL, Partition
from kce.broker_stub.replication.data_plane import ORDINARY, DataPlane
from kce.broker_stub.replication.delayed import DelayedProduce, Produced
from kce.garbage import let_go
from kce.wire import ErrorCode
from kce.wire.errors import NO_ERROR
from kce.wire.steps import Steps
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

Guards: TypeAlias = Mapping[TopicPartition, VerificationGuard]
_NO_GUARDS: Final[Guards] = MappingProxyType({})

#: gets what became of records for each partition, and the code to answer
Respond: TypeAlias = Callable[[Mapping[TopicPartition, tuple[Produced, ErrorCode]]], None]
#: what became of records, and the partition if it has them
_Made: TypeAlias = tuple[Produced, Partition | None]
#: the arguments of `Appends._respond`
_Append: TypeAlias = tuple[Mapping[TopicPartition, _Made], int, int, Respond]

#: not counted as failures of the broker
_ORDINARY: Final = frozenset(
    (*ORDINARY, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE)
)


class Appends:
    """``plane`` has the partitions, and tells those who wait for their records."""

    def __init__(self, plane: DataPlane, *, zstd_allowed: bool = True) -> None:
        self.plane = plane
        self._zstd_allowed = zstd_allowed
        #: `transaction.partition.verification.enable` (rule T10.15)
        self.verifies_transactions = False
        #: while they are settled together
        self._together: list[_Append] | None = None

    def append(
        self,
        records: Mapping[TopicPartition, Buffer],
        acks: int,
        timeout_ms: int,
        respond: Respond,
        *,
        origin: Origin = CLIENT,
        guards: Guards = _NO_GUARDS,
    ) -> None:
        """Append to each partition; ``respond`` gets what became of it, and the code to answer.

        ``guards``: of transactions that begin in a partition.

        With acks=-1 it may be called later: when every replica in the ISR has the records, or after the timeout.
        """
        made = {
            topic_partition: self._append(topic_partition, data, acks, origin, guards.get(topic_partition))
            for topic_partition, data in records.items()
        }
        if self._together is not None:
            self._together.append((made, acks, timeout_ms, respond))
        else:
            self.plane.appended([partition for _, partition in made.values() if partition is not None])
            self._respond(made, acks, timeout_ms, respond)

    def append_one(
        self,
        topic_partition: TopicPartition,
        records: Buffer,
        acks: int,
        timeout_ms: int,
        respond: Callable[[Produced, ErrorCode], None],
        *,
        origin: Origin = CLIENT,
        guard: VerificationGuard | None = None,
    ) -> None:
        """``append`` to one partition, at once also within ``together``."""
        made = self._append(topic_partition, records, acks, origin, guard)
        produced, partition = made
        if partition is not None:
            self.plane.appended((partition,))
        code = _settled(made, acks)
        if code is not None:
            respond(produced, code)
        else:
            self._wait({topic_partition: made}, {}, timeout_ms, lambda results: respond(*results[topic_partition]))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Whoever waits for what is appended within learns of all of it at the end."""
        appends: list[_Append] = []
        self._together = appends
        try:
            yield
        finally:
            self._together = None
            partitions = {key: partition for made, *_ in appends for key, (_, partition) in made.items() if partition}
            self.plane.appended(partitions.values())
            for each in appends:
                self._respond(*each)

    def _respond(self, made: Mapping[TopicPartition, _Made], acks: int, timeout_ms: int, respond: Respond) -> None:
        """Now, or when what was appended is where it must be."""
        results: dict[TopicPartition, tuple[Produced, ErrorCode]] = {}
        for topic_partition, one in made.items():
            code = _settled(one, acks)
            if code is not None:
                results[topic_partition] = one[0], code
        if len(results) == len(made):
            respond(results)
        else:
            self._wait(made, results, timeout_ms, respond)

    def _wait(
        self,
        made: Mapping[TopicPartition, _Made],
        results: dict[TopicPartition, tuple[Produced, ErrorCode]],
        timeout_ms: int,
        respond: Respond,
    ) -> None:
        """``results``: of the partitions that need not wait."""
        produced = {topic_partition: one for topic_partition, (one, _) in made.items()}
        operation = DelayedProduce(self._settled_later, produced, results, timeout_ms, respond)
        appended = [topic_partition for topic_partition, (_, partition) in made.items() if partition is not None]
        self.plane.produce_purgatory.watch(operation, appended)

    def _settled_later(self, topic_partition: TopicPartition, produced: Produced) -> ErrorCode | None:
        """With acks=-1, of a partition that may have gone."""
        try:
            return _settled((produced, self.plane.partition(topic_partition)), ALL)
        except ApiException as e:
            return e.code

    def _append(
        self,
        topic_partition: TopicPartition,
        records: Buffer,
        acks: int,
        origin: Origin,
        guard: VerificationGuard | None,
    ) -> _Made:
        stats = self.plane.stats.of(topic_partition.topic)
        stats.produces += 1
        try:
            partition = self.plane.partition(topic_partition)
            appended = partition.append(
                records, acks, origin=origin, zstd_allowed=self._zstd_allowed,
                guard=guard if self.verifies_transactions else EXEMPT,
            )  # fmt: skip
            stats.bytes_in += len(records)
            if appended.first_offset >= 0:
                stats.messages_in += appended.last_offset - appended.first_offset + 1
            stats.produce_conversions += appended.converted
            return appended, partition  # noqa: TRY300 - what follows it is about it
        except ApiException as e:
            if e.code is ErrorCode.MESSAGE_TOO_LARGE:
                stats.bytes_rejected += len(records)
            stats.failed_produces += e.code not in _ORDINARY
            let_go(e)  # it is kept with the results
            return e, None
        except Exception as e:  # the other partitions are served
            log.exception("records for %s could not be appended", topic_partition)
            stats.failed_produces += 1
            return ApiException(str(e)), None

    def files_made(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Make the files of logs that are led here and have none yet: an append flushes them, one partition a step."""
        for topic_partition in partitions:
            for new in self._new_logs((topic_partition,)):
                with suppress(KafkaStorageError):  # the append meets it again
                    new.make_files()
                yield

    def lack_files(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether more than one of the logs that are led here has no files yet."""
        return len(self._new_logs(partitions)) > 1

    def _new_logs(self, partitions: Iterable[TopicPartition]) -> list[Log]:
        """The logs that are led here and have no files yet."""
        hosted = map(self.plane.hosted.partitions.get, partitions)
        led = [partition.log for partition in hosted if partition is not None and partition.is_leader]
        return [found for found in led if found is not None and not found.has_files]


def _settled(made: _Made, acks: int) -> ErrorCode | None:
    """The code to answer; None as long as replicas in the ISR do not have the records."""
    produced, partition = made
    if isinstance(produced, ApiException):
        return produced.code
    if acks != ALL or partition is None:
        return NO_ERROR
    return partition.is_acknowledged(produced.last_offset + 1)
