"""Record sets, the ``records`` fields of Produce and Fetch: bytes <-> batches of records, in all three formats.

    batch = wire.RecordBatch.of(wire.Record(offset=0, timestamp=now_ms, key=b"k", value=b"v"), codec=wire.Codec.ZSTD)
    data = wire.write_records(batch)
    batches, rest = wire.read_records(data)

``wire.record`` defines batches, ``wire.record_batch`` and ``wire.message_set`` encode them, ``wire.compression``
compresses them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from kce.wire import errors
from kce.wire.compression import MAX_DECOMPRESSED_BYTES
from kce.wire.message_set import MIN_BYTES, read_message, write_messages
from kce.wire.record import RecordBatch
from kce.wire.record_batch import HEADER, MIN_RECORD_BYTES, OVERHEAD_BYTES, UNLIMITED, read_batch, write_batch

_OFFSET_AND_LENGTH = struct.Struct(">qi")
_MAGIC_AT = 16
#: a broker opens no batch of more, unless its size is in proportion: that takes less than a second
MAX_OPENED_ELEMENTS: Final = 100_000


class RecordSet(NamedTuple):
    """The complete batches of a record set, and the rest: empty, or the beginning of another batch."""

    batches: tuple[RecordBatch, ...]
    rest: memoryview


class BatchSpan(NamedTuple):
    """Position of a complete batch: ``start`` to ``end``, its base offset (magic 0 and 1: the message's) and magic."""

    start: int
    end: int
    offset: int
    magic: int


def spans(data: bytes | memoryview) -> Iterator[BatchSpan]:
    """Positions of the complete batches in ``data``. The rest belongs to a truncated batch (rule B4.16).

    Raises CorruptRecord for a length below the format's minimum (rule B3.70) and for an unknown magic.
    """
    at, size = 0, len(data)
    while size - at > _MAGIC_AT:
        offset, length = _OFFSET_AND_LENGTH.unpack_from(data, at)
        magic = data[at + _MAGIC_AT]
        if magic > 2:
            raise errors.CorruptRecord(f"batch at byte {at}: unknown magic {magic}")
        least = (HEADER.size if magic == 2 else MIN_BYTES) - OVERHEAD_BYTES
        if length < least:
            raise errors.CorruptRecord(
                f"batch at byte {at}: length {length} is below the minimum of magic {magic}, {least}"
            )
        end = at + OVERHEAD_BYTES + length
        if end > size:
            return
        yield BatchSpan(at, end, offset, magic)
        at = end


def read_records(
    data: bytes | memoryview,
    *,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
    max_elements: int | None = None,
    check_crc: bool = True,
) -> RecordSet:
    """Decode the complete batches of a record set; a Fetch may end inside a batch, which is returned undecoded.

    ``max_bytes`` limits the decompressed size of all batches together, ``max_elements`` the records and headers of a
    batch, unless without compression its bytes could hold as many records. Raises CorruptRecord for damage,
    LimitExceeded above these limits, both with the batch's position and offset.
    """
    view = memoryview(data)
    batches: list[RecordBatch] = []
    end, room = 0, max_bytes
    for span in spans(view):
        read = read_batch if span.magic == 2 else read_message
        most = UNLIMITED if max_elements is None else max(max_elements, (span.end - span.start) // MIN_RECORD_BYTES)
        try:
            batch, unpacked = read(view[span.start : span.end], room, max_elements=most, check_crc=check_crc)
        except (errors.CorruptRecord, errors.LimitExceeded) as e:
            raise type(e)(f"batch of offset {span.offset} at byte {span.start}: {e}") from None
        room -= unpacked
        batches.append(batch)
        end = span.end
    return RecordSet(tuple(batches), view[end:])


def write_records(*batches: RecordBatch) -> bytes:
    """Encode batches as a record set, each in the format of its ``magic``. Raises EncodeError."""
    return b"".join(_write(batch) for batch in batches)


def _write(batch: RecordBatch) -> bytes:
    if batch.magic not in (0, 1, 2):
        raise errors.EncodeError(f"batch of offset {batch.base_offset}: unknown magic {batch.magic}")
    try:
        return write_batch(batch) if batch.magic == 2 else write_messages(batch)
    except (struct.error, TypeError, ValueError, AttributeError, errors.EncodeError) as e:
        raise errors.EncodeError(f"batch of offset {batch.base_offset}: {e}") from None
