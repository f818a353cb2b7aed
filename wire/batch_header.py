"""Headers of batches: all that a log reads of a record set, whose records stay opaque (rules B3.66, B3.67, B3.69).

A message of magic 0 or 1 has the header of a batch of one record, without producer and epoch. The offset of a
compressed one is that of its last record.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from kce.wire import errors
from kce.wire.message_set import MIN_BYTES
from kce.wire.record import NO_LEADER_EPOCH, NO_PRODUCER, NO_TIMESTAMP, Codec
from kce.wire.record_batch import HEADER, OVERHEAD_BYTES, codec_of, read_varint

#: the least that a batch of magic 2 has
BATCH_HEADER_BYTES: Final = HEADER.size
#: the CRC of magic 2 covers what follows
CRC_FROM: Final = 21

_CRC_AT: Final = 17
_MAGIC_AT: Final = 16
#: the lower byte of the attributes
_FLAGS_AT: Final = 22
#: of any magic: of an empty message of magic 0
_LEAST_LENGTH: Final = MIN_BYTES - OVERHEAD_BYTES
_LEGACY_CRC_FROM: Final = 16
_LEGACY: Final = struct.Struct(">qiIbb")
_TIMESTAMP: Final = struct.Struct(">q")
#: base offset, length, leader epoch
_HEAD: Final = struct.Struct(">qii")
_UINT32: Final = struct.Struct(">I")
_LENGTH: Final = struct.Struct(">i")

_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_DELETE_HORIZON: Final = 0x40
_CODEC: Final = 0x07
_NOT_PLAIN: Final = _CODEC | _LOG_APPEND_TIME
_MEANINGFUL: Final = _CODEC | _LOG_APPEND_TIME | _TRANSACTIONAL | _CONTROL | _DELETE_HORIZON
#: what attributes mean by magic: the codec, since magic 1 the type of timestamps, too
_LEGACY_ATTRIBUTES: Final = (0x07, 0x0F)
_MAX_INT32: Final = 2**31 - 1
#: a NamedTuple of fields whose number is known to be right
_new: Final = tuple.__new__
#: after so many records it is worth to look whether the next ones have the same length, and for how many at most
_LOOK_EVERY: Final = 64
_MOST_ALIKE: Final = 256


class BatchHeader(NamedTuple):
    """Rule B3.66. ``length`` counts the bytes after it."""

    base_offset: int
    length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def placed(
        self, batch: memoryview, base_offset: int, leader_epoch: int
    ) -> tuple[BatchHeader, tuple[bytes, memoryview]]:
        """The header of a batch of magic 2 at another offset, of another epoch, and that batch in two parts.

        Its CRC covers neither (rule B3.31).
        """
        length = self.length
        header = _new(BatchHeader, (base_offset, length, leader_epoch, *self[3:]))  # faster than `_replace`
        return header, (_HEAD.pack(base_offset, length, leader_epoch), batch[_HEAD.size :])

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return OVERHEAD_BYTES + self.length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def has_producer(self) -> bool:
        """Of an idempotent producer: other negative ids are none, too."""
        return self.producer_id > NO_PRODUCER

    @property
    def last_sequence(self) -> int:
        """Rule B3.67: 2147483647 is followed by 0."""
        if self.base_sequence == NO_PRODUCER:
            return NO_PRODUCER
        last = self.base_sequence + self.last_offset_delta
        return last if last <= _MAX_INT32 else last - _MAX_INT32 - 1

    @property
    def codec(self) -> Codec:
        """Raises CorruptRecord."""
        return codec_of(self.attributes)

    @property
    def is_plain(self) -> bool:
        """Neither compressed nor stamped by the log."""
        return not self.attributes & _NOT_PLAIN

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & _DELETE_HORIZON)


def read_header(data: bytes | memoryview, at: int = 0, *, is_stored: bool = False) -> BatchHeader | None:
    """The header at ``at``; None if the data end before it does.

    Raises CorruptRecord for a length below the format's minimum, and for an unknown magic (rule B3.70). What
    ``is_stored`` is only passed on the way to another batch: its length need not be below that of the smallest format,
    and an unknown magic is read as 2 (rule B6.34).
    """
    rest = len(data) - at
    if rest <= _MAGIC_AT:
        return None
    magic = data[at + _MAGIC_AT]
    if magic == 2 or (is_stored and magic > 2):
        if rest < BATCH_HEADER_BYTES:
            _check_part(data, at, is_stored=is_stored)
            return None
        header = _new(BatchHeader, HEADER.unpack_from(data, at))
        least = BATCH_HEADER_BYTES
    elif magic < 2:
        least = MIN_BYTES + magic * _TIMESTAMP.size
        if rest < least:
            _check_part(data, at, is_stored=is_stored)
            return None
        offset, length, crc, _, attributes = _LEGACY.unpack_from(data, at)
        attributes &= _LEGACY_ATTRIBUTES[magic]
        timestamp = _TIMESTAMP.unpack_from(data, at + _LEGACY.size)[0] if magic else NO_TIMESTAMP
        header = BatchHeader(
            offset, length, NO_LEADER_EPOCH, magic, crc, attributes, 0, timestamp, timestamp,
            NO_PRODUCER, NO_PRODUCER, NO_PRODUCER, 1,
        )  # fmt: skip
    else:
        raise errors.CorruptRecord(f"batch at byte {at}: unknown magic {magic}")
    size = OVERHEAD_BYTES + header.length
    if size < (MIN_BYTES if is_stored else least):
        raise errors.CorruptRecord(f"batch at byte {at}: {size} bytes are below the minimum of magic {magic}, {least}")
    return header


def _check_part(data: bytes | memoryview, at: int, *, is_stored: bool) -> None:
    """Of a header that the data end in, only the size of what is stored is checked, once a byte follows the magic."""
    if is_stored and len(data) - at > _MAGIC_AT + 1 and (size := _LENGTH.unpack_from(data, at + 8)[0]) < _LEAST_LENGTH:
        raise errors.CorruptRecord(f"batch at byte {at}: a size of {size}")


def read_headers(data: bytes | memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each complete batch; a partial one at the end is ignored. Raises CorruptRecord."""
    at, end = 0, len(data)
    while at < end and (header := read_header(data, at)) is not None:
        next_at = at + OVERHEAD_BYTES + header.length
        if next_at > end:
            return
        yield at, header
        at = next_at


