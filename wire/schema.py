"""Message definitions as version-ranged field tables, and the construct Struct of each version built from them.

A message is a class whose body is the table, in wire order, in the terms of Kafka's own definitions:

    @request(api_key=7, versions="0-3", flexible="3+")
    class ControlledShutdownRequest(Message):
        broker_id: int = field(INT32, "0+")
        broker_epoch: int = field(INT64, "2+", default=-1, ignorable=True)

The decorators turn it into a frozen, slotted, keyword-only dataclass with Kafka's defaults, and keep the table as
``__fields__``. Arrays are written ``[INT32]``. ``struct_for(cls, version)`` is the cached Construct of one version:
parsing itself has no version checks.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, TypeVar, dataclass_transform

import construct
from construct.lib import Container

from kce.wire import errors
from kce.wire.primitives import Array, NullableStruct, Primitive, Refused, TaggedField, TaggedFields


class Versions(NamedTuple):
    """An inclusive range of versions, in Kafka's notation: "3+", "1-4", "2" or "none"."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Versions:
        if text == "none":
            return cls(0, -1)
        if text.endswith("+"):
            return cls(int(text[:-1]), 32767)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def __str__(self) -> str:
        if self.last < self.first:
            return "none"
        if self.last == 32767:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


class Field(NamedTuple):
    """One row of a table. ``type`` is a Primitive or a Struct class, ``array`` marks an array of it."""

    name: str
    type: Any
    array: bool
    versions: Versions
    default: Any
    nullable: Versions
    ignorable: bool
    tag: int | None
    tagged: Versions
    flexible: Versions | None


class Struct:
    """Base class of messages and of the structures inside them.

    Its methods serve all of them: those that dataclasses would generate for each class take half of a node's start.
    """

    __slots__ = ("_unknown_tagged_fields",)
    __fields__: ClassVar[tuple[Field, ...]] = ()
    #: of an instance, those of all fields, to be compared
    __values__: ClassVar[operator.attrgetter[Any]]

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        values = self.__values__
        return bool(values(self) == values(other))

    def __hash__(self) -> int:
        return hash(self.__values__(self))

    def __repr__(self) -> str:
        values = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in self.__fields__)
        return f"{type(self).__qualname__}({values})"

    def __getstate__(self) -> dict[str, Any]:
        state = {f.name: getattr(self, f.name) for f in self.__fields__}
        return state | {"_unknown_tagged_fields": self.unknown_tagged_fields}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    @property
    def unknown_tagged_fields(self) -> tuple[TaggedField, ...]:
        """Tagged fields that the definition does not have. They are kept, and encoded again."""
        return getattr(self, "_unknown_tagged_fields", ())


class Message(Struct):
    """Base class of requests and responses."""

    __slots__ = ()
    __api_key__: ClassVar[int]
    __direction__: ClassVar[Literal["request", "response"]]
    __versions__: ClassVar[Versions]
    __flexible__: ClassVar[Versions]


S = TypeVar("S", bound=Struct)
M = TypeVar("M", bound=Message)


def field(
    type: Any,
    versions: str,
    *,
    default: Any = dataclasses.MISSING,
    nullable: str = "none",
    ignorable: bool = False,
    tag: int | None = None,
    tagged: str = "none",
    flexible: str | None = None,
) -> Any:
    """A row of a table. ``type`` is a Primitive, a Struct class, or either in a list for an array.

    ``default`` is the type's zero value unless given: 0, "", False, (), the zero uuid, or a structure of defaults.
    Versions that lack an ``ignorable`` field drop its value; any other field must then have its default (rule 13.2).
    ``flexible`` overrides the message's flexible versions for this field.
    """
    array = isinstance(type, list)
    element = type[0] if array else type
    if default is dataclasses.MISSING:
        default = () if array else element.zero if isinstance(element, Primitive) else element()
    spec = Field(
        "", element, array, Versions.parse(versions), default, Versions.parse(nullable), ignorable, tag,
        Versions.parse(tagged), None if flexible is None else Versions.parse(flexible),
    )  # fmt: skip
    return dataclasses.field(default=default, metadata={"kafka": spec})


