"""Record sets, the ``records`` of Produce and Fetch, in all three formats: bytes <-> batches of records.

    batch = wire.RecordBatch.of(wire.Record(offset=0, timestamp=now_ms, key=b"k", value=b"v"), codec=wire.Codec.ZSTD)
    data = wire.write_records(batch)
    batches, rest = wire.read_records(data)

``wire.record`` says what a batch holds, ``wire.record_batch`` and ``wire.message_set`` how it is written,
``wire.compression`` how it is packed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from wire import errors
from wire.compression import MAX_DECOMPRESSED_BYTES
from wire.message_set import MIN_BYTES, read_message, write_messages
from wire.record import RecordBatch
from wire.record_batch import HEADER, OVERHEAD_BYTES, read_batch, write_batch

_OFFSET_AND_LENGTH = struct.Struct(">qi")
_MAGIC_AT = 16


class RecordSet(NamedTuple):
    """The whole batches of a record set, and the bytes behind them: empty, or the beginning of one batch more."""

    batches: tuple[RecordBatch, ...]
    rest: memoryview


class BatchSpan(NamedTuple):
    """Where a whole batch is: ``start`` to ``end``, its base offset (magic 0 and 1: the message's) and magic."""

    start: int
    end: int
    offset: int
    magic: int


def spans(data: bytes | memoryview) -> Iterator[BatchSpan]:
    """The whole batches in ``data``, unread. What is behind the last belongs to a batch that was cut off (rule B4.16).

    Raises CorruptRecord where no batch can begin: a length below the format's least (rule B3.70), an unknown magic.
    """
    at, size = 0, len(data)
    while size - at > _MAGIC_AT:
        offset, length = _OFFSET_AND_LENGTH.unpack_from(data, at)
        magic = data[at + _MAGIC_AT]
        if magic > 2:
            raise errors.CorruptRecord(f"batch at byte {at}: magic {magic} is none")
        least = (HEADER.size if magic == 2 else MIN_BYTES) - OVERHEAD_BYTES
        if length < least:
            raise errors.CorruptRecord(
                f"batch at byte {at}: a length of {length}, and magic {magic} has {least} or more"
            )
        end = at + OVERHEAD_BYTES + length
        if end > size:
            return
        yield BatchSpan(at, end, offset, magic)
        at = end


def read_records(
    data: bytes | memoryview, *, max_bytes: int = MAX_DECOMPRESSED_BYTES, check_crc: bool = True
) -> RecordSet:
    """All whole batches of a record set, and what is left behind them: a Fetch may end inside a batch.

    ``max_bytes`` bounds what all compressed batches together may hold. Raises CorruptRecord for damage and
    LimitExceeded beyond ``max_bytes``, with the batch's place and offset; nothing else, whatever the bytes are.
    """
    view = memoryview(data)
    batches: list[RecordBatch] = []
    end, room = 0, max_bytes
    for span in spans(view):
        read = read_batch if span.magic == 2 else read_message
        try:
            batch, unpacked = read(view[span.start : span.end], room, check_crc=check_crc)
        except (errors.CorruptRecord, errors.LimitExceeded) as e:
            raise type(e)(f"batch of offset {span.offset} at byte {span.start}: {e}") from None
        room -= unpacked
        batches.append(batch)
        end = span.end
    return RecordSet(tuple(batches), view[end:])


def write_records(*batches: RecordBatch) -> bytes:
    """The batches as a record set, each in the format of its ``magic``. Raises EncodeError."""
    return b"".join(_write(batch) for batch in batches)


def _write(batch: RecordBatch) -> bytes:
    if batch.magic not in (0, 1, 2):
        raise errors.EncodeError(f"batch of offset {batch.base_offset}: magic {batch.magic} is none")
    try:
        return write_batch(batch) if batch.magic == 2 else write_messages(batch)
    except (struct.error, TypeError, ValueError, AttributeError, errors.EncodeError) as e:
        raise errors.EncodeError(f"batch of offset {batch.base_offset}: {e}") from None
