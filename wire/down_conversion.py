"""Records in an older format, for clients of before Kafka 0.11 (KIP-283, rule B4.20)."""

from __future__ import annotations

import struct
from typing import Final

from kce.wire import errors
from kce.wire.record import NO_TIMESTAMP, Codec, Record, RecordBatch, TimestampType
from kce.wire.records import MAX_OPENED_ELEMENTS, read_records, spans, write_records

#: an incomplete message, as it is longer than what is sent: without it an old consumer takes nothing for the end
_INCOMPLETE: Final = struct.pack(">qi", -1, 61)


class UnsupportedCodec(Exception):
    """zstd needs magic 2."""


def down_converted(data: bytes | memoryview, magic: int, first_offset: int = 0) -> tuple[bytes, int]:
    """The complete batches of a record set, in magic 0 or 1; those that are older already stay as they are.

    Returns also how many records were converted.

    Headers are lost, control batches left out, and so are records before ``first_offset`` that are not compressed.
    What comes from a batch on that magic lacks the codec of, or that is damaged or too large, is left for the next
    fetch, in which it is the first. If nothing is left of the batches, the beginning of a message is returned. Raises
    UnsupportedCodec, CorruptRecord, LimitExceeded.
    """
    found: list[RecordBatch] = []
    count = 0
    span = None
    for span in spans(data):
        if count >= MAX_OPENED_ELEMENTS:  # the rest is left for the next fetch
            break
        try:
            (batch,) = read_records(data[span.start : span.end], max_elements=MAX_OPENED_ELEMENTS).batches
            converted = _converted(batch, magic, first_offset)
        except (UnsupportedCodec, errors.CorruptRecord, errors.LimitExceeded):
            if not found:
                raise
            break
        if converted is not None:
            found.append(converted)
            count += 0 if converted is batch else len(converted.records)
    if span is not None and not found:
        return _INCOMPLETE, 0
    return write_records(*found), count


def _converted(batch: RecordBatch, magic: int, first_offset: int) -> RecordBatch | None:
    if batch.magic <= magic:
        return batch
    if batch.codec is Codec.ZSTD:
        raise UnsupportedCodec
    if batch.is_control or not batch.records:
        return None
    records = tuple(
        Record(
            offset=record.offset,
            timestamp=record.timestamp if magic else NO_TIMESTAMP,
            key=record.key,
            value=record.value,
        )
        for record in batch.records
        if batch.codec is not Codec.NONE or record.offset >= first_offset
    )
    if not records:
        return None
    kind = batch.timestamp_type if magic else TimestampType.CREATE_TIME
    return RecordBatch.of(*records, magic=magic, codec=batch.codec, timestamp_type=kind)
