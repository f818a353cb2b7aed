"""Writing pcapng: one section, its comments, interfaces as they are needed, packets with nanoseconds.

Each block goes out in one write, so that whatever kills the process leaves at most the last one unfinished.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from kce.captures.errors import CaptureError
from kce.captures.files.formats import ENHANCED_PACKET, INTERFACE_DESCRIPTION, INTERFACE_STATISTICS, SECTION_HEADER

LINKTYPE_RAW = 101

_BYTE_ORDER_MAGIC = 0x1A2B3C4D
_OPT_COMMENT = 1
_SHB_USERAPPL = 4
_IF_TSRESOL = 9
_ISB_IFRECV = 4
_ISB_OSDROP = 7
_MAX_OPTION_BYTES = 65_535

APPLICATION = "kafka-controller-emulator"


class PcapngWriter:
    """``target`` is a path, which is created or emptied, or a binary stream, which is the caller's to close.

    Raises CaptureError where the file cannot be created and begun; OSError from every later write that fails.
    """

    def __init__(self, target: str | os.PathLike[str] | BinaryIO, comments: Iterable[str] = ()) -> None:
        if isinstance(target, (str, os.PathLike)):
            self.name = os.fspath(target)
            try:
                self._file: BinaryIO = Path(target).open("wb", buffering=0)  # noqa: SIM115  # closed by `close`
            except OSError as e:
                raise CaptureError(f"{self.name}: cannot be written ({e.strerror or e})") from None
            self._owned = True
        else:
            self.name = str(getattr(target, "name", "stream"))
            self._file = target
            self._owned = False
        self.written_bytes = 0
        self.closed = False
        self._interfaces: dict[int, int] = {}
        self._last_ns = 0
        options = b"".join(_option(_OPT_COMMENT, comment.encode()) for comment in comments)
        options += _option(_SHB_USERAPPL, APPLICATION.encode())
        try:
            self._block(SECTION_HEADER, struct.pack("<IHHq", _BYTE_ORDER_MAGIC, 1, 0, -1) + _options(options))
        except OSError as e:
            self.close()
            raise CaptureError(f"{self.name}: cannot be written ({e.strerror or e})") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.closed = True
        if self._owned:
            self._file.close()

    def packet(self, time_ns: int, link_type: int, data: bytes, wire_bytes: int | None = None) -> None:
        """One packet; its interface is described first if it is the first of that link type."""
        interface = self._interfaces.get(link_type)
        if interface is None:
            interface = self._interfaces[link_type] = len(self._interfaces)
            options = _options(_option(_IF_TSRESOL, b"\x09"))
            self._block(INTERFACE_DESCRIPTION, struct.pack("<HHI", link_type, 0, 0) + options)
        self._last_ns = time_ns
        fixed = struct.pack(
            "<IIIII", interface, time_ns >> 32, time_ns & 0xFFFFFFFF, len(data),
            len(data) if wire_bytes is None else wire_bytes,
        )  # fmt: skip
        self._block(ENHANCED_PACKET, fixed + data + bytes(-len(data) % 4))

    def statistics(self, link_type: int, received: int, dropped: int) -> None:
        """Write how many packets an interface received and the kernel dropped; it must have a written packet."""
        counts = _option(_ISB_IFRECV, struct.pack("<Q", received)) + _option(_ISB_OSDROP, struct.pack("<Q", dropped))
        fixed = struct.pack("<III", self._interfaces[link_type], self._last_ns >> 32, self._last_ns & 0xFFFFFFFF)
        self._block(INTERFACE_STATISTICS, fixed + _options(counts))

    def _block(self, kind: int, body: bytes) -> None:
        length = struct.pack("<I", len(body) + 12)
        left = memoryview(struct.pack("<I", kind) + length + body + length)
        while left:
            left = left[self._file.write(left) :]
        self._file.flush()
        self.written_bytes += len(body) + 12


def _option(code: int, value: bytes) -> bytes:
    value = value[:_MAX_OPTION_BYTES]
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


def _options(options: bytes) -> bytes:
    return options + bytes(4)  # opt_endofopt
