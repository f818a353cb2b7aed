"""LVT, what of it is about logs of magic 0 and 1 (section 12d of docs/broker-semantics.md; rules B3.22 to B3.35)."""

from __future__ import annotations

import pytest

from kce import wire
from kce.broker_stub.errors import InvalidTimestamp, UnsupportedForMessageFormat
from kce.broker_stub.log import Log
from kce.wire import Codec, Record, RecordBatch, TimestampType
from tests.broker_stub.log.support import NOW_MS, batch, everything
from tests.broker_stub.log.test_old_formats import old_log, stored

kafka = pytest.mark.kafka

START = 1_234_567
#: the second is the newest
TIMES = (NOW_MS - 1, NOW_MS + 1, NOW_MS)
VALUES = (b"hello", b"there", b"beautiful")
GZIP = Codec.GZIP
APPEND_TIME = "LogAppendTime"
CREATE_TIME = "CreateTime"


def max_timestamp(log: Log) -> tuple[int, int]:
    return tuple(log.segments[0].max_timestamp)


def three(magic: int, codec: Codec) -> bytes:
    made = (Record(offset=i, timestamp=time, value=VALUES[i]) for i, time in enumerate(TIMES))
    return wire.write_records(RecordBatch.of(*made, magic=magic, codec=codec))


@pytest.mark.parametrize(
    ("magic", "expected"),
    [
        pytest.param(0, (-1, 0), marks=kafka("LVT-5")),  # no timestamp
        pytest.param(1, (NOW_MS, 0), marks=kafka("LVT-6")),  # the first message's offset
    ],
)
def test_append_time_without_compression(magic: int, expected: tuple[int, int]) -> None:
    log, data = old_log(magic, message_timestamp_type=APPEND_TIME), batch(*VALUES, magic=magic, timestamp=1234)
    assert log.append_as_leader(data, 0).converted == 0
    assert log.log_end_offset == len(stored(log)) == 3
    assert len(everything(log)) == len(data)
    if magic:
        assert all(one.timestamp_type is TimestampType.LOG_APPEND_TIME for one in stored(log))
        assert {record.timestamp for one in stored(log) for record in one.records} == {NOW_MS}
    assert max_timestamp(log) == expected


@pytest.mark.parametrize(
    ("source", "timestamp"),
    [pytest.param(0, -1, marks=kafka("LVT-8")), pytest.param(1, 1234, marks=kafka("LVT-10"))],
)
def test_append_time_with_compression(source: int, timestamp: int) -> None:
    """Format 0 is converted, format 1 kept."""
    log = old_log(1, message_timestamp_type=APPEND_TIME)
    data = batch(*VALUES, magic=source, timestamp=timestamp, codec=GZIP)
    assert log.append_as_leader(data, 0).converted == (3 if source == 0 else 0)
    (found,) = stored(log)  # with its checksum
    assert (found.magic, found.timestamp_type, found.max_timestamp) == (1, TimestampType.LOG_APPEND_TIME, NOW_MS)
    assert [record.timestamp for record in found.records] == [NOW_MS] * 3
    assert max_timestamp(log) == (NOW_MS, 2)
    assert (everything(log)[26:] == data[26:]) is (source == 1)  # what is behind the timestamp


@pytest.mark.parametrize(
    ("source", "target", "offset_of_max"),
    [
        pytest.param(Codec.NONE, "producer", 1, marks=kafka("LVT-13")),
        pytest.param(Codec.NONE, "gzip", 2, marks=kafka("LVT-15")),
        pytest.param(GZIP, "gzip", 2, marks=kafka("LVT-20")),
    ],
)
def test_create_time(source: Codec, target: str, offset_of_max: int) -> None:
    log, data = old_log(1, compression_type=target), three(1, source)
    assert log.append_as_leader(data, 0).converted == (3 if source is Codec.NONE and target == "gzip" else 0)
    found = stored(log)
    assert len(found) == (3 if target == "producer" else 1)
    for one in found:
        assert one.timestamp_type is TimestampType.CREATE_TIME
        assert one.max_timestamp == max(record.timestamp for record in one.records)
        assert (one.producer_id, one.producer_epoch, one.base_sequence, one.is_transactional) == (-1, -1, -1, False)
        assert one.partition_leader_epoch == -1
    assert [record.timestamp for one in found for record in one.records] == list(TIMES)
    assert log.log_end_offset == 3
    assert max_timestamp(log) == (NOW_MS + 1, offset_of_max)
    assert (everything(log) == data) is (target == "producer" or source is GZIP)


