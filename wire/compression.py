"""The five codecs of record batches, with an upper bound on decompressed bytes.

Allocations follow the bytes that are really decompressed, not the size that the compressed data announces.
"""

from __future__ import annotations

import gzip
import struct
import zlib

import cramjam

from kce.wire import errors, lz4_frame
from kce.wire.record import UNCOMPRESSED, Codec

#: Default limit of a decompressed record set: that of a frame (`socket.request.max.bytes`, rule B1.34).
MAX_DECOMPRESSED_BYTES = 104_857_600

#: snappy-java's framing: magic, version, oldest compatible version, then blocks with their lengths before them.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_INT32 = struct.Struct(">i")
#: snappy encodes a copy of 64 bytes in three: no block expands further
_SNAPPY_MAX_RATIO = 22

_ZSTD_FIRST_BYTES = 64 * 1024
#: cramjam's only sign that the output buffer is too small
_BUFFER_FULL = "failed to write whole buffer"


def compress(codec: Codec, data: bytes, *, magic: int = 2) -> bytes:
    """Compress the records of a batch of that magic. Raises EncodeError for zstd in magic 0 and 1 (KIP-110)."""
    if codec is UNCOMPRESSED:
        return data
    match codec:
        case Codec.GZIP:
            return gzip.compress(data, mtime=0)
        case Codec.SNAPPY:
            blocks = [data[at : at + _XERIAL_BLOCK_BYTES] for at in range(0, len(data), _XERIAL_BLOCK_BYTES)]
            packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
            return _XERIAL_HEADER + b"".join(_INT32.pack(len(block)) + block for block in packed)
        case Codec.LZ4:
            return lz4_frame.compress(data, broken_checksum=magic == 0)
        case Codec.ZSTD:
            if magic < 2:
                raise errors.EncodeError(f"magic {magic} has no zstd")
            return bytes(cramjam.zstd.compress(data))


def decompress(codec: Codec, data: memoryview, max_bytes: int, *, magic: int = 2) -> bytes | memoryview:
    """Decompress the records of a batch, at most ``max_bytes``. Raises CorruptRecord, LimitExceeded."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return _gunzip(data, max_bytes)
        case Codec.SNAPPY:
            return _unsnap(data, max_bytes)
        case Codec.LZ4:
            return lz4_frame.decompress(data, max_bytes, ignore_header_checksum=magic == 0)
        case Codec.ZSTD:
            if magic < 2:
                raise errors.CorruptRecord(f"magic {magic} has no zstd")
            return _unzstd(data, max_bytes)


def _too_much(codec: str, max_bytes: int, data: memoryview) -> errors.LimitExceeded:
    return errors.LimitExceeded(f"{codec}: {len(data)} bytes decompress to more than {max_bytes}")


def _gunzip(data: memoryview, max_bytes: int) -> bytes:
    """Decompress all members, as Java's GZIPInputStream does."""
    out: list[bytes] = []
    room, rest = max_bytes, bytes(data)
    while rest or not out:
        member = zlib.decompressobj(wbits=31)
        try:
            plain = member.decompress(rest, room + 1)
        except zlib.error as e:
            raise errors.CorruptRecord(f"gzip: {e}") from None
        if len(plain) > room:
            raise _too_much("gzip", max_bytes, data)
        if not member.eof:
            raise errors.CorruptRecord("gzip: the data ends before its trailer")
        room -= len(plain)
        out.append(plain)
        rest = member.unused_data
    return b"".join(out)


def _unsnap(data: memoryview, max_bytes: int) -> bytes:
    """Decompress snappy-java's framing, or a single raw block, which other clients send and Kafka accepts."""
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _unsnap_block(data, max_bytes, max_bytes, data)
    out: list[bytes] = []
    at, room = len(_XERIAL_HEADER), max_bytes
    if len(data) < at:
        raise errors.CorruptRecord("snappy: the data ends inside its header")
    while at < len(data):
        if data[at : at + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:  # streams may be concatenated
            at += len(_XERIAL_HEADER)
            continue
        size = _INT32.unpack_from(data, at)[0] if at + 4 <= len(data) else -1
        at += 4
        if not 0 <= size <= len(data) - at:
            raise errors.CorruptRecord(f"snappy: a block of {size} bytes at byte {at}, {len(data) - at} are left")
        plain = _unsnap_block(data[at : at + size], room, max_bytes, data)
        out.append(plain)
        room -= len(plain)
        at += size
    return b"".join(out)


def _unsnap_block(block: memoryview, room: int, max_bytes: int, data: memoryview) -> bytes:
    try:
        announced = cramjam.snappy.decompress_raw_len(block)
        if announced > _SNAPPY_MAX_RATIO * len(block):
            raise errors.CorruptRecord(f"snappy: {announced} bytes announced by a block of {len(block)}")
        if announced > room:
            raise _too_much("snappy", max_bytes, data)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as e:
        raise errors.CorruptRecord(f"snappy: {e}") from None


def _unzstd(data: memoryview, max_bytes: int) -> bytes:
    """Decompress into a buffer that grows fourfold when it is full."""
    size = min(max_bytes, max(_ZSTD_FIRST_BYTES, 4 * len(data)))
    while True:
        buffer = bytearray(size)
        try:
            written = cramjam.zstd.decompress_into(data, buffer)
        except cramjam.DecompressionError as e:
            if _BUFFER_FULL not in str(e):
                raise errors.CorruptRecord(f"zstd: {e}") from None
        else:
            return bytes(memoryview(buffer)[:written])
        if size >= max_bytes:
            raise _too_much("zstd", max_bytes, data)
        size = min(max_bytes, 4 * size)
