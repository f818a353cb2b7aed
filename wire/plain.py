"""Messages as plain data for JSON: dicts, lists, numbers and strings."""

from __future__ import annotations

import functools
import uuid
from typing import Any

from kce.wire.outline import outline
from kce.wire.primitives import RECORDS
from kce.wire.schema import Struct

#: credentials, and bytes that may contain a request with credentials: only their size is shown
SECRETS = frozenset({"auth_bytes", "hmac", "salt", "salted_password", "request_data", "response_data"})


def as_dict(value: Any, version: int, *, payloads: bool = False) -> Any:
    """A message as plain data of that version: dicts, lists, numbers, strings; uuids as text, bytes as hex.

    Record sets become their ``wire.outline``, credentials (``SECRETS``) their size; with ``payloads``, both become hex.
    """
    if isinstance(value, Struct):
        plain: dict[str, Any] = {}
        cls: Any = type(value)  # mypy takes a class with a custom instance hash for unhashable
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
    """(name, is a record set, is secret) of the fields of that version."""
    present = (f for f in cls.__fields__ if version in f.versions)
    return tuple((f.name, f.type is RECORDS, f.name in SECRETS) for f in present)
