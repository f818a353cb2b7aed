"""Keys and values of the records in internal topics: an int16, which is the version, and a struct of that version."""

from __future__ import annotations

import struct
from typing import Final, TypeVar

import construct

from kce.wire import errors
from kce.wire.codec import REFUSALS, codec_for, step_decoder_for
from kce.wire.primitives import explain
from kce.wire.schema import Struct, struct_for
from kce.wire.steps import finish

_VERSION: Final = struct.Struct(">h")

S = TypeVar("S", bound=Struct)


def version_of(data: bytes, what: str) -> int:
    """Raises Truncated, which names ``what`` it is."""
    if len(data) < _VERSION.size:
        raise errors.Truncated(f"{what} of {len(data)} bytes, shorter than its version")
    version: int = _VERSION.unpack_from(data)[0]
    return version


def decode_value(cls: type[S], data: bytes, last_version: int, first_flexible: int) -> S:
    """Any version up to ``last_version``. Raises DecodeError (rule G9.8)."""
    version = version_of(data, cls.__name__)
    if not 0 <= version <= last_version:
        raise errors.UnsupportedVersion(f"{cls.__name__} has versions 0-{last_version}, not {version}")
    return decode(cls, data, version, flexible=version >= first_flexible)


def decode(cls: type[S], data: bytes, version: int, *, flexible: bool = False) -> S:
    """What follows the version; text that is not UTF-8 as Kafka reads it. Raises DecodeError."""
    try:
        return codec_for(cls, version, flexible).decode(data, _VERSION.size)[0]  # type: ignore[no-any-return]
    except REFUSALS:
        pass
    try:
        steps = step_decoder_for(cls, version, flexible, like_kafka=True)(data, _VERSION.size)
        return finish(steps)[0]  # type: ignore[no-any-return]
    except REFUSALS:
        pass
    try:
        struct_for(cls, version, flexible).parse(data[_VERSION.size :])
    except construct.ConstructError as e:
        kind, reason, where = explain(e)
        raise kind(f"{cls.__name__} {version}: {reason} at {where}") from None
    raise errors.DecodeError(f"{cls.__name__} {version}: cannot be read")


def encode(value: Struct, version: int) -> bytes:
    """Not flexible. Raises EncodeError."""
    pieces = [_VERSION.pack(version)]
    try:
        codec_for(type(value), version, False).encode(value, pieces.append)
    except REFUSALS as e:
        raise errors.EncodeError(f"{type(value).__name__} {version}: {e or 'a value does not fit'}") from None
    return b"".join(pieces)
