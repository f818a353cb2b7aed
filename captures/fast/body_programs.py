"""Programs for ``body_kernels``: each checks frames of one API, version and direction.

A program is compiled from the reference Construct (``wire.schema``) when the first such frame is met. It checks what
the decoder checks, that a frame holds one whole message and nothing more, and extracts the few values that rows need.
It refuses anything unusual (text beyond ASCII, unknown versions) and leaves it to the decoder. The programs of
``text_programs`` also print.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from construct import Construct

from kce.captures.exchanges.messages import BROKERS_TO_CONTROLLER
from kce.wire.codegen import Run, code_of, is_numbers, parts_of, tags_of
from kce.wire.primitives import Array, Bytes, NullableStruct, String, TaggedFields
from kce.wire.registry import BY_KEY, CONTROL_REQUESTS, ApiKey, Direction, message_class
from kce.wire.schema import AsStruct, Message, struct_for

# instructions, each of four numbers: the operation, then its arguments
SKIP, TEXT, OCTETS, NUMBERS, ARRAY, END, TAGS, MAYBE, NUMBER, NONZERO, DONE, REFUSE, TAG, END_TAG, PLACE = range(15)

# instructions that print, of ``text_kernels.say``
PART, LITERAL, INTEGER, BOOLEAN, STRING, QUOTED, RECORDS, TOPIC, IF_POSITIVE, ERROR_NAME, ITEM, REST = range(15, 27)
IF_OTHER, IF_LONGER, NO_ERRORS = 27, 28, 29

#: instructions whose last argument is the index of another
_JUMPS = frozenset({ARRAY, MAYBE, TAGS, TAG, IF_POSITIVE, ERROR_NAME, ITEM, IF_OTHER, IF_LONGER})

# flags of a length
COMPACT, NULLABLE, COUNTED = 1, 2, 4

# columns of a message's values: one for a number, two for a text (offset, length; length -1 for null)
CLIENT_ID, GROUP_ID = 0, 2
CONTROLLER_ID, CONTROLLER_EPOCH, IS_KRAFT, BROKER_ID, BROKER_EPOCH, GENERATION_ID, ACKS, PARTITIONS = range(4, 12)
ERROR_CODE, PARTITION_ERRORS = 12, 13
VALUES = 14

#: columns of body fields; null in messages without the field, its default in versions without it
_NUMBERS = {
    "controller_id": CONTROLLER_ID, "controller_epoch": CONTROLLER_EPOCH, "is_kraft_controller": IS_KRAFT,
    "broker_epoch": BROKER_EPOCH, "generation_id": GENERATION_ID,
}  # fmt: skip

#: arrays whose elements are the partitions of a control request
_PARTITION_ARRAYS = frozenset({
    "ungrouped_partition_states", "partition_states", "ungrouped_partitions", "partition_indexes",
})  # fmt: skip

#: APIs from which on keys or versions are none that a program is kept for
MOST_KEYS, MOST_VERSIONS = 128, 32

UNKNOWN, REFUSED = -1, -2


class Program(NamedTuple):
    """``code``, and for each value whether such messages have it and what it is where the code does not note it."""

    code: list[tuple[int, int, int, int]]
    present: npt.NDArray[np.bool_]
    values: npt.NDArray[np.int64]


class Programs:
    """All that were written so far, as arrays: ``ids[direction, key, version]`` is a program's row in the others.

    The bodies of APIs that are not ``wanted`` are not looked into, but for what their answers depend on.
    """

    def __init__(self, wanted: Callable[[int], bool] | None = None, *, columns: int = VALUES) -> None:
        self._wanted = wanted
        self.ids = np.full((2, MOST_KEYS, MOST_VERSIONS), UNKNOWN, np.int64)
        self.code = np.zeros((0, 4), np.int64)
        self.starts = np.zeros(0, np.int64)
        self.present = np.zeros((0, columns), np.bool_)
        self.values = np.zeros((0, columns), np.int64)

    def program(self, api_key: int, version: int, direction: Direction) -> Program | None:
        """None if ``exchanges`` handles such messages specially."""
        api = BY_KEY.get(api_key)
        if api is None or not api.zk_broker or (api.name == "SaslHandshake" and version == 0):
            return None
        looked_into = self._wanted is None or api.name in ("Produce", "Fetch") or self._wanted(api_key)
        looked_into |= version not in api.versions
        return (_program if looked_into else _head)(api, version, direction)

    def write(self, api_key: int, version: int) -> None:
        """Write the programs of a request and its response."""
        for number, direction in enumerate(_DIRECTIONS):
            program = self.program(api_key, version, direction)
            if program is None:
                self.ids[number, api_key, version] = REFUSED
                continue
            base = len(self.code)
            moved = [(op, a, b, c + base if op in _JUMPS else c) for op, a, b, c in program.code]
            self.ids[number, api_key, version] = len(self.starts)
            self.starts = np.append(self.starts, base)
            self.code = np.concatenate([self.code, np.array(moved, np.int64)])
            self.present = np.concatenate([self.present, program.present[None]])
            self.values = np.concatenate([self.values, program.values[None]])


_DIRECTIONS: tuple[Direction, Direction] = ("request", "response")


@functools.cache
def _program(api: ApiKey, version: int, direction: Direction) -> Program:
    """Begins behind the correlation id."""
    writer = _headed(api, version, direction)
    cls = message_class(api.key, direction)
    if version not in api.versions:
        writer.emit(REFUSE)
    elif cls is None:
        writer.emit(DONE, 1)  # the bodies of such APIs are not looked into
    else:
        writer.body(cls, version, version in api.flexible)
    return Program(writer.code, writer.present, writer.values)


@functools.cache
def _head(api: ApiKey, version: int, direction: Direction) -> Program:
    """The same without the body, which may be anything."""
    writer = _headed(api, version, direction)
    writer.emit(DONE, 1)
    return Program(writer.code, writer.present, writer.values)


def _headed(api: ApiKey, version: int, direction: Direction) -> Writer:
    writer = Writer()
    writer.head(api, version, direction)
    return writer


class Writer:
    """Writes one program."""

    def __init__(self, columns: int = VALUES) -> None:
        self.code: list[tuple[int, int, int, int]] = []
        self.present = np.zeros(columns, np.bool_)
        self.values = np.zeros(columns, np.int64)
        self.values[[CLIENT_ID + 1, GROUP_ID + 1]] = -1
        self._within: dict[str, dict[str, int]] = {}  # what is noted in structures that are not on top
        self._counts_errors = False
        self._tagged: list[tuple[int, TaggedFields, dict[str, int]]] = []
        self._joined = 0  # where a jump leads: what comes there is an instruction of its own

    def head(self, api: ApiKey, version: int, direction: Direction) -> None:
        """The message header behind the correlation id."""
        asks = direction == "request"
        header = api.request_header_version(version) if asks else api.response_header_version(version)
        if asks and header >= 1:
            self.emit(TEXT, NULLABLE, CLIENT_ID)
        if header == 2 or (header == 1 and not asks):
            self.emit(TAGS)

    def emit(self, what: int, a: int = 0, b: int = 0, c: int = 0) -> None:
        self.code.append((what, a, b, c))

    def body(self, cls: type[Message], version: int, flexible: bool) -> None:
        asks = cls.__direction__ == "request"
        noted: dict[str, int] = {}
        for f in cls.__fields__:
            column = _NUMBERS.get(f.name)
            if f.name == "broker_id" and asks and cls.__api_key__ in BROKERS_TO_CONTROLLER:
                column = BROKER_ID
            if f.name == "error_code" and not asks:
                column = ERROR_CODE if version in f.versions else None
            if f.name == "acks" and asks:
                column = ACKS
            if column is not None:
                noted[f.name] = column
                self.present[column] = True
                self.values[column] = f.default
            if f.name == "group_id" and asks:
                noted[f.name] = GROUP_ID
                self.present[GROUP_ID] = True
                self.values[GROUP_ID + 1] = -1 if f.default is None else 0
        self.present[PARTITIONS] = asks and cls.__api_key__ in CONTROL_REQUESTS
        self._counts_errors = not asks
        self._struct(struct_for(cls, version, flexible), noted)
        self.emit(DONE)
        self._tag_lists()

    def _tag_lists(self) -> None:
        while self._tagged:
            self._tag_programs(*self._tagged.pop())

    def _tag_programs(self, at: int, tags: TaggedFields, noted: dict[str, int]) -> None:
        """A program for each known tag, and the list of them that the instruction at ``at`` asks for."""
        places = []
        for tag in tags.other_versions:
            places.append((TAG, tag, 0, len(self.code)))
            self.emit(REFUSE)
        for tag, (name, construct) in tags.known.items():
            places.append((TAG, tag, 0, len(self.code)))
            self._joined = len(self.code)
            self._value(name, construct, noted)
            self.emit(END_TAG)
        self.code[at] = (TAGS, len(places), 0, len(self.code))
        self.code += places

    def _struct(self, construct: Construct, noted: dict[str, int]) -> None:
        assert isinstance(construct, AsStruct)
        tags = tags_of(construct)
        for name, part in _fields(construct):
            if tags is not None and part is tags:
                if tags.known or tags.other_versions:
                    self._tagged.append((len(self.code), tags, noted))
                self.emit(TAGS)
            else:
                self._value(name, part, noted)

    def _value(self, name: str, construct: Construct, noted: dict[str, int]) -> None:
        code = code_of(construct)
        if code is not None:
            size = _SIZES[code]
            if name in noted:
                self.emit(PLACE if code == "16s" else NUMBER, size, noted[name])
            elif name == "error_code" and self._counts_errors:
                self.emit(NONZERO)
            elif self.code and self.code[-1][0] == SKIP and self._joined != len(self.code):
                self.code[-1] = (SKIP, self.code[-1][1] + size, 0, 0)
            else:
                self.emit(SKIP, size)
            return
        match construct:
            case AsStruct():
                self._struct(construct, self._within.get(name, {}))
            case String():
                self.emit(TEXT, _flags(construct.length), noted.get(name, -1))
            case Bytes():
                self.emit(OCTETS, _flags(construct.length), noted.get(name, -1))
            case Array():
                flags = _flags(construct.count)
                if self.present[PARTITIONS] and name in _PARTITION_ARRAYS:
                    flags |= COUNTED
                if is_numbers(construct):
                    self.emit(NUMBERS, flags, construct.element_min_bytes)
                    return
                at = len(self.code)
                self.emit(ARRAY)
                self._element(name, construct.element)
                self.emit(END)
                self.code[at] = (ARRAY, flags, construct.element_min_bytes, len(self.code))
            case NullableStruct():
                at = len(self.code)
                self.emit(MAYBE)
                self._struct(construct.subcon, {})
                self._joined = len(self.code)
                self.code[at] = (MAYBE, 0, 0, self._joined)
            case _:
                raise TypeError(f"no program for {construct}")

    def _element(self, name: str, construct: Construct) -> None:
        """An element of the array ``name``."""
        self._value(name, construct, {})


#: by struct code
_SIZES = {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16}


def _fields(construct: AsStruct) -> Iterator[tuple[str, Construct]]:
    for part in parts_of(construct):
        if isinstance(part, Run):
            yield from part.fields
        else:
            yield part


def _flags(length: Construct) -> int:
    return COMPACT * bool(length.compact) | NULLABLE * bool(length.nullable)
