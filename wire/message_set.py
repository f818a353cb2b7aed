"""Messages of magic 0 and 1, the format before Kafka 0.11 (KIP-31, KIP-32).

The value of a compressed message is a message set. With magic 1 its offsets count from 0, and the outer message has the
offset of the last; with magic 0 they are absolute.
"""

from __future__ import annotations

import struct
import zlib

from kce.wire import errors
from kce.wire.compression import compress, decompress
from kce.wire.record import NO_TIMESTAMP, Codec, Record, RecordBatch, TimestampType
from kce.wire.record_batch import OVERHEAD_BYTES, UNLIMITED, codec_of

#: offset and size (which counts the bytes after it), CRC, magic, attributes
_HEADER = struct.Struct(">qiIbb")
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_CRC_FROM = 16
_LOG_APPEND_TIME = 0x08
#: a header and the lengths of an empty key and value
MIN_BYTES = _HEADER.size + 8


def read_message(
    data: memoryview, max_bytes: int, *, max_elements: int = UNLIMITED, check_crc: bool
) -> tuple[RecordBatch, int]:
    """(the message as a batch of the records in it, decompressed bytes). ``data`` is exactly one message.

    ``max_elements``: records in it.

    Raises CorruptRecord, LimitExceeded.
    """
    outer, magic, attributes = _read(data, check_crc=check_crc)
    codec = codec_of(attributes)
    log_append_time = magic == 1 and bool(attributes & _LOG_APPEND_TIME)
    records: tuple[Record, ...] = (outer,)
    unpacked = 0
    if codec is not Codec.NONE:
        if outer.value is None:
            raise errors.CorruptRecord("a compressed message without a value")
        inner = memoryview(decompress(codec, memoryview(outer.value), max_bytes, magic=magic))
        unpacked = len(inner)
        records = tuple(_inner(inner, magic, max_elements, check_crc=check_crc))
        if not records:
            raise errors.CorruptRecord("an empty compressed message")
        base = outer.offset - records[-1].offset if magic == 1 else 0
        records = tuple(
            Record(
                offset=base + r.offset, timestamp=outer.timestamp if log_append_time else r.timestamp,
                key=r.key, value=r.value,
            )
            for r in records
        )  # fmt: skip
    batch = RecordBatch(
        base_offset=records[0].offset,
        last_offset=outer.offset,
        base_timestamp=records[0].timestamp,
        max_timestamp=outer.timestamp,
        records=records,
        magic=magic,
        codec=codec,
        timestamp_type=TimestampType(log_append_time),
    )
    return batch, unpacked


def _inner(data: memoryview, magic: int, max_elements: int, *, check_crc: bool) -> list[Record]:
    records: list[Record] = []
    at, end = 0, len(data)
    while at < end:
        if len(records) == max_elements:
            raise errors.LimitExceeded(f"more than {max_elements} messages inside a compressed one")
        size = _LENGTH.unpack_from(data, at + 8)[0] if at + OVERHEAD_BYTES <= end else -1
        if not MIN_BYTES - OVERHEAD_BYTES <= size <= end - at - OVERHEAD_BYTES:
            raise errors.CorruptRecord(f"message {len(records)} inside a compressed one: no message fits at byte {at}")
        stop = at + OVERHEAD_BYTES + size
        record, inner_magic, attributes = _read(data[at:stop], check_crc=check_crc)
        if inner_magic != magic or codec_of(attributes) is not Codec.NONE:  # rule B3.27
            which = f"message {len(records)} inside a compressed one"
            raise errors.CorruptRecord(f"{which}: magic {inner_magic} in {magic}, attributes {attributes:#x}")
        records.append(record)
        at = stop
    return records


def _read(data: memoryview, *, check_crc: bool) -> tuple[Record, int, int]:
    """(the message, its magic, its attributes), of a whole message."""
    offset, _, crc, magic, attributes = _HEADER.unpack_from(data)
    if check_crc and (found := zlib.crc32(data[_CRC_FROM:])) != crc:
        raise errors.WrongChecksum(f"wrong CRC-32: computed {found:08x}, stored {crc:08x}")
    at, timestamp = _HEADER.size, NO_TIMESTAMP
    if magic == 1:
        if len(data) < MIN_BYTES + _TIMESTAMP.size:
            raise errors.CorruptRecord("the message ends inside its timestamp")
        (timestamp,) = _TIMESTAMP.unpack_from(data, at)
        at += _TIMESTAMP.size
    key, at = _read_bytes(data, at)
    value, at = _read_bytes(data, at)
    if at != len(data):
        raise errors.CorruptRecord(f"{len(data) - at} bytes left over after the value")
    return Record(offset=offset, timestamp=timestamp, key=key, value=value), magic, attributes


def _read_bytes(data: memoryview, at: int) -> tuple[bytes | None, int]:
    size = _LENGTH.unpack_from(data, at)[0] if at + _LENGTH.size <= len(data) else len(data)
    at += _LENGTH.size
    if size > len(data) - at:
        raise errors.CorruptRecord("the message ends inside its key or value")
    return (None, at) if size < 0 else (bytes(data[at : at + size]), at + size)


def write_messages(batch: RecordBatch) -> bytes:
    """Encode a batch as messages, or as one compressed message. Raises EncodeError for what magic 0 and 1 lack."""
    for what in ("is_transactional", "is_control", "has_delete_horizon"):
        if getattr(batch, what):
            raise errors.EncodeError(f"magic {batch.magic} has no {what}")
    if (batch.producer_id, batch.producer_epoch, batch.base_sequence) != (-1, -1, -1):
        raise errors.EncodeError(f"magic {batch.magic} has no producer id, epoch and sequence")
    if any(record.headers for record in batch.records):
        raise errors.EncodeError(f"magic {batch.magic} has no record headers")
    if not batch.records:
        raise errors.EncodeError(f"magic {batch.magic} has no batch without records")
    log_append_time = _LOG_APPEND_TIME if batch.timestamp_type == TimestampType.LOG_APPEND_TIME else 0
    if batch.magic == 0 and log_append_time:
        raise errors.EncodeError("magic 0 has no timestamps")
    if batch.codec is Codec.NONE:
        return b"".join(
            _written(r.offset, r.timestamp, r.key, r.value, batch.magic, log_append_time) for r in batch.records
        )
    base = batch.records[0].offset if batch.magic == 1 else 0
    inner = b"".join(
        _written(r.offset - base, r.timestamp, r.key, r.value, batch.magic, log_append_time) for r in batch.records
    )
    packed = compress(batch.codec, inner, magic=batch.magic)
    attributes = batch.codec | log_append_time
    return _written(batch.records[-1].offset, batch.max_timestamp, None, packed, batch.magic, attributes)


def _written(offset: int, timestamp: int, key: bytes | None, value: bytes | None, magic: int, attributes: int) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (_TIMESTAMP.pack(timestamp) if magic == 1 else b"")
    for data in (key, value):
        body += _LENGTH.pack(-1) if data is None else _LENGTH.pack(len(data)) + data
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def placed_message(message: memoryview, offset: int, timestamp: int, timestamp_type: TimestampType) -> bytes:
    """A message of magic 1 with another offset and timestamp; a compressed one has those of its last record."""
    _, size, _, magic, attributes = _HEADER.unpack_from(message)
    attributes = attributes & ~_LOG_APPEND_TIME | (_LOG_APPEND_TIME if timestamp_type else 0)
    body = struct.pack(">bbq", magic, attributes, timestamp) + message[_HEADER.size + _TIMESTAMP.size :]
    return struct.pack(">qiI", offset, size, zlib.crc32(body)) + body
