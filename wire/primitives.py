"""Kafka's primitive types as Construct classes (KIP-482, rules 13.1 and 13.2).

Each checks lengths and counts against the remaining bytes of the frame before it allocates. They raise ``Refused``, a
ConstructError that carries a WireError class; ``wire.protocol`` raises that.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from construct import Construct, ConstructError, Flag, Float64b, Int8sb, Int16sb, Int16ub, Int32sb, Int64sb, StreamError
from construct.lib import Container

from kce.wire import errors

ZERO_UUID = uuid.UUID(int=0)

#: the largest int16 length; Kafka's generated code limits compact strings to it, too
MAX_STRING_BYTES = 32767

#: for limits on the number of elements: more than any frame holds
UNLIMITED = 1 << 31


class Refused(ConstructError):
    """A value cannot be encoded or decoded. ``kind`` is the WireError class for the caller."""

    def __init__(self, kind: type[errors.WireError], reason: str, path: str) -> None:
        super().__init__(reason, path)
        self.kind = kind
        self.reason = reason
        self.path = path


def explain(e: ConstructError) -> tuple[type[errors.WireError], str, str]:
    """(WireError class, reason, field path such as "a.b[2].c") of a failure."""
    where = ".".join(part for part in (e.path or "").split(" -> ") if part not in ("", "(parsing)", "(building)"))
    where = where or "the start"
    if isinstance(e, Refused):
        return e.kind, e.reason, where
    if isinstance(e, StreamError):
        return errors.Truncated, "the frame ends inside the field", where
    lines = [line for line in str(e).splitlines() if line and not line.startswith("Error in path")]
    return errors.InvalidValue, lines[0] if lines else type(e).__name__, where


def remaining(stream: io.BytesIO) -> int:
    """Bytes left in the stream."""
    return stream.getbuffer().nbytes - stream.tell()


def take(stream: io.BytesIO, count: int, path: str) -> bytes:
    """Read exactly ``count`` bytes. Refuses with Truncated if there are fewer."""
    left = remaining(stream)
    if count > left:
        raise Refused(errors.Truncated, f"{count} bytes announced, {left} left", path)
    return stream.read(count)


class UnsignedVarint(Construct):
    """An unsigned 32-bit varint: little-endian groups of seven bits, at most five bytes."""

    def _parse(self, stream: io.BytesIO, context: Container, path: str) -> int:
        value = shift = 0
        while True:
            byte = take(stream, 1, path)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise Refused(errors.InvalidValue, "varint longer than 5 bytes", path)
        if value > 0xFFFFFFFF:
            raise Refused(errors.InvalidValue, "varint larger than 32 bits", path)
        return value

    def _build(self, obj: int, stream: io.BytesIO, context: Container, path: str) -> int:
        value = obj
        while value > 0x7F:
            stream.write(bytes((value & 0x7F | 0x80,)))
            value >>= 7
        stream.write(bytes((value,)))
        return obj


UVARINT = UnsignedVarint()


class Length(Construct):
    """A length or count: ``fixed`` width (-1 is null) or compact (n + 1; 0 is null). Null parses to None."""

    def __init__(self, fixed: Construct, *, compact: bool, nullable: bool) -> None:
        super().__init__()
        self.fixed = fixed
        self.compact = compact
        self.nullable = nullable

    def _parse(self, stream: io.BytesIO, context: Container, path: str) -> int | None:
        if self.compact:
            length = UVARINT._parse(stream, context, path) - 1
        else:
            length = self.fixed._parsereport(stream, context, path)
        if length == -1:
            if not self.nullable:
                raise Refused(errors.InvalidValue, "null, and the field is not nullable in this version", path)
            return None
        if length < 0:
            raise Refused(errors.LimitExceeded, f"negative length {length}", path)
        return int(length)

    def _build(self, obj: int | None, stream: io.BytesIO, context: Container, path: str) -> int | None:
        if obj is None and not self.nullable:
            raise Refused(errors.EncodeError, "None, and the field is not nullable in this version", path)
        if self.compact:
            UVARINT._build(0 if obj is None else obj + 1, stream, context, path)
        else:
            self.fixed._build(-1 if obj is None else obj, stream, context, path)
        return obj


class String(Construct):
    """UTF-8 text with its length in bytes (int16 or compact) before it."""

    def __init__(self, *, compact: bool, nullable: bool) -> None:
        super().__init__()
        self.length = Length(Int16sb, compact=compact, nullable=nullable)

    def _parse(self, stream: io.BytesIO, context: Container, path: str) -> str | None:
        length = self.length._parse(stream, context, path)
        if length is None:
            return None
        if length > MAX_STRING_BYTES:
            raise Refused(errors.LimitExceeded, f"string of {length} bytes, at most {MAX_STRING_BYTES}", path)
        data = take(stream, length, path)
        try:
            return data.decode()
        except UnicodeDecodeError as e:
            raise Refused(errors.InvalidValue, f"not UTF-8: {e.reason} at byte {e.start}", path) from None

    def _build(self, obj: str | None, stream: io.BytesIO, context: Container, path: str) -> str | None:
        if obj is None:
            self.length._build(None, stream, context, path)
            return None
        if not isinstance(obj, str):
            raise Refused(errors.EncodeError, f"str expected, not {type(obj).__name__}", path)
        try:
            data = obj.encode()
        except UnicodeEncodeError as e:
            raise Refused(errors.EncodeError, f"not encodable as UTF-8: {e.reason}", path) from None
        if len(data) > MAX_STRING_BYTES:
            raise Refused(errors.EncodeError, f"string of {len(data)} bytes, at most {MAX_STRING_BYTES}", path)
        self.length._build(len(data), stream, context, path)
        stream.write(data)
        return obj


def octets(value: Any) -> bytes | bytearray | memoryview:
    """A bytes-like ``value`` for which len() counts bytes. Raises TypeError."""
    if isinstance(value, (bytes, bytearray)):
        return value
    if isinstance(value, memoryview):
        return value.cast("B")
    raise TypeError(f"bytes expected, not {type(value).__name__}")


class Bytes(Construct):
    """Bytes with their length (int32 or compact) before them."""

    def __init__(self, *, compact: bool, nullable: bool) -> None:
        super().__init__()
        self.length = Length(Int32sb, compact=compact, nullable=nullable)

    def _parse(self, stream: io.BytesIO, context: Container, path: str) -> bytes | None:
        length = self.length._parse(stream, context, path)
        return None if length is None else take(stream, length, path)

    def _build(self, obj: bytes | None, stream: io.BytesIO, context: Container, path: str) -> bytes | None:
        if obj is None:
            self.length._build(None, stream, context, path)
            return None
        try:
            data = octets(obj)
        except TypeError as e:
            raise Refused(errors.EncodeError, str(e), path) from None
        self.length._build(len(data), stream, context, path)
        stream.write(data)
        return obj


class Records(Bytes):
    """A record set, as undecoded bytes (``wire.records`` decodes it)."""


class Uuid(Construct):
    """Sixteen bytes; Kafka's null id is all zeros."""

    def _parse(self, stream: io.BytesIO, context: Container, path: str) -> uuid.UUID:
        return uuid.UUID(bytes=take(stream, 16, path))

    def _build(self, obj: uuid.UUID, stream: io.BytesIO, context: Container, path: str) -> uuid.UUID:
        if not isinstance(obj, uuid.UUID):
            raise Refused(errors.EncodeError, f"uuid.UUID expected, not {type(obj).__name__}", path)
        stream.write(obj.bytes)
        return obj


