"""Messages as plain data: dicts, lists, numbers and strings, for JSON and for people."""

from __future__ import annotations

import functools
import uuid
from typing import Any

from wire.outline import outline
from wire.primitives import RECORDS
from wire.schema import Struct

#: bytes that prove who somebody is, or that may hold a whole request which does: of them only the size is told
SECRETS = frozenset({"auth_bytes", "hmac", "salt", "salted_password", "request_data", "response_data"})


def as_dict(value: Any, version: int, *, payloads: bool = False) -> Any:
    """A message as plain data of that version: dicts, lists, numbers, strings; uuids as text, bytes as hex.

    Of a record set there is what ``wire.outline`` tells of it, of credentials (``SECRETS``) their size: neither
    payloads nor secrets come out of here, unless ``payloads`` asks for them, as hex.
    """
    if isinstance(value, Struct):
        plain: dict[str, Any] = {}
        cls: Any = type(value)  # mypy takes a class whose instances have a hash of their own for unhashable
        for name, records, secret in _fields(cls, version):
            inner = getattr(value, name)
            if (records or secret) and payloads:
                plain[name] = None if inner is None else bytes(inner).hex()
            elif records:
                plain[name] = outline(inner)
            elif secret:
                plain[name] = None if inner is None else {"bytes": len(inner)}
            elif type(inner) is int or type(inner) is str:
                plain[name] = inner
            else:
                plain[name] = as_dict(inner, version, payloads=payloads)
        return plain
    if isinstance(value, (tuple, list)):
        return [as_dict(v, version, payloads=payloads) for v in value]
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, (bytes, memoryview)):
        return value.hex()
    return value


@functools.cache
def _fields(cls: type[Struct], version: int) -> tuple[tuple[str, bool, bool], ...]:
    """(name, whether it is a record set, whether it is secret) of the fields which that version has."""
    present = (f for f in cls.__fields__ if version in f.versions)
    return tuple((f.name, f.type is RECORDS, f.name in SECRETS) for f in present)
