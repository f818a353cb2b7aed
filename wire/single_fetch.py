"""Fetch of one partition, by topic id and without errors: what followers in sync ask and get all the time.

The bytes and messages are those of `wire.protocol`, which takes whatever does not have this shape.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from kce.wire.codegen import Refuse, read_uvarint, write_uvarint
from kce.wire.errors import ErrorCode
from kce.wire.headers import Header
from kce.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponsePartitionData, FetchTopic, ReplicaState
from kce.wire.payload import Parts, Payload, Stored

#: the versions of requests, and of responses, that have this shape
REQUESTS: Final = range(15, 18)
RESPONSES: Final = range(13, 18)
#: in such a response: its own code, and that of the partition
ERRORS: Final[Mapping[int, int]] = {ErrorCode.NONE: 2}

#: API key, version, correlation id, length of the client id
_HEADER: Final = struct.Struct(">hhih")
_NO_TAGS: Final = b"\0"
_REQUEST: Final = struct.Struct(">iiibiiB16sBiiqiqi7siqB")
#: the length of an array, plus one
_ONE: Final = 2
#: no tagged fields of partition and topic, nothing forgotten, no rack; one tagged field, number 1, of 13 bytes
_AFTER_PARTITION: Final = bytes((0, 0, 1, 1, 1, 1, 13))
_RESPONSE: Final = struct.Struct(">iBihiB16sBihqqqBi")
#: no tagged fields of partition, topic and response
_END: Final = b"\0\0\0"
#: aborted transactions: null, or none
_NULL: Final = 0
_EMPTY: Final = 1


class SingleFetch(NamedTuple):
    """A follower's request."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int
    topic_id: UUID
    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int
    replica_id: int
    replica_epoch: int

    def encode(self, *, api_version: int, correlation_id: int, client_id: bytes) -> bytes:
        body = _REQUEST.pack(
            self.max_wait_ms, self.min_bytes, self.max_bytes, 0, self.session_id, self.session_epoch,
            _ONE, self.topic_id.bytes, _ONE, self.partition, self.leader_epoch, self.offset, self.last_fetched_epoch,
            self.log_start_offset, self.partition_max_bytes, _AFTER_PARTITION, self.replica_id, self.replica_epoch, 0,
        )  # fmt: skip
        header = _HEADER.pack(FetchRequest.__api_key__, api_version, correlation_id, len(client_id))
        return b"".join((header, client_id, _NO_TAGS, body))


@functools.lru_cache
def _uuid(data: bytes) -> UUID:
    return UUID(bytes=data)


def decode_request(frame: bytes) -> tuple[Header, FetchRequest] | None:
    """A Fetch request; None if it does not have this shape."""
    at = len(frame) - _REQUEST.size
    if at <= _HEADER.size:
        return None
    api_key, version, correlation_id, size = _HEADER.unpack_from(frame)
    if _HEADER.size + size != at - 1 or frame[at - 1] or version not in REQUESTS:
        return None
    (
        wait, least, most, isolation, session_id, epoch, topics, topic_id, partitions, partition, leader_epoch, offset,
        last_epoch, log_start, partition_most, after, replica_id, replica_epoch, tags,
    ) = _REQUEST.unpack_from(frame, at)  # fmt: skip
    if topics != _ONE or partitions != _ONE or after != _AFTER_PARTITION or tags:
        return None
    try:
        client_id = frame[_HEADER.size : at - 1].decode()
    except UnicodeDecodeError:
        return None
    wanted = FetchPartition(
        partition=partition, current_leader_epoch=leader_epoch, fetch_offset=offset, last_fetched_epoch=last_epoch,
        log_start_offset=log_start, partition_max_bytes=partition_most,
    )  # fmt: skip
    return Header(api_key, version, correlation_id, client_id), FetchRequest(
        replica_state=ReplicaState(replica_id=replica_id, replica_epoch=replica_epoch),
        max_wait_ms=wait, min_bytes=least, max_bytes=most, isolation_level=isolation, session_id=session_id,
        session_epoch=epoch, topics=(FetchTopic(topic_id=_uuid(topic_id), partitions=(wanted,)),),
    )  # fmt: skip


def encode_response(
    correlation_id: int,
    session_id: int,
    topic_id: UUID,
    partition: int,
    *,
    high_watermark: int,
    last_stable_offset: int,
    log_start_offset: int,
    knows_aborted: bool,
    preferred_read_replica: int,
    records: bytes | memoryview | Stored,
) -> Payload:
    """``knows_aborted``: that there are no aborted transactions."""
    head = _RESPONSE.pack(
        correlation_id, 0, 0, ErrorCode.NONE, session_id, _ONE, topic_id.bytes, _ONE, partition, ErrorCode.NONE,
        high_watermark, last_stable_offset, log_start_offset, _EMPTY if knows_aborted else _NULL,
        preferred_read_replica,
    )  # fmt: skip
    head += write_uvarint(len(records) + 1)
    if isinstance(records, Stored):
        return Parts((head, records, _END))
    return b"".join((head, records, _END))


def decode_response(frame: bytes, topic_id: UUID, partition: int) -> tuple[int, FetchResponsePartitionData] | None:
    """Session id and what a follower gets of that partition; None if the response does not have this shape."""
    if len(frame) < _RESPONSE.size + len(_END):
        return None
    (
        _, tags, throttle_ms, error, session_id, topics, topic, partitions, index, code, high_watermark, stable,
        log_start, aborted, preferred,
    ) = _RESPONSE.unpack_from(frame)  # fmt: skip
    if tags or throttle_ms or error or code or topics != _ONE or partitions != _ONE or aborted != _NULL:
        return None
    try:
        size, at = read_uvarint(frame, _RESPONSE.size)
    except (Refuse, IndexError):
        return None
    end = at + size - 1
    if not size or frame[end:] != _END or topic != topic_id.bytes or index != partition:
        return None
    records: Any = memoryview(frame)[at:end]
    return session_id, FetchResponsePartitionData(
        partition_index=index, error_code=code, high_watermark=high_watermark, last_stable_offset=stable,
        log_start_offset=log_start, aborted_transactions=None, preferred_read_replica=preferred,
        records=records,
    )  # fmt: skip
