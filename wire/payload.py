"""Messages with parts that are not in memory, such as slices of files: they are sent without being read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from kce.wire.framing import frame_prefix
from kce.wire.primitives import octets


class Stored(ABC):
    """Bytes that are not in memory; ``len()`` counts them."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self) -> bytes:
        """All of them. Raises OSError, also if they are gone."""


Part: TypeAlias = bytes | Stored


class Parts:
    """An encoded message, some of whose parts are stored."""

    __slots__ = ("_size", "parts")

    def __init__(self, pieces: Iterable[bytes | bytearray | memoryview | Stored]) -> None:
        self.parts: Sequence[Part] = _joined(pieces)
        self._size = sum(map(len, self.parts))

    def __len__(self) -> int:
        return self._size

    def read(self) -> bytes:
        """The message in memory. Raises OSError."""
        return b"".join(part.read() if isinstance(part, Stored) else part for part in self.parts)


#: an encoded message
Payload: TypeAlias = bytes | Parts


def _joined(pieces: Iterable[bytes | bytearray | memoryview | Stored]) -> list[Part]:
    """The pieces; those that follow each other in memory as one."""
    parts: list[Part] = []
    together: list[bytes | bytearray | memoryview] = []
    for piece in pieces:
        if not isinstance(piece, Stored):
            together.append(piece)
            continue
        if together:
            parts.append(b"".join(together))
            together = []
        parts.append(piece)
    if together:
        parts.append(b"".join(together))
    return parts


def frame_parts(payloads: Iterable[Payload]) -> Sequence[Part]:
    """Several payloads, each with its length before it. Raises EncodeError."""
    pieces: list[Part] = []
    for payload in payloads:
        pieces.append(frame_prefix(len(payload)))
        pieces += payload.parts if isinstance(payload, Parts) else (payload,)
    return _joined(pieces)


def octets_or_stored(value: Any) -> bytes | bytearray | memoryview | Stored:
    """``octets``, or what is stored. Raises TypeError."""
    return value if isinstance(value, Stored) else octets(value)
