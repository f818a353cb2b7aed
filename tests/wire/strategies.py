"""Hypothesis strategies for every message of every version, from the definition tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from kce.wire.primitives import Primitive
from kce.wire.registry import API_KEYS, CONTROL_REQUESTS, message_class
from kce.wire.schema import Field, Message, Struct
from tests import sampling

INT_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def _versions(cls: type[Message]) -> Iterable[int]:
    """All versions; in fast runs the oldest and the newest, but all of control requests."""
    first, last = cls.__versions__
    every = range(first, last + 1)
    return dict.fromkeys((first, last)) if sampling.fast and cls.__api_key__ not in CONTROL_REQUESTS else every


#: (message class, version) of every message that has a definition
MESSAGES = [
    (cls, version)
    for api in API_KEYS
    for direction in ("request", "response")
    if (cls := message_class(api.key, direction)) is not None  # type: ignore[arg-type]
    for version in _versions(cls)
]
MESSAGE_IDS = [f"{cls.__name__}-{version}" for cls, version in MESSAGES]


def _primitive(f: Field) -> st.SearchStrategy[Any]:
    kind = f.type.name
    if f.name.endswith("error_code"):
        return st.integers(-1, 127)  # the codes that kio knows as an enum
    if f.name.endswith(("_ms", "_timestamp")) and kind in ("int32", "int64"):
        return st.integers(0, 2**31 - 1)  # kio makes times of them
    if kind in INT_BITS:
        half = 2 ** (INT_BITS[kind] - 1)
        return st.integers(-half, half - 1)
    return {
        "bool": st.booleans(),
        "uint16": st.integers(0, 65535),
        "float64": st.floats(allow_nan=False),
        "uuid": st.uuids(),
        "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
        "bytes": st.binary(max_size=12),
        "records": st.binary(max_size=12),
    }[kind]


def _value(f: Field, version: int, max_array: int) -> st.SearchStrategy[Any]:
    one = _primitive(f) if isinstance(f.type, Primitive) else structs(f.type, version, max_array)
    value = st.lists(one, max_size=max_array).map(tuple) if f.array else one
    return st.none() | value if version in f.nullable else value


def structs(cls: type[Struct], version: int, max_array: int = 3) -> st.SearchStrategy[Any]:
    """Instances of ``cls`` with random values in the fields of ``version``, and defaults in the others."""
    present = {f.name: _value(f, version, max_array) for f in cls.__fields__ if version in f.versions}
    return st.builds(cls, **present)


def messages(cls: type[Message], version: int) -> st.SearchStrategy[Any]:
    return structs(cls, version)
