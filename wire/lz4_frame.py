"""LZ4 frames, encoded as Kafka's Java clients do, and decoded from them and from librdkafka.

cramjam's own frames do not do: they link blocks, which Java cannot read, and it rejects frames of magic 0, whose header
checksum covers the frame's magic number (KAFKA-3160). This module handles frames, cramjam handles blocks.
"""

from __future__ import annotations

import struct

import cramjam

from kce.wire import errors

_MAGIC = b"\x04\x22\x4d\x18"
_INT32 = struct.Struct("<I")
_VERSION_MASK, _VERSION_1 = 0xC0, 0x40
_INDEPENDENT, _BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM, _RESERVED = 0x20, 0x10, 0x08, 0x04, 0x03
_BLOCK_BYTES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_STORED = 0x80000000
#: no LZ4 block expands further
_MAX_RATIO = 255

_P1, _P2, _P3, _P4, _P5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
_M32 = 0xFFFFFFFF


def xxh32(data: bytes | memoryview) -> int:
    """The 32-bit xxHash of ``data`` with seed 0. Only frames with block checksums hash more than a few bytes."""

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> (32 - bits)) & _M32

    at, size = 0, len(data)
    if size >= 16:
        lanes = [(_P1 + _P2) & _M32, _P2, 0, -_P1 & _M32]
        words = memoryview(data)[: size & ~15].cast("B")
        for i, (word,) in enumerate(_INT32.iter_unpack(words)):
            lanes[i & 3] = rotated((lanes[i & 3] + word * _P2) & _M32, 13) * _P1 & _M32
        at = size & ~15
        value = sum(rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _M32
    else:
        value = _P5
    value = (value + size) & _M32
    while at + 4 <= size:
        value = rotated((value + _INT32.unpack_from(data, at)[0] * _P3) & _M32, 17) * _P4 & _M32
        at += 4
    for byte in data[at:]:
        value = rotated((value + byte * _P5) & _M32, 11) * _P1 & _M32
    value = (value ^ value >> 15) * _P2 & _M32
    value = (value ^ value >> 13) * _P3 & _M32
    return value ^ value >> 16


def compress(data: bytes, *, broken_checksum: bool = False) -> bytes:
    """A frame of independent 64 kB blocks. ``broken_checksum``: the header checksum of magic 0."""
    descriptor = bytes((_VERSION_1 | _INDEPENDENT, 4 << 4))
    out = [_MAGIC, descriptor, _header_checksum(descriptor, broken=broken_checksum)]
    view = memoryview(data)
    for at in range(0, len(data), _BLOCK_BYTES[4]):
        plain = view[at : at + _BLOCK_BYTES[4]]
        packed = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(packed) < len(plain):
            out += [_INT32.pack(len(packed)), packed]
        else:
            out += [_INT32.pack(len(plain) | _STORED), bytes(plain)]
    out.append(_INT32.pack(0))
    return b"".join(out)


def decompress(data: memoryview, max_bytes: int, *, ignore_header_checksum: bool = False) -> bytes:
    """Decompress a frame. As in Java, block checksums are verified, the content checksum is not.

    Raises CorruptRecord; LimitExceeded above ``max_bytes``.
    """
    block_bytes, flags, at = _read_header(data, ignore_header_checksum)
    blocks: list[bytes] = []
    total = 0
    while True:
        if at + 4 > len(data):
            raise errors.CorruptRecord(f"lz4: the frame ends before its end mark, at byte {at}")
        (size,) = _INT32.unpack_from(data, at)
        at += 4
        if size == 0:
            return b"".join(blocks)
        stored, size = size & _STORED, size & ~_STORED
        block = data[at : at + size]
        if len(block) < size or size > block_bytes:
            raise errors.CorruptRecord(f"lz4: a block of {size} bytes at byte {at}, {len(block)} are left")
        at += size
        if flags & _BLOCK_CHECKSUM:
            if at + 4 > len(data) or _INT32.unpack_from(data, at)[0] != xxh32(block):
                raise errors.CorruptRecord(f"lz4: the checksum of the block before byte {at} is wrong")
            at += 4
        plain = bytes(block) if stored else _block(block, min(block_bytes, _MAX_RATIO * size))
        total += len(plain)
        if total > max_bytes:
            raise errors.LimitExceeded(f"lz4: {len(data)} bytes decompress to more than {max_bytes}")
        blocks.append(plain)


def _block(block: memoryview, most: int) -> bytes:
    buffer = bytearray(most)
    try:
        written = cramjam.lz4.decompress_block_into(block, buffer, output_len=most)
    except cramjam.DecompressionError as e:
        raise errors.CorruptRecord(f"lz4: {e}") from None
    return bytes(memoryview(buffer)[:written])


def _read_header(data: memoryview, ignore_checksum: bool) -> tuple[int, int, int]:
    """(maximum block size, flags, offset of the first block)."""
    if data[:4] != _MAGIC or len(data) < 7:
        raise errors.CorruptRecord("lz4: not a frame")
    flags, block_descriptor = data[4], data[5]
    if flags & _VERSION_MASK != _VERSION_1 or flags & _RESERVED or block_descriptor & 0x8F:
        raise errors.CorruptRecord(f"lz4: invalid flags {flags:#04x} {block_descriptor:#04x} for a frame of version 1")
    if not flags & _INDEPENDENT:
        raise errors.CorruptRecord("lz4: linked blocks, which Kafka does not support")
    block_bytes = _BLOCK_BYTES.get(block_descriptor >> 4)
    if block_bytes is None:
        raise errors.CorruptRecord(f"lz4: invalid block size {block_descriptor >> 4}")
    end = 14 if flags & _CONTENT_SIZE else 6
    if len(data) <= end:
        raise errors.CorruptRecord("lz4: the frame ends inside its header")
    if not ignore_checksum and data[end : end + 1] != _header_checksum(data[4:end], broken=False):
        raise errors.CorruptRecord("lz4: the checksum of the frame's header is wrong")
    return block_bytes, flags, end + 1


def _header_checksum(descriptor: bytes | memoryview, *, broken: bool) -> bytes:
    return bytes((xxh32(_MAGIC + bytes(descriptor) if broken else descriptor) >> 8 & 0xFF,))