@kafka("LVT-17")
def test_up_conversion_from_format_0_leaves_no_time() -> None:
    log = old_log(1)
    assert log.append_as_leader(batch(*VALUES, magic=0, timestamp=-1, codec=GZIP), 0).converted == 3
    (found,) = stored(log)
    assert (found.magic, found.timestamp_type, found.max_timestamp) == (1, TimestampType.CREATE_TIME, -1)
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (-1, -1, -1)
    assert max_timestamp(log)[0] == -1


@pytest.mark.parametrize(
    "codec", [pytest.param(Codec.NONE, marks=kafka("LVT-23")), pytest.param(GZIP, marks=kafka("LVT-25"))]
)
def test_an_invalid_time(codec: Codec) -> None:
    log = old_log(1, message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
    with pytest.raises(InvalidTimestamp):
        log.append_as_leader(batch(*VALUES, magic=1, timestamp=NOW_MS - 1001, codec=codec), 0)


@pytest.mark.parametrize(
    ("source", "codec", "target", "kind"),
    [
        pytest.param(0, Codec.NONE, 0, CREATE_TIME, marks=kafka("LVT-27")),
        pytest.param(0, GZIP, 0, CREATE_TIME, marks=kafka("LVT-28")),
        pytest.param(1, Codec.NONE, 1, CREATE_TIME, marks=kafka("LVT-29")),
        pytest.param(1, GZIP, 1, CREATE_TIME, marks=kafka("LVT-31")),
        pytest.param(0, Codec.NONE, 1, APPEND_TIME, marks=kafka("LVT-33")),
        pytest.param(0, GZIP, 1, APPEND_TIME, marks=kafka("LVT-35")),
        pytest.param(1, Codec.NONE, 0, CREATE_TIME, marks=kafka("LVT-39")),
        pytest.param(1, GZIP, 0, CREATE_TIME, marks=kafka("LVT-40")),
        pytest.param(2, Codec.NONE, 1, CREATE_TIME, marks=kafka("LVT-43")),
        pytest.param(2, GZIP, 1, CREATE_TIME, marks=kafka("LVT-44")),
        pytest.param(2, Codec.NONE, 0, CREATE_TIME, marks=kafka("LVT-47")),
        pytest.param(2, GZIP, 0, CREATE_TIME, marks=kafka("LVT-48")),
    ],
)
def test_offsets_begin_where_the_log_ends(source: int, codec: Codec, target: int, kind: str) -> None:
    log, data = old_log(target, message_timestamp_type=kind), batch(*VALUES, magic=source, codec=codec)
    before = [record.offset for one in wire.read_records(data).batches for record in one.records]
    assert before == [0, 1, 2]
    log.truncate_fully(START)
    assert log.append_as_leader(data, 0).converted == (3 if source != target else 0)
    found = stored(log)
    assert {(one.magic, one.codec) for one in found} == {(target, codec)}
    assert [record.offset for one in found for record in one.records] == [START, START + 1, START + 2]


@pytest.mark.parametrize(
    "is_transactional", [pytest.param(True, marks=kafka("LVT-45")), pytest.param(False, marks=kafka("LVT-46"))]
)
def test_producers_need_format_2(is_transactional: bool) -> None:
    log = old_log(1, compression_type="gzip")
    data = batch(*VALUES, producer_id=1344, producer_epoch=16, base_sequence=0, is_transactional=is_transactional)
    with pytest.raises(UnsupportedForMessageFormat):
        log.append_as_leader(data, 0)


@kafka("LVT-3")
@pytest.mark.parametrize("magic", [0, 1])
def test_offsets_inside_are_assigned_again(magic: int) -> None:
    made = [Record(offset=i * 5, timestamp=NOW_MS if magic else -1, key=b"k", value=b"%d" % i) for i in range(20)]
    log = old_log(magic)
    log.append_as_leader(wire.write_records(RecordBatch.of(*made, magic=magic, codec=GZIP)), 0)
    (found,) = stored(log)
    assert (found.magic, [record.offset for record in found.records]) == (magic, list(range(20)))
