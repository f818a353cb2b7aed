"""Rule 13.2 for every message and version: absent fields and unknown tagged fields."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kce import wire
from kce.wire.primitives import Primitive, TaggedField
from kce.wire.registry import api
from kce.wire.schema import Field, Message, Struct
from tests.wire.frames import decode, encode
from tests.wire.strategies import MESSAGE_IDS, MESSAGES


def paths(cls: type[Struct], version: int) -> Iterator[tuple[Field, ...]]:
    """The way to every field of every structure that the version has, the field itself last."""
    for f in cls.__fields__:
        yield (f,)
        if version in f.versions and not isinstance(f.type, Primitive):
            yield from ((f, *rest) for rest in paths(f.type, version))


def at(cls: type[Struct], path: tuple[Field, ...], value: Any) -> Any:
    """An instance of ``cls`` with ``value`` at the end of the path, and defaults elsewhere."""
    f, *rest = path
    if rest:
        inner = at(f.type, tuple(rest), value)
        value = (inner,) if f.array else inner
    return cls(**{f.name: value})


def found(message: Any, path: tuple[Field, ...]) -> Any:
    for f in path:
        value = getattr(message, f.name)
        message = value[0] if f.array else value
    return message


def not_default(f: Field) -> Any:
    if not isinstance(f.type, Primitive):
        return (f.type(),) if f.array else other_struct(f.type)
    one: Any = {
        "bool": True, "string": "x", "bytes": b"x", "records": b"x", "uuid": uuid.UUID(int=7), "float64": 1.5,
    }.get(f.type.name, 7)  # fmt: skip
    if f.array:
        return (one,)
    return (not f.default) if f.type.name == "bool" else one


def other_struct(cls: type[Struct]) -> Struct:
    first = cls.__fields__[0]
    return cls(**{first.name: not_default(first)})  # type: ignore[call-arg]


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=MESSAGE_IDS)
def test_absent_field_is_ignored_or_rejected(cls: type[Message], version: int) -> None:
    for path in paths(cls, version):
        f = path[-1]
        if version in f.versions:
            continue
        message = at(cls, path, not_default(f))
        if f.ignorable:
            assert encode(message, version) == encode(at(cls, path, f.default), version), f.name
        else:
            with pytest.raises(wire.EncodeError) as refused:
                encode(message, version)
            assert str(refused.value).startswith(f"{cls.__name__} {version}: version {version} has no {f.name}, ")
            where = ".".join(p.name + ("[0]" if p.array and p is not f else "") for p in path)
            assert str(refused.value).endswith(f" at {where}")


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=MESSAGE_IDS)
def test_unknown_tagged_fields_round_trip(cls: type[Message], version: int) -> None:
    """Behind every structure of a flexible version, between and after the tags that are known."""
    if version not in api(cls.__api_key__).flexible:
        return
    strange = (TaggedField(90, b"ninety"), TaggedField(2**31, b""))
    structures = [(), *(p for p in paths(cls, version) if version in p[-1].versions and not_primitive(p[-1]))]
    for path in structures:
        marked = (path[-1].type if path else cls)()
        object.__setattr__(marked, "_unknown_tagged_fields", strange)
        message = at(cls, path, (marked,) if path[-1].array else marked) if path else marked
        if any(version in f.tagged and not f.array for f in path):
            # a tagged structure of defaults is not written at all: let it differ
            message = at(cls, path, dataclasses.replace(other_struct(type(marked))))
            object.__setattr__(found(message, path), "_unknown_tagged_fields", strange)
        frame = encode(message, version)
        again = decode(frame, cls, version)
        assert found(again, path).unknown_tagged_fields == strange
        assert encode(again, version) == frame


def not_primitive(f: Field) -> bool:
    return not isinstance(f.type, Primitive)
