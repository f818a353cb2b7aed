"""Programs for ``body_kernels`` that print what ``exchanges.render`` says of a body, when they have walked through it.

A ``Template`` says what of which fields, in braces: a number or a text as it is; a record set by its outline; with a
topic's name its id where the version has that instead. ``{field|}``: an error's name, which then ends the item, unless
it is NONE. ``{field+}``: nothing follows if the number is negative. Of messages without a template the numbers and
texts on top are printed that differ from their defaults. What has no program is left to ``exchanges.render``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from construct import Construct

from kce.captures.exchanges.render import SHOWN_ELSEWHERE, Renderer
from kce.captures.fast import body_programs as p
from kce.captures.fast.body_programs import Program, Programs, Writer
from kce.wire import ErrorCode, error_name
from kce.wire.codegen import code_of
from kce.wire.primitives import Array, Bytes, String, Uuid
from kce.wire.registry import API_VERSIONS, BY_KEY, BY_NAME, Direction, message_class
from kce.wire.schema import Message, struct_for

# columns behind those of every program: the text of API and version, whether there is an error code on top, whether the
# program must run twice; where the line's description begins, an unknown topic's id, items so far; fields
KIND, HAS_ERROR, TWICE, WHAT, UNKNOWN_TOPIC, ITEMS, FIELDS = range(p.VALUES, p.VALUES + 7)
COLUMNS = 64


#: whose names are kept
ERRORS = max(ErrorCode) + 2


class Template(NamedTuple):
    """``head``, then ``item`` for each element of the arrays at ``path``, each in an element of the one before."""

    head: str
    path: tuple[str, ...]
    item: str


_NO_TEMPLATE = Template("", (), "")

#: by the names of messages, whose classes take a while to make; None: only ``exchanges.render`` describes these
_TEMPLATES: dict[str, Template | None] = {
    "ProduceRequest": Template("acks {acks}", ("topic_data", "partition_data"), "{name}-{index} {records}"),
    "ProduceResponse": Template(
        "", ("responses", "partition_responses"), "{name}-{index} {error_code|}at {base_offset}"
    ),
    "FetchRequest": Template(
        "{replica_id+}replica {replica_id}", ("topics", "partitions"), "{topic}-{partition} from {fetch_offset}"
    ),
    "FetchResponse": Template(
        "", ("responses", "partitions"), "{topic}-{partition_index} {error_code|}{records}, hw {high_watermark}"
    ),
    "LeaderAndIsrRequest": None,
    "StopReplicaRequest": None,
    "UpdateMetadataRequest": None,
    "ControlledShutdownRequest": None,
    "ControlledShutdownResponse": None,
    "AlterPartitionRequest": None,
    "AlterPartitionResponse": None,
    "MetadataRequest": None,
    "MetadataResponse": None,
}

#: keys of APIs whose requests, and whose responses, only ``exchanges.render`` describes
DESCRIBED_REQUESTS, DESCRIBED_RESPONSES = (
    [BY_NAME[name.removesuffix(end)].key for name, of in _TEMPLATES.items() if of is None and name.endswith(end)]
    for end in ("Request", "Response")
)

#: of which only errors are shown, those of partitions
_ERRORS_ONLY = ("LeaderAndIsrResponse", "StopReplicaResponse")

#: structures outside the path of a template of which fields may be named
_ASIDE = ("replica_state",)

_IDS = {"topic": "topic_id"}
# columns of a text in ``Texts``: where, bytes, characters
AT, BYTES, CHARACTERS = range(3)

_FIELD = re.compile(r"\{(\w+)([|+]?)\}")
_CONDITIONS = {"|": p.ERROR_NAME, "+": p.IF_POSITIVE}

#: by struct code
_SIGNED, _UNSIGNED = frozenset("?bhiq"), frozenset("BHI")


class Texts:
    """Texts as one array of ``bytes``, and where each is in it: ``rows``."""

    def __init__(self) -> None:
        self.bytes = np.zeros(4096, np.uint8)
        self.rows = np.zeros((64, 3), np.int64)
        self.size = self._count = 0

    def add(self, text: str) -> int:
        """Its row."""
        encoded = text.encode()
        at, self.size = self.size, self.size + len(encoded)
        while self.size > len(self.bytes):
            self.bytes = np.concatenate([self.bytes, np.zeros_like(self.bytes)])
        if self._count == len(self.rows):
            self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)])
        self.bytes[at : self.size] = np.frombuffer(encoded, np.uint8)
        self.rows[self._count] = at, len(encoded), len(text)
        self._count += 1
        return self._count - 1


class TextPrograms(Programs):
    """``texts`` begins with the names of errors, from code -1 on."""

    def __init__(self, renderer: Renderer) -> None:
        super().__init__(columns=COLUMNS)
        self.texts = Texts()
        for code in range(-1, ERRORS - 1):
            self.texts.add(error_name(code))
        self._renderer = renderer

    def program(self, api_key: int, version: int, direction: Direction) -> Program | None:
        api, cls = BY_KEY[api_key], message_class(api_key, direction)
        if api_key == API_VERSIONS:
            return None  # the answer may be of another version
        writer = _TextWriter(self.texts)
        if cls is None:
            writer.emit(p.DONE, 1)
        else:
            writer.head(api, version, direction)
            if api_key in (DESCRIBED_REQUESTS if direction == "request" else DESCRIBED_RESPONSES):
                writer.emit(p.REFUSE)
            elif not writer.prints(cls, version, version in api.flexible):
                return None
        writer.values[KIND] = self.texts.add(self._renderer.kind(api.name, version, direction == "request"))
        return Program(writer.code, writer.present, writer.values)


class _TextWriter(Writer):
    def __init__(self, texts: Texts) -> None:
        super().__init__(COLUMNS)
        self.values[[UNKNOWN_TOPIC, *range(FIELDS, COLUMNS)]] = -1
        self._texts = texts
        self._template = _NO_TEMPLATE
        self._columns: dict[str, int] = {}
        self._constructs: dict[str, Construct] = {}  # of these fields, as far as they were met

    def prints(self, cls: type[Message], version: int, flexible: bool) -> bool:
        """Write the program of a body; False if there is none."""
        self.values[HAS_ERROR] = any(f.name == "error_code" and version in f.versions for f in cls.__fields__)
        template, construct = _TEMPLATES.get(cls.__name__) or _NO_TEMPLATE, struct_for(cls, version, flexible)
        if cls.__name__ in _ERRORS_ONLY:
            self._counts_errors = True
            self._struct(construct, {"error_code": p.ERROR_CODE})
            self.emit(p.NO_ERRORS)
        elif template.path:
            self._template = template
            names = {name for text in (template.head, template.item) for name, _ in _FIELD.findall(text)}
            self._note(sorted(names | {_IDS[name] for name in names & _IDS.keys()}))
            self._within = dict.fromkeys((*template.path, *_ASIDE), self._columns)
            self._struct(construct, self._columns)
        elif not self._differing(cls, construct):
            return False
        self.emit(p.DONE)
        self._tag_lists()
        return True

    def _note(self, names: Iterable[str]) -> None:
        self._columns.update((name, FIELDS + 2 * number) for number, name in enumerate(names))

    def _differing(self, cls: type[Message], construct: Construct) -> bool:
        """Print the fields on top that differ from their defaults."""
        shown = [f for f in cls.__fields__ if f.name not in SHOWN_ELSEWHERE]
        if FIELDS + 2 * len(shown) > COLUMNS:
            return False
        self._note(f.name for f in shown)
        self._struct(construct, self._columns)
        for _, tags, noted in self._tagged:
            self._constructs |= tags.known.values() if noted is self._columns else {}
        for f in shown:
            column, of_field = self._columns[f.name], self._constructs.get(f.name)
            code = None if of_field is None else code_of(of_field)
            if isinstance(of_field, String) and not f.default:
                unless, printed, default = p.IF_LONGER, p.QUOTED, -1 if f.default is None else 0
            elif code in _SIGNED:
                unless, printed, default = p.IF_OTHER, p.BOOLEAN if code == "?" else p.INTEGER, int(f.default)
                self.values[column] = default
            elif isinstance(of_field, String) or code in _UNSIGNED:
                return False
            else:
                continue
            end = len(self.code) + 4
            self.emit(unless, column, default, end)
            self.emit(p.PART)
            self.emit(p.LITERAL, self._texts.add(f"{f.name} "))
            self.emit(printed, column)
        return True

    def _value(self, name: str, construct: Construct, noted: dict[str, int]) -> None:
        if noted is self._columns and name in noted:
            self._constructs[name] = construct
        is_list = isinstance(construct, Array) and self._template.path[:1] == (name,)
        if is_list:
            self._print(self._template.head, p.PART)
        super()._value(name, construct, noted)
        if is_list:
            self.emit(p.REST)

    def _element(self, name: str, construct: Construct) -> None:
        super()._element(name, construct)
        if self._template.path[-1:] == (name,):
            self._print(self._template.item, p.ITEM)

    def _print(self, text: str, begin: int) -> None:
        """Print a text of the template, after ``begin``."""
        printed: list[tuple[int, int]] = []
        pieces = iter([*_FIELD.split(text), "", ""])
        for literal, name, how in zip(pieces, pieces, pieces, strict=True):
            if literal:
                printed.append((p.LITERAL, self._texts.add(literal)))
            if name and name not in self._constructs:
                name = _IDS.get(name, name)
            if name and name not in self._constructs:
                self.values[TWICE] = 1  # it follows only later
            if name:
                printed.append((_CONDITIONS.get(how) or self._how(name), self._columns[name]))
        if printed:
            printed.insert(printed[0][0] == p.IF_POSITIVE, (begin, 0))
        end = len(self.code) + len(printed)
        for what, which in printed:
            self.emit(what, which, 0, end)

    def _how(self, name: str) -> int:
        match self._constructs.get(name):
            case String():
                return p.STRING
            case Bytes():
                return p.RECORDS
            case Uuid():
                return p.TOPIC
            case _:
                return p.INTEGER