@dataclass_transform(frozen_default=True, kw_only_default=True)
def struct(cls: type[S]) -> type[S]:
    """Turn the class into a structure (see the module)."""
    cls.__doc__ = cls.__doc__ or cls.__name__  # dataclasses would write the signature, and take long for it
    made = dataclasses.dataclass(slots=True, kw_only=True, init=False, repr=False, eq=False)(cls)
    rows: Any = dataclasses.fields(made)  # type: ignore[arg-type]  # a dataclass only since the line above
    made.__fields__ = tuple(f.metadata["kafka"]._replace(name=f.name) for f in rows)
    made.__values__ = operator.attrgetter(*([f.name for f in rows] or ["__class__"]))
    made.__new__ = _constructor(made)  # type: ignore[method-assign]
    # not of the base class: twins, which are mutable, have the same
    made.__setattr__ = made.__delattr__ = _refuse_change  # type: ignore[method-assign,assignment]
    return made


def _refuse_change(self: Struct, name: str, *value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"{type(self).__qualname__} cannot be changed: {name}")


def twin(cls: type[Struct]) -> type[Any]:
    """A mutable class with the memory layout of ``cls``. Set its fields, then assign ``cls`` to ``__class__``.

    Setting the fields of a frozen dataclass through object.__setattr__ takes several times as long.
    """
    found = _TWINS.get(cls)
    if found is None:
        slots = tuple(f.name for f in cls.__fields__)
        found = _TWINS[cls] = type(f"_{cls.__name__}", cls.__bases__, {"__slots__": slots})
    return found


_TWINS: dict[type[Struct], type[Any]] = {}


def _constructor(cls: type[Struct]) -> Any:
    """A ``__new__`` that takes the fields as keywords, and makes an instance of the twin first."""
    names: dict[str, Any] = {"Twin": twin(cls)} | {f"default_{f.name}": f.default for f in cls.__fields__}
    lines = ["made = Twin()", *(f"made.{f.name} = {f.name}" for f in cls.__fields__)]
    lines += ["made._unknown_tagged_fields = ()", "made.__class__ = cls", "return made"]
    parameters = ", ".join(
        ("cls", *("*" for _ in cls.__fields__[:1]), *(f"{f.name}=default_{f.name}" for f in cls.__fields__))
    )
    exec(f"def __new__({parameters}):\n    " + "\n    ".join(lines), names)  # noqa: S102 - our own tables
    return staticmethod(names["__new__"])


def _message(
    direction: Literal["request", "response"], api_key: int, versions: str, flexible: str, cls: type[M]
) -> type[M]:
    made = struct(cls)
    made.__direction__ = direction
    made.__api_key__ = api_key
    made.__versions__ = Versions.parse(versions)
    made.__flexible__ = Versions.parse(flexible)
    return made


@dataclass_transform(frozen_default=True, kw_only_default=True)
def request(*, api_key: int, versions: str, flexible: str) -> Callable[[type[M]], type[M]]:
    """Turn the class into a request of that API, with its valid versions and its flexible versions (KIP-482)."""
    return functools.partial(_message, "request", api_key, versions, flexible)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def response(*, api_key: int, versions: str, flexible: str) -> Callable[[type[M]], type[M]]:
    """Turn the class into a response; arguments as for ``request``."""
    return functools.partial(_message, "response", api_key, versions, flexible)


