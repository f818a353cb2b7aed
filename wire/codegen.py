"""Generates Python source from a Construct: code shared by the encoders and decoders of `wire.codec`."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from construct import Construct, FormatField, Renamed

from kce.wire.errors import TooManyElements
from kce.wire.java_text import decode_like_java
from kce.wire.payload import octets_or_stored
from kce.wire.primitives import Array, Boolean, TaggedField, TaggedFields, Uuid, octets
from kce.wire.schema import AsStruct
from kce.wire.steps import STEP_MASK, Steps, finish

Append = Callable[[Any], None]
Encode = Callable[[Any, Append], None]
Decode = Callable[..., tuple[Any, int]]


class Encoded(NamedTuple):
    """An array of structures that are already encoded: their number, and their bytes in pieces of any size."""

    elements: int
    pieces: Sequence[bytes]


class Refuse(Exception):
    """Rejected; the reference knows the reason."""


#: what generated code raises for damaged bytes or wrong values
REFUSALS = (Refuse, struct.error, IndexError, ValueError, TypeError, AttributeError, OverflowError)


# called by generated code


def read_uvarint(frame: bytes, at: int) -> tuple[int, int]:
    """(value, next position) of a varint of at most five bytes and 32 bits."""
    first = frame[at]
    if first < 0x80:
        return first, at + 1
    second = frame[at + 1]
    if second < 0x80:
        return first & 0x7F | second << 7, at + 2
    third = frame[at + 2]
    if third < 0x80:
        return first & 0x7F | (second & 0x7F) << 7 | third << 14, at + 3
    value, at = _up_to_35_bits(frame, at)
    if value > 0xFFFFFFFF:
        raise Refuse
    return value, at


def read_uvarint_like_kafka(frame: bytes, at: int) -> tuple[int, int]:
    """As an int of Java: the fifth byte may have more bits than fit."""
    value, at = _up_to_35_bits(frame, at)
    return (value + 2**31) % 2**32 - 2**31, at


def _up_to_35_bits(frame: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise Refuse


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


#: most counts and lengths are short
_SHORT_UVARINTS = tuple(_uvarint(n) for n in range(128))


def write_uvarint(value: int) -> bytes:
    if value < 128:
        return _SHORT_UVARINTS[value]
    return bytes((value & 0x7F | 0x80, value >> 7)) if value < 1 << 14 else _uvarint(value)


_SHORT_NUMBERS: dict[tuple[str, int], struct.Struct] = {}


def numbers(code: str, count: int) -> struct.Struct:
    """The cached Struct of ``count`` numbers."""
    found = _SHORT_NUMBERS.get((code, count))
    if found is None:
        found = struct.Struct(f">{count}{code}")
        if count <= 64:
            _SHORT_NUMBERS[code, count] = found
    return found


def refuse(frame: bytes, at: int, left: int) -> tuple[Any, int]:
    """Decode what the version does not have."""
    raise Refuse


def read_tags(
    frame: bytes, at: int, known: dict[int, tuple[str, Decode]], left: int, like_kafka: bool
) -> tuple[dict[str, Any], tuple[TaggedField, ...], int]:
    """``read_tags_in_steps`` without pauses."""
    return finish(read_tags_in_steps(frame, at, known, left, like_kafka))


def read_tags_in_steps(
    frame: bytes, at: int, known: dict[int, tuple[str, Decode]], left: int, like_kafka: bool
) -> Steps[tuple[dict[str, Any], tuple[TaggedField, ...], int]]:
    """Decode a nonempty tagged-field section: (known values by name, unknown fields, next position).

    ``left``: elements that may still follow in the message. ``like_kafka``: tags come in any order, and known
    ones are as long as their values, whatever is said.
    """
    read = read_uvarint_like_kafka if like_kafka else read_uvarint
    count, at = read(frame, at)
    end = len(frame)
    if count > (end - at) // 2:
        raise Refuse
    if count > left:
        raise TooManyElements(f"{count} tagged fields")
    values: dict[str, Any] = {}
    unknown = []
    last = -1
    for i in range(count):
        if not i & STEP_MASK:
            yield
        tag, at = read(frame, at)
        if tag <= last and not like_kafka:
            raise Refuse
        last = tag
        size, at = read(frame, at)
        if like_kafka and tag in known:
            name, decode = known[tag]
            values[name], at = decode(frame, at, left)
            continue
        if not 0 <= size <= end - at:
            raise Refuse
        data = frame[at : at + size]
        at += size
        if tag in known:
            name, decode = known[tag]
            values[name], used = decode(data, 0, left)
            if used != size:
                raise Refuse
        else:
            unknown.append(TaggedField(tag, data))
    return values, tuple(unknown), at


def write_tags(append: Append, fields: list[TaggedField]) -> None:
    """Encode a nonempty tagged-field section."""
    fields.sort()
    append(write_uvarint(len(fields)))
    last = -1
    for tag, data in fields:
        if tag == last:
            raise Refuse
        last = tag
        append(write_uvarint(tag))
        append(write_uvarint(len(data)))
        append(data)


_NAMES: dict[str, Any] = {
    "Refuse": Refuse, "TaggedField": TaggedField, "TooManyElements": TooManyElements, "UUID": uuid.UUID,
    "numbers": numbers, "octets": octets, "octets_or_stored": octets_or_stored, "read_tags": read_tags,
    "read_tags_in_steps": read_tags_in_steps, "read_uvarint": read_uvarint,
    "read_uvarint_like_kafka": read_uvarint_like_kafka, "Encoded": Encoded,
    "decode_like_java": decode_like_java, "utf8": str.encode, "write_tags": write_tags,
    "write_uvarint": write_uvarint,
}  # fmt: skip


# source code


class Source:
    """Lines of Python, their constants, and unique names for variables."""

    def __init__(self, *, in_steps: bool = False, like_kafka: bool = False) -> None:
        #: whether loops pause, which makes the function a generator (see ``wire.steps``)
        self.in_steps = in_steps
        #: whether is read what only Kafka reads: text that is not UTF-8, negative lengths for null, tags in any order
        self.like_kafka = like_kafka
        self._lines: list[str] = []
        self._names = dict(_NAMES)
        self._indent = 1
        self._fresh = 0

    def __call__(self, line: str) -> None:
        self._lines.append("    " * self._indent + line)

    def fresh(self, stem: str) -> str:
        self._fresh += 1
        return f"{stem}{self._fresh}"

    def constant(self, value: Any, stem: str) -> str:
        name = self.fresh(stem)
        self._names[name] = value
        return name

    def unpack(self, code: str) -> tuple[str, int]:
        """(name of a function(frame, at) -> tuple, number of bytes it reads)."""
        layout = struct.Struct(">" + code)
        return self.constant(layout.unpack_from, "unpack"), layout.size

    def pack(self, code: str) -> str:
        return self.constant(struct.Struct(">" + code).pack, "pack")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """A block: ``head:`` and an indented body."""
        self(head + ":")
        self._indent += 1
        yield
        self._indent -= 1

    def unless_null(self, nullable: bool, test: str, null: str) -> AbstractContextManager[None]:
        """A block for values that are not null. Where ``test`` is true, ``null`` runs instead."""
        if not nullable:
            return nullcontext()
        with self.block(f"if {test}"):
            self(null)
        return self.block("else")

    def function(self, name: str, parameters: str) -> Callable[..., Any]:
        text = "\n".join(self._lines)
        # constants become defaults of parameters: locals are faster than globals
        constants = ", ".join(f"{n}={n}" for n in self._names if n in text)
        names = dict(self._names)
        exec(compile(f"def {name}({parameters}, *, {constants}):\n{text}", f"<{name}>", "exec"), names)  # noqa: S102 - our own tables
        made: Callable[..., Any] = names[name]
        return made


# inspecting a Construct


class Run(NamedTuple):
    """Consecutive fields of fixed size, as (name, Construct)."""

    fields: list[tuple[str, Construct]]

    @property
    def code(self) -> str:
        return "".join(code_of(construct) or "" for _, construct in self.fields)

    @property
    def size(self) -> int:
        """Bytes."""
        return struct.calcsize(">" + self.code)


def code_of(construct: Construct) -> str | None:
    """The struct code of a Construct, or None if it has no fixed size."""
    if isinstance(construct, FormatField):
        return "i" if construct.fmtstr[1] == "l" else str(construct.fmtstr[1])
    if isinstance(construct, Boolean):
        return "?"
    return "16s" if isinstance(construct, Uuid) else None


def is_numbers(construct: Construct) -> bool:
    """Whether it is an array of numbers, which one struct call encodes or decodes."""
    return isinstance(construct, Array) and isinstance(construct.element, FormatField)


def parts_of(construct: AsStruct) -> Iterator[Run | tuple[str, Construct]]:
    """The fields of a structure in order; consecutive fields of fixed size form a Run."""
    run: list[tuple[str, Construct]] = []
    for subcon in construct.subcon.subcons:
        assert isinstance(subcon, Renamed)
        if code_of(subcon.subcon) is not None:
            run.append((subcon.name, subcon.subcon))
            continue
        if run:
            yield Run(run)
            run = []
        yield subcon.name, subcon.subcon
    if run:
        yield Run(run)


def tags_of(construct: AsStruct) -> TaggedFields | None:
    """The tagged-field section, always the last part, or None."""
    for subcon in construct.subcon.subcons[-1:]:
        if isinstance(subcon.subcon, TaggedFields):
            return subcon.subcon
    return None
