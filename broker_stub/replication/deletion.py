"""DeleteRecords: moves the starts of logs, and waits for the followers (rules B2.24 to B2.26, B6.20)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kce.broker_stub.errors import ApiException, Refused
from kce.broker_stub.purgatory import DelayedOperation
from kce.broker_stub.replication.data_plane import DataPlane
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition


def delete_records(
    plane: DataPlane,
    offsets: Mapping[TopicPartition, int],
    timeout_ms: int,
    respond: Callable[[Mapping[TopicPartition, tuple[int, ErrorCode]]], None],
) -> None:
    """Move the starts of logs; ``respond`` gets low watermark and code of each (rules B6.20, B2.24)."""
    results: dict[TopicPartition, tuple[int, ErrorCode]] = {}
    wanted: dict[TopicPartition, tuple[int, int]] = {}
    for topic_partition, offset in offsets.items():
        try:
            wanted[topic_partition] = _delete_before(plane, topic_partition, offset)
        except ApiException as e:
            results[topic_partition] = -1, e.code
    operation = DelayedDeleteRecords(plane, wanted, results, timeout_ms, respond)
    if wanted:
        plane.delete_purgatory.try_complete_or_watch(operation, wanted)
    else:
        operation.force_complete()


def _delete_before(plane: DataPlane, topic_partition: TopicPartition, offset: int) -> tuple[int, int]:
    """The offset that the low watermark must reach, and what it is. Raises ApiException."""
    partition = plane.partition(topic_partition)
    found = partition.leader_log()
    if not found.config.is_delete:
        raise Refused(ErrorCode.POLICY_VIOLATION)
    if offset == -1:
        offset = found.high_watermark
    if offset < 0:
        raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
    if found.increment_log_start_offset(offset):
        plane.changed_unnoticed(topic_partition)
    return offset, plane.low_watermark(partition)


class DelayedDeleteRecords(DelayedOperation):
    """Waits until every live replica has moved the start of its log (rules B2.24 to B2.26)."""

    __slots__ = ("_plane", "_respond", "_results", "_wanted")

    def __init__(
        self,
        plane: DataPlane,
        wanted: Mapping[TopicPartition, tuple[int, int]],
        results: dict[TopicPartition, tuple[int, ErrorCode]],
        timeout_ms: int,
        respond: Callable[[Mapping[TopicPartition, tuple[int, ErrorCode]]], None],
    ) -> None:
        """``wanted``: the offset that the low watermark must reach, and what it was when that was asked for."""
        super().__init__(timeout_ms)
        self._plane = plane
        self._wanted = dict(wanted)
        self._results = results
        self._respond = respond

    def try_complete(self) -> bool:
        for topic_partition, (offset, _) in list(self._wanted.items()):
            try:
                low_watermark = self._plane.low_watermark(self._plane.partition(topic_partition))
            except ApiException as e:
                self._settle(topic_partition, -1, e.code)
            else:
                if low_watermark >= offset:
                    self._settle(topic_partition, low_watermark, ErrorCode.NONE)
        return not self._wanted and self.force_complete()

    def _settle(self, topic_partition: TopicPartition, low_watermark: int, code: ErrorCode) -> None:
        del self._wanted[topic_partition]
        self._results[topic_partition] = low_watermark, code

    def on_complete(self) -> None:
        for topic_partition, (_, low_watermark) in list(self._wanted.items()):
            self._settle(topic_partition, low_watermark, ErrorCode.REQUEST_TIMED_OUT)
        self._respond(self._results)
