"""The small text files of logs (rules B5.29, B6.6, B6.7, B6.9). Each is replaced atomically."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from kce.broker_stub.disk import Disk, replace
from kce.wire.vocabulary import TopicPartition

_VERSION: Final = "0"
#: an entry does not begin with them
_BLANKS: Final = re.compile(r"\s+")


class BadCheckpoint(OSError):
    """A malformed checkpoint file. It fails the log directory as an I/O error does."""


class BadNumber(BadCheckpoint):
    """What should be a number of an entry is none."""


def _encode(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "".join(f"{line}\n" for line in (_VERSION, str(len(entries)), *entries)).encode()


def _decode(path: str, content: bytes | None, fields: int) -> list[list[str]]:
    """The fields of each entry; none for a file that is missing, empty or has only a version. Raises BadCheckpoint."""
    if not content:
        return []
    lines = content.decode(errors="replace").splitlines()
    if lines[0] != _VERSION:
        raise BadCheckpoint(f"{path}: version {lines[0]!r} is not {_VERSION}")
    if len(lines) == 1:
        return []
    entries = [_BLANKS.split(line.rstrip()) for line in lines[2:]]
    if lines[1] != str(len(entries)):
        raise BadCheckpoint(f"{path}: {len(entries)} entries, not the number in its second line")
    if bad := [entry for entry in entries if len(entry) != fields]:
        raise BadCheckpoint(f"{path}: malformed entry {' '.join(bad[0])!r}")
    return entries


def _number(text: str, bits: int) -> int:
    """Raises ValueError."""
    number = int(text)
    if number.bit_length() >= bits:
        raise ValueError(f"{text} has more than {bits} bits")
    return number


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """A checkpoint of offsets. Raises OSError, BadCheckpoint, BadNumber."""
    entries = _decode(path, disk.read(path), 3)
    try:
        return {TopicPartition(topic, _number(number, 32)): _number(offset, 64) for topic, number, offset in entries}
    except ValueError as e:
        raise BadNumber(f"{path}: {e}") from None


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Raises OSError."""
    replace(disk, path, encode_offsets(offsets))


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return _encode(f"{topic} {number} {offset}" for (topic, number), offset in offsets.items())


def read_leader_epochs(disk: Disk, path: str) -> list[tuple[int, int]]:
    """(epoch, start offset). Raises OSError, BadCheckpoint, BadNumber."""
    try:
        return [(_number(epoch, 32), _number(offset, 64)) for epoch, offset in _decode(path, disk.read(path), 2)]
    except ValueError as e:
        raise BadNumber(f"{path}: {e}") from None


def write_leader_epochs(disk: Disk, path: str, entries: Iterable[tuple[int, int]]) -> None:
    """Raises OSError."""
    replace(disk, path, _encode(f"{epoch} {offset}" for epoch, offset in entries))


@lru_cache(256)
def _topic_id(text: str) -> uuid.UUID:
    """The partitions of a topic share its id."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def read_topic_id(disk: Disk, path: str) -> uuid.UUID | None:
    """Read the topic id in `partition.metadata`; None if there is no file. Raises OSError, BadCheckpoint."""
    content = disk.read(path)
    if content is None:
        return None
    try:
        fields = dict(line.split(": ") for line in content.decode().splitlines())
        if fields["version"] != _VERSION:
            raise BadCheckpoint(f"{path}: version {fields['version']!r} is not {_VERSION}")
        return _topic_id(fields["topic_id"])
    except (ValueError, KeyError) as e:
        raise BadCheckpoint(f"{path}: {e}") from None


def write_topic_id(disk: Disk, path: str, topic_id: uuid.UUID) -> None:
    """Raises OSError."""
    text = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    replace(disk, path, f"version: {_VERSION}\ntopic_id: {text}".encode())


def write_clean_shutdown(disk: Disk, path: str, broker_epoch: int) -> None:
    """Raises OSError."""
    disk.write(path, f'{{"version":0,"brokerEpoch":{broker_epoch}}}'.encode())
    disk.flush(path)
