"""Offsets by time (section 7c). Only here records are decoded: those of the one batch that has the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kce.broker_stub.errors import CorruptMessage, UnsupportedForMessageFormat
from kce.broker_stub.log.files import storage
from kce.broker_stub.log.leader_epochs import UNDEFINED
from kce.broker_stub.log.log import Log
from kce.broker_stub.log.segment import Place, Segment
from kce.wire import errors
from kce.wire.record import NO_TIMESTAMP, Record
from kce.wire.records import MAX_OPENED_ELEMENTS, read_records


class FoundOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int = UNDEFINED


def earliest(log: Log) -> FoundOffset:
    """Rule B7.16."""
    first = log.leader_epochs[0] if log.leader_epochs else None
    epoch = first[0] if first is not None and first[1] <= log.log_start_offset else UNDEFINED
    return FoundOffset(NO_TIMESTAMP, log.log_start_offset, epoch)


@storage
def find_timestamp(log: Log, timestamp: int) -> FoundOffset | None:
    """The first record of that time or later (rule B7.18).

    Raises CorruptMessage, UnsupportedForMessageFormat, KafkaStorageError.
    """
    _check_timestamps(log)
    for segment in log.segments:
        if segment.size and segment.largest_timestamp_ms >= timestamp:
            for place, record in _opened(segment, segment.find_timestamp(timestamp, log.log_start_offset)):
                if record.timestamp >= timestamp and record.offset >= log.log_start_offset:
                    return FoundOffset(record.timestamp, record.offset, place.header.partition_leader_epoch)
            return None
    return None


@storage
def find_max_timestamp(log: Log) -> FoundOffset | None:
    """The first record with the greatest timestamp (rule B7.17).

    Raises CorruptMessage, UnsupportedForMessageFormat, KafkaStorageError.
    """
    _check_timestamps(log)
    segment = max(log.segments, key=lambda segment: segment.max_timestamp.timestamp)
    greatest = segment.max_timestamp.timestamp
    if greatest < 0:
        return None
    places = (place for place in segment.find_timestamp(greatest, 0) if place.header.max_timestamp == greatest)
    for place, record in _opened(segment, places):
        if record.timestamp == greatest:
            return FoundOffset(greatest, record.offset, place.header.partition_leader_epoch)
    return None


@storage
def offsets_before(log: Log, timestamp: int, most: int) -> list[int]:
    """Starts of segments, and the end of the log, that were last written by then, newest first (rule B7.20)."""
    known = [(max(segment.base_offset, log.log_start_offset), segment.modified_ms) for segment in log.segments]
    if log.segments.active.size:
        known.append((log.log_end_offset, log.context.now_ms()))
    if timestamp == EARLIEST:
        chosen = known[:1]
    elif timestamp == LATEST:
        chosen = known
    else:
        last = max((i for i, (_, modified_ms) in enumerate(known) if modified_ms <= timestamp), default=-1)
        chosen = known[: last + 1]
    return sorted((offset for offset, _ in chosen[-most:] if most > 0), reverse=True)


#: timestamps of ListOffsets requests
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5


def _check_timestamps(log: Log) -> None:
    """Raises UnsupportedForMessageFormat for a log of magic 0, which has no timestamps."""
    if not log.config.record_version:
        raise UnsupportedForMessageFormat(f"{log.partition} has message.format.version 0.9.0 or older")


def _opened(segment: Segment, places: Iterable[Place]) -> Iterator[tuple[Place, Record]]:
    """The records of batches, the first of which has the answer, unless the log starts within it, or headers lie."""
    count = 0
    for place in places:
        if count > MAX_OPENED_ELEMENTS:
            raise CorruptMessage(f"{segment!r}: batches have no records of the time that their headers announce")
        records = _records(segment, place)
        count += len(records)
        for record in records:
            yield place, record


def _records(segment: Segment, place: Place) -> tuple[Record, ...]:
    data = segment.read(place.position, place.header.size)
    try:
        batches = read_records(data, max_elements=MAX_OPENED_ELEMENTS, check_crc=False).batches
    except (errors.CorruptRecord, errors.LimitExceeded) as e:
        raise CorruptMessage(f"{segment!r}: {e}") from None
    return tuple(record for batch in batches for record in batch.records)
