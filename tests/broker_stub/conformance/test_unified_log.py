"""ULT, beside tests/broker_stub/log/: offsets, producers and epochs of one log (section 12d of
docs/broker-semantics.md; rules 9.50, B3.44 to B3.53, B5.28, B6.7, B6.14 and B7.16 to B7.18).
"""

from __future__ import annotations

from uuid import UUID

import pytest

from kce.broker_stub.log import Log, Origin
from kce.broker_stub.log.checkpoints import read_topic_id
from kce.broker_stub.log.lookup import FoundOffset, earliest, find_max_timestamp, find_timestamp
from tests.broker_stub.log.support import (
    NOW_MS,
    PARTITION,
    Context,
    a_log,
    append,
    base_offsets,
    batch,
    config,
    marker,
    produced,
)

kafka = pytest.mark.kafka

RECORD = batch(b"test")


@kafka("ULT-3")
def test_the_high_watermark_of_a_follower_is_bounded_by_the_end() -> None:
    log = a_log()
    for i in range(100):
        append(log, b"test%d" % i)
    for given, expected in ((99, 99), (99, 99), (100, 100), (100, 100), (101, 100)):
        assert log.set_high_watermark(given) == expected


@kafka("ULT-17")
def test_the_first_offset_of_each_append() -> None:
    log = a_log(segment_bytes=2**20)
    values = (b"a", b"b", b"c")
    assert append(log, *values) == 0
    assert append(log, *values) == 3
    log.roll()
    assert append(log, *values) == 6


@kafka("ULT-35")
def test_a_follower_takes_duplicates() -> None:
    log, data = a_log(), b""
    for offset, (producer_id, sequence) in enumerate([(1, 0), (2, 0), (1, 1), (2, 1), (1, 1)]):
        data += produced(producer_id, sequence, base_offset=offset, leader_epoch=0)
    assert log.log_end_offset == 0
    log.append_as_follower(data)
    assert log.log_end_offset == 5


@kafka("ULT-37")
def test_the_state_of_producers() -> None:
    log = a_log()

    def state(producer_id: int) -> tuple[int, int, int | None, int]:
        found = log.known_producers()[producer_id]
        return found.epoch, found.last_sequence, found.transaction, found.coordinator_epoch

    log.append_as_leader(produced(1, 0, 5, epoch=5, transactional=True), 0)
    assert state(1) == (5, 4, 0, -1)
    log.append_as_leader(marker(1, committed=True, epoch=5, coordinator_epoch=15), 0, origin=Origin.COORDINATOR)
    assert state(1) == (5, 4, None, 15)
    log.append_as_leader(produced(2, 0, 3, epoch=5), 0)
    assert state(2) == (5, 2, None, -1)


@kafka("ULT-38")
def test_producers_expire() -> None:  # rule B3.53
    context = Context(producer_id_expiration_ms=200)
    log = a_log(context)
    log.append_as_leader(produced(23, 0), 0)
    for passed_ms, expected in ((0, {23}), (100, {23}), (100, set())):
        context.time_ms += passed_ms
        log.remove_expired_producers()
        assert set(log.known_producers()) == expected


@kafka("ULT-39")
def test_producers_stay_when_their_segments_go() -> None:
    first = produced(1, 0)
    log = a_log(segment_bytes=len(first), retention_bytes=len(first) * 2)
    log.append_as_leader(first, 0)
    log.producers.take_snapshot()
    log.append_as_leader(produced(2, 0), 0)
    log.append_as_leader(produced(2, 1), 0)
    log.producers.take_snapshot()
    assert (len(log.segments), set(log.known_producers())) == (3, {1, 2})
    log.set_high_watermark(log.log_end_offset)
    log.delete_old_segments()
    assert (len(log.segments), set(log.known_producers())) == (2, {1, 2})


@kafka("ULT-44")
def test_segments_go_after_records_were_deleted() -> None:
    log = a_log(segment_bytes=len(RECORD) * 5)
    for _ in range(15):
        log.append_as_leader(RECORD, 0)
    assert (len(log.segments), log.log_start_offset) == (3, 0)
    log.set_high_watermark(log.log_end_offset)
    for start, left in ((1, 3), (6, 2), (15, 1)):
        log.increment_log_start_offset(start)
        log.delete_old_segments()
        assert (len(log.segments), log.log_start_offset) == (left, start)


@kafka("ULT-56")
def test_the_first_epoch_moves_with_the_start() -> None:  # rule B5.28
    log = a_log(segment_bytes=len(RECORD) * 5, retention_bytes=len(RECORD) * 10)
    for offset in range(15):
        log.append_as_leader(RECORD, 0 if offset < 7 else 1 if offset < 10 else 2)
    assert base_offsets(log) == [0, 5, 10]
    assert log.leader_epochs == ((0, 0), (1, 7), (2, 10))
    log.set_high_watermark(log.log_end_offset)
    log.delete_old_segments()
    assert log.leader_epochs == ((0, 5), (1, 7), (2, 10))


def _two(log: Log, *epochs: int) -> None:
    assert find_timestamp(log, 0) is None
    for i, epoch in enumerate(epochs):
        log.append_as_leader(batch(b"0123456789", timestamp=NOW_MS + i), epoch)


@kafka("ULT-58")
def test_an_offset_by_time_has_its_epoch() -> None:
    log = a_log(segment_bytes=200, index_interval_bytes=1)
    _two(log, 0, 1)
    assert find_timestamp(log, NOW_MS) == FoundOffset(NOW_MS, 0, 0)
    assert find_timestamp(log, NOW_MS + 1) == FoundOffset(NOW_MS + 1, 1, 1)
    assert earliest(log) == FoundOffset(-1, 0, 0)  # also for EARLIEST_LOCAL
    assert (log.log_end_offset, log.latest_epoch) == (2, 1)
    log.assign_epoch(2)
    assert (log.log_end_offset, log.latest_epoch) == (2, 2)


@kafka("ULT-59")
def test_the_greatest_time() -> None:
    log = a_log(segment_bytes=200, index_interval_bytes=1)
    _two(log, 0, 0)
    log.append_as_leader(batch(b"0123456789", timestamp=NOW_MS), 0)
    assert find_max_timestamp(log) == FoundOffset(NOW_MS + 1, 1, 0)


@kafka("ULT-62")
def test_an_append_writes_the_topic_id() -> None:  # rule B6.7
    context, topic_id = Context(), UUID(int=7)
    log = Log(context, PARTITION, config(), is_new=True)
    log.assign_topic_id(topic_id)
    path = f"{log.folder}/partition.metadata"
    assert not context.disk.exists(path)
    log.append_as_leader(RECORD, 0)
    assert read_topic_id(context.disk, path) == topic_id
