"""Headers of batches, without their records."""

from __future__ import annotations

import struct
from random import Random

import pytest

from kce import wire
from kce.wire import Codec, Record, RecordBatch, TimestampType, errors
from kce.wire.batch_header import (
    BATCH_HEADER_BYTES,
    begins_transactional,
    check_crc,
    count_records,
    is_one_batch,
    read_header,
    read_headers,
    stamped,
)
from kce.wire.codegen import write_uvarint
from kce.wire.record_batch import read_varint


def batch(count: int = 3, **more: object) -> RecordBatch:
    made = [Record(offset=40 + i, timestamp=1000 + i, value=b"v" * (i * 50)) for i in range(count)]
    return RecordBatch.of(*made, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", Codec)
def test_a_header_is_that_of_the_batch(codec: Codec) -> None:
    made = batch(codec=codec, partition_leader_epoch=9, producer_id=7, producer_epoch=3, base_sequence=11,
                 is_transactional=True)  # fmt: skip
    data = wire.write_records(made)
    header = read_header(data)
    assert header is not None
    assert (header.base_offset, header.last_offset, header.max_timestamp, header.codec) == (40, 42, 1002, codec)
    assert (header.partition_leader_epoch, header.producer_id, header.producer_epoch) == (9, 7, 3)
    assert (header.base_sequence, header.last_sequence, header.record_count, header.magic) == (11, 13, 3, 2)
    assert (header.is_transactional, header.is_control, header.is_log_append_time, header.has_delete_horizon) == (
        True, False, False, False,
    )  # fmt: skip
    assert header.size == len(data)
    check_crc(memoryview(data), header)


@pytest.mark.parametrize("data", [wire.write_records(batch(), batch()), wire.write_records(batch(magic=1))])
def test_one_batch(data: bytes) -> None:
    for size in range(len(data) + 1):
        cut = data[:size]
        found = [(header.size, header.magic) for _, header in read_headers(cut)]
        assert is_one_batch(memoryview(cut)) == (found == [(size, 2)])


def test_what_begins_transactional() -> None:
    made = wire.write_records(batch(is_transactional=True, producer_id=1, producer_epoch=0, base_sequence=0))
    assert begins_transactional(memoryview(made))
    for size in range(len(made)):
        assert not begins_transactional(made[:size])
    assert not begins_transactional(wire.write_records(batch()) + made)
    old = bytearray(wire.write_records(batch(magic=1)))
    old[22] = 0xFF
    assert not begins_transactional(bytes(old))


def test_what_begins_corrupt() -> None:  # rule B3.1
    made = wire.write_records(batch())

    def begins_corrupt(data: bytes | memoryview) -> bool:
        try:
            assert not begins_transactional(data)
        except errors.CorruptRecord:
            return True
        return False

    for length, magic, corrupt in ((14, 2, False), (13, 2, True), (-1, 0, True), (10**9, 1, False), (14, 3, True)):
        data = made[:8] + length.to_bytes(4, signed=True) + made[12:16] + bytes((magic,)) + made[17:]
        assert begins_corrupt(data) == corrupt
        assert begins_corrupt(memoryview(data[:17])) == corrupt
        assert begins_corrupt(data[:16]) == (length < 14)
        assert begins_corrupt(data[:12]) == (length < 14)
        assert not begins_corrupt(data[:11])


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_has_the_header_of_a_batch_of_one(magic: int) -> None:
    data = wire.write_records(batch(2, magic=magic))
    first, second = (header for _, header in read_headers(data))
    assert [header.last_offset for header in (first, second)] == [40, 41]
    assert (second.max_timestamp, second.producer_id, second.partition_leader_epoch) == (1001 if magic else -1, -1, -1)
    check_crc(memoryview(data)[first.size :], second)


def test_sequences_wrap() -> None:
    header = read_header(wire.write_records(batch(producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)))
    assert header is not None
    assert header.last_sequence == 0
    without = read_header(wire.write_records(batch()))
    assert without is not None
    assert without.last_sequence == -1


def test_partial_batches_are_no_batches() -> None:
    data = wire.write_records(batch(), batch())
    half = len(data) // 2
    for size in range(len(data) + 1):
        assert [at for at, _ in read_headers(data[:size])] == [0, half][: (size >= half) + (size >= 2 * half)]


@pytest.mark.parametrize(
    ("at", "damage", "message"),
    [
        (16, b"\3", "unknown magic 3"),
        (8, struct.pack(">i", 48), "60 bytes are below"),
        (8, b"\xff" * 4, "11 bytes are"),
    ],
)
def test_what_is_no_batch_is_refused(at: int, damage: bytes, message: str) -> None:
    data = bytearray(wire.write_records(batch()))
    data[at : at + len(damage)] = damage
    with pytest.raises(errors.CorruptRecord, match=message):
        read_header(bytes(data))


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_wrong_checksum_is_refused(magic: int) -> None:
    data = bytearray(wire.write_records(batch(1, magic=magic)))
    data[-1] ^= 1
    header = read_header(bytes(data))
    assert header is not None
    with pytest.raises(errors.CorruptRecord, match="wrong CRC"):
        check_crc(memoryview(bytes(data)), header)


def test_a_batch_gets_its_place() -> None:
    data = memoryview(wire.write_records(batch(producer_id=7, producer_epoch=3, base_sequence=11)))
    before = read_header(data)
    assert before is not None
    placed, parts = before.placed(data, 1234, 5)
    moved = b"".join(parts)
    header = read_header(moved)
    assert header == placed
    assert (header.base_offset, header.partition_leader_epoch) == (1234, 5)
    check_crc(memoryview(moved), header)
    (read,) = wire.read_records(moved).batches
    assert [record.offset for record in read.records] == [1234, 1235, 1236]


def test_a_batch_is_stamped() -> None:
    data = memoryview(wire.write_records(batch(codec=Codec.LZ4)))
    header = read_header(data)
    assert header is not None
    made = stamped(data, header, 777_000, is_log_append_time=True)
    (read,) = wire.read_records(made).batches  # checks the checksum
    assert read.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp for record in read.records] == [777_000] * 3


