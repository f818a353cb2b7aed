"""What a leader appends to a log of magic 0 or 1, the message formats before Kafka 0.11 (rules B3.23, B3.24, B3.32).

Such logs exist where `inter.broker.protocol.version` is below 3.0 and `message.format.version` below 0.11.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kce.broker_stub.errors import Refused
from kce.wire import ErrorCode
from kce.wire.batch_header import BatchHeader, read_headers
from kce.wire.message_set import placed_message
from kce.wire.record import NO_TIMESTAMP, Codec, Record, RecordBatch, TimestampType
from kce.wire.record_batch import OVERHEAD_BYTES
from kce.wire.records import write_records


class OldFormat(NamedTuple):
    """Messages and a header for them all; ``largest``: bytes of the largest. ``offset_of_max``: see `Assigned`."""

    data: bytes
    header: BatchHeader
    largest: int
    offset_of_max: int


def old_format(
    data: memoryview,
    batches: Sequence[RecordBatch],
    base_offset: int,
    codec: Codec,
    magic: int,
    timestamp_type: TimestampType,
    now_ms: int,
) -> OldFormat:
    """Records as messages of ``magic``, or as one compressed message. ``data``: the batches as they came.

    Raises Refused for what these formats lack: headers of records, and zstd.
    """
    is_stamped = magic == 1 and timestamp_type is TimestampType.LOG_APPEND_TIME
    records = tuple(
        Record(
            offset=base_offset + i,
            timestamp=NO_TIMESTAMP if not magic else now_ms if is_stamped else record.timestamp,
            key=record.key,
            value=record.value,
        )
        for i, record in enumerate(record for batch in batches for record in batch.records)
    )
    kind = timestamp_type if magic else TimestampType.CREATE_TIME
    if _is_in_place(batches, codec, magic):
        encoded = placed_message(data, records[-1].offset, max(record.timestamp for record in records), kind)
    else:
        if codec is Codec.ZSTD or any(record.headers for batch in batches for record in batch.records):
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"magic {magic} has neither headers of records nor zstd")
        if codec is not Codec.NONE or batches[0].codec is not Codec.NONE or batches[0].magic != magic:
            check_timestamps(record for batch in batches for record in batch.records)
        encoded = write_records(RecordBatch.of(*records, magic=magic, codec=codec, timestamp_type=kind))
    headers = [header for _, header in read_headers(encoded)]
    most = max(headers, key=lambda header: header.max_timestamp)  # the first of them
    whole = headers[0]._replace(
        base_offset=base_offset,
        length=len(encoded) - OVERHEAD_BYTES,
        last_offset_delta=len(records) - 1,
        max_timestamp=most.max_timestamp,
        record_count=len(records),
    )
    return OldFormat(encoded, whole, max(header.size for header in headers), most.last_offset)


def check_timestamps(records: Iterable[Record]) -> None:
    """Of records to be encoded again: -1 is none, what is below stays only where it is. Raises Refused (B3.35)."""
    if any(record.timestamp < NO_TIMESTAMP for record in records):
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "a negative timestamp cannot be encoded again")


def _is_in_place(batches: Sequence[RecordBatch], codec: Codec, magic: int) -> bool:
    """Whether what is compressed stays: a message of magic 1 whose records are numbered from 0 on."""
    first = batches[0]
    return (
        codec is not Codec.NONE
        and magic == first.magic == 1
        and codec is first.codec
        and all(record.offset == i for i, record in enumerate(first.records))
    )
