"""Specialised loops for long arrays of structures with the same layout, such as partition states.

If the only variable-size fields of a structure are arrays of numbers, elements whose arrays have the same lengths share
one struct format, and a loop generated for that format takes a third of the time per element. The partitions of a
cluster share a few layouts. Generating a loop takes as long as some hundred elements, so only frequent layouts get one.

Replicas and ISR repeat the same few brokers: a decoding loop caches their tuples by their bytes, which saves
allocations and, above all, garbage collection.

A loop stops at the first element with another layout, with tagged fields, or with an error, and leaves it to the
general code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from construct import Construct

from kce.wire.codegen import Append, Run, Source, code_of, is_numbers, parts_of, read_uvarint, tags_of
from kce.wire.primitives import Boolean, Length, Uuid
from kce.wire.schema import AsStruct, twin

#: the lengths of an element's arrays
Layout = tuple[int, ...]
DecodeRun = Callable[[bytes, int, int, list[Any]], int]
EncodeRun = Callable[[Any, int, Append], int]

#: elements of a layout before a loop is generated for it
MIN_ELEMENTS = 256
#: cached loops, and counted layouts, of one structure
MAX_LOOPS = 64
MAX_COUNTED = 1024
#: cached arrays of one layout
MAX_ARRAYS = 4096
#: longest array that a loop handles; a partition has fewer replicas
MAX_ARRAY_LENGTH = 16


class _Loops:
    """Cached loops of one structure, by layout."""

    def __init__(self, construct: AsStruct) -> None:
        self.construct = construct
        self.tags = tags_of(construct)
        self.parts = [part for part in parts_of(construct) if isinstance(part, Run) or part[1] is not self.tags]
        self.arrays = [part[0] for part in self.parts if not isinstance(part, Run)]
        self.last: Any = None
        self._loops: dict[Layout, Any] = {}
        self._elements: dict[Layout, int] = {}

    def loop(self, layout: Layout, elements: int) -> Any:
        """The loop for ``layout``, or None while the layout is not frequent."""
        found = self._loops.get(layout)
        if found is None:
            if len(self._elements) >= MAX_COUNTED:
                self._elements.clear()
            self._elements[layout] = count = self._elements.get(layout, 0) + elements
            if count >= MIN_ELEMENTS and len(self._loops) < MAX_LOOPS:
                found = self._loops[layout] = self._generate(layout)
        if found is not None:
            self.last = found
        return found

    def _generate(self, layout: Layout) -> Any:
        raise NotImplementedError


def _is_supported(construct: Construct) -> bool:
    if not isinstance(construct, AsStruct):
        return False
    tags = tags_of(construct)
    if tags is not None and tags.known:
        return False
    return all(isinstance(part, Run) or part[1] is tags or is_numbers(part[1]) for part in parts_of(construct))


def _head_code(count: Length) -> str:
    """The struct code of a short count."""
    return "B" if count.compact else code_of(count.fixed) or ""


class _OtherLayout(Exception):
    """An element has another layout."""


class _Arrays(dict[bytes, tuple[Any, ...]]):
    """Cached arrays of one length, by their bytes including the count."""

    def __init__(self, head: str, count: int, code: str, first: int) -> None:
        super().__init__()
        self._unpack = struct.Struct(f">{head}{count}{code}").unpack
        self._first = first

    def __missing__(self, data: bytes) -> tuple[Any, ...]:
        first, *numbers = self._unpack(data)
        if first != self._first:
            raise _OtherLayout
        if len(self) >= MAX_ARRAYS:
            self.clear()
        self[data] = made = tuple(numbers)
        return made


class _DecodeLoops(_Loops):
    def __init__(self, construct: AsStruct) -> None:
        super().__init__(construct)
        #: of each part, whether the count of an array is compact, None if it is none; bytes of it, or of an element
        self._measures: list[tuple[bool | None, int]] = [
            (None, part.size)
            if isinstance(part, Run)
            else (part[1].count.compact, struct.calcsize(">" + (code_of(part[1].element) or "")))
            for part in self.parts
        ]

    def __call__(self, frame: bytes, at: int, n: int, elements: list[Any]) -> int:
        """Append elements from ``at`` until there are ``n`` or one has another layout; returns the next position."""
        before, left = at, n - len(elements)
        if self.last is not None:
            at = self.last(frame, at, left, elements)
        if at == before and left:
            layout = self._measure(frame, at)
            loop = None if layout is None else self.loop(layout, left)
            if loop is not None:
                at = loop(frame, at, left, elements)
        return at

    def _measure(self, frame: bytes, at: int) -> Layout | None:
        lengths = []
        for is_compact, size in self._measures:
            if is_compact is None:
                at += size
                continue
            if at >= len(frame):
                return None
            if is_compact:
                n, at = read_uvarint(frame, at)
                n -= 1
            else:
                n = int.from_bytes(frame[at : at + 4], "big", signed=True)
                at += 4
            if not 0 <= n <= MAX_ARRAY_LENGTH:
                return None
            lengths.append(n)
            at += n * size
        return tuple(lengths)

    def _generate(self, layout: Layout) -> DecodeRun:
        s = Source()
        cls = self.construct.cls
        code, names, tests = "", [], []
        values: dict[str, str] = {}
        lengths = iter(layout)
        for part in self.parts:
            if isinstance(part, Run):
                code += part.code
                for name, construct in part.fields:
                    names.append(s.fresh("v"))
                    values[name] = f"UUID(bytes={names[-1]})" if isinstance(construct, Uuid) else names[-1]
                continue
            name, array = part
            n = next(lengths)
            head, item = _head_code(array.count), code_of(array.element) or ""
            first = n + 1 if array.count.compact else n
            names.append(s.fresh("a"))
            if n == 0:
                code += head
                tests.append(f"{names[-1]} != {first}")
                values[name] = s.constant((), "empty")
            else:
                code += f"{struct.calcsize(f'>{head}{n}{item}')}s"
                values[name] = f"{s.constant(_Arrays(head, n, item, first), 'arrays')}[{names[-1]}]"
        if self.tags is not None:
            code += "B"
            names.append(s.fresh("t"))
            tests.append(names[-1])
        made = struct.Struct(">" + code)
        made_of, made_into = s.constant(twin(cls), "Twin"), s.constant(cls, "Class")
        s("add = elements.append")
        s("before = len(elements)")
        s(f"window = memoryview(frame)[at : at + min(n, (len(frame) - at) // {made.size}) * {made.size}]")
        with s.block("try"), s.block(f"for {', '.join(names)}, in {s.constant(made.iter_unpack, 'each')}(window)"):
            if tests:
                with s.block(f"if {' or '.join(tests)}"):
                    s("break")
            s(f"o = {made_of}()")
            for f in cls.__fields__:
                s(f"o.{f.name} = {values[f.name] if f.name in values else s.constant(f.default, 'default')}")
            s("o._unknown_tagged_fields = ()")
            s(f"o.__class__ = {made_into}")
            s("add(o)")
        with s.block(f"except {s.constant(_OtherLayout, 'OtherLayout')}"):
            s("pass")
        s(f"return at + (len(elements) - before) * {made.size}")
        return s.function(f"decode_run_{cls.__name__}_{self.construct.version}", "frame, at, n, elements")


class _EncodeLoops(_Loops):
    def __call__(self, values: Any, at: int, append: Append) -> int:
        """Append the bytes of ``values[at:]`` up to the first with another layout; returns its index."""
        before, left = at, len(values) - at
        if self.last is not None:
            at = self.last(values, at, append)
        if at == before and left:
            layout = self._measure(values[at])
            loop = None if layout is None else self.loop(layout, left)
            if loop is not None:
                at = loop(values, at, append)
        return at

    def _measure(self, value: Any) -> Layout | None:
        lengths = []
        for name in self.arrays:
            array = getattr(value, name)
            if not isinstance(array, tuple) or len(array) > MAX_ARRAY_LENGTH:
                return None
            lengths.append(len(array))
        return tuple(lengths)

    def _generate(self, layout: Layout) -> EncodeRun:
        s = Source()
        construct = self.construct
        code: str = ""
        arguments: list[str] = []
        lengths = iter(layout)
        empty = s.constant((), "empty")
        tests = [f"e.__class__ is not {s.constant(construct.cls, 'Class')}"]
        tests += [f"e.{name} != {s.constant(default, 'default')}" for name, default in construct.absent]
        if self.tags is not None:
            tests.append("e._unknown_tagged_fields")
        read: list[str] = []
        for part in self.parts:
            if isinstance(part, Run):
                code += part.code
                for name, field in part.fields:
                    argument = f"e.{name}"
                    if isinstance(field, Boolean):
                        argument = s.fresh("b")
                        tests.append(f"({argument} := e.{name}).__class__ is not bool")
                    elif isinstance(field, Uuid):
                        argument = f"{s.fresh('u')}"
                        tests.append(f"not isinstance(({argument} := e.{name}), UUID)")
                        argument += ".bytes"
                    arguments.append(argument)
                continue
            name, array = part
            n = next(lengths)
            code += _head_code(array.count) + (f"{n}{code_of(array.element)}" if n else "")
            arguments.append(str(n + 1 if array.count.compact else n))
            if n == 0:
                tests.append(f"e.{name} is not {empty}")
                continue
            items = [s.fresh("i") for _ in range(n)]
            whole = s.fresh("a")
            tests.append(f"({whole} := e.{name}).__class__ is not tuple")
            read.append(f"{', '.join(items)}, = {whole}")
            arguments += items
        if self.tags is not None:
            code += "B"
            arguments.append("0")
        s("end = len(values)")
        with s.block("try"), s.block("while at < end"):
            s("e = values[at]")
            with s.block(f"if {' or '.join(tests)}"):
                s("break")
            for line in read:
                s(line)
            s(f"append({s.pack(code)}({', '.join(arguments)}))")
            s("at += 1")
        with s.block("except ValueError"):  # an array of another length
            s("pass")
        s("return at")
        return s.function(f"encode_run_{construct.cls.__name__}_{construct.version}", "values, at, append")


def decode_run(element: Construct) -> DecodeRun | None:
    """Decodes runs of ``element``. None unless it is a structure of fixed-size fields and arrays of numbers."""
    return _DecodeLoops(element) if _is_supported(element) else None


def encode_run(element: Construct) -> EncodeRun | None:
    """Encodes runs of ``element``. None unless it is a structure of fixed-size fields and arrays of numbers."""
    return _EncodeLoops(element) if _is_supported(element) else None
