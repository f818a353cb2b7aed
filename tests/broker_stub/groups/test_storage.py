"""How the coordinator's appends and reads reach the logs of a broker."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from kce.broker_stub.errors import Refused
from kce.broker_stub.groups.storage import ReplicatedOffsetsLog
from kce.broker_stub.log import Appended, Log, Origin
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.groups.support import settings
from tests.broker_stub.log.support import a_log, append, batch

OFFSETS = TopicPartition("__consumer_offsets", 3)
APPENDED = Appended(first_offset=70, last_offset=71, log_start_offset=0)


class Appends:
    """What is appended, each with its answers when ``results`` has some; and the partition."""

    def __init__(self, *results: tuple[Any, ErrorCode]) -> None:
        self.made: list[tuple[Any, ...]] = []
        self.results = list(results)
        self.log: Log | None = a_log()
        self.is_leader = True

    def append_one(
        self,
        partition: Any,
        records: Any,
        acks: int,
        timeout_ms: int,
        respond: Any,
        *,
        origin: Origin,
        guard: Any = None,
    ) -> None:
        self.made.append((partition, records, acks, timeout_ms, origin))
        if self.results:
            respond(*self.results.pop(0))

    @property
    def plane(self) -> Appends:
        return self

    hosted = plane

    @property
    def partitions(self) -> dict[TopicPartition, Any]:
        return {OFFSETS: self}

    def partition(self, partition: TopicPartition) -> Any:
        return self.partitions[partition]

    def leader_log(self) -> Any:
        return self.log


def stored(appends: Any, **properties: str) -> ReplicatedOffsetsLog:
    return ReplicatedOffsetsLog(settings(**properties), appends)


def test_an_append_waits_as_configured() -> None:  # rule G9.13
    appends = Appends(
        (APPENDED, ErrorCode.NONE), (Refused(ErrorCode.NOT_ENOUGH_REPLICAS), ErrorCode.NOT_ENOUGH_REPLICAS)
    )
    log = stored(appends, offsets_commit_required_acks="1", offsets_commit_timeout_ms="1234")
    answers: list[tuple[int, ErrorCode]] = []
    for records in (b"a", b"b", b"c"):
        log.append(3, records, lambda *answer: answers.append(answer))
    assert appends.made == [(OFFSETS, records, 1, 1234, Origin.COORDINATOR) for records in (b"a", b"b", b"c")]
    assert answers == [(70, ErrorCode.NONE), (-1, ErrorCode.NOT_ENOUGH_REPLICAS)]


def test_an_error_in_what_follows_an_append_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fails(*answer: object) -> None:
        raise ValueError("of a group")

    with caplog.at_level(logging.ERROR):
        stored(Appends((APPENDED, ErrorCode.NONE))).append(3, b"a", fails)
    assert "__consumer_offsets-3" in caplog.text


def test_an_append_without_waiting_says_what_fails() -> None:
    appends = Appends((APPENDED, ErrorCode.NONE), (Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER), ErrorCode.NONE))
    log = stored(appends)
    log.append_without_waiting(3, b"a")
    with pytest.raises(Refused) as failed:
        log.append_without_waiting(3, b"b")
    assert failed.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert appends.made == [(OFFSETS, records, 0, 0, Origin.COORDINATOR) for records in (b"a", b"b")]


def test_only_a_log_is_online() -> None:
    appends = Appends()
    assert (stored(appends).is_online(3), stored(appends).is_online(4)) == (True, False)
    appends.log = None
    assert not stored(appends).is_online(3)


def reading(appends: Appends) -> tuple[Any, list[tuple[int, int]]]:
    """A log with offsets 1 to 4 in three batches, and what is read of it."""
    log = appends.log
    assert log is not None
    for values in ((b"0",), (b"1", b"2"), (b"3",), (b"4",)):
        append(log, *values)
    log.set_high_watermark(2)
    log.increment_log_start_offset(1)
    reads: list[tuple[int, int]] = []

    def read_bytes(offset: int, size: int) -> Any:
        reads.append((offset, size))
        return log.read_bytes(offset, size)

    seen = SimpleNamespace(log_start_offset=1, log_end_offset=log.log_end_offset, read_bytes=read_bytes)
    appends.log = seen  # type: ignore[assignment]
    return seen, reads


@pytest.mark.parametrize(("size", "offsets"), [(1, [1, 3, 4]), (2 * len(batch(b"0")) + 30, [1, 4])])
def test_a_load_reads_to_the_end_of_the_log(size: int, offsets: list[int]) -> None:  # rule G9.14
    appends = Appends()
    _, reads = reading(appends)
    batches = list(stored(appends, offsets_load_buffer_size=str(size)).read(3))
    assert [(found.base_offset, found.last_offset) for found in batches] == [(1, 2), (3, 3), (4, 4)]
    assert reads == [(offset, size) for offset in offsets]


@pytest.mark.parametrize("change", [{"is_leader": False}, {"log": None}])
def test_a_load_ends_when_the_partition_is_led_elsewhere(change: dict[str, Any]) -> None:  # rule G9.14
    appends = Appends()
    reading(appends)
    found = stored(appends, offsets_load_buffer_size="1").read(3)
    assert next(found).base_offset == 1
    vars(appends).update(change)
    assert list(found) == []
