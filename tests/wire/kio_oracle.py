"""Converts our messages to those of kio 0.5.0, an independent implementation of Kafka's protocol."""

from __future__ import annotations

import datetime
import functools
import io
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints
from uuid import UUID

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.constants import EntityType

from kce.wire.schema import Message, Struct


@functools.cache
def kio_class(message: type[Message], version: int) -> type:
    module = load_payload_module(message.__api_key__, version, EntityType[message.__direction__])  # type: ignore[arg-type]
    return getattr(module, message.__name__)  # type: ignore[no-any-return]


def _plain(name: str) -> str:
    return name.removesuffix("_ms").replace("_", "").lower()


_hints = functools.cache(get_type_hints)
_writer = functools.cache(entity_writer)


def to_kio(ours: Struct, cls: type) -> Any:
    """The kio entity with our values; a field of ours that kio's class lacks must not exist in that version."""
    hints = _hints(cls)
    mine = {_plain(f.name): f.name for f in ours.__fields__}
    return cls(**{f.name: _convert(getattr(ours, mine[_plain(f.name)]), hints[f.name]) for f in fields(cls)})


def _convert(value: Any, hint: Any) -> Any:
    if value is None:
        return None
    options = [hint, *get_args(hint)]
    entity = next((a for o in options for a in [o, *get_args(o)] if is_dataclass(a)), None)
    if entity is not None:
        return tuple(to_kio(v, entity) for v in value) if isinstance(value, tuple) else to_kio(value, entity)  # type: ignore[arg-type]
    if value == UUID(int=0) and type(None) in options:
        return None  # kio has no other zero
    if ErrorCode in options:
        return ErrorCode(value)
    types = [o for o in options if isinstance(o, type)]
    if any(issubclass(t, datetime.timedelta) for t in types):
        return datetime.timedelta(milliseconds=value)
    if any(issubclass(t, datetime.datetime) for t in types):
        return datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
    return value


def kio_body(ours: Message, version: int) -> bytes:
    """The body that kio writes for our message."""
    cls = kio_class(type(ours), version)
    buffer = io.BytesIO()
    _writer(cls)(buffer, to_kio(ours, cls))
    return buffer.getvalue()
