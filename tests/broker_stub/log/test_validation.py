"""What a leader refuses, and what it makes of the rest (rules B3.16 to B3.35). Covers: broker_stub/errors.py."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from crc32c import crc32c
from hypothesis import event, given, settings
from hypothesis import strategies as st

from kce import wire
from kce.broker_stub.errors import (
    ApiException,
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    UnsupportedCompressionType,
)
from kce.broker_stub.log import Isolation, Log, LogConfig, Origin, lookup, validation
from kce.broker_stub.log.lookup import FoundOffset, find_max_timestamp, find_timestamp
from kce.wire import Codec, Record, RecordBatch, RecordHeader, TimestampType
from kce.wire.batch_header import CRC_FROM, read_header, read_headers
from kce.wire.record_batch import write_values
from kce.wire.records import MAX_OPENED_ELEMENTS
from tests.broker_stub.log.support import NOW_MS, a_log, append, batch, everything, marker, produced, records

kafka = pytest.mark.kafka
T = TypeVar("T")


def test_an_error_says_what_is_wrong() -> None:
    error = InvalidRecord("bad", ((3, "why"),))
    assert (str(error), error.records, error.code) == ("bad", ((3, "why"),), wire.ErrorCode.INVALID_RECORD)


def refused(log: Log, data: bytes, error: type[Exception], message: str, **more: object) -> None:
    """Nothing of it reaches the log."""
    before = log.log_end_offset
    with pytest.raises(error, match=message):
        log.append_as_leader(data, 0, **more)  # type: ignore[arg-type]
    assert log.log_end_offset == before


def patched(data: bytes, at: int, value: bytes, *, fix_crc: bool = True) -> bytes:
    made = bytearray(data)
    made[at : at + len(value)] = value
    if fix_crc:
        made[17:21] = struct.pack(">I", wire.record_batch.crc32c(bytes(made[CRC_FROM:])))
    return bytes(made)


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


@kafka("LVT-1")
@pytest.mark.parametrize("codec", Codec)
def test_only_one_batch(codec: Codec) -> None:
    refused(a_log(), batch(b"a", codec=codec) * 2, InvalidRecord, "more than one batch")
    refused(a_log(), batch(b"a", codec=codec) + batch(b"b", codec=codec)[:-1] + b"x", CorruptMessage, "wrong CRC")


@kafka("LVT-2")
@pytest.mark.parametrize("magic", [0, 1])
def test_allow_multi_batch(magic: int) -> None:
    """Messages of old formats, if they are not compressed, become one batch."""
    log = a_log()
    assert append(log, b"a", b"b", b"c", magic=magic) == 0
    (found,) = wire.read_records(everything(log)).batches
    assert (found.magic, [record.value for record in found.records]) == (2, [b"a", b"b", b"c"])


@kafka("LVT-4")
def test_mismatch_magic() -> None:
    refused(a_log(), batch(magic=1) + batch(magic=0), InvalidRecord, "magic 0 after one of magic 1")


@kafka("LVT-11")
@pytest.mark.parametrize(
    ("last_offset_delta", "count", "message"),
    [(1, 3, "has 2 offsets"), (0, 0, "batch of 0 records"), (-3, 3, "after its first"), (2, -2, "batch of -2"),
     (3, 4, "announces 4 records"), (1, 2, "announces 2 records"), (2**31 - 1, 2**31 - 1, "offsets")],
)  # fmt: skip
def test_invalid_offset_range_and_record_count(last_offset_delta: int, count: int, message: str) -> None:
    data = patched(patched(batch(b"a", b"b", b"c"), 23, int32(last_offset_delta)), 57, int32(count))
    refused(a_log(), data, InvalidRecord, message)


@kafka("LVT-21")
@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_invalid_checksum(magic: int, codec: Codec) -> None:
    data = batch(b"hello", magic=magic, codec=codec)
    refused(a_log(), data[:-1] + bytes([data[-1] ^ 1]), CorruptMessage, "wrong CRC")


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda data: patched(data, 0, b"\0" * 7 + b"\1"), InvalidRecord, "base offset of a batch is 1"),
        (lambda data: patched(data, 8, int32(48)), CorruptMessage, "below the minimum"),
        (lambda data: patched(data, 8, int32(-1)), CorruptMessage, "below the minimum"),
        (lambda data: patched(data, 16, b"\3", fix_crc=False), CorruptMessage, "unknown magic 3"),
        (lambda data: patched(data, 21, b"\0\5"), CorruptMessage, "unknown compression codec 5"),
        (lambda data: patched(data, 21, b"\0\x20"), InvalidRecord, "control records"),
        (lambda data: patched(data, 43, struct.pack(">qhi", 5, 0, -1)), InvalidRecord, "sequence -1 of producer 5"),
        (lambda data: patched(data, 61, b"\x7e"), InvalidRecord, "do not end with the batch"),
        (lambda data: patched(data, 61, b"\x01"), InvalidRecord, "do not end with the batch"),
    ],
)
def test_batches_that_lie(damage: Callable[[bytes], bytes], error: type[Exception], message: str) -> None:
    refused(a_log(), damage(batch(b"a")), error, message)


def test_a_partial_batch_at_the_end_is_cut_off() -> None:
    """Rule B3.17."""
    log = a_log()
    data = batch(b"a")
    assert log.append_as_leader(data + data[:50], 0).last_offset == 0
    assert len(everything(log)) == len(data)
    for size in (0, 5, 60):
        assert log.append_as_leader(data[:size], 0).first_offset == -1
    assert log.log_end_offset == 1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"compression_type": "uncompressed"},
        {"compression_type": "gzip"},
        {"message_timestamp_type": "LogAppendTime"},
    ],
)
def test_a_coordinators_batch_is_appended_as_that_of_a_client(settings: dict[str, str]) -> None:
    """It is not validated, which changes nothing else."""
    by_client, by_coordinator = a_log(**settings), a_log(**settings)
    for _ in range(2):
        one = by_client.append_as_leader(batch(b"a", b"b"), 3)
        assert by_coordinator.append_as_leader(batch(b"a", b"b"), 3, origin=Origin.COORDINATOR) == one
    assert everything(by_client) == everything(by_coordinator)
    assert by_client.latest_epoch == by_coordinator.latest_epoch


SETTINGS = st.just(dict[str, str]()) | st.fixed_dictionaries(
    {},
    optional={
        "compression.type": st.sampled_from(["uncompressed", "gzip", "producer"]),
        "cleanup.policy": st.sampled_from(["compact", "delete"]),
        "message.timestamp.type": st.just("LogAppendTime"),
        "message.timestamp.after.max.ms": st.just("1000"),
        "max.message.bytes": st.sampled_from(["75", "100"]),
    },
)
EMPTY = int32(0) * 2 + int32(49) + batch()[12:23] + int32(-1) + batch()[27:57] + int32(0)
BATCHES = st.one_of(
    st.builds(
        batch, st.binary(max_size=20), key=st.none() | st.just(b"k"), codec=st.sampled_from([Codec.NONE, Codec.GZIP]),
        magic=st.sampled_from([1, 2, 2, 2]), base_offset=st.sampled_from([0, 0, 0, 5]),
    ),
    st.builds(produced, st.just(7), st.integers(0, 3), st.integers(1, 5), transactional=st.booleans()),
    st.builds(marker, st.just(7), committed=st.booleans()),
    st.just(patched(EMPTY, 22, b"\0")),
)  # fmt: skip
#: what is written over a header: attributes, last offset delta, base timestamp, max timestamp, base sequence, count
DAMAGES: tuple[dict[int, bytes], ...] = (
    {}, {22: b"\x20"}, {22: b"\x08"}, {22: b"\x40"}, {22: b"\x01"}, {22: b"\x05"}, {23: int32(9)},
    {23: int32(1), 57: int32(2)}, {23: int32(-1), 57: int32(0)}, {27: int32(1 << 20)}, {35: bytes(8)}, {53: int32(-1)},
    {57: int32(2)},
)  # fmt: skip


def outcome(checks: Callable[[], T]) -> tuple[T | None, tuple[type[ApiException], str] | None]:
    """What they make, or their error."""
    try:
        return checks(), None
    except ApiException as e:
        return None, (type(e), str(e))


@settings(deadline=None, max_examples=1500)
@given(BATCHES, st.sampled_from(DAMAGES), st.booleans(), SETTINGS, st.sampled_from([Origin.CLIENT, Origin.COORDINATOR]))
def test_a_batch_that_is_taken_as_it_is_passes_all_checks(
    data: bytes, damage: dict[int, bytes], fix_crc: bool, given_settings: dict[str, str], origin: Origin
) -> None:
    """And they would make the same of it. Coordinators are trusted: nothing is damaged there."""
    if origin is Origin.CLIENT:
        for at, value in damage.items():
            data = patched(data, at, value, fix_crc=fix_crc and data[16] == 2)
    log_config = LogConfig.of(given_settings)

    def all_checks() -> validation.Assigned:
        checked = validation.check_records(data, origin, log_config.max_message_bytes)
        return validation.assign_offsets(checked, 1234, 5, config=log_config, origin=origin, now_ms=NOW_MS)

    made, why = outcome(all_checks)
    placed, why_not = outcome(lambda: validation.placed_batch(data, origin, 1234, 5, log_config))
    assert why_not in (None, why)
    event("as it is" if placed else "changed" if made else "refused")
    if placed is not None:
        assert made is not None
        assert b"".join(placed.parts) == b"".join(made.parts)
        assert placed[1:] == made[1:]
    elif made is not None:  # what needs no change is taken
        header = read_header(data)
        assert header is not None
        is_changed = made.header[3:] != header[3:] or len(made.parts) == 1
        assert is_changed or not header.is_plain or log_config.has_record_checks


def test_a_coordinators_batch_may_be_too_large() -> None:
    data = batch(b"a" * 100)
    assert a_log(max_message_bytes=len(data)).append_as_leader(data, 0, origin=Origin.COORDINATOR).size == len(data)
    log = a_log(max_message_bytes=len(data) - 1)
    refused(log, data, MessageTooLarge, "are allowed", origin=Origin.COORDINATOR)


@kafka("LVT-37")
def test_control_records_not_allowed_from_clients() -> None:
    data = marker(1, committed=True)
    refused(a_log(), data, InvalidRecord, "control records")
    assert a_log().append_as_leader(data, 0, origin=Origin.COORDINATOR).first_offset == 0


@kafka("LVT-38")
def test_control_records_not_compressed() -> None:
    log = a_log(compression_type="snappy")
    log.append_as_leader(marker(1, committed=True), 0, origin=Origin.COORDINATOR)
    header = read_header(everything(log))
    assert header is not None
    assert (header.codec, header.is_control) == (Codec.NONE, True)


# timestamps


@kafka("LVT-7")
@pytest.mark.parametrize("codec", Codec)
def test_log_append_time(codec: Codec) -> None:
    log = a_log(message_timestamp_type="LogAppendTime")
    appended = log.append_as_leader(batch(b"a", b"b", timestamp=5, codec=codec, producer_id=9), 3)
    assert (appended.log_append_time, appended.last_offset) == (NOW_MS, 1)
    (found,) = wire.read_records(everything(log)).batches
    assert (found.timestamp_type, found.max_timestamp) == (TimestampType.LOG_APPEND_TIME, NOW_MS)
    assert (found.codec, found.producer_id, found.partition_leader_epoch) == (codec, 9, 3)
    assert log.segments[0].max_timestamp == (NOW_MS, 1)


@kafka("LVT-14")
def test_create_time_is_kept() -> None:
    log = a_log()
    made = [Record(offset=i, timestamp=NOW_MS - i, value=b"v") for i in (0, 1, 2)]
    assert log.append_as_leader(wire.write_records(RecordBatch.of(*made)), 0).log_append_time == -1
    (found,) = wire.read_records(everything(log)).batches
    assert [record.timestamp for record in found.records] == [NOW_MS, NOW_MS - 1, NOW_MS - 2]
    assert (found.timestamp_type, found.max_timestamp) == (TimestampType.CREATE_TIME, NOW_MS)


def with_max_timestamp(data: bytes, timestamp: int) -> bytes:
    return patched(data, 35, struct.pack(">q", timestamp))


@pytest.mark.parametrize("codec", Codec)
def test_a_greatest_timestamp_that_a_producer_leaves_out_is_computed(codec: Codec) -> None:
    """Rule B3.31: Sarama's batches have -1."""
    log = a_log()
    made = [Record(offset=i, timestamp=NOW_MS + time, value=b"v") for i, time in enumerate((0, 2, 1))]
    log.append_as_leader(with_max_timestamp(wire.write_records(RecordBatch.of(*made, codec=codec)), -1), 0)
    (found,) = wire.read_records(everything(log)).batches  # its checksum is right
    assert (found.max_timestamp, found.timestamp_type) == (NOW_MS + 2, TimestampType.CREATE_TIME)
    assert [record.timestamp for record in found.records] == [record.timestamp for record in made]
    assert find_timestamp(log, NOW_MS + 1) == FoundOffset(NOW_MS + 2, 1, 0)
    log.append_as_leader(with_max_timestamp(batch(codec=codec), NOW_MS + 9), 0)  # not opened: it could be right
    assert log.segments[0].max_timestamp == (NOW_MS + 9, 3)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_where_records_are_opened_their_greatest_timestamp_is_computed(codec: Codec) -> None:
    log = a_log(cleanup_policy="compact")
    for wrong in (-1, NOW_MS + 9):
        log.append_as_leader(with_max_timestamp(batch(b"v", codec=codec, key=b"k"), wrong), 0)
    assert [header.max_timestamp for _, header in read_headers(everything(log))] == [NOW_MS, NOW_MS]


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_a_producer_must_not_use_log_append_time(kind: str) -> None:
    """Rule B3.28: on a CreateTime topic only if there is no timestamp."""
    log = a_log(message_timestamp_type=kind)
    made = RecordBatch.of(*records(b"a", timestamp=-1), timestamp_type=TimestampType.LOG_APPEND_TIME)
    refused(log, wire.write_records(made), InvalidTimestamp, "LogAppendTime")
    made = RecordBatch.of(*records(b"a"), timestamp_type=TimestampType.LOG_APPEND_TIME)
    if kind == "CreateTime":
        assert log.append_as_leader(wire.write_records(made), 0).first_offset == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_the_type_of_timestamps_is_that_of_the_topic(codec: Codec) -> None:
    """Rule B3.31: attributes that mean nothing stay, unless the type changes."""
    nothing = 0x80
    log = a_log()
    for kind in (0, 8):
        log.append_as_leader(patched(batch(codec=codec), 21, struct.pack(">h", codec | kind | nothing)), 0)
    stored = everything(log)
    headers = [header for _, header in read_headers(stored)]
    assert [header.attributes for header in headers] == [codec | nothing, codec]
    assert [header.max_timestamp for header in headers] == [NOW_MS, NOW_MS]
    assert len(wire.read_records(stored).batches) == 2  # their checksums are right

    stamped = a_log(message_timestamp_type="LogAppendTime")
    stamped.append_as_leader(patched(batch(codec=codec), 21, struct.pack(">h", codec | nothing)), 0)
    ((_, header),) = read_headers(everything(stamped))
    assert header.attributes == codec | 8


