"""Kafka's framing: an int32 length, then that many bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kce.wire.errors import EncodeError, LimitExceeded, SpeaksTls

#: `socket.request.max.bytes`, Kafka's own default: a longer frame is rejected before it is buffered (rule B1.34)
DEFAULT_MAX_FRAME_BYTES = 104_857_600

_LENGTH = struct.Struct(">i")
#: pieces of a frame below that size are put together: what waits for the rest of a frame takes little more memory
_LARGE_PIECE = 4096
_MAX_LENGTH = 2**31 - 1
#: how alerts and handshakes begin: their type, and the version of TLS 1.0 to 1.3
_TLS = frozenset(kind << 16 | version for kind in (0x15, 0x16) for version in (0x0301, 0x0302, 0x0303, 0x0304))


def frame(payload: bytes) -> bytes:
    """Prefix ``payload`` with its four-byte length. Raises EncodeError if the length does not fit an int32."""
    size = len(payload)
    return (_LENGTH.pack(size) if size <= _MAX_LENGTH else frame_prefix(size)) + payload


def frame_prefix(length: int) -> bytes:
    """The four bytes before a frame of that length. Raises EncodeError if the length does not fit an int32."""
    try:
        return _LENGTH.pack(length)
    except struct.error:
        raise EncodeError(f"a frame holds at most {_MAX_LENGTH} bytes, this one has {length}") from None


def frames(payloads: Sequence[bytes]) -> bytes:
    """Several payloads, each with its length before it. Raises EncodeError."""
    if len(payloads) == 1:
        return frame(payloads[0])
    pieces: list[bytes] = []
    for payload in payloads:
        pieces += frame_prefix(len(payload)), payload
    return b"".join(pieces)


class FrameBuffer:
    """Splits a byte stream into frames.

    Buffers only bytes that were received: a length that a peer announces allocates nothing. Data are copied once, into
    their frame.
    """

    __slots__ = ("_buffer", "_more", "_more_bytes", "_start", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = b""
        self._start = 0
        #: what follows the buffer, in which the next frame does not end
        self._more: list[bytes | bytearray] = []
        self._more_bytes = 0

    def __len__(self) -> int:
        """Buffered bytes."""
        return len(self._buffer) - self._start + self._more_bytes

    def rest(self) -> bytes:
        """The bytes received and not yet handed out."""
        return b"".join((memoryview(self._buffer)[self._start :], *self._more))

    def clear(self) -> None:
        """Forget the bytes received."""
        self._set(b"", 0)

    def _set(self, buffer: bytes, start: int) -> None:
        self._buffer, self._start = buffer, start
        if self._more_bytes:
            self._more, self._more_bytes = [], 0

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        if self._start == len(self._buffer):
            self._buffer, self._start = bytes(data), 0
            return
        more, size = self._more, len(data)
        if size >= _LARGE_PIECE:
            more.append(bytes(data))
        elif more and isinstance(more[-1], bytearray) and len(more[-1]) < _LARGE_PIECE:
            more[-1] += data
        else:
            more.append(bytearray(data))
        self._more_bytes += size

    def receive_frame(self, data: bytes | bytearray) -> bytes | None:
        """``receive_data``, then ``next_frame``. Raises LimitExceeded."""
        size = len(data) - 4
        if size >= 0 and self._start == len(self._buffer):
            (length,) = _LENGTH.unpack_from(data)
            if length == size <= self.max_frame_bytes:  # as most often
                return bytes(data[4:])
        self.receive_data(data)
        return self.next_frame()

    def announced_bytes(self) -> int | None:
        """The length of the next frame; None if more bytes are needed to know it.

        Raises LimitExceeded if the length is negative or above ``max_frame_bytes``; the stream cannot recover from it.
        """
        if len(self._buffer) - self._start < 4:
            if len(self) < 4:
                return None
            self._set(self.rest(), 0)
        (length,) = _LENGTH.unpack_from(self._buffer, self._start)
        if length < 0 or length > self.max_frame_bytes:
            said = f"frame length {length} is outside 0..{self.max_frame_bytes}"
            if length >> 8 in _TLS:
                raise SpeaksTls(f"{said}: these are bytes of TLS, which only one end speaks (security.protocol)")
            raise LimitExceeded(said)
        return int(length)

    def next_frame(self) -> bytes | None:
        """The next complete frame without its length, or None if more bytes are needed. Raises LimitExceeded."""
        if self._start == len(self._buffer):
            return None
        length = self.announced_bytes()
        if length is None:
            return None
        buffer, begin = self._buffer, self._start + 4
        end = begin + length
        if end < len(buffer):
            self._start = end
            return buffer[begin:end]
        more = self._more
        left = len(buffer) + self._more_bytes - end
        if left < 0:
            return None
        if not left:
            payload = b"".join((memoryview(buffer)[begin:], *more)) if more else buffer[begin:]
            self._set(b"", 0)
        elif left < len(more[-1]):  # as always, if frames are taken once they are there
            *whole, last = more
            cut = len(last) - left
            payload = b"".join((memoryview(buffer)[begin:], *whole, memoryview(last)[:cut]))
            self._set(bytes(last), cut)
        else:
            rest = self.rest()
            payload = rest[4 : 4 + length]
            self._set(rest, 4 + length)
        return payload
