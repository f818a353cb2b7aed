"""A leader's validation of records, and the batch that it appends (rules B3.16, B3.23 to B3.35).

Records stay opaque: the headers are checked, the checksum, and of what is not compressed the lengths of the records.
They are decoded only where the topic asks for more: keys, limits of timestamps, another codec, another format; or where
the greatest timestamp of the header cannot be right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kce.broker_stub.disk import Buffer
from kce.broker_stub.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    Refused,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)
from kce.broker_stub.log.config import LogConfig
from kce.broker_stub.log.old_formats import check_timestamps, old_format
from kce.broker_stub.log.producer_state import CLIENT, COORDINATOR, REPLICATION, Origin
from kce.wire import ErrorCode, errors
from kce.wire.batch_header import (
    BATCH_HEADER_BYTES,
    BatchHeader,
    check_crc,
    count_records,
    crc_of,
    only_header,
    read_header,
    read_headers,
    stamped,
)
from kce.wire.record import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_PRODUCER,
    NO_TIMESTAMP,
    UNCOMPRESSED,
    Codec,
    Record,
    RecordBatch,
)
from kce.wire.record_batch import codec_of
from kce.wire.records import MAX_OPENED_ELEMENTS, read_records, write_records

ANY_EPOCH: Final = 2**31 - 1
#: what `compression.type` is where batches without compression stay so
_UNCOMPRESSED: Final = (None, UNCOMPRESSED)
#: where a batch has its magic
_MAGIC_AT: Final = 16
#: how many bad records of a batch the message describes
_MAX_DESCRIBED: Final = 3


class CheckedRecords(NamedTuple):
    """Batches whose sizes and checksums are right, back to back from the start of ``data``."""

    data: memoryview
    batches: list[tuple[int, BatchHeader]]


class Assigned(NamedTuple):
    """What to append, in parts: one batch and its header, or messages without compression and a header for them all.

    ``largest``: bytes of the largest batch. ``offset_of_max``: the last offset of the first batch with the greatest
    timestamp. ``log_append_time``: if it was stamped with it. ``converted``: records that came in another format, or
    compressed otherwise.
    """

    parts: tuple[Buffer, ...]
    header: BatchHeader
    largest: int
    offset_of_max: int
    log_append_time: int = NO_TIMESTAMP
    converted: int = 0


def check_records(
    records: Buffer, origin: Origin, max_message_bytes: int, leader_epoch: int = ANY_EPOCH
) -> CheckedRecords:
    """Rules B3.16, B3.17. Raises InvalidRecord, MessageTooLarge, CorruptMessage.

    ``leader_epoch``: that of the leader who was asked; batches are left out from the first with a later one on.
    """
    data = memoryview(records)
    batches = []
    end = 0
    try:
        for at, header in read_headers(data):
            if header.magic == 2 and origin is CLIENT and header.base_offset:
                raise InvalidRecord(f"the base offset of a batch is {header.base_offset}, not 0")
            if header.partition_leader_epoch > leader_epoch:
                break
            size = header.size
            if size > max_message_bytes and origin is not REPLICATION:
                raise MessageTooLarge(f"a batch of {size} bytes; at most {max_message_bytes} are allowed")
            end = at + size
            if origin is not COORDINATOR:  # which has just made it
                check_crc(data[at:end], header)
            batches.append((at, header))
    except errors.CorruptRecord as e:
        raise CorruptMessage(str(e)) from None
    return CheckedRecords(data[:end], batches)


def placed_batch(
    records: Buffer, origin: Origin, base_offset: int, leader_epoch: int, config: LogConfig
) -> Assigned | None:
    """The batch of a client or a coordinator at ``base_offset``, if it is one that the log takes as it is: most are.

    None for what `check_records` and `assign_offsets` must look at. Raises InvalidRecord.
    """
    header, size = only_header(records), len(records)
    if header is None or not header.is_plain or not config.keeps_batches or size > config.max_message_bytes:
        return None
    if config.compression_type not in _UNCOMPRESSED and not header.is_control:
        return None
    batch = memoryview(records)
    if origin is not COORDINATOR:  # which has just made it
        is_read = config.has_record_checks or header.max_timestamp < header.base_timestamp
        if header.base_offset or is_read or crc_of(batch, 2) != header.crc:
            return None
        _check_client_batch(header)
        _check_count(batch, header)
    header, parts = header.placed(batch, base_offset, leader_epoch)
    return Assigned(parts, header, size, header.last_offset)


def assign_offsets(
    records: CheckedRecords,
    base_offset: int,
    leader_epoch: int,
    *,
    config: LogConfig,
    origin: Origin,
    now_ms: int,
    zstd_allowed: bool = True,
) -> Assigned:
    """Validate, and make the batch that is appended at ``base_offset``.

    Raises InvalidRecord, InvalidTimestamp, UnsupportedForMessageFormat, UnsupportedCompressionType, CorruptMessage.
    """
    (_, first), *more = records.batches
    if more and (first.magic == 2 or any(_codec(header) is not UNCOMPRESSED for _, header in records.batches)):
        raise InvalidRecord("more than one batch")  # rule B3.25
    for _, header in records.batches:
        _check_batch(header, first, origin, config.record_version)
    source = _codec(first)
    target = config.compression_type
    if target is None or (first.is_control and source is UNCOMPRESSED):
        target = source
    if target is Codec.ZSTD and not zstd_allowed:  # rule B3.33
        raise UnsupportedCompressionType("zstd needs inter.broker.protocol.version 2.1 or later")
    if config.record_version == 2 and first.magic == 2 and target is source:
        is_ours = origin is COORDINATOR  # its batches are as they must be: they need not be opened
        return _in_place(records.data, first, source, base_offset, leader_epoch, config, now_ms, is_ours=is_ours)
    return _rebuilt(records, first, base_offset, leader_epoch, target, config, now_ms)


def _codec(header: BatchHeader) -> Codec:
    try:
        return codec_of(header.attributes)
    except errors.CorruptRecord as e:
        raise CorruptMessage(str(e)) from None


def _check_batch(header: BatchHeader, first: BatchHeader, origin: Origin, target_magic: int) -> None:
    """Rule B3.26."""
    if header.magic != first.magic:
        raise InvalidRecord(f"a batch of magic {header.magic} after one of magic {first.magic}")
    if header.magic < 2:
        return
    if origin is CLIENT:
        _check_client_batch(header)
    if target_magic < 2 and (header.is_transactional or header.has_producer):
        raise UnsupportedForMessageFormat(f"magic {target_magic} has neither producers nor transactions")


def _check_client_batch(header: BatchHeader) -> None:
    span = header.last_offset_delta + 1
    if span <= 0:
        raise InvalidRecord(f"the last offset of a batch is {header.last_offset_delta} after its first")
    if header.record_count <= 0:
        raise InvalidRecord(f"a batch of {header.record_count} records")
    if span != header.record_count:
        raise InvalidRecord(f"a batch of {header.record_count} records has {span} offsets")
    if header.is_control:
        raise InvalidRecord("clients must not write control records")
    if header.has_producer and header.base_sequence < 0:
        raise InvalidRecord(f"sequence {header.base_sequence} of producer {header.producer_id}")


def _in_place(
    data: memoryview,
    header: BatchHeader,
    codec: Codec,
    base_offset: int,
    leader_epoch: int,
    config: LogConfig,
    now_ms: int,
    *,
    is_ours: bool,
) -> Assigned:
    is_stamped = config.message_timestamp_type is LOG_APPEND_TIME
    if is_stamped and header.is_log_append_time:
        raise _timestamp_type([(0, "")])
    max_timestamp = header.max_timestamp
    if not is_ours and config.has_record_checks:
        batch = _decode(data)[0]
        _check_records(_with_types([batch]), config, now_ms)
        if [record.offset for record in batch.records] != list(range(header.record_count)):  # rule B3.32
            return _encoded([batch], header, base_offset, leader_epoch, batch.codec, config, now_ms)
        max_timestamp = _max_timestamp(batch)
    elif header.max_timestamp == NO_TIMESTAMP and header.is_log_append_time:
        raise _timestamp_type([(0, "")])
    elif not is_ours:
        if codec is UNCOMPRESSED:
            _check_count(data, header)
        if max_timestamp < header.base_timestamp and not is_stamped:  # Sarama leaves it to the broker
            max_timestamp = _max_timestamp(_decode(data)[0])
    if is_stamped:
        max_timestamp = now_ms
    if is_stamped != header.is_log_append_time or max_timestamp != header.max_timestamp:
        data = memoryview(stamped(data, header, max_timestamp, is_log_append_time=is_stamped))
        stamped_header = read_header(data)
        assert stamped_header is not None
        header = stamped_header
    header, parts = header.placed(data, base_offset, leader_epoch)
    return Assigned(
        parts, header, len(data), base_offset + header.last_offset_delta,
        now_ms if is_stamped else NO_TIMESTAMP,
    )  # fmt: skip


def _max_timestamp(batch: RecordBatch) -> int:
    return max((NO_TIMESTAMP, *(record.timestamp for record in batch.records)))


def _check_count(data: memoryview, header: BatchHeader) -> None:
    """Rule B3.34, of what is not compressed."""
    found = count_records(data[BATCH_HEADER_BYTES:])
    if found != header.record_count:
        what = "do not end with the batch" if found is None else f"are {found}"
        raise InvalidRecord(f"the header announces {header.record_count} records, which {what}")


def _rebuilt(
    records: CheckedRecords,
    first: BatchHeader,
    base_offset: int,
    leader_epoch: int,
    codec: Codec,
    config: LogConfig,
    now_ms: int,
) -> Assigned:
    """Decode the records and encode them again with ``codec``, in the format of the log."""
    batches = _decode(records.data)
    _check_records(_with_types(batches), config, now_ms)
    if not any(batch.records for batch in batches):
        raise InvalidRecord("a batch without records")
    is_converted = first.magic != config.record_version or _codec(first) is not codec
    converted = sum(len(batch.records) for batch in batches) if is_converted else 0
    if config.record_version == 2:
        made = _encoded(batches, first, base_offset, leader_epoch, codec, config, now_ms)
        return made._replace(converted=converted)
    old = old_format(
        records.data, batches, base_offset, codec, config.record_version, config.message_timestamp_type, now_ms
    )
    is_stamped = config.message_timestamp_type is LOG_APPEND_TIME
    return Assigned(
        (old.data,), old.header, old.largest, old.offset_of_max, now_ms if is_stamped else NO_TIMESTAMP, converted
    )


def _decode(data: memoryview) -> list[RecordBatch]:
    try:
        has_checksums = data[_MAGIC_AT] < 2  # inside
        return list(read_records(data, max_elements=MAX_OPENED_ELEMENTS, check_crc=has_checksums).batches)
    except errors.WrongChecksum as e:
        raise CorruptMessage(str(e)) from None
    except errors.CorruptRecord as e:
        raise InvalidRecord(str(e)) from None
    except errors.LimitExceeded as e:
        raise CorruptMessage(str(e)) from None


def _with_types(batches: list[RecordBatch]) -> Iterator[tuple[Record, bool]]:
    """(record, whether its batch has LogAppendTime)."""
    for batch in batches:
        is_stamped = batch.timestamp_type is LOG_APPEND_TIME
        for record in batch.records:
            yield record, is_stamped


def _check_records(records: Iterator[tuple[Record, bool]], config: LogConfig, now_ms: int) -> None:
    """Rules B3.27 to B3.29."""
    keys: list[tuple[int, str]] = []
    timestamps: list[tuple[int, str]] = []
    types: list[tuple[int, str]] = []
    least = now_ms - config.message_timestamp_before_max_ms
    most = now_ms + config.message_timestamp_after_max_ms
    create_time = config.message_timestamp_type is CREATE_TIME
    for index, (record, is_stamped) in enumerate(records):
        if config.is_compact and record.key is None:
            keys.append((index, "a compacted topic needs a key"))
        elif create_time and record.timestamp != NO_TIMESTAMP:
            if not least <= record.timestamp <= most:
                timestamps.append((index, f"timestamp {record.timestamp} is not from {least} to {most}"))
        elif is_stamped:
            types.append((index, "a producer must not use LogAppendTime"))
    bad = sorted(keys + timestamps + types)
    if timestamps or types:
        raise InvalidTimestamp("One or more records have been rejected due to invalid timestamp", tuple(bad))
    if bad:
        examples = "; ".join(f"record {index}: {text}" for index, text in bad[:_MAX_DESCRIBED])
        raise InvalidRecord(f"{len(bad)} records are refused, for instance {examples}", tuple(bad))


def _timestamp_type(records: list[tuple[int, str]]) -> InvalidTimestamp:
    text = "a producer must not use LogAppendTime"
    return InvalidTimestamp(text, tuple((index, text) for index, _ in records))


def _check_encodable(first: BatchHeader) -> None:
    """Rule B3.35: a batch that stays as it is may have these. Raises Refused."""
    if first.magic < 2:
        return
    if first.producer_id == NO_PRODUCER:
        if first.is_transactional:
            raise Refused(
                ErrorCode.UNKNOWN_SERVER_ERROR, "a transactional batch without producer cannot be encoded again"
            )
    elif first.producer_epoch == NO_PRODUCER or first.base_sequence < 0:
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "a producer without epoch or sequence cannot be encoded again")


def _encoded(
    batches: list[RecordBatch],
    first: BatchHeader,
    base_offset: int,
    leader_epoch: int,
    codec: Codec,
    config: LogConfig,
    now_ms: int,
) -> Assigned:
    is_stamped = config.message_timestamp_type is LOG_APPEND_TIME
    records = [record for batch in batches for record in batch.records]
    _check_encodable(first)
    check_timestamps(records)
    numbered = tuple(
        Record(
            offset=base_offset + i,
            timestamp=record.timestamp,
            key=record.key,
            value=record.value,
            headers=record.headers,
        )
        for i, record in enumerate(records)
    )
    most = now_ms if is_stamped else max(record.timestamp for record in records)
    batch = RecordBatch(
        base_offset=base_offset,
        last_offset=base_offset + len(numbered) - 1,
        base_timestamp=numbered[0].timestamp,
        max_timestamp=most,
        records=numbered,
        codec=codec,
        timestamp_type=config.message_timestamp_type,
        partition_leader_epoch=leader_epoch,
        producer_id=first.producer_id,
        producer_epoch=first.producer_epoch,
        base_sequence=first.base_sequence,
        is_transactional=first.magic == 2 and first.is_transactional,
    )
    data = write_records(batch)
    header = read_header(data)
    assert header is not None
    return Assigned((data,), header, header.size, header.last_offset, now_ms if is_stamped else NO_TIMESTAMP)
