"""Random messages from a seed: the same in every run, for external checkers that take many at once."""

from __future__ import annotations

import random
import uuid
from typing import Any

from kce.wire.primitives import Primitive, TaggedField
from kce.wire.schema import Field, Struct

_LETTERS = "abcdefgh-._ äß€𝄞\0"
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def message(chance: random.Random, cls: type[Any], version: int, *, unknown: bool = False, kio: bool = False) -> Any:
    """A ``cls`` with random values in the fields of ``version``; ``unknown``: sometimes with unknown tagged fields.

    ``kio``: only values that kio supports: it decodes error codes to enums and milliseconds to times.
    """
    made = cls(**{f.name: _value(chance, f, version, unknown, kio) for f in cls.__fields__ if version in f.versions})
    if unknown and chance.random() < 0.3:
        tags = sorted(chance.sample(range(50, 2**20), chance.randrange(1, 3)))
        strange = tuple(TaggedField(tag, chance.randbytes(chance.randrange(5))) for tag in tags)
        object.__setattr__(made, "_unknown_tagged_fields", strange)
    return made


def _value(chance: random.Random, f: Field, version: int, unknown: bool, kio: bool) -> Any:
    kind = chance.random()
    if version in f.nullable and kind < 0.2:
        return None
    if kind > 0.8 and (f.default is not None or version in f.nullable):
        return f.default
    if f.array:
        return tuple(_one(chance, f, version, unknown, kio) for _ in range(chance.choice((0, 1, 1, 2, 3))))
    return _one(chance, f, version, unknown, kio)


def _one(chance: random.Random, f: Field, version: int, unknown: bool, kio: bool) -> Any:
    if not isinstance(f.type, Primitive):
        inner: Struct = message(chance, f.type, version, unknown=unknown, kio=kio)
        return inner
    name = f.type.name
    if kio and f.name.endswith("error_code"):
        return chance.randrange(-1, 120)
    if kio and f.name.endswith(("_ms", "_timestamp")) and name in ("int32", "int64"):
        return chance.randrange(2**31)
    if name in _BITS:
        half = 2 ** (_BITS[name] - 1)
        return chance.choice((0, 1, -1, half - 1, -half, chance.randrange(-half, half)))
    match name:
        case "bool":
            return chance.random() < 0.5
        case "uint16":
            return chance.randrange(65536)
        case "float64":
            return chance.choice((0.0, -1.5, 1e300, chance.random()))
        case "uuid":
            return uuid.UUID(int=chance.getrandbits(128))
        case "string":
            return "".join(chance.choices(_LETTERS, k=chance.choice((0, 1, 5, 130))))
        case _:
            return chance.randbytes(chance.choice((0, 1, 9, 200)))