class Array(Construct):
    """A tuple of elements with their count (int32 or compact) before them.

    ``element_min_bytes`` is the minimum size of an element: a count that cannot fit into the rest of the frame is
    rejected before the first element is decoded.
    """

    def __init__(self, element: Construct, element_min_bytes: int, *, compact: bool, nullable: bool) -> None:
        super().__init__()
        self.element = element
        self.element_min_bytes = element_min_bytes
        self.count = Length(Int32sb, compact=compact, nullable=nullable)

    def _parse(self, stream: io.BytesIO, context: Container, path: str) -> tuple[Any, ...] | None:
        count = self.count._parse(stream, context, path)
        if count is None:
            return None
        most = remaining(stream) // self.element_min_bytes
        if count > most:
            raise Refused(errors.LimitExceeded, f"{count} elements announced, at most {most} can follow", path)
        element = self.element
        return tuple(element._parsereport(stream, context, f"{path}[{i}]") for i in range(count))

    def _build(self, obj: Sequence[Any] | None, stream: io.BytesIO, context: Container, path: str) -> Any:
        if obj is not None and not isinstance(obj, (tuple, list)):
            raise Refused(errors.EncodeError, f"tuple expected, not {type(obj).__name__}", path)
        self.count._build(None if obj is None else len(obj), stream, context, path)
        for i, element in enumerate(obj or ()):
            self.element._build(element, stream, context, f"{path}[{i}]")
        return obj


class NullableStruct(Construct):
    """A byte, 1 followed by a structure, or -1 for null (KIP-893)."""

    def __init__(self, subcon: Construct) -> None:
        super().__init__()
        self.subcon = subcon

    def _parse(self, stream: io.BytesIO, context: Container, path: str) -> Any:
        # as in Kafka: any negative byte is null
        if Int8sb._parsereport(stream, context, path) < 0:
            return None
        return self.subcon._parsereport(stream, context, path)

    def _build(self, obj: Any, stream: io.BytesIO, context: Container, path: str) -> Any:
        Int8sb._build(-1 if obj is None else 1, stream, context, path)
        if obj is not None:
            self.subcon._build(obj, stream, context, path)
        return obj


