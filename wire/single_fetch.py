"""Fetch of a single topic, by its id and without errors: what followers in sync ask and get all the time.

The bytes and messages are those of `wire.protocol`, which takes whatever does not have this shape.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from kce.wire.codegen import Refuse, read_uvarint, write_uvarint
from kce.wire.errors import ErrorCode
from kce.wire.headers import Header
from kce.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponseEpochEndOffset,
    FetchResponsePartitionData,
    FetchTopic,
    ReplicaState,
)
from kce.wire.payload import Parts, Payload, Stored

#: the versions of requests, and of responses, that have this shape
REQUESTS: Final = range(15, 18)
RESPONSES: Final = range(13, 18)
#: partitions in such a message: their number takes one byte
MOST: Final = 126

#: API key, version, correlation id, length of the client id
_HEADER: Final = struct.Struct(">hhih")
_NO_TAGS: Final = b"\0"
_REQUEST: Final = struct.Struct(">iiibiiB16sBiiqiqi7siqB")
#: the same in parts: before the partitions, each of them, after them
_BEFORE_ASKED: Final = struct.Struct(">iiibiiB16sB")
_ASKED: Final = struct.Struct(">iiqiqiB")
_AFTER_ASKED: Final = struct.Struct(">6siqB")
#: the length of an array, plus one
_ONE: Final = 2
#: no tagged fields of partition and topic, nothing forgotten, no rack; one tagged field, number 1, of 13 bytes
_AFTER_PARTITION: Final = bytes((0, 0, 1, 1, 1, 1, 13))
#: of a response: before the partitions, each of them before its records, after them (no tagged fields of topic and
#: response)
_BEFORE_FOUND: Final = struct.Struct(">iBihiB16sB")
_FOUND: Final = struct.Struct(">ihqqqBi")
_AFTER_FOUND: Final = b"\0\0"
#: aborted transactions: null, or none
_NULL: Final = 0
_EMPTY: Final = 1


class SingleFetch(NamedTuple):
    """A follower's request for one partition; what is missing of forgotten partitions, rack and tags is empty."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: int
    topic: bytes  #: its id
    partitions: int
    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int
    after_partition: bytes
    replica_id: int
    replica_epoch: int
    tags: int

    @property
    def topic_id(self) -> UUID:
        return _uuid(self.topic)

    def message(self) -> FetchRequest:
        """The same request as others are decoded."""
        wanted = FetchPartition(
            partition=self.partition, current_leader_epoch=self.leader_epoch, fetch_offset=self.offset,
            last_fetched_epoch=self.last_fetched_epoch, log_start_offset=self.log_start_offset,
            partition_max_bytes=self.partition_max_bytes,
        )  # fmt: skip
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self.replica_id, replica_epoch=self.replica_epoch),
            max_wait_ms=self.max_wait_ms, min_bytes=self.min_bytes, max_bytes=self.max_bytes,
            isolation_level=self.isolation_level, session_id=self.session_id, session_epoch=self.session_epoch,
            topics=(FetchTopic(topic_id=self.topic_id, partitions=(wanted,)),),
        )  # fmt: skip


@functools.lru_cache
def _uuid(data: bytes) -> UUID:
    return UUID(bytes=data)


def decode_request(frame: bytes) -> tuple[Header, SingleFetch] | None:
    """A Fetch request; None if it does not have this shape."""
    at = len(frame) - _REQUEST.size
    if at <= _HEADER.size:
        return None
    api_key, version, correlation_id, size = _HEADER.unpack_from(frame)
    if _HEADER.size + size != at - 1 or frame[at - 1] or version not in REQUESTS:
        return None
    found = SingleFetch._make(_REQUEST.unpack_from(frame, at))
    if found.topics != _ONE or found.partitions != _ONE or found.after_partition != _AFTER_PARTITION or found.tags:
        return None
    try:
        client_id = frame[_HEADER.size : at - 1].decode()
    except UnicodeDecodeError:
        return None
    return Header(api_key, version, correlation_id, client_id), found


