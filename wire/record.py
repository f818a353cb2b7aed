"""Batches and records, independent of the format of the record set (rules B3.66, B4.14).

A message of magic 0 or 1 is a batch of one record, a compressed message is a batch of the messages in it, as in Kafka.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Final

from kce.wire import errors

#: `timestamp` of a record without one (magic 0)
NO_TIMESTAMP = -1
#: `producer_id`, `producer_epoch`, `base_sequence` without an idempotent producer
NO_PRODUCER = -1
#: `partition_leader_epoch` before a leader sets it
NO_LEADER_EPOCH = -1

_CONTROL_KEY = struct.Struct(">hh")
_END_TXN_VALUE = struct.Struct(">hi")


class Codec(enum.IntEnum):
    """Compression of a batch: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(enum.IntEnum):
    """The clock of a batch's timestamps: the producer's, or the broker's at append time (KIP-32)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


#: to read a member of an enum's class takes ten times as long in Python 3.11
UNCOMPRESSED: Final = Codec.NONE
CREATE_TIME: Final = TimestampType.CREATE_TIME
LOG_APPEND_TIME: Final = TimestampType.LOG_APPEND_TIME


class ControlRecordType(enum.IntEnum):
    """Type of a control record. Kafka skips unknown types."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """A record header (KIP-82)."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record. ``offset`` is absolute; ``timestamp`` is in ms since 1970, or -1 if the format has none."""

    offset: int
    timestamp: int = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[RecordHeader, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatch:
    """A batch. ``RecordBatch.of`` makes one from records, and derives offsets and timestamps from them.

    A batch covers ``base_offset`` to ``last_offset``; compaction may have removed any of its records. The timestamps of
    records are encoded relative to ``base_timestamp``; with ``has_delete_horizon`` it is the time from which tombstones
    may be removed (KIP-534). With LOG_APPEND_TIME, all records have ``max_timestamp``. Magic 0 and 1 have no producer,
    no headers and no leader epoch.
    """

    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    records: tuple[Record, ...]
    magic: int = 2
    codec: Codec = Codec.NONE
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    partition_leader_epoch: int = NO_LEADER_EPOCH
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_PRODUCER
    base_sequence: int = NO_PRODUCER
    is_transactional: bool = False
    is_control: bool = False
    has_delete_horizon: bool = False

    @classmethod
    def of(
        cls,
        *records: Record,
        magic: int = 2,
        codec: Codec = Codec.NONE,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        partition_leader_epoch: int = NO_LEADER_EPOCH,
        producer_id: int = NO_PRODUCER,
        producer_epoch: int = NO_PRODUCER,
        base_sequence: int = NO_PRODUCER,
        is_transactional: bool = False,
        is_control: bool = False,
    ) -> RecordBatch:
        """A batch of ``records``, which ascend by offset. Raises EncodeError if there are none."""
        if not records:
            raise errors.EncodeError("an empty batch needs explicit offsets: use RecordBatch(...)")
        return cls(
            base_offset=records[0].offset,
            last_offset=records[-1].offset,
            base_timestamp=records[0].timestamp,
            max_timestamp=max(record.timestamp for record in records),
            records=records,
            magic=magic,
            codec=codec,
            timestamp_type=timestamp_type,
            partition_leader_epoch=partition_leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=is_transactional,
            is_control=is_control,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionMarker:
    """The control record with which a coordinator ends a transaction in a partition (KIP-98)."""

    committed: bool
    coordinator_epoch: int

    def to_record(self, *, offset: int, timestamp: int) -> Record:
        """Raises EncodeError for an epoch that is no int32."""
        kind = ControlRecordType.COMMIT if self.committed else ControlRecordType.ABORT
        try:
            value = _END_TXN_VALUE.pack(0, self.coordinator_epoch)
        except struct.error:
            raise errors.EncodeError(f"coordinator epoch {self.coordinator_epoch} is no int32") from None
        return Record(offset=offset, timestamp=timestamp, key=_CONTROL_KEY.pack(0, kind), value=value)

    @classmethod
    def from_record(cls, record: Record) -> EndTransactionMarker:
        """Parse an ABORT or COMMIT record of a control batch. Raises CorruptRecord."""
        kind = control_record_type(record)
        if kind not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
            raise errors.CorruptRecord(f"record at offset {record.offset}: no end of a transaction, but {kind!r}")
        value = record.value or b""
        if len(value) < _END_TXN_VALUE.size or _END_TXN_VALUE.unpack_from(value)[0] < 0:
            raise errors.CorruptRecord(f"record at offset {record.offset}: its value is no end of a transaction")
        return cls(committed=kind == ControlRecordType.COMMIT, coordinator_epoch=_END_TXN_VALUE.unpack_from(value)[1])


def control_record_type(record: Record) -> ControlRecordType | int:
    """The type of a record of a control batch; a number if the type is unknown. Raises CorruptRecord.

    A later version of the key may be longer, and is read as this one.
    """
    key = record.key or b""
    if len(key) < _CONTROL_KEY.size:
        raise errors.CorruptRecord(f"record at offset {record.offset}: a control record with a key of {len(key)} bytes")
    version, kind = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise errors.CorruptRecord(f"record at offset {record.offset}: a control record of version {version}")
    try:
        return ControlRecordType(kind)
    except ValueError:
        return int(kind)
