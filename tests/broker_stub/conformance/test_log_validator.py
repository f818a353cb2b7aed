"""LVT: what a leader makes of records, beside tests/broker_stub/log/test_validation.py (section 12d of
docs/broker-semantics.md; rules B3.22 to B3.35). Logs keep message format 2.
"""

from __future__ import annotations

import cramjam
import pytest

from kce import wire
from kce.broker_stub.errors import InvalidRecord
from kce.broker_stub.log import Log
from kce.wire import Codec, Record, RecordBatch, TimestampType
from kce.wire.batch_header import BATCH_HEADER_BYTES, CRC_FROM
from tests.broker_stub.log.support import NOW_MS, a_log, batch, everything
from tests.broker_stub.log.test_validation import int32, patched

kafka = pytest.mark.kafka

START = 1_234_567
#: the second is the newest
TIMES = (NOW_MS - 1, NOW_MS + 1, NOW_MS)
VALUES = (b"hello", b"there", b"beautiful")


def stored(log: Log) -> RecordBatch:
    (found,) = wire.read_records(everything(log)).batches  # with its CRC
    return found


def of_a_producer(codec: Codec) -> bytes:
    made = tuple(
        Record(offset=i, timestamp=time, value=value)
        for i, (time, value) in enumerate(zip(TIMES, VALUES, strict=True))
    )  # fmt: skip
    return wire.write_records(
        RecordBatch.of(
            *made, codec=codec, producer_id=1324, producer_epoch=10, base_sequence=984, is_transactional=True
        )
    )


@kafka("LVT-3")
@pytest.mark.parametrize("magic", [0, 1])
def test_offsets_inside_an_old_batch_are_assigned_again(magic: int) -> None:
    made = [
        Record(offset=i * 5, timestamp=NOW_MS if magic else -1, key=b"%d" % i, value=b"%d" % i) for i in range(20)
    ]  # fmt: skip
    log = a_log()
    log.append_as_leader(wire.write_records(RecordBatch.of(*made, magic=magic, codec=Codec.GZIP)), 0)
    assert [record.offset for record in stored(log).records] == list(range(20))


@kafka("LVT-3")
def test_offsets_inside_a_new_batch_must_be_in_sequence() -> None:
    made = [Record(offset=i * 5, timestamp=NOW_MS, value=b"v") for i in range(20)]
    with pytest.raises(InvalidRecord):
        a_log().append_as_leader(wire.write_records(RecordBatch.of(*made)), 0)


@kafka("LVT-9")
def test_append_time_with_conversion() -> None:
    log = a_log(message_timestamp_type="LogAppendTime")
    assert log.append_as_leader(batch(*VALUES, magic=0, timestamp=-1, codec=Codec.GZIP), 0).converted == 3
    found = stored(log)
    assert (found.magic, found.codec, found.timestamp_type) == (2, Codec.GZIP, TimestampType.LOG_APPEND_TIME)
    assert (len(found.records), found.max_timestamp) == (3, NOW_MS)
    assert {record.timestamp for record in found.records} == {NOW_MS}
    assert log.segments[0].max_timestamp == (NOW_MS, 2)


@kafka("LVT-12")
def test_append_time_without_conversion() -> None:
    data = batch(*VALUES, timestamp=1234, codec=Codec.GZIP)
    log = a_log(message_timestamp_type="LogAppendTime")
    assert log.append_as_leader(data, 0).converted == 0
    found = stored(log)
    assert (len(found.records), found.timestamp_type, found.max_timestamp) == (3, TimestampType.LOG_APPEND_TIME, NOW_MS)
    assert log.segments[0].max_timestamp == (NOW_MS, 2)
    assert len(everything(log)) == len(data)
    assert everything(log)[BATCH_HEADER_BYTES:] == data[BATCH_HEADER_BYTES:]


@pytest.mark.parametrize(
    "codec",
    [pytest.param(Codec.NONE, marks=kafka("LVT-16")), pytest.param(Codec.GZIP, marks=kafka("LVT-22"))],
)
def test_create_time_in_a_topic_with_gzip(codec: Codec) -> None:
    """What is compressed so already is not compressed again."""
    log = a_log(compression_type="gzip")
    data = of_a_producer(codec)
    assert log.append_as_leader(data, 40).converted == (3 if codec is Codec.NONE else 0)
    found = stored(log)
    assert (found.codec, found.timestamp_type) == (Codec.GZIP, TimestampType.CREATE_TIME)
    assert [record.timestamp for record in found.records] == list(TIMES)
    assert [record.value for record in found.records] == list(VALUES)
    assert (found.max_timestamp, found.base_timestamp) == (NOW_MS + 1, TIMES[0])
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (1324, 10, 984)
    assert found.partition_leader_epoch == 40
    assert log.segments[0].max_timestamp == (NOW_MS + 1, 2)
    assert (everything(log)[CRC_FROM:] == data[CRC_FROM:]) is (codec is Codec.GZIP)


@pytest.mark.parametrize(
    "codec",
    [pytest.param(Codec.NONE, marks=kafka("LVT-30")), pytest.param(Codec.ZSTD, marks=kafka("LVT-32"))],
)
def test_offsets_begin_where_the_log_ends(codec: Codec) -> None:
    log = a_log()
    log.truncate_fully(START)
    log.append_as_leader(batch(*VALUES, codec=codec), 0)
    assert [record.offset for record in stored(log).records] == [START, START + 1, START + 2]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param(Codec.GZIP, "gzip", marks=kafka("LVT-50")),
        pytest.param(Codec.NONE, "uncompressed", marks=kafka("LVT-52")),
        pytest.param(Codec.NONE, "gzip", marks=kafka("LVT-53")),
    ],
)
def test_a_batch_without_records_is_refused(source: Codec, target: str) -> None:
    """A header alone, for offsets 0 to 5."""
    data = of_a_producer(source)[:BATCH_HEADER_BYTES]
    data = patched(patched(patched(data, 8, int32(BATCH_HEADER_BYTES - 12)), 23, int32(5)), 57, int32(0))
    log = a_log(compression_type=target)
    with pytest.raises(InvalidRecord):
        log.append_as_leader(data, 40)
    assert log.log_end_offset == 0


@kafka("LVT-59")
def test_another_level_of_the_same_codec_changes_nothing() -> None:
    values = (b"some" * 256, b"data" * 256)
    plain = batch(*values)
    best, fastest = (bytes(cramjam.gzip.compress(plain[BATCH_HEADER_BYTES:], level=level)) for level in (9, 1))
    assert best != fastest
    data = plain[:BATCH_HEADER_BYTES] + best
    data = patched(patched(data, 8, int32(len(data) - 12)), 21, b"\0\1")
    log = a_log(compression_type="gzip", compression_gzip_level=1)
    log.append_as_leader(data, 0)
    assert everything(log)[CRC_FROM:] == data[CRC_FROM:]
    assert [record.value for record in stored(log).records] == list(values)