def test_records_are_counted_by_their_lengths() -> None:
    for sizes in ([0], [1, 2, 3], [50, 70], [5000, 1], [20_000, 3], []):
        made = [Record(offset=i, value=b"v" * size) for i, size in enumerate(sizes)]
        data = memoryview(wire.write_records(RecordBatch.of(*made)) if made else b"\0" * BATCH_HEADER_BYTES)
        records = data[BATCH_HEADER_BYTES:]
        assert count_records(records) == len(sizes)
        if sizes:
            assert count_records(records[:-1]) is None
            assert count_records(bytes(records) + b"\x7e") is None  # type: ignore[arg-type]
    assert count_records(memoryview(b"\x01")) is None  # a negative length
    assert count_records(memoryview(b"\x80")) is None  # ends inside a length
    assert count_records(memoryview(b"\xff" * 8)) is None
    assert count_records(memoryview(b"\xff\xff\xff\xff\x0f")) is None


def _counted(records: bytes) -> int | None:
    """One length after the other."""
    at = count = 0
    try:
        while at < len(records):
            length, at = read_varint(memoryview(records), at)
            if length < 0:
                return None
            at += length
            count += 1
    except (IndexError, errors.CorruptRecord):
        return None
    return count if at == len(records) else None


def test_records_of_one_length_are_counted_like_others() -> None:
    random = Random(1)
    results = set()
    for _ in range(3000):
        records = bytearray()
        for _ in range(random.randrange(6)):
            size = random.choice((0, 5, 63, 64, 108, 236, 8192, 9000))
            length = write_uvarint(2 * size)
            content = (length * size)[:size]  # lengths that are looked for in the wrong places are found there
            records += (length + content) * random.choice((1, 2, 64, 65, 300 if size < 200 else 3))
        if records and random.random() < 0.5:
            records[random.randrange(len(records))] = random.randrange(256)
        if random.random() < 0.2:
            del records[-1:]
        expected = _counted(bytes(records))
        assert count_records(memoryview(records)) == expected
        results.add(expected is None)
    assert results == {True, False}
    assert count_records(memoryview(b"\x01" * 200)) is None
