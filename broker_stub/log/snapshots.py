"""Snapshots of producer state: `<offset>.snapshot` (rule B3.54)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from crc32c import crc32c

from kce.broker_stub.disk import Disk

_VERSION: Final = 1
#: version and CRC; the CRC covers what follows
_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">qhiqiqiq")


class CorruptSnapshot(Exception):
    """The file is not a snapshot, or a part of one."""


class ProducerSnapshot(NamedTuple):
    """One producer. ``last_offset`` and ``transaction`` are -1 where there is none."""

    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction: int


def read_snapshot(disk: Disk, path: str) -> dict[int, ProducerSnapshot]:
    """Read producer states by producer id. Raises CorruptSnapshot, OSError."""
    content = disk.read(path) or b""
    if len(content) < _HEAD.size + _COUNT.size:
        raise CorruptSnapshot(f"only {len(content)} bytes")
    version, crc = _HEAD.unpack_from(content)
    if version != _VERSION:
        raise CorruptSnapshot(f"version {version} is not {_VERSION}")
    found = crc32c(content[_HEAD.size :])
    if found != crc:
        raise CorruptSnapshot(f"wrong CRC-32C: computed {found:08x}, stored {crc:08x}")
    (count,) = _COUNT.unpack_from(content, _HEAD.size)
    entries = content[_HEAD.size + _COUNT.size :]
    if count * _ENTRY.size != len(entries):
        raise CorruptSnapshot(f"{count} producers announced in {len(entries)} bytes")
    return {producer_id: ProducerSnapshot(*fields) for producer_id, *fields in _ENTRY.iter_unpack(entries)}


def write_snapshot(disk: Disk, path: str, producers: Mapping[int, ProducerSnapshot]) -> None:
    """Raises OSError. It becomes durable with the next flush."""
    body = _COUNT.pack(len(producers)) + b"".join(
        _ENTRY.pack(producer_id, *fields) for producer_id, fields in producers.items()
    )
    disk.write(path, _HEAD.pack(_VERSION, crc32c(body)) + body)
