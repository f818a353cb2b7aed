"""Summary of a record set from its batch headers alone: nothing is decompressed, no record is decoded."""

from __future__ import annotations

import struct
from typing import Any

#: same position in all three formats (rule B3.66)
_MAGIC_AT = 16
_OFFSET_AND_LENGTH = struct.Struct(">qi").unpack_from
_V2_COUNTS = struct.Struct(">i").unpack_from
_V2_HEADER_BYTES = 61
_V2_LAST_OFFSET_DELTA_AT = 23
_V2_COUNT_AT = 57
_OLD_HEADER_BYTES = 26
_OLD_CODEC_MASK = 0x07


def outline(data: bytes | memoryview | None) -> dict[str, Any] | None:
    """Size, counts and offsets of a record set; None for null.

    ``bytes``; ``batches`` (messages for magic 0 and 1, compressed or not); ``records``, None if a compressed message
    hides their number; ``base_offset`` of the first record and ``last_offset`` of the last, None if hidden or absent;
    ``cut_bytes``, the bytes after the last complete batch: a Fetch may end inside a batch (rule B4.16), and the outline
    also ends at damage. Never raises.
    """
    if data is None:
        return None
    size, at, batches = len(data), 0, 0
    records: int | None = 0
    first: int | None = None
    last: int | None = None
    while size - at > _MAGIC_AT:
        offset, length = _OFFSET_AND_LENGTH(data, at)
        magic = data[at + _MAGIC_AT]
        end = at + 12 + length
        if end > size or length < (_V2_HEADER_BYTES if magic == 2 else _OLD_HEADER_BYTES) - 12 or magic > 2:
            break
        if magic == 2:
            base: int | None = offset
            last = offset + _V2_COUNTS(data, at + _V2_LAST_OFFSET_DELTA_AT)[0]
            count: int | None = _V2_COUNTS(data, at + _V2_COUNT_AT)[0]
        else:
            compressed = data[at + _MAGIC_AT + 1] & _OLD_CODEC_MASK
            # producers count from 0 inside; only the wrapper's offset is known without decompression
            base, count, last = (None, None, offset) if compressed else (offset, 1, offset)
        if batches == 0:
            first = base
        records = None if records is None or count is None else records + count
        batches += 1
        at = end
    return {
        "bytes": size,
        "batches": batches,
        "records": records,
        "base_offset": first,
        "last_offset": last,
        "cut_bytes": size - at,
    }
