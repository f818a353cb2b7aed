"""Record batches of magic 2 (KIP-98, rules B3.66 to B3.70).

Timestamps are relative to the base timestamp, offsets to the base offset; both are zigzag varints.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Final

from crc32c import crc32c

from kce.wire import errors
from kce.wire.compression import compress, decompress
from kce.wire.java_text import decode_like_java
from kce.wire.record import (
    NO_LEADER_EPOCH,
    NO_PRODUCER,
    Codec,
    Record,
    RecordBatch,
    RecordHeader,
    TimestampType,
)

#: base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base and max timestamp, producer id,
#: producer epoch, base sequence, count
HEADER = struct.Struct(">qiibIhiqqqhii")
#: base offset and length; the length counts the bytes after it
OVERHEAD_BYTES = 12
#: the CRC covers the bytes from here: brokers change base offset and leader epoch (rule B3.31)
_CRC_FROM = 21

_CODEC_MASK = 0x07
#: by number
_CODECS: Final = tuple(Codec)
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40

#: one byte each: length, attributes, timestamp, offset, key length, value length, number of headers
MIN_RECORD_BYTES = 7
_INT32_MAX = 2**31 - 1
#: no batch has as many elements
UNLIMITED: Final = 2**31


def read_batch(
    data: memoryview, max_bytes: int, *, max_elements: int = UNLIMITED, check_crc: bool
) -> tuple[RecordBatch, int]:
    """(the batch, decompressed bytes). ``data`` is exactly one batch. ``max_elements``: its records and their headers.

    Raises CorruptRecord, LimitExceeded.
    """
    if len(data) < HEADER.size:
        raise errors.CorruptRecord(f"a batch of {len(data)} bytes, shorter than its header of {HEADER.size}")
    (
        base_offset, _, leader_epoch, _, crc, attributes, last_offset_delta, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, count,
    ) = HEADER.unpack_from(data)  # fmt: skip
    if check_crc and (found := crc32c(data[_CRC_FROM:])) != crc:
        raise errors.WrongChecksum(f"wrong CRC-32C: computed {found:08x}, stored {crc:08x}")
    codec = codec_of(attributes)
    payload = memoryview(decompress(codec, data[HEADER.size :], max_bytes))
    if not 0 <= count <= len(payload) // MIN_RECORD_BYTES:
        raise errors.CorruptRecord(f"{count} records announced in {len(payload)} bytes")
    log_append_time = max_timestamp if attributes & _LOG_APPEND_TIME else None
    batch = RecordBatch(
        base_offset=base_offset,
        last_offset=base_offset + last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        records=_read_records(payload, count, base_offset, base_timestamp, log_append_time, max_elements),
        codec=codec,
        timestamp_type=TimestampType(bool(attributes & _LOG_APPEND_TIME)),
        partition_leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=bool(attributes & _TRANSACTIONAL),
        is_control=bool(attributes & _CONTROL),
        has_delete_horizon=bool(attributes & _DELETE_HORIZON),
    )
    return batch, len(payload) if codec else 0


def codec_of(attributes: int) -> Codec:
    try:
        return _CODECS[attributes & _CODEC_MASK]
    except IndexError:
        raise errors.CorruptRecord(f"unknown compression codec {attributes & _CODEC_MASK}") from None


def write_batch(batch: RecordBatch) -> bytes:
    """Raises EncodeError."""
    payload = compress(batch.codec, b"".join(_written(record, batch) for record in batch.records))
    attributes = (
        batch.codec
        | (_LOG_APPEND_TIME if batch.timestamp_type == TimestampType.LOG_APPEND_TIME else 0)
        | (_TRANSACTIONAL if batch.is_transactional else 0)
        | (_CONTROL if batch.is_control else 0)
        | (_DELETE_HORIZON if batch.has_delete_horizon else 0)
    )
    return _sealed(
        payload, batch.base_offset, batch.partition_leader_epoch, attributes, batch.last_offset - batch.base_offset,
        batch.base_timestamp, batch.max_timestamp, batch.producer_id, batch.producer_epoch, batch.base_sequence,
        len(batch.records),
    )  # fmt: skip


def write_values(
    values: Collection[tuple[bytes, bytes | None]],
    timestamp: int,
    codec: Codec = Codec.NONE,
    *,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = NO_PRODUCER,
    base_sequence: int = NO_PRODUCER,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """A batch at offset 0 with a record for each key and value: as of ``write_batch``, without making the records.

    Raises EncodeError.
    """
    if not values:
        raise errors.EncodeError("a batch without records")
    records: list[bytes] = []
    for i, (key, value) in enumerate(values):
        size = len(key) if value is None else len(key) + len(value)
        # no attributes, and the timestamp of the batch; no headers
        if size < _MOST_SMALL and i < _MOST_SMALL and value is not None:  # as nearly always
            sized = _SMALL[len(key) - _LEAST_SMALL], key, _SMALL[len(value) - _LEAST_SMALL], value
            body = b"".join((b"\0\0", _SMALL[i - _LEAST_SMALL], *sized, b"\0"))
        else:
            body = b"".join((b"\0\0", varint(i), _sized(key), _sized(value), b"\0"))
        records += varint(len(body)), body
    attributes = codec | (_TRANSACTIONAL if is_transactional else 0) | (_CONTROL if is_control else 0)
    try:
        return _sealed(
            compress(codec, b"".join(records)), 0, NO_LEADER_EPOCH, attributes, len(values) - 1, timestamp, timestamp,
            producer_id, producer_epoch, base_sequence, len(values),
        )  # fmt: skip
    except struct.error as e:
        raise errors.EncodeError(f"a batch of {len(values)} records: {e}") from None


def _sealed(payload: bytes, base_offset: int, leader_epoch: int, *rest: int) -> bytes:
    """The batch with its length and its checksum. ``rest``: what follows the checksum in the header."""
    header = HEADER.pack(base_offset, HEADER.size - OVERHEAD_BYTES + len(payload), leader_epoch, 2, 0, *rest)
    covered = header[_CRC_FROM:] + payload
    return header[: _CRC_FROM - 4] + struct.pack(">I", crc32c(covered)) + covered


# records


def _read_records(
    data: memoryview, count: int, base_offset: int, base_timestamp: int, log_append_time: int | None, max_elements: int
) -> tuple[Record, ...]:
    records: list[Record] = []
    at, end, room = 0, len(data), max_elements - count
    if room < 0:
        raise errors.LimitExceeded(f"{count} records; at most {max_elements} are read")
    try:
        for _ in range(count):
            size, at = read_varint(data, at)
            if not 0 <= size <= end - at:
                raise errors.CorruptRecord(f"{size} bytes announced, {end - at} left")  # noqa: TRY301
            stop = at + size
            timestamp_delta, at = read_varint(data, at + 1, 64)  # skip the attributes, which are unused
            offset_delta, at = read_varint(data, at)
            key, at = _read_bytes(data, at, stop)
            value, at = _read_bytes(data, at, stop)
            headers, at = _read_headers(data, at, stop, room)
            room -= len(headers)
            if at != stop:
                raise errors.CorruptRecord(f"{size} bytes announced, its fields have {size + at - stop}")  # noqa: TRY301
            timestamp = _int64(base_timestamp + timestamp_delta) if log_append_time is None else log_append_time
            records.append(
                Record(offset=base_offset + offset_delta, timestamp=timestamp, key=key, value=value, headers=headers)
            )
    except IndexError:
        raise errors.CorruptRecord(f"the batch ends inside record {len(records)} of {count}") from None
    except errors.CorruptRecord as e:
        raise errors.CorruptRecord(f"record {len(records)} of {count}: {e}, byte {at} of {end}") from None
    if at != end:
        raise errors.CorruptRecord(f"{end - at} bytes left over after {count} records")
    return tuple(records)


def _read_bytes(data: memoryview, at: int, stop: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at)
    if size < 0:
        return None, at
    if size > stop - at:
        raise errors.CorruptRecord(f"{size} bytes announced, {stop - at} left")
    return bytes(data[at : at + size]), at + size


def _read_headers(data: memoryview, at: int, stop: int, most: int) -> tuple[tuple[RecordHeader, ...], int]:
    count, at = read_varint(data, at)
    if count == 0:
        return (), at
    if not 0 < count <= (stop - at) // 2:
        raise errors.CorruptRecord(f"{count} headers announced in {stop - at} bytes")
    if count > most:
        raise errors.LimitExceeded(f"{count} headers; at most {most} are read")
    headers = []
    for _ in range(count):
        key, at = _read_bytes(data, at, stop)
        if key is None:
            raise errors.CorruptRecord("a header without a key")
        value, at = _read_bytes(data, at, stop)
        headers.append(RecordHeader(decode_like_java(key), value))
    return tuple(headers), at


def _written(record: Record, batch: RecordBatch) -> bytes:
    if not 0 <= record.offset - batch.base_offset <= _INT32_MAX:
        raise errors.EncodeError(
            f"record at offset {record.offset}: outside a batch that begins at {batch.base_offset}"
        )
    body = bytearray(1)
    body += varint(_int64(record.timestamp - batch.base_timestamp))
    body += varint(record.offset - batch.base_offset)
    body += _sized(record.key)
    body += _sized(record.value)
    body += varint(len(record.headers))
    for header in record.headers:
        body += _sized(header.key.encode())
        body += _sized(header.value)
    return varint(len(body)) + bytes(body)


def _sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


# zigzag varints: 0, -1, 1, -2 are encoded as 0, 1, 2, 3, in little-endian groups of seven bits


def read_varint(data: memoryview, at: int, bits: int = 32) -> tuple[int, int]:
    """(value, next position). Raises CorruptRecord above ``bits``, IndexError at the end of the data."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise errors.CorruptRecord(f"a varint longer than {bits} bits")
    if value >> bits:
        raise errors.CorruptRecord(f"a varint of more than {bits} bits")
    return (value >> 1) ^ -(value & 1), at


def _int64(value: int) -> int:
    """Wrap to 64 bits, as Kafka's longs do for timestamps that are far apart."""
    return value if -(2**63) <= value < 2**63 else (value + 2**63) % 2**64 - 2**63


def varint(value: int) -> bytes:
    """Encode an int64. Raises EncodeError."""
    if _LEAST_SMALL <= value < _MOST_SMALL:
        return _SMALL[value - _LEAST_SMALL]
    if not -(2**63) <= value < 2**63:
        raise errors.EncodeError(f"{value} is not an int64")
    return _varint(value)


def _varint(value: int) -> bytes:
    rest = value << 1 if value >= 0 else ~(value << 1)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_LEAST_SMALL, _MOST_SMALL = -64, 1024
_SMALL = tuple(_varint(value) for value in range(_LEAST_SMALL, _MOST_SMALL))
