"""Keys and values of the records in `__consumer_offsets` (rules G9.1 to G9.8).

Each begins with an int16: of a key it is the type of the record, of a value its version.
"""

from __future__ import annotations

import functools
import struct
from typing import Final, NamedTuple

from kce.broker_stub.versioned_records import decode, decode_value, encode, version_of
from kce.wire.errors import EncodeError
from kce.wire.metadata_version import MetadataVersion
from kce.wire.primitives import BYTES, INT32, INT64, STRING
from kce.wire.schema import Struct, field
from kce.wire.schema import struct as table
from kce.wire.vocabulary import NO_EPOCH, TopicPartition

NO_TIMESTAMP: Final = -1

#: types of records, and the version that is written
_OFFSET_TYPES: Final = (0, 1)
_OFFSET: Final = 1
_GROUP: Final = 2
_LAST_VALUE_VERSION: Final = 4
_FIRST_FLEXIBLE_VALUE: Final = 4
_EXPIRING: Final = 1

_IBP_0_10_1: Final = MetadataVersion.parse("0.10.1-IV0")
_IBP_2_1_IV0: Final = MetadataVersion.parse("2.1-IV0")
_IBP_2_1_IV1: Final = MetadataVersion.parse("2.1-IV1")
_IBP_2_3: Final = MetadataVersion.parse("2.3-IV0")


@table
class OffsetCommitKey(Struct):
    group: str = field(STRING, "0+")
    topic: str = field(STRING, "0+")
    partition: int = field(INT32, "0+")


@table
class GroupMetadataKey(Struct):
    group: str = field(STRING, "2+")


@table
class OffsetCommitValue(Struct):
    offset: int = field(INT64, "0+")
    leader_epoch: int = field(INT32, "3+", default=NO_EPOCH, ignorable=True)
    metadata: str = field(STRING, "0+")
    commit_timestamp: int = field(INT64, "0+")
    expire_timestamp: int = field(INT64, "1", default=NO_TIMESTAMP, ignorable=True)


#: of a GroupMetadataKey: its version, and the length of the name that follows
_GROUP_KEY: Final = struct.Struct(">hh")
#: an OffsetCommitValue of version 3 without metadata: version, offset, leader epoch, length of the metadata, timestamp
_PLAIN_VALUE: Final = struct.Struct(">hqihq")
_PLAIN: Final = 3


@table
class MemberMetadataValue(Struct):
    member_id: str = field(STRING, "0+")
    group_instance_id: str | None = field(STRING, "3+", default=None, nullable="3+", ignorable=True)
    client_id: str = field(STRING, "0+")
    client_host: str = field(STRING, "0+")
    rebalance_timeout: int = field(INT32, "1+", ignorable=True)
    session_timeout: int = field(INT32, "0+")
    subscription: bytes = field(BYTES, "0+")
    assignment: bytes = field(BYTES, "0+")


@table
class GroupMetadataValue(Struct):
    protocol_type: str = field(STRING, "0+")
    generation: int = field(INT32, "0+")
    protocol: str | None = field(STRING, "0+", nullable="0+")
    leader: str | None = field(STRING, "0+", nullable="0+")
    current_state_timestamp: int = field(INT64, "2+", default=NO_TIMESTAMP, ignorable=True)
    members: tuple[MemberMetadataValue, ...] = field([MemberMetadataValue], "0+")


class OffsetKey(NamedTuple):
    group: str
    partition: TopicPartition


class GroupKey(NamedTuple):
    group: str


class UnknownKey(NamedTuple):
    """A record of a type that Kafka 3.9 does not have."""

    version: int


class CommittedOffset(NamedTuple):
    """What a consumer committed for one partition. ``expire_timestamp`` is set only by old clients (rule G7.15)."""

    offset: int
    commit_timestamp: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH
    expire_timestamp: int | None = None


@functools.lru_cache(maxsize=4096)
def offset_key(group: str, partition: TopicPartition) -> bytes:
    """Raises EncodeError."""
    return encode(OffsetCommitKey(group=group, topic=partition.topic, partition=partition.partition), _OFFSET)


def group_key(group: str) -> bytes:
    """Raises EncodeError."""
    if group.isascii() and len(group) < 1 << 15:  # without the codec: each group has another
        return _GROUP_KEY.pack(_GROUP, len(group)) + group.encode()
    return encode(GroupMetadataKey(group=group), _GROUP)


def read_key(data: bytes) -> OffsetKey | GroupKey | UnknownKey:
    """Raises DecodeError."""
    version = version_of(data, "a key")
    if version in _OFFSET_TYPES:
        key = decode(OffsetCommitKey, data, version)
        return OffsetKey(key.group, TopicPartition(key.topic, key.partition))
    if version == _GROUP:
        return GroupKey(decode(GroupMetadataKey, data, version).group)
    return UnknownKey(version)


def write_offset(committed: CommittedOffset, version: int) -> bytes:
    """``version``: see `offset_version`; not that of an offset which expires on its own. Raises EncodeError."""
    expires = committed.expire_timestamp
    if expires is not None:
        version = _EXPIRING
    if version == _PLAIN and not committed.metadata:
        try:
            return _PLAIN_VALUE.pack(version, committed.offset, committed.leader_epoch, 0, committed.commit_timestamp)
        except struct.error as e:
            raise EncodeError(f"OffsetCommitValue {version}: {e}") from None
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp,
        expire_timestamp=NO_TIMESTAMP if expires is None else expires,
    )
    return encode(value, version)


def offset_version(ibp: MetadataVersion) -> int:
    """Rule G9.4."""
    if ibp < _IBP_2_1_IV0:
        return _EXPIRING
    return 2 if ibp < _IBP_2_1_IV1 else _PLAIN


def read_offset(data: bytes) -> CommittedOffset:
    """Raises DecodeError."""
    value = decode_value(OffsetCommitValue, data, _LAST_VALUE_VERSION, _FIRST_FLEXIBLE_VALUE)
    return CommittedOffset(
        offset=value.offset,
        commit_timestamp=value.commit_timestamp,
        metadata=value.metadata,
        leader_epoch=value.leader_epoch,
        expire_timestamp=None if value.expire_timestamp == NO_TIMESTAMP else value.expire_timestamp,
    )


def write_group(value: GroupMetadataValue, version: int) -> bytes:
    """``version``: see `group_version`. Raises EncodeError."""
    return encode(value, version)


def group_version(ibp: MetadataVersion) -> int:
    """Rule G9.6."""
    return sum(ibp >= since for since in (_IBP_0_10_1, _IBP_2_1_IV0, _IBP_2_3))


def read_group(data: bytes) -> GroupMetadataValue:
    """Raises DecodeError. In version 0 rebalance timeouts are 0: see ``has_rebalance_timeouts``."""
    return decode_value(GroupMetadataValue, data, _LAST_VALUE_VERSION, _FIRST_FLEXIBLE_VALUE)


def has_rebalance_timeouts(data: bytes) -> bool:
    """Whether the value of a group has them; else the session timeouts are used (rule G9.6)."""
    return version_of(data, "a group") > 0