class Asked(NamedTuple):
    """One partition of a request."""

    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


def encode_request(
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    session_id: int,
    session_epoch: int,
    topic_id: bytes,
    asked: Sequence[Asked],
    replica_id: int,
    replica_epoch: int,
    *,
    api_version: int,
    correlation_id: int,
    client_id: bytes,
) -> bytes:
    """A follower's request for 1 to `MOST` partitions."""
    before = _BEFORE_ASKED.pack(
        max_wait_ms, min_bytes, max_bytes, 0, session_id, session_epoch, _ONE, topic_id, len(asked) + 1
    )
    return b"".join(
        (
            _HEADER.pack(FetchRequest.__api_key__, api_version, correlation_id, len(client_id)),
            client_id,
            _NO_TAGS,
            before,
            *[_ASKED.pack(*one, 0) for one in asked],
            _AFTER_ASKED.pack(_AFTER_PARTITION[1:], replica_id, replica_epoch, 0),
        )
    )


class Found(NamedTuple):
    """One partition of a response. ``knows_aborted``: that there are no aborted transactions."""

    partition: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: bytes | memoryview | Stored
    knows_aborted: bool = False
    preferred_read_replica: int = -1


@functools.lru_cache(MOST)
def errors_of(partitions: int) -> Mapping[int, int]:
    """The codes in a response of so many partitions: its own and theirs."""
    return {ErrorCode.NONE: partitions + 1}


def encode_response(correlation_id: int, session_id: int, topic: bytes, found: Sequence[Found]) -> Payload:
    """``topic``: its id. ``found``: 1 to `MOST` partitions."""
    pieces: list[bytes | memoryview | Stored] = [
        _BEFORE_FOUND.pack(correlation_id, 0, 0, ErrorCode.NONE, session_id, _ONE, topic, len(found) + 1)
    ]
    is_stored = False
    for partition, high_watermark, last_stable_offset, log_start_offset, records, knows_aborted, preferred in found:
        head = _FOUND.pack(
            partition, ErrorCode.NONE, high_watermark, last_stable_offset, log_start_offset,
            _EMPTY if knows_aborted else _NULL, preferred,
        )  # fmt: skip
        pieces += head, write_uvarint(len(records) + 1), records, _NO_TAGS
        is_stored |= isinstance(records, Stored)
    pieces.append(_AFTER_FOUND)
    return Parts(pieces) if is_stored else b"".join(pieces)  # type: ignore[arg-type]  # nothing is stored then


class Answered(NamedTuple):
    """What a follower gets of one partition, without an error."""

    partition_index: int
    high_watermark: int
    log_start_offset: int
    records: memoryview
    error_code: int = ErrorCode.NONE
    diverging_epoch: FetchResponseEpochEndOffset = FetchResponseEpochEndOffset()


Fetched: TypeAlias = FetchResponsePartitionData | Answered


def decode_response(frame: bytes, topic_id: bytes) -> tuple[int, list[Answered]] | None:
    """Session id and what a follower gets of that topic; None if the response does not have this shape."""
    try:
        _, tags, throttle_ms, error, session_id, topics, topic, count = _BEFORE_FOUND.unpack_from(frame)
        if tags or throttle_ms or error or topics != _ONE or topic != topic_id or not 1 < count <= MOST + 1:
            return None
        found, at = [], _BEFORE_FOUND.size
        for _ in range(count - 1):
            index, code, high_watermark, _, log_start, aborted, _ = _FOUND.unpack_from(frame, at)
            size, at = read_uvarint(frame, at + _FOUND.size)
            end = at + size - 1
            if code or aborted != _NULL or not size or frame[end]:
                return None
            found.append(Answered(index, high_watermark, log_start, memoryview(frame)[at:end]))
            at = end + 1
    except (Refuse, IndexError, struct.error):
        return None
    return (session_id, found) if frame[at:] == _AFTER_FOUND else None