def is_one_batch(data: bytes | memoryview) -> bool:
    """Whether the data are one batch of magic 2, whole, and nothing else."""
    size = len(data)
    return (
        size >= BATCH_HEADER_BYTES and data[_MAGIC_AT] == 2 and _LENGTH.unpack_from(data, 8)[0] == size - OVERHEAD_BYTES
    )


def only_header(data: bytes | memoryview) -> BatchHeader | None:
    """The header of data that are one batch of magic 2, whole, and nothing else."""
    return _new(BatchHeader, HEADER.unpack_from(data)) if is_one_batch(data) else None


def begins_transactional(data: bytes | memoryview) -> bool:
    """Whether the first batch is whole and transactional.

    Raises CorruptRecord if its size or its magic is impossible, as far as they are there.
    """
    size = len(data)
    if size < OVERHEAD_BYTES:
        return False
    (length,) = _LENGTH.unpack_from(data, 8)
    magic = data[_MAGIC_AT] if size > _MAGIC_AT else 2
    if length < _LEAST_LENGTH or magic > 2:
        raise errors.CorruptRecord(f"a batch of {length} bytes after its length, of magic {magic}")
    is_marked = size > _FLAGS_AT and magic == 2 and bool(data[_FLAGS_AT] & _TRANSACTIONAL)
    return is_marked and OVERHEAD_BYTES + length <= size


def crc_of(batch: memoryview, magic: int) -> int:
    """``batch`` is exactly one."""
    return crc32c(batch[CRC_FROM:]) if magic >= 2 else zlib.crc32(batch[_LEGACY_CRC_FROM:])


def check_crc(batch: memoryview, header: BatchHeader) -> None:
    """``batch`` is exactly one. Raises CorruptRecord."""
    found = crc_of(batch, header.magic)
    if found != header.crc:
        raise errors.WrongChecksum(f"wrong CRC: computed {found:08x}, stored {header.crc:08x}")


def count_records(records: memoryview) -> int | None:
    """How many records there are in uncompressed records, by their lengths alone; None if they do not end with them."""
    data = bytes(records)
    at, end, count = 0, len(data), 0
    try:
        while at < end:
            if count % _LOOK_EVERY == 0 and at + 1 < end:
                alike, size = _alike(data, at)
                if alike:
                    at += alike * size
                    count += alike
                    continue
            first = data[at]
            if first < 0x80:
                at += 1 + (first >> 1)
            elif (second := data[at + 1]) < 0x80:
                at += 2 + ((second << 7 | first & 0x7F) >> 1)
            else:
                length, at = read_varint(records, at)
                if length < 0:
                    return None
                at += length
            if first & 1:  # zigzag: odd is negative
                return None
            count += 1
    except (IndexError, errors.CorruptRecord):
        return None
    return count if at == end else None


def _alike(data: bytes, at: int) -> tuple[int, int]:
    """How many records from ``at`` on have the same length, and their size; 0 if there is but one, or it is longer.

    Clients often write records of one size, whose lengths are found at equal distances.
    """
    first, second = data[at], data[at + 1]
    width, length = (1, first) if first < 0x80 else (2, second << 7 | first & 0x7F)
    size = width + (length >> 1)
    following = at + size
    if length & 1 or first & second & 0x80 or data[following : following + width] != data[at : at + width]:
        return 0, 0
    count = _equal(data[at : at + _MOST_ALIKE * size : size], first)
    if width == 1:
        return count, size
    return min(count, _equal(data[at + 1 : at + 1 + count * size : size], second)), size


def _equal(data: bytes, value: int) -> int:
    """How many bytes at the start are the first, which has that value."""
    size = len(data)
    return size if data.count(value) == size else size - len(data.lstrip(data[:1]))


def stamped(batch: memoryview, header: BatchHeader, max_timestamp: int, *, is_log_append_time: bool) -> bytes:
    """A batch of magic 2 with that type of timestamps and maximal timestamp (rule B3.31).

    Attributes without meaning are cleared.
    """
    attributes = header.attributes & _MEANINGFUL & ~_LOG_APPEND_TIME
    if is_log_append_time:
        attributes |= _LOG_APPEND_TIME
    return _with_header(batch, header._replace(attributes=attributes, max_timestamp=max_timestamp))


def with_producer(batch: memoryview, header: BatchHeader, producer_id: int, producer_epoch: int) -> bytes:
    """A batch of magic 2 as of another producer."""
    return _with_header(batch, header._replace(producer_id=producer_id, producer_epoch=producer_epoch))


def _with_header(batch: memoryview, changed: BatchHeader) -> bytes:
    head = HEADER.pack(*changed)
    crc = crc32c(batch[BATCH_HEADER_BYTES:], crc32c(head[CRC_FROM:]))
    return b"".join((head[:_CRC_AT], _UINT32.pack(crc), head[CRC_FROM:], batch[BATCH_HEADER_BYTES:]))
