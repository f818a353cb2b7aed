"""The bytes of a leader node: Java's ObjectOutputStream after writeUTF(address), writeObject(session id).

The reader knows only this grammar, not deserialization in general. It accepts what Java accepts: blocks of any size,
reset marks, fields of the class in any order, further primitive fields, and anything after the object. It refuses what
Java refuses, with the offset. No length in the bytes sizes an allocation. Rules E2.1-E2.12.
"""

from __future__ import annotations

import struct
from uuid import UUID

MAGIC = b"\xac\xed\x00\x05"
MAX_UTF = 0xFFFF
_BLOCK, _LONG_BLOCK, _RESET = 0x77, 0x7A, 0x79
_OBJECT, _CLASS_DESC, _NULL, _END_BLOCK = 0x73, 0x72, 0x70, 0x78
_MAX_BLOCK = 1024
_SERIALIZABLE = 0x02
_UUID_CLASS = b"java.util.UUID"
_UUID_SERIAL_VERSION = bytes.fromhex("bc9903f7986d852f")
_PRIMITIVE_SIZES = {ord(c): size for c, size in zip("BCDFIJSZ", (1, 2, 8, 4, 4, 8, 2, 1), strict=True)}
_LEAST, _MOST = "leastSigBits", "mostSigBits"


def _utf(text: bytes) -> bytes:
    return struct.pack(">H", len(text)) + text


_UUID_DESCRIPTOR = (
    bytes([_OBJECT, _CLASS_DESC]) + _utf(_UUID_CLASS) + _UUID_SERIAL_VERSION + struct.pack(">BH", _SERIALIZABLE, 2)
    + b"J" + _utf(_LEAST.encode()) + b"J" + _utf(_MOST.encode()) + bytes([_END_BLOCK, _NULL])
)  # fmt: skip


class LeaderNodeFormatError(ValueError):
    """Malformed content of a leader node, detected at ``offset``."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(f"leader node, offset {offset}: {problem}")
        self.offset = offset


def encode_leader_node(address: str, session_id: UUID) -> bytes:
    """84 bytes and the address (rule E2.6). Raises ValueError for an address of more than 65,535 encoded bytes."""
    text = _to_modified_utf8(address)
    if len(text) > MAX_UTF:
        raise ValueError(f"the leader's address takes {len(text)} bytes, more than the {MAX_UTF} that Java can write")
    parts = [MAGIC]
    payload = _utf(text)
    for start in range(0, len(payload), _MAX_BLOCK):  # E2.3
        block = payload[start : start + _MAX_BLOCK]
        short = len(block) <= 0xFF
        parts += [
            struct.pack(">BB", _BLOCK, len(block)) if short else struct.pack(">BI", _LONG_BLOCK, len(block)),
            block,
        ]
    # [!] the least significant half comes first (E2.5)
    return b"".join([*parts, _UUID_DESCRIPTOR, session_id.bytes[8:], session_id.bytes[:8]])


def decode_leader_node(data: bytes) -> tuple[str, UUID | None]:
    """Address and session id, None for a null. Raises LeaderNodeFormatError.

    Callers handle empty data, which means that there is no leader (rule E2.9).
    """
    reader = _Reader(data)
    reader.expect(MAGIC, "stream header")
    return reader.address(), reader.uuid()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._block_left = 0

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) < count:
            raise LeaderNodeFormatError(len(self._data), f"ends {count - len(taken)} bytes too early")
        self._at += count
        return taken

    def _int(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._take(size), signed=signed)

    def expect(self, wanted: bytes, what: str) -> None:
        at = self._at
        found = self._take(len(wanted))
        if found != wanted:
            raise LeaderNodeFormatError(at, f"{what} is {found.hex()}, not {wanted.hex()}")

    # block data: the address

    def address(self) -> str:
        at = self._at
        text = self._block_bytes(int.from_bytes(self._block_bytes(2)))
        address = _from_modified_utf8(text, at)
        if self._block_left:
            raise LeaderNodeFormatError(self._at, f"{self._block_left} bytes are left in the block of the address")
        return address

    def _block_bytes(self, count: int) -> bytes:
        parts = []
        while count:
            while not self._block_left:
                self._next_block()
            part = self._take(min(count, self._block_left))
            self._block_left -= len(part)
            count -= len(part)
            parts.append(part)
        return b"".join(parts)

    def _next_block(self) -> None:
        at = self._at
        kind = self._int(1)
        if kind == _BLOCK:
            self._block_left = self._int(1)
        elif kind == _LONG_BLOCK:
            self._block_left = self._int(4, signed=True)
            if self._block_left < 0:
                raise LeaderNodeFormatError(at, f"a block of {self._block_left} bytes")
        elif kind != _RESET:
            raise LeaderNodeFormatError(at, f"{kind:#04x} where the block of the address goes on")

    # the object: the session id

    def uuid(self) -> UUID | None:
        while True:
            at = self._at
            kind = self._int(1)
            if kind == _NULL:
                return None
            if kind == _OBJECT:
                break
            if kind != _RESET:
                raise LeaderNodeFormatError(at, f"{kind:#04x} where the session id must be")
        self.expect(bytes([_CLASS_DESC]), "class descriptor")
        self.expect(_utf(_UUID_CLASS), "class name")
        self.expect(_UUID_SERIAL_VERSION, "serialVersionUID of java.util.UUID")
        self.expect(bytes([_SERIALIZABLE]), "class flags")
        fields = self._fields()
        self.expect(bytes([_END_BLOCK]), "end of the class")
        self.expect(bytes([_NULL]), "superclass")
        values = {name: self._take(size) for name, size in fields}
        missing = bytes(8)
        return UUID(bytes=values.get(_MOST, missing) + values.get(_LEAST, missing))

    def _fields(self) -> list[tuple[str, int]]:
        fields = []
        for _ in range(self._int(2, signed=True)):
            at = self._at
            kind = self._int(1)
            name = _from_modified_utf8(self._take(self._int(2)), at)
            size = _PRIMITIVE_SIZES.get(kind)
            if size is None or (name in (_LEAST, _MOST) and kind != ord("J")):
                raise LeaderNodeFormatError(at, f"field {name!r} of type {chr(kind)!r} in java.util.UUID")
            fields.append((name, size))
        return fields


def _to_modified_utf8(text: str) -> bytes:
    """UTF-8 of each UTF-16 code unit by itself, and two bytes for NUL (rule E2.4)."""
    if text.isascii() and "\0" not in text:
        return text.encode()
    units = struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass"))
    return b"".join(b"\xc0\x80" if u == 0 else chr(u).encode("utf-8", "surrogatepass") for (u,) in units)


def _from_modified_utf8(text: bytes, at: int) -> str:
    """Decode as Java does: accept overlong forms and lone surrogates, refuse four-byte forms."""
    units = []
    i = 0
    while i < len(text):
        first = text[i]
        more = 0 if first < 0x80 else 1 if first >> 5 == 0b110 else 2 if first >> 4 == 0b1110 else -1
        rest = text[i + 1 : i + 1 + max(more, 0)]
        if more < 0 or len(rest) < more or any(b >> 6 != 0b10 for b in rest):
            raise LeaderNodeFormatError(at, f"byte {i} of a text is no modified UTF-8: {text[i : i + 3].hex()}")
        unit = first & (0x7F, 0x1F, 0x0F)[more]
        for b in rest:
            unit = unit << 6 | b & 0x3F
        units.append(unit)
        i += 1 + more
    return struct.pack(f">{len(units)}H", *units).decode("utf-16-be", "surrogatepass")
