"""The fast path: Python source generated from a Construct, one encoder and one decoder per structure and version.

`wire.schema.struct_for` is the definition and the reference (the slow path). `codec_for` generates code from that
Construct: a run of fixed-size fields is one struct call, an array of numbers is one call, records are memoryviews of
the frame, and long arrays of structures with the same layout use a loop specialised for that layout.

    codegen    source code shared by both directions      layouts    loops for partition states and the like

Both engines produce the same bytes and values, and reject the same input. The fast path checks every bound before it
slices or loops, but reports no reason: it raises one of ``REFUSALS``, and the caller repeats the call on the reference,
which raises an error with field path and offset.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import zip_longest
from typing import Any, NamedTuple

from construct import Construct

from kce.wire.codegen import REFUSALS, Decode, Encode, Run, Source, code_of, is_numbers, parts_of, refuse, tags_of
from kce.wire.layouts import decode_run, encode_run
from kce.wire.primitives import (
    MAX_STRING_BYTES,
    UNLIMITED,
    Array,
    Boolean,
    Bytes,
    Length,
    NullableStruct,
    Records,
    String,
    Uuid,
)
from kce.wire.schema import AsStruct, Struct, struct_for, twin
from kce.wire.steps import STEP_MASK, Steps

__all__ = ["REFUSALS", "Codec", "codec_for", "step_decoder_for"]

DecodeInSteps = Callable[..., Steps[tuple[Any, int]]]

#: elements that the general code handles before it tries a specialised loop again
GENERAL_STRETCH = 32
#: elements that a specialised loop handles between two pauses
RUN_STEP = 1024


class Codec(NamedTuple):
    """``encode(value, append)`` appends bytes. ``decode(frame, at, max_elements)`` returns (value, next position).

    ``decode`` raises TooManyElements before it allocates the array that exceeds ``max_elements``.
    """

    encode: Encode
    decode: Decode


_step_decoders: dict[tuple[type[Struct], int, bool, bool], DecodeInSteps] = {}
_codecs: dict[tuple[type[Struct], int, bool], Codec] = {}


def codec_for(cls: type[Struct], version: int, flexible: bool) -> Codec:
    """The cached codec of one structure in one version, generated on first use."""
    key = (cls, version, flexible)
    found = _codecs.get(key)
    if found is None:
        construct = struct_for(cls, version, flexible)
        found = _codecs[key] = Codec(_encoder(construct), _decoder(construct))
    return found


def step_decoder_for(cls: type[Struct], version: int, flexible: bool, *, like_kafka: bool = False) -> DecodeInSteps:
    """Like ``codec_for(...).decode``, with pauses. ``like_kafka``: also of what `decode_like_kafka` reads."""
    key = (cls, version, flexible, like_kafka)
    found = _step_decoders.get(key)
    if found is None:
        construct = struct_for(cls, version, flexible)
        found = _step_decoders[key] = _decoder(construct, in_steps=True, like_kafka=like_kafka)
    return found


# decoding


def _decoder(construct: Construct, *, in_steps: bool = False, like_kafka: bool = False) -> Callable[..., Any]:
    s = Source(in_steps=in_steps, like_kafka=like_kafka)
    s("end = len(frame)")
    if in_steps:
        s("steps = 0")
        s("yield")
    value = _decode_value(s, construct)
    with s.block("if at > end"):  # a slice ends with the frame, whatever length was announced
        s("raise Refuse")
    s(f"return {value}, at")
    return s.function("decode", f"frame, at, left={UNLIMITED}")


def _decode_value(s: Source, construct: Construct, length: _Length | None = None) -> str:
    """Generate code that decodes one value; returns the expression for it. ``length``: once it is read."""
    code = code_of(construct)
    if code is not None:
        v = s.fresh("v")
        unpack, size = s.unpack(code)
        s(f"{v}, = {unpack}(frame, at)")
        s(f"at += {size}")
        return f"UUID(bytes={v})" if isinstance(construct, Uuid) else v
    match construct:
        case AsStruct():
            return _decode_struct(s, construct)
        case String() | Bytes():
            return _decode_bytes(s, construct, length)
        case Array():
            return _decode_array(s, construct, length)
        case NullableStruct():
            v = s.fresh("v")
            s("at += 1")
            with s.unless_null(True, "frame[at - 1] > 127", f"{v} = None"):
                s(f"{v} = {_decode_value(s, construct.subcon)}")
            return v
    raise TypeError(f"no code for {construct}")


def _decode_struct(s: Source, construct: AsStruct) -> str:
    values: dict[str, str] = {}
    cls, tags = construct.cls, tags_of(construct)
    parts = list(parts_of(construct))
    known_length: _Length | None = None
    for part, following in zip_longest(parts, parts[1:]):
        if isinstance(part, Run):
            names = [s.fresh("v") for _ in part.fields]
            length_code = _length_code(following)
            unpack, size = s.unpack(part.code + length_code)
            known_length = _Length(s.fresh("n"), size) if length_code else None
            read = names if known_length is None else [*names, known_length.name]
            s(f"{', '.join(read)}, = {unpack}(frame, at)")
            if known_length is None:
                s(f"at += {size}")
            for v, (name, field) in zip(names, part.fields, strict=True):
                values[name] = f"UUID(bytes={v})" if isinstance(field, Uuid) else v
        elif part[1] is not tags:
            values[part[0]] = _decode_value(s, part[1], known_length)
            known_length = None
    o = s.fresh("o")
    s(f"{o} = {s.constant(twin(cls), 'Twin')}()")
    for f in cls.__fields__:
        s(f"{o}.{f.name} = {values[f.name] if f.name in values else s.constant(f.default, 'default')}")
    s(f"{o}._unknown_tagged_fields = ()")
    if tags is not None:
        known = {tag: (name, _decoder(subcon, like_kafka=s.like_kafka)) for tag, (name, subcon) in tags.known.items()}
        known |= dict.fromkeys(tags.other_versions, ("", refuse))
        with s.unless_null(True, "frame[at] == 0", "at += 1"):
            read_tags = "yield from read_tags_in_steps" if s.in_steps else "read_tags"
            s(f"tagged, unknown, at = {read_tags}(frame, at, {s.constant(known, 'known')}, left, {s.like_kafka})")
            with s.block("for name, field in tagged.items()"):
                s(f"setattr({o}, name, field)")
            s(f"{o}._unknown_tagged_fields = unknown")
    s(f"{o}.__class__ = {s.constant(cls, 'Class')}")
    return o


def _length_code(part: Run | tuple[str, Construct] | None) -> str:
    """The struct code of a length of fixed size at the beginning of a part: it is read with the run before."""
    match part:
        case (_, (String() | Bytes()) as construct):
            length = construct.length
        case (_, Array() as construct):
            length = construct.count
        case _:
            return ""
    return "" if length.compact else code_of(length.fixed) or ""


class _Length(NamedTuple):
    """A length or count that is read: its variable, and the bytes up to its end, which ``at`` has yet to pass."""

    name: str
    size: int


def _decode_length(s: Source, length: Length, read: _Length | None) -> _Length:
    """Generate code that decodes a length or count: negative for null, otherwise at least 0."""
    found = read or _read_length(s, length)
    if not (length.nullable and s.like_kafka):
        with s.block(f"if {found.name} < {-1 if length.nullable else 0}"):
            s("raise Refuse")
    return found


def _read_length(s: Source, length: Length) -> _Length:
    n = s.fresh("n")
    if length.compact:
        s(f"{n} = frame[at] - 1")
        s("at += 1")
        with s.block(f"if {n} > 126"):
            s(f"{n}, at = read_uvarint{'_like_kafka' if s.like_kafka else ''}(frame, at - 1)")
            s(f"{n} -= 1")
        return _Length(n, 0)
    unpack, size = s.unpack(code_of(length.fixed) or "")
    s(f"{n}, = {unpack}(frame, at)")
    return _Length(n, size)


def _decode_bytes(s: Source, construct: String | Bytes, length: _Length | None) -> str:
    """What the frame does not hold is refused at its end: ``at`` is beyond it then."""
    n, size = _decode_length(s, construct.length, length)
    v = s.fresh("v")
    passed = f"{size} + {n}" if size else n
    null = f"{v} = None" + (f"; at += {size}" if size else "")
    with s.unless_null(construct.length.nullable, f"{n} < 0", null):
        if isinstance(construct, String) and construct.length.compact:  # others are as short by their type
            with s.block(f"if {n} > {MAX_STRING_BYTES}"):
                s("raise Refuse")
        s(f"at += {passed}")
        match construct:
            case String():
                data = f"frame[at - {n} : at]"
                s(f"{v} = decode_like_java({data})" if s.like_kafka else f"{v} = {data}.decode()")
            case Records():
                s(f"{v} = memoryview(frame)[at - {n} : at]")
            case _:
                s(f"{v} = frame[at - {n} : at]")
    return v


def _decode_array(s: Source, construct: Array, length: _Length | None) -> str:
    n, size = _decode_length(s, construct.count, length)
    if size:
        s(f"at += {size}")
    v = s.fresh("v")
    element = construct.element
    with s.unless_null(construct.count.nullable, f"{n} < 0", f"{v} = None"):
        with s.block(f"if {n} > (end - at) // {construct.element_min_bytes}"):
            s("raise Refuse")
        if is_numbers(construct):
            code = code_of(element) or ""
            _, size = s.unpack(code)
            s(f"{v} = numbers({code!r}, {n}).unpack_from(frame, at)")
            s(f"at += {size} * {n}")
            return v
        s(f"left -= {n}")
        with s.block("if left < 0"):
            s(f"raise TooManyElements(f'array of {{{n}}} elements')")
        elements, add = s.fresh("elements"), s.fresh("add")
        s(f"{elements} = []")
        s(f"{add} = {elements}.append")
        run = decode_run(element)
        if run is None:
            with s.block(f"for _ in range({n})"):
                if s.in_steps:
                    s("steps += 1")
                    with s.block(f"if not steps & {STEP_MASK}"):
                        s("yield")
                s(f"{add}({_decode_value(s, element)})")
        else:
            before = s.fresh("before")
            with s.block(f"while ({before} := len({elements})) < {n}"):
                to = n
                if s.in_steps:
                    to = f"min({n}, {before} + {RUN_STEP})"
                    s("yield")
                s(f"at = {s.constant(run, 'run')}(frame, at, {to}, {elements})")
                stretch = f"1 if len({elements}) > {before} else {GENERAL_STRETCH}"
                with s.block(f"for _ in range(min({n} - len({elements}), {stretch}))"):
                    s(f"{add}({_decode_value(s, element)})")
        s(f"{v} = tuple({elements})")
    return v


# encoding


def _encoder(construct: Construct) -> Encode:
    s = Source()
    _encode_value(s, construct, "value")
    return s.function("encode", "value, append")


def _encode_value(s: Source, construct: Construct, value: str) -> None:
    code = code_of(construct)
    if code is not None:
        s(f"append({s.pack(code)}({_argument(s, construct, value)}))")
        return
    match construct:
        case AsStruct():
            _encode_struct(s, construct, value)
        case String():
            with _unless_none(s, construct.length, value):
                _encode_string(s, construct, value)
        case Bytes():
            with _unless_none(s, construct.length, value):
                data = s.fresh("data")
                octets = "octets_or_stored" if isinstance(construct, Records) else "octets"
                s(f"{data} = {value} if {value}.__class__ is bytes else {octets}({value})")
                _encode_length(s, construct.length, f"len({data})")
                s(f"append({data})")
        case Array():
            with _unless_none(s, construct.count, value):
                _encode_array(s, construct, value)
        case NullableStruct():
            with s.unless_null(True, f"{value} is None", r"append(b'\xff')"):
                s(r"append(b'\1')")
                _encode_value(s, construct.subcon, value)
        case _:
            raise TypeError(f"no code for {construct}")


def _argument(s: Source, construct: Construct, expression: str) -> str:
    """The argument for pack. Rejects values that struct accepts and the reference does not."""
    v = s.fresh("v")
    if isinstance(construct, Boolean):
        with s.block(f"if ({v} := {expression}).__class__ is not bool"):
            s("raise Refuse")
        return v
    if isinstance(construct, Uuid):
        with s.block(f"if not isinstance({v} := {expression}, UUID)"):
            s("raise Refuse")
        return f"{v}.bytes"
    return expression


def _encode_struct(s: Source, construct: AsStruct, value: str) -> None:
    tests = [f"{value}.__class__ is not {s.constant(construct.cls, 'Class')}"]
    tests += [f"{value}.{name} != {s.constant(default, 'default')}" for name, default in construct.absent]
    with s.block(f"if {' or '.join(tests)}"):
        s("raise Refuse")
    tags = tags_of(construct)
    parts = list(parts_of(construct))
    before: _Packed | None = None
    for part, following in zip_longest(parts, parts[1:]):
        if isinstance(part, Run):
            before = _Packed(part.code, [_argument(s, field, f"{value}.{name}") for name, field in part.fields])
            if following is None or isinstance(following, Run) or not _has_fixed_length(following[1]):
                s(f"append({s.pack(before.code)}({', '.join(before.arguments)}))")
                before = None
        elif _has_fixed_length(part[1]):
            _encode_string(s, part[1], f"{value}.{part[0]}", before)
            before = None
        elif part[1] is not tags:
            field = s.fresh("f")
            s(f"{field} = {value}.{part[0]}")
            _encode_value(s, part[1], field)
    if tags is None:
        return
    fields = s.fresh("fields")
    s(f"{fields} = list({value}._unknown_tagged_fields)")
    by_name = {name: (tag, subcon) for tag, (name, subcon) in tags.known.items()}
    for name, default in construct.tagged:
        tag, subcon = by_name[name]
        field, pieces = s.fresh("f"), s.fresh("pieces")
        s(f"{field} = {value}.{name}")
        with s.block(f"if {field} != {s.constant(default, 'default')}"):
            s(f"{pieces} = []")
            s(f"{s.constant(_encoder(subcon), 'encode')}({field}, {pieces}.append)")
            s(f"{fields}.append(TaggedField({tag}, b''.join({pieces})))")
    with s.unless_null(True, f"not {fields}", r"append(b'\0')"):
        s(f"write_tags(append, {fields})")


class _Packed(NamedTuple):
    """Values of fixed size that are packed together with what follows them."""

    code: str
    arguments: list[str]


def _has_fixed_length(construct: Construct) -> bool:
    """Whether it is a string that is never null, and has the same bytes for each length."""
    return isinstance(construct, String) and not (construct.length.nullable or construct.length.compact)


def _encode_string(s: Source, construct: String, value: str, before: _Packed | None = None) -> None:
    """Append a string that is not None; its length after what comes ``before`` it."""
    data = s.fresh("data")
    s(f"{data} = utf8({value})")  # for strings only
    if construct.length.compact:  # others are as short by their type
        with s.block(f"if len({data}) > {MAX_STRING_BYTES}"):
            s("raise Refuse")
        s(f"append(write_uvarint(len({data}) + 1) + {data})")
        return
    code, arguments = before or _Packed("", [])
    pack = s.pack(code + (code_of(construct.length.fixed) or ""))
    s(f"append({pack}({', '.join([*arguments, f'len({data})'])}) + {data})")


def _length(s: Source, length: Length, n: str) -> str:
    """The expression for an encoded length or count."""
    return f"write_uvarint({n} + 1)" if length.compact else f"{s.pack(code_of(length.fixed) or '')}({n})"


def _encode_length(s: Source, length: Length, n: str) -> None:
    s(f"append({_length(s, length, n)})")


def _unless_none(s: Source, length: Length, value: str) -> Any:
    """A block for values that are not None; None is encoded, or refused as a value of another type."""
    if not length.nullable:
        return nullcontext()
    null = b"\0" if length.compact else b"\xff" * struct.calcsize(f">{code_of(length.fixed)}")
    with s.block(f"if {value} is None"):
        s(f"append({null!r})")
    return s.block("else")


def _encode_array(s: Source, construct: Array, values: str) -> None:
    element, n = construct.element, s.fresh("n")
    plain: AbstractContextManager[None] = nullcontext()
    if isinstance(element, AsStruct):
        with s.block(f"if {values}.__class__ is Encoded"):
            _encode_length(s, construct.count, f"{values}.elements")
            with s.block(f"for piece in {values}.pieces"):
                s("append(piece)")
            s(f"{n} = 0")
        plain = s.block("else")
    with plain:
        with s.block(f"if {values}.__class__ is not tuple and not isinstance({values}, (tuple, list))"):
            s("raise Refuse")
        s(f"{n} = len({values})")
        _encode_length(s, construct.count, n)
    if is_numbers(construct):
        s(f"append(numbers({code_of(element)!r}, {n}).pack(*{values}))")
        return
    one = s.fresh("e")
    run = encode_run(element)
    if run is None:
        with s.block(f"for {one} in {values} if {n} else ()"):
            _encode_value(s, element, one)
        return
    before, done = s.fresh("before"), s.fresh("done")
    s(f"{done} = 0")
    with s.block(f"while ({before} := {done}) < {n}"):
        s(f"{done} = {s.constant(run, 'run')}({values}, {done}, append)")
        s(f"{before} = {done} + (1 if {done} > {before} else {GENERAL_STRETCH})")
        with s.block(f"for {one} in {values}[{done} : {before}]"):
            _encode_value(s, element, one)
        s(f"{done} = {before}")
