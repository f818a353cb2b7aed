"""The response to a Produce request whose records were all appended: what is answered nearly always.

The bytes are those of `wire.protocol`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, TypeAlias

from kce.wire.codegen import write_uvarint
from kce.wire.errors import NO_ERROR

#: the versions that have this shape
RESPONSES: Final = range(9, 12)
#: partitions, so that one byte counts them
MOST: Final = 126

#: topic, partition, base offset, log append time in ms, log start offset
Appended: TypeAlias = tuple[str, int, int, int, int]

#: correlation id, no tagged fields, the length of the array plus one
_HEAD: Final = struct.Struct(">iBB")
#: number, error code, offsets and time; no record errors, no message, no tagged fields
_PARTITION: Final = struct.Struct(">ihqqq3s")
_AFTER_PARTITION: Final = bytes((1, 0, 0))
_NO_TAGGED_FIELDS: Final = b"\0"
#: throttle time, no tagged fields
_END: Final = bytes(5)


def encode_response(correlation_id: int, appended: Iterable[Appended]) -> bytes:
    """``appended``: at most ``MOST``."""
    topics: dict[str, list[bytes]] = {}
    for topic, partition, base_offset, log_append_time_ms, log_start_offset in appended:
        made = _PARTITION.pack(partition, NO_ERROR, base_offset, log_append_time_ms, log_start_offset, _AFTER_PARTITION)
        if topic in topics:
            topics[topic].append(made)
        else:
            topics[topic] = [made]
    parts = [_HEAD.pack(correlation_id, 0, len(topics) + 1)]
    for topic, partitions in topics.items():
        name = topic.encode()
        parts += (
            write_uvarint(len(name) + 1), name, bytes((len(partitions) + 1,)), *partitions, _NO_TAGGED_FIELDS
        )  # fmt: skip
    parts.append(_END)
    return b"".join(parts)
