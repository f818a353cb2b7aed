"""Typed values of the JSON in a znode. Pure.

Functions named ``as_`` return a value of their type, or raise ``Malformed``.
"""

from __future__ import annotations

from typing import Any

import orjson

from kce.zookeeper.model import BrokerId

#: strings of the older versions of messages have lengths of 16 bits
MAX_STRING_BYTES = 2**15 - 1


class BadZNode(ValueError):
    """Malformed content of a znode. The text names the path."""


class Malformed(ValueError):
    """A value in a znode has another type, or is out of range."""


def is_json(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


def load(data: bytes) -> dict[str, Any] | None:
    """The JSON object in ``data``; None if it is not one."""
    try:
        obj = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return obj if isinstance(obj, dict) else None


def is_same_json(one: bytes, other: bytes) -> bool:
    """Whether both are the same JSON object."""
    return (obj := load(one)) is not None and obj == load(other)


def as_int(value: object, lowest: int = -(2**31), highest: int = 2**31 - 1) -> int:
    """A number of JSON; by default, of 32 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise Malformed(f"{value!r:.100} is not a number from {lowest} to {highest}")
    return value


def as_number(text: object, lowest: int = 0, highest: int = 2**31 - 1) -> int:
    """A number that is a string in JSON, or the name of a node."""
    if not isinstance(text, str) or not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 20:
        raise Malformed(f"{text!r:.100} is not a number")
    return as_int(int(text), lowest, highest)


def as_ids(value: object) -> tuple[BrokerId, ...]:
    if not isinstance(value, list):
        raise Malformed(f"{value!r:.100} is not a list")
    return tuple(BrokerId(as_int(i)) for i in value)


def as_text(value: object) -> str:
    if not isinstance(value, str) or len(value.encode()) > MAX_STRING_BYTES:
        raise Malformed(f"{value!r:.100} is not a string of at most {MAX_STRING_BYTES} bytes")
    return value


def as_object(value: object) -> dict[str, Any]:
    """Absent and null are empty."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Malformed(f"{value!r:.100} is not an object")
    return value


def as_list(value: object) -> list[Any]:
    """Absent and null are empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise Malformed(f"{value!r:.100} is not a list")
    return value


def malformed(path: str, error: Exception, data: bytes) -> BadZNode:
    reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
    return BadZNode(f"{path} is malformed: {reason}, in {data[:200]!r}")