class AsStruct(construct.Adapter):
    """Converts between construct's Container and the dataclass of one version; enforces rule 13.2."""

    def __init__(self, subcon: construct.Construct, cls: type[Struct], version: int) -> None:
        super().__init__(subcon)
        self.cls = cls
        self.version = version
        present = [f for f in cls.__fields__ if version in f.versions]
        self.plain = tuple(f.name for f in present if version not in f.tagged)
        self.tagged = tuple((f.name, f.default) for f in present if version in f.tagged)
        self.absent = tuple((f.name, f.default) for f in cls.__fields__ if f not in present and not f.ignorable)

    def _decode(self, obj: Container, context: Container, path: str) -> Struct:
        values = {name: obj[name] for name in self.plain}
        unknown: tuple[TaggedField, ...] = ()
        if "tagged_fields" in obj:
            values.update(obj.tagged_fields)
            unknown = values.pop(TaggedFields.UNKNOWN)
        made = self.cls(**values)
        if unknown:
            object.__setattr__(made, "_unknown_tagged_fields", unknown)
        return made

    def _encode(self, obj: Struct, context: Container, path: str) -> dict[str, Any]:
        if type(obj) is not self.cls:
            raise Refused(errors.EncodeError, f"{self.cls.__qualname__} expected, not {type(obj).__qualname__}", path)
        for name, default in self.absent:
            if (value := getattr(obj, name)) != default:
                reason = f"version {self.version} has no {name}, but its value {_short(value)} is not the default"
                raise Refused(errors.EncodeError, reason, f"{path} -> {name}")
        values: dict[str, Any] = {name: getattr(obj, name) for name in self.plain}
        tagged = {name: v for name, default in self.tagged if (v := getattr(obj, name)) != default}
        values["tagged_fields"] = {**tagged, TaggedFields.UNKNOWN: obj.unknown_tagged_fields}
        return values


def struct_for(cls: type[Struct], version: int, flexible: bool) -> construct.Construct:
    """The Construct of ``cls`` in one version; ``flexible``: whether the message is flexible in it."""
    key = (cls, version, flexible)
    found = _structs.get(key)
    if found is None:
        found = _structs[key] = _build_struct(cls, version, flexible)
    return found


_structs: dict[tuple[type[Struct], int, bool], construct.Construct] = {}


def _build_struct(cls: type[Struct], version: int, flexible: bool) -> construct.Construct:
    subcons: list[construct.Construct] = []
    tagged: dict[int, tuple[str, construct.Construct]] = {}
    for f in cls.__fields__:
        if version not in f.versions:
            continue
        subcon = _construct_for(f, version, flexible if f.flexible is None else version in f.flexible)
        if version in f.tagged and f.tag is not None:
            tagged[f.tag] = (f.name, subcon)
        else:
            subcons.append(f.name / subcon)
    if flexible:
        other_versions = {f.tag for f in cls.__fields__ if f.tag is not None} - tagged.keys()
        subcons.append("tagged_fields" / TaggedFields(tagged, other_versions))
    return AsStruct(construct.Struct(*subcons), cls, version)


def _construct_for(f: Field, version: int, compact: bool) -> construct.Construct:
    nullable = version in f.nullable
    if isinstance(f.type, Primitive):
        element = f.type.construct_for(compact=compact, nullable=nullable and not f.array)
    else:
        element = struct_for(f.type, version, compact)
    if not f.array:
        return NullableStruct(element) if nullable and not isinstance(f.type, Primitive) else element
    return Array(element, max(1, min_bytes(f.type, version, compact)), compact=compact, nullable=nullable)


@functools.cache
def min_bytes(type: Any, version: int, compact: bool) -> int:
    """Minimum size of a value of ``type`` in that version, in bytes."""
    if isinstance(type, Primitive):
        if type.construct is not None or compact:
            return type.min_bytes
        return 2 if type.name == "string" else 4
    total = 1 if compact else 0
    for f in type.__fields__:
        if version in f.versions and version not in f.tagged:
            if f.array:
                total += 1 if compact else 4
            elif version in f.nullable and not isinstance(f.type, Primitive):
                total += 1
            else:
                total += min_bytes(f.type, version, compact)
    return total


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
