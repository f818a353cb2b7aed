"""The response to a Produce request of one partition, without errors: what is answered nearly always.

The bytes are those of `wire.protocol`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from kce.wire.codegen import write_uvarint
from kce.wire.errors import ErrorCode

#: the versions that have this shape
RESPONSES: Final = range(9, 12)
#: in such a response
ERRORS: Final[Mapping[int, int]] = {ErrorCode.NONE: 1}

#: correlation id, no tagged fields, the length of the array plus one
_HEAD: Final = struct.Struct(">iBB")
#: the length of the array plus one; partition; no record errors, no message, no tagged fields of partition and topic;
#: throttle time, no tagged fields
_REST: Final = struct.Struct(">Bihqqq4siB")
_AFTER_PARTITION: Final = bytes((1, 0, 0, 0))
_ONE: Final = 2


def encode_response(
    correlation_id: int, topic: str, partition: int, base_offset: int, log_append_time_ms: int, log_start_offset: int
) -> bytes:
    name = topic.encode()
    return b"".join(
        (
            _HEAD.pack(correlation_id, 0, _ONE),
            write_uvarint(len(name) + 1),
            name,
            _REST.pack(
                _ONE, partition, ErrorCode.NONE, base_offset, log_append_time_ms, log_start_offset, _AFTER_PARTITION,
                0, 0,
            ),
        )
    )  # fmt: skip