class TaggedField(NamedTuple):
    """A tagged field that is not in this version's definition, undecoded."""

    tag: int
    data: bytes


class TaggedFields(Construct):
    """The tagged-field section of a flexible structure (KIP-482).

    Parses to {name: value} for known tags plus ``UNKNOWN`` for the others, and builds from the same. Tags ascend
    strictly, and each field has exactly the announced size. Tags of ``other_versions`` are refused, as by Kafka.
    """

    UNKNOWN = "unknown_tagged_fields"

    def __init__(self, known: dict[int, tuple[str, Construct]], other_versions: Collection[int] = ()) -> None:
        super().__init__()
        self.known = known
        self.other_versions = other_versions

    def _parse(self, stream: io.BytesIO, context: Container, path: str) -> dict[str, Any]:
        count = UVARINT._parse(stream, context, path)
        most = remaining(stream) // 2
        if count > most:
            raise Refused(errors.LimitExceeded, f"{count} tagged fields announced, at most {most} can follow", path)
        values: dict[str, Any] = {}
        unknown: list[TaggedField] = []
        last = -1
        for _ in range(count):
            tag = UVARINT._parse(stream, context, path)
            if tag <= last:
                raise Refused(errors.InvalidValue, f"tag {tag} follows tag {last}", path)
            last = tag
            data = take(stream, UVARINT._parse(stream, context, path), path)
            if tag in self.other_versions:
                raise Refused(errors.InvalidValue, f"tag {tag} is of another version", path)
            if tag not in self.known:
                unknown.append(TaggedField(tag, data))
                continue
            name, subcon = self.known[tag]
            inner = io.BytesIO(data)
            values[name] = subcon._parsereport(inner, context, f"{path} -> {name}")
            if left := remaining(inner):
                raise Refused(
                    errors.TrailingBytes, f"{left} bytes left over in tagged field {tag}", f"{path} -> {name}"
                )
        values[self.UNKNOWN] = tuple(unknown)
        return values

    def _build(self, obj: dict[str, Any], stream: io.BytesIO, context: Container, path: str) -> dict[str, Any]:
        fields = list(obj[self.UNKNOWN])
        for tag, (name, subcon) in self.known.items():
            if name in obj:
                inner = io.BytesIO()
                subcon._build(obj[name], inner, context, f"{path} -> {name}")
                fields.append(TaggedField(tag, inner.getvalue()))
        fields.sort()
        if len({field.tag for field in fields}) < len(fields):
            raise Refused(errors.EncodeError, "the same tag twice", path)
        UVARINT._build(len(fields), stream, context, path)
        for tag, data in fields:
            UVARINT._build(tag, stream, context, path)
            UVARINT._build(len(data), stream, context, path)
            stream.write(data)
        return obj


class Primitive(NamedTuple):
    """One of Kafka's primitive types: name, zero value, minimum size in bytes, Construct."""

    name: str
    zero: Any
    min_bytes: int
    construct: Construct | None = None  # None: `construct_for` makes one per version

    def construct_for(self, *, compact: bool, nullable: bool) -> Construct:
        if self.construct is not None:
            return self.construct
        kind = {"string": String, "bytes": Bytes, "records": Records}[self.name]
        return kind(compact=compact, nullable=nullable)


class Boolean(Construct):
    """One byte; any nonzero value is true, as in Kafka."""

    def _parse(self, stream: io.BytesIO, context: Container, path: str) -> bool:
        return bool(Flag._parsereport(stream, context, path))

    def _build(self, obj: bool, stream: io.BytesIO, context: Container, path: str) -> bool:
        if not isinstance(obj, bool):
            raise Refused(errors.EncodeError, f"bool expected, not {type(obj).__name__}", path)
        Flag._build(obj, stream, context, path)
        return obj


BOOL = Primitive("bool", False, 1, Boolean())
INT8 = Primitive("int8", 0, 1, Int8sb)
INT16 = Primitive("int16", 0, 2, Int16sb)
UINT16 = Primitive("uint16", 0, 2, Int16ub)
INT32 = Primitive("int32", 0, 4, Int32sb)
INT64 = Primitive("int64", 0, 8, Int64sb)
FLOAT64 = Primitive("float64", 0.0, 8, Float64b)
UUID = Primitive("uuid", ZERO_UUID, 16, Uuid())
STRING = Primitive("string", "", 1)
BYTES = Primitive("bytes", b"", 1)
RECORDS = Primitive("records", None, 1)
