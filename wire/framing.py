"""Kafka's framing: an int32 length, then that many bytes."""

from __future__ import annotations

import struct

from kce.wire.errors import EncodeError, LimitExceeded

#: `socket.request.max.bytes`, Kafka's own default: a longer frame is rejected before it is buffered (rule B1.34)
DEFAULT_MAX_FRAME_BYTES = 104_857_600

_LENGTH = struct.Struct(">i")
_MAX_LENGTH = 2**31 - 1


def frame(payload: bytes) -> bytes:
    """Prefix ``payload`` with its four-byte length. Raises EncodeError if the length does not fit an int32."""
    if len(payload) > _MAX_LENGTH:
        raise EncodeError(f"a frame holds at most {_MAX_LENGTH} bytes, this one has {len(payload)}")
    return _LENGTH.pack(len(payload)) + payload


class FrameBuffer:
    """Splits a byte stream into frames.

    Buffers only bytes that were received: a length that a peer announces allocates nothing.
    """

    def __init__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._start = 0

    def __len__(self) -> int:
        """Buffered bytes."""
        return len(self._buffer) - self._start

    def rest(self) -> bytes:
        """The bytes received and not yet handed out."""
        return bytes(memoryview(self._buffer)[self._start :])

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """The next complete frame without its length, or None if more bytes are needed.

        Raises LimitExceeded if the length is negative or above ``max_frame_bytes``; the stream cannot recover from it.
        """
        available = len(self)
        if available < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._start)
        if length < 0 or length > self.max_frame_bytes:
            raise LimitExceeded(f"frame length {length} is outside 0..{self.max_frame_bytes}")
        if available < _LENGTH.size + length:
            return None
        begin = self._start + _LENGTH.size
        payload = bytes(memoryview(self._buffer)[begin : begin + length])
        self._start = begin + length
        if self._start == len(self._buffer):
            self._buffer.clear()
            self._start = 0
        elif self._start > 65536:
            del self._buffer[: self._start]
            self._start = 0
        return payload