@pytest.mark.parametrize(
    ("codec", "offset_ms"),
    [
        pytest.param(Codec.NONE, -1001, marks=[kafka("LVT-24"), kafka("LVT-57")]),
        pytest.param(Codec.NONE, 501, marks=kafka("LVT-58")),
        pytest.param(Codec.GZIP, -1001, marks=kafka("LVT-26")),
        pytest.param(Codec.GZIP, 501),
    ],
)
def test_timestamps_out_of_range(codec: Codec, offset_ms: int) -> None:
    log = a_log(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    refused(log, batch(timestamp=NOW_MS + offset_ms, codec=codec), InvalidTimestamp, "invalid timestamp")
    for fine in (-1000, 500):
        log.append_as_leader(batch(timestamp=NOW_MS + fine, codec=codec), 0)
    assert log.append_as_leader(batch(timestamp=-1, codec=codec), 0).first_offset == 2


@kafka("LVT-54")
def test_invalid_timestamp_exception_has_batch_index() -> None:
    log = a_log(message_timestamp_before_max_ms=1000)
    made = [Record(offset=i, timestamp=NOW_MS - i * 600, value=b"v") for i in range(4)]
    with pytest.raises(InvalidTimestamp) as error:
        log.append_as_leader(wire.write_records(RecordBatch.of(*made)), 0)
    assert [index for index, _ in error.value.records] == [2, 3]


# keys of compacted topics


@kafka("LVT-55")
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_invalid_record_exception_has_batch_index(codec: Codec) -> None:
    log = a_log(cleanup_policy="compact")
    made = [Record(offset=i, timestamp=NOW_MS, key=b"k" if i % 2 else None, value=b"v") for i in range(4)]
    with pytest.raises(InvalidRecord, match="compacted topic needs a key") as error:
        log.append_as_leader(wire.write_records(RecordBatch.of(*made, codec=codec)), 0)
    assert [index for index, _ in error.value.records] == [0, 2]
    assert type(error.value) is InvalidRecord


@kafka("LVT-56")
def test_batch_with_invalid_records_and_invalid_timestamp() -> None:
    log = a_log(cleanup_policy="compact", message_timestamp_before_max_ms=1000)
    made = [Record(offset=0, timestamp=NOW_MS, value=b"v"), Record(offset=1, timestamp=0, key=b"k", value=b"v")]
    with pytest.raises(InvalidTimestamp) as error:
        log.append_as_leader(wire.write_records(RecordBatch.of(*made)), 0)
    assert [index for index, _ in error.value.records] == [0, 1]


@kafka("ULT-32")
def test_compacted_topic_constraints() -> None:
    log = a_log(cleanup_policy="compact")
    keyed, unkeyed = batch(b"a", key=b"k"), batch(b"a")
    refused(log, unkeyed, InvalidRecord, "key")
    refused(log, batch(b"a", codec=Codec.GZIP), InvalidRecord, "key")
    assert log.append_as_leader(keyed, 0).first_offset == 0
    assert log.append_as_leader(batch(b"a", key=b"k", codec=Codec.GZIP), 0).first_offset == 1


# codecs and formats


@kafka("LVT-60")
@pytest.mark.parametrize("source", Codec)
@pytest.mark.parametrize("target", Codec)
def test_different_codec_causes_recompression(source: Codec, target: Codec) -> None:
    log = a_log(compression_type="uncompressed" if target is Codec.NONE else target.name.lower())
    data = batch(b"a" * 99, b"b", codec=source, producer_id=3, producer_epoch=2, base_sequence=7, is_transactional=True)
    log.append_as_leader(data, 5)
    stored = everything(log)
    (found,) = wire.read_records(stored).batches
    assert (found.codec, found.partition_leader_epoch) == (target, 5)
    assert (found.producer_id, found.producer_epoch, found.base_sequence, found.is_transactional) == (3, 2, 7, True)
    assert [record.value for record in found.records] == [b"a" * 99, b"b"]
    if source is target:
        assert stored[CRC_FROM:] == data[CRC_FROM:]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_keys_of_headers_are_any_bytes_until_they_are_encoded_again(codec: Codec) -> None:
    """As in Kafka: ``test_records_against_kafka.py``."""
    record = Record(offset=0, timestamp=1, headers=(RecordHeader("k", b"v"),))
    data = wire.write_records(RecordBatch.of(record))
    odd = bytearray(data.replace(b"\2k\2v", b"\2\xff\2v"))
    odd[17:21] = crc32c(odd[CRC_FROM:]).to_bytes(4)
    log = a_log(compression_type="producer" if codec is Codec.NONE else "gzip")
    assert log.append_as_leader(bytes(odd), 0).first_offset == 0
    stored = everything(log)
    assert (stored[CRC_FROM:] == odd[CRC_FROM:]) is (codec is Codec.NONE)
    assert wire.read_records(stored).batches[0].records[0].headers == (RecordHeader("\ufffd", b"v"),)


def negative_timestamp() -> bytes:
    return batch(timestamp=-5)


def without_epoch() -> bytes:
    return patched(batch(producer_id=3), 51, struct.pack(">h", -1))


def transactional_without_producer() -> bytes:
    return patched(batch(producer_id=3, is_transactional=True), 43, struct.pack(">q", -1))


@pytest.mark.parametrize("odd", [negative_timestamp, without_epoch, transactional_without_producer])
def test_what_cannot_be_encoded_again_is_accepted_only_as_it_is(odd: Callable[[], bytes]) -> None:
    """Rule B3.35."""
    assert a_log().append_as_leader(odd(), 0).first_offset == 0
    log = a_log(compression_type="lz4")
    with pytest.raises(ApiException, match="again") as raised:
        log.append_as_leader(odd(), 0)
    assert raised.value.code is wire.ErrorCode.UNKNOWN_SERVER_ERROR
    assert log.log_end_offset == 0


def test_negative_timestamps_of_old_formats_are_not_converted() -> None:
    """Rule B3.35."""
    with pytest.raises(ApiException, match="again"):
        a_log().append_as_leader(batch(magic=1, timestamp=-5), 0)


def test_a_producer_id_below_minus_one_is_none() -> None:
    """Rule B3.35."""
    log = a_log()
    data = patched(produced(3, 0), 43, struct.pack(">q", -2))
    assert [log.append_as_leader(data, 0).first_offset for _ in range(2)] == [0, 1]
    assert not log.producers.producers


@kafka("LVT-51")
def test_zstd_with_old_inter_broker_protocol() -> None:
    refused(a_log(), batch(codec=Codec.ZSTD), UnsupportedCompressionType, "zstd", zstd_allowed=False)
    assert a_log().append_as_leader(batch(codec=Codec.LZ4), 0, zstd_allowed=False).first_offset == 0


@pytest.mark.parametrize(
    ("magic", "codec"),
    [
        pytest.param(0, Codec.NONE, marks=[kafka("LVT-18"), kafka("LVT-34")]),
        pytest.param(1, Codec.NONE, marks=[kafka("LVT-19"), kafka("LVT-41")]),
        pytest.param(0, Codec.GZIP, marks=kafka("LVT-36")),
        pytest.param(1, Codec.SNAPPY, marks=kafka("LVT-42")),
    ],
)
def test_up_conversion(magic: int, codec: Codec) -> None:
    log = a_log()
    append(log, b"first")
    log.append_as_leader(batch(b"a", b"b", b"c", magic=magic, codec=codec, timestamp=NOW_MS if magic else -1), 4)
    _, found = wire.read_records(everything(log)).batches
    assert (found.magic, found.codec, found.partition_leader_epoch, found.producer_id) == (2, codec, 4, -1)
    assert [record.offset for record in found.records] == [1, 2, 3]
    assert {record.timestamp for record in found.records} == {NOW_MS if magic else -1}


@pytest.mark.parametrize("magic", [0, 1])
def test_up_conversion_with_log_append_time(magic: int) -> None:
    log = a_log(message_timestamp_type="LogAppendTime")
    appended = log.append_as_leader(batch(b"a", b"b", magic=magic, timestamp=5 if magic else -1), 0)
    assert appended.log_append_time == NOW_MS
    (found,) = wire.read_records(everything(log)).batches
    assert (found.timestamp_type, found.max_timestamp) == (TimestampType.LOG_APPEND_TIME, NOW_MS)


def test_a_zip_bomb_stays_closed() -> None:
    """Only where the topic asks for keys is it opened, and then only so far."""
    bomb = wire.write_records(RecordBatch.of(Record(offset=0, timestamp=NOW_MS, value=bytes(10**6)), codec=Codec.GZIP))
    liar = patched(bomb, 61, bomb[61:])
    assert a_log().append_as_leader(liar, 0).first_offset == 0


def test_what_does_not_decompress_is_refused_where_it_is_opened() -> None:
    data = batch(b"a" * 100, key=b"k", codec=Codec.GZIP)
    damaged = patched(data, 70, b"\xff" * 8)
    refused(a_log(cleanup_policy="compact"), damaged, InvalidRecord, "gzip")
    assert a_log().append_as_leader(damaged, 0).first_offset == 0


@kafka("LVT-32")
def test_offsets_follow_the_end_of_the_log() -> None:
    log = a_log()
    for expected in (0, 3, 6):
        assert append(log, b"a", b"b", b"c", codec=Codec.GZIP) == expected
    header = read_header(log.read(6, 1000, Isolation.LOG_END).records)
    assert header is not None
    assert (header.base_offset, header.last_offset) == (6, 8)


def test_a_duplicate_gets_the_original_offsets() -> None:
    log = a_log()
    first = log.append_as_leader(produced(1, 0, 3), 0)
    append(log)
    again = log.append_as_leader(produced(1, 0, 3), 0)
    assert (again.first_offset, again.last_offset, again.is_duplicate) == (first.first_offset, first.last_offset, True)


def test_a_zip_bomb_is_opened_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    data = batch(bytes(10**6), key=b"k", codec=Codec.GZIP)
    assert a_log(cleanup_policy="compact").append_as_leader(data, 0).first_offset == 0
    monkeypatch.setattr(validation, "read_records", functools.partial(wire.read_records, max_bytes=10**5))
    refused(a_log(cleanup_policy="compact"), data, CorruptMessage, "decompress to more than")


def test_a_batch_of_too_many_records_stays_closed() -> None:
    """As their number is what opening it takes: for so many no other request would be served for a second."""
    data = write_values([(b"k", None)] * (MAX_OPENED_ELEMENTS + 1), NOW_MS, Codec.GZIP)
    log = a_log()
    assert log.append_as_leader(data, 0).last_offset == MAX_OPENED_ELEMENTS
    with pytest.raises(CorruptMessage, match="100001 records"):
        find_timestamp(log, NOW_MS)
    refused(a_log(cleanup_policy="compact"), data, CorruptMessage, "100001 records")


@pytest.mark.parametrize(("most", "is_found"), [(3, True), (2, False)])
def test_a_search_by_time_opens_few_batches_whose_headers_lie(
    monkeypatch: pytest.MonkeyPatch, most: int, is_found: bool
) -> None:
    """As batches stay closed, they may announce a time that none of their records has."""
    monkeypatch.setattr(lookup, "MAX_OPENED_ELEMENTS", most)
    log, later = a_log(), NOW_MS + 9
    liar = patched(batch(b"a", b"b", b"c", codec=Codec.GZIP), 35, struct.pack(">q", later))
    for data in (liar, batch(b"d", timestamp=later)):
        log.append_as_leader(data, 0)
    for search in (lambda: find_timestamp(log, later), lambda: find_max_timestamp(log)):
        if is_found:
            assert search() == FoundOffset(later, 3, 0)
        else:
            with pytest.raises(CorruptMessage, match="their headers announce"):
                search()


def test_a_batch_without_records_is_not_compressed() -> None:
    empty = RecordBatch.of(*records(b"a"), producer_id=1, producer_epoch=0, base_sequence=0)
    data = wire.write_records(replace(empty, records=()))
    log = a_log(compression_type="gzip")
    refused(log, data, InvalidRecord, "without records", origin=Origin.COORDINATOR)


@pytest.mark.parametrize("compressed", [0, 1, 2])
def test_what_is_compressed_is_alone(compressed: int) -> None:  # rule B3.25
    codecs = [Codec.GZIP if i == compressed else Codec.NONE for i in range(3)]
    data = b"".join(batch(b"a", magic=1, codec=codec) for codec in codecs)
    refused(a_log(), data, InvalidRecord, "more than one batch")


def test_a_producer_must_not_use_log_append_time_for_what_is_compressed() -> None:  # rule B3.28
    stamped = wire.write_records(RecordBatch.of(*records(b"a"), timestamp_type=TimestampType.LOG_APPEND_TIME))
    log = a_log(message_timestamp_type="LogAppendTime", compression_type="gzip")
    refused(log, stamped, InvalidTimestamp, "invalid timestamp")
    append(log)
