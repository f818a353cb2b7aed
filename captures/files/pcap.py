"""Packets out of pcap and pcapng files, gzip or zstd or neither, from a path, a URI or a stream, in constant memory.

    with CaptureFile("incident.pcapng.gz") as capture:
        for packet in capture:
            ...
    capture.problems        # why the file could not be read completely; empty if it could

Opening raises CaptureError for a file that is no capture. Later damage (the file ends inside a packet, a block has an
impossible length) ends the iteration, or skips the block if its end is known, and is added to ``problems``.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
import struct
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self

from kce.captures.errors import CaptureError
from kce.captures.files.byte_source import ByteSource, Part, Readable, Rest, ZstdFile
from kce.captures.files.formats import (
    BYTE_ORDERS,
    INTERFACE_DESCRIPTION,
    INTERFACE_STATISTICS,
    JOURNAL_ENTRY,
    MAX_BLOCK_BYTES,
    MAX_TIME_NS,
    OBSOLETE_PACKET,
    PACKET_BLOCKS,
    PCAP_MAGICS,
    SECTION_HEADER,
    SECTION_HEADER_BYTES,
    SIMPLE_PACKET,
    other_file,
)
from kce.captures.files.locations import location_bytes, open_location
from kce.captures.files.split import WHOLE, Split
from kce.captures.files.walkers import Interface, Stretch, Walk, pcap_walk, pcapng_walk
from kce.extras import require

#: How the problem of a file that ends too early begins.
TRUNCATED = "ends inside"

#: Problems listed per file.
MAX_PROBLEMS = 20

#: Bytes read at a time for stretches, and bytes per row of a stretch; further packets follow in another stretch.
WINDOW_BYTES = 4 * 1024 * 1024
_BYTES_PER_ROW = 100

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class Packet(NamedTuple):
    """One packet. ``number`` counts from 1 over the file, as in Wireshark; ``time_ns`` is since 1970, UTC.

    ``link_type`` is a LINKTYPE_ number. ``wire_bytes`` is its length on the wire: more than ``len(data)`` where the
    snap length cut it.
    """

    number: int
    time_ns: int
    link_type: int
    data: bytes
    wire_bytes: int


class CaptureFile:
    """An open capture, iterated once. Raises CaptureError, with file and offset, for a file that is no capture.

    ``source`` is a path, a URI or a binary stream; ``name`` is for messages. ``comments`` are those of the sections and
    interfaces so far, ``dropped`` the packets lost while capturing, as the file says. Only ``split`` is read; packets
    with a number below ``first`` belong to the split before and are read for their IP fragments.
    """

    def __init__(
        self, source: str | os.PathLike[str] | BinaryIO, name: str | None = None, *, split: Split = WHOLE
    ) -> None:
        self.comments: list[str] = []
        self.problems: list[str] = []
        self.dropped = 0
        self.first = split.first_packet
        self.packets = split.first_packet - 1 - split.lead_packets
        self._split = split
        self._open = contextlib.ExitStack()
        self._file: BinaryIO | None = None
        self._packing = ""
        self._size = 0
        self._walk_with: Callable[[], Walk] | None = None
        self._last_time_ns = 0
        self._is_complete = True
        if isinstance(source, (str, os.PathLike)):
            self.name = name or os.fspath(source)
            stream = open_location(source, self.name)
            self._open.callback(stream.close)
            self._file = stream
            self._size = location_bytes(source)
        else:
            self.name = name or str(getattr(source, "name", "stream"))
            stream = source
            self._is_complete = stream.seekable()
        try:
            self._input = self._unpack(ByteSource(stream)) if split.end is None else self._part(stream, split)
            self._packets = self._start()
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Packet]:
        yield from self._packets
        self._end()

    def stretches(self, window_bytes: int = WINDOW_BYTES) -> Iterator[Stretch | Packet]:
        """The same packets in order, ordinary ones by the thousand (``captures.files.packet_kernels``).

        Reads about ``window_bytes`` of the file at a time.
        """
        require("numpy", "numba", purpose="reading packets in bulk")
        import numpy as np  # both take a while to import

        from kce.captures.files import packet_kernels as kernels

        source = self._input
        source.chunk_bytes = window_bytes
        rows = window_bytes // _BYTES_PER_ROW, kernels.COLUMNS
        packets = np.empty(rows, np.int64)
        while True:
            needed = 1
            while self._walk_with is not None and needed and source.have(needed):
                data = np.frombuffer(source.buffer, np.uint8)
                source.at, count, needed = self._walk_with()(data, source.at, self.packets + 1, packets)
                if count:
                    self.packets += count
                    self._last_time_ns = int(packets[count - 1, kernels.TIME])
                    yield Stretch(data, packets[:count])
                    packets = np.empty(rows, np.int64)
            packet = next(self._packets, None)
            if packet is None:
                break
            yield packet
        self._end()

    def _end(self) -> None:
        if self._input.failure is not None:
            self._problem(f"{self._input.failure} after packet {self.packets}")
        expected = self._split.packets
        if expected is not None and not self.problems and self.packets != self.first - 1 + expected:
            self._problem(f"the file is not the one that was divided: packet {self.packets} is the last before a cut")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._open.close()

    @property
    def progress(self) -> tuple[int, int] | None:
        """(bytes of the file read so far, bytes it has); None for streams, which have no end in sight."""
        return (self._file.tell(), self._size) if self._file is not None and self._size else None

    @property
    def is_complete(self) -> bool:
        """Whether this is a file, not a stream that may still grow."""
        return self._is_complete

    @property
    def offset(self) -> int:
        """The end of the last packet read, as an offset in the uncompressed file."""
        return self._input.offset

    def _problem(self, text: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)

    def _part(self, stream: BinaryIO, split: Split) -> ByteSource:
        """The bytes of a split behind its head, with the offsets that they have in the file."""
        stream.seek(split.lead)
        part = ByteSource(Part(stream, (split.end or 0) - split.lead))
        part.buffer, part.base = split.head, split.lead - len(split.head)
        return part

    def _unpack(self, source: ByteSource) -> ByteSource:
        """Detect compression by content, not by name."""
        source.have(4)
        if source.buffer[:2] == _GZIP_MAGIC:
            self._packing = "gzip"
            unpacked: Readable = self._open.enter_context(gzip.GzipFile(fileobj=Rest(source)))
        elif source.buffer[:4] == _ZSTD_MAGIC:
            self._packing = "zstd"
            unpacked = ZstdFile(source)
        else:
            return source
        return ByteSource(unpacked)

    def _start(self) -> Iterator[Packet]:
        source = self._input
        source.have(4)
        magic = source.buffer[:4]
        if magic in PCAP_MAGICS:
            if not source.have(24):
                raise CaptureError(f"{self.name}: ends inside the pcap header, at offset {len(source.buffer)} of 24")
            return self._pcap(*PCAP_MAGICS[magic])
        if magic == SECTION_HEADER_BYTES:
            if not source.have(28):
                raise CaptureError(f"{self.name}: ends inside its first pcapng block, at offset {len(source.buffer)}")
            if source.buffer[8:12] not in BYTE_ORDERS:
                found = source.buffer[8:12].hex(" ")
                raise CaptureError(f"{self.name}: no pcapng byte-order magic at offset 8, but {found}")
            return self._pcapng()
        raise CaptureError(f"{self.name}: not a capture: {self._what_it_is()}")

    def _what_it_is(self) -> str:
        source = self._input
        source.have(512)
        head = source.buffer[:512]
        inside = f"{self._packing} data that holds " if self._packing else ""
        if source.failure is not None:
            return f"{source.failure} at offset {len(source.buffer)}"
        if not head:
            return f"{self._packing} data with nothing in it" if inside else "the file is empty"
        if (what := other_file(head)) is not None:
            return f"{inside or 'it is '}{what}"
        return f"{inside or 'it '}begins with {head[:8].hex(' ')} at offset 0, which neither pcap nor pcapng do"

    # pcap

    def _pcap(self, order: str, ns_per_unit: int) -> Iterator[Packet]:
        source = self._input
        major, minor, _, _, _, network = struct.unpack_from(order + "HHiIII", source.buffer, 4)
        if major != 2:
            raise CaptureError(f"{self.name}: pcap version {major}.{minor} at offset 4, known is 2.4")
        source.at += 24
        self._walk_with = functools.cache(lambda: pcap_walk(order, ns_per_unit, network & 0xFFFF))
        return self._pcap_packets(order, ns_per_unit, network & 0xFFFF)

    def _pcap_packets(self, order: str, ns_per_unit: int, link_type: int) -> Iterator[Packet]:
        source = self._input
        header = struct.Struct(order + "IIII").unpack_from
        while source.have(16):
            seconds, fraction, captured, on_wire = header(source.buffer, source.at)
            if captured > MAX_BLOCK_BYTES:
                self._problem(
                    f"packet {self.packets + 1} at offset {source.offset} announces {captured} bytes, "
                    f"above {MAX_BLOCK_BYTES}: what follows is not read"
                )
                return
            if not source.have(16 + captured):
                self._cut_short(f"packet {self.packets + 1}", 16 + captured)
                return
            begin = source.at + 16
            source.at = begin + captured
            self.packets += 1
            time_ns = seconds * 1_000_000_000 + fraction * ns_per_unit
            yield Packet(self.packets, time_ns, link_type, source.buffer[begin : source.at], max(on_wire, captured))
        if len(source.buffer) > source.at:
            self._cut_short(f"the header of packet {self.packets + 1}", 16)

    def _cut_short(self, where: str, needed: int) -> None:
        there = len(self._input.buffer) - self._input.at
        self._problem(f"{TRUNCATED} {where}, at offset {self._input.offset}: {there} of {needed} bytes are there")

    # pcapng

    def _pcapng(self) -> Iterator[Packet]:
        source = self._input
        order = "<"
        interfaces: list[Interface] = []
        dropped: dict[int, int] = {}
        dropped_before = 0
        while source.have(12):
            if source.buffer[source.at : source.at + 4] == SECTION_HEADER_BYTES:
                found = BYTE_ORDERS.get(source.buffer[source.at + 8 : source.at + 12])
                if found is None:
                    self._problem(f"no byte-order magic in the section at offset {source.offset}: reading ends there")
                    return
                order, interfaces = found, []
                self._walk_with = None
                dropped_before, dropped = self.dropped, {}
            kind, length = struct.unpack_from(order + "II", source.buffer, source.at)
            where = f"the block at offset {source.offset}"
            if length < 12 or length % 4:
                self._problem(f"{where} announces {length} bytes, which no block has: reading ends there")
                return
            if length > MAX_BLOCK_BYTES:
                self._problem(f"{where} announces {length} bytes, above {MAX_BLOCK_BYTES}: it is skipped")
                if not source.skip(length):
                    self._problem(f"{TRUNCATED} {where}")
                    return
                continue
            if not source.have(length):
                self._cut_short(f"the block after packet {self.packets}", length)
                return
            block = source.buffer[source.at : source.at + length]
            if block[-4:] != block[4:8]:
                self._problem(f"{where} says its length twice and differently: reading ends there")
                return
            source.at += length
            if kind in PACKET_BLOCKS:
                self.packets += 1
                packet = self._packet(kind, order, block, interfaces, self._last_time_ns)
                if packet is not None:
                    self._last_time_ns = packet.time_ns
                    yield packet
            elif kind == JOURNAL_ENTRY:
                self.packets += 1  # Wireshark numbers these among the packets
            elif kind == SECTION_HEADER:
                self.comments += _comments(order, block[24:-4])
            elif kind == INTERFACE_DESCRIPTION:
                self._interface(order, block, interfaces)
                self._walk_with = functools.cache(functools.partial(pcapng_walk, order, tuple(interfaces)))
            elif kind == INTERFACE_STATISTICS:
                # of one interface a later block counts all that an earlier one did
                dropped[struct.unpack_from(order + "I", block, 8)[0]] = _dropped(order, block)
                self.dropped = dropped_before + sum(dropped.values())
        if len(source.buffer) > source.at:
            self._cut_short(f"the block after packet {self.packets}", 12)

    def _interface(self, order: str, block: bytes, interfaces: list[Interface]) -> None:
        if len(block) < 20:
            self._problem(f"an interface description of {len(block)} bytes after packet {self.packets}")
            interfaces.append(Interface(-1, 0, 1, 1, 0))  # later numbers must still fit
            return
        link_type, _, snaplen = struct.unpack_from(order + "HHI", block, 8)
        numerator, denominator, offset_ns = 1000, 1, 0
        for code, value in _options(order, block[16:-4]):
            if code == 9 and len(value) == 1:  # if_tsresol
                exponent = value[0] & 0x7F
                base = 2 if value[0] & 0x80 else 10
                numerator, denominator = 1_000_000_000, base**exponent
            elif code == 14 and len(value) == 8:  # if_tsoffset
                offset_ns = struct.unpack(order + "q", value)[0] * 1_000_000_000
        self.comments += _comments(order, block[16:-4])
        interfaces.append(Interface(link_type, snaplen, numerator, denominator, offset_ns))

    def _packet(
        self, kind: int, order: str, block: bytes, interfaces: list[Interface], last_time_ns: int
    ) -> Packet | None:
        begin = 12 if kind == SIMPLE_PACKET else 28
        if len(block) < begin + 4:
            self._problem(f"packet {self.packets}: a packet block of {len(block)} bytes")
            return None
        if kind == SIMPLE_PACKET:
            interface_id = high = low = 0
            (on_wire,) = struct.unpack_from(order + "I", block, 8)
            captured = on_wire
            if interfaces and interfaces[0].snaplen:
                captured = min(captured, interfaces[0].snaplen)
            captured = min(captured, len(block) - begin - 4)
        elif kind == OBSOLETE_PACKET:
            interface_id, _, high, low, captured, on_wire = struct.unpack_from(order + "HHIIII", block, 8)
        else:
            interface_id, high, low, captured, on_wire = struct.unpack_from(order + "IIIII", block, 8)
        if interface_id >= len(interfaces):
            self._problem(f"packet {self.packets} is of interface {interface_id}, which its section does not describe")
            return None
        if captured > len(block) - begin - 4:
            self._problem(f"packet {self.packets} announces {captured} bytes, more than its block holds")
            return None
        interface = interfaces[interface_id]
        if kind == SIMPLE_PACKET:
            time_ns = last_time_ns  # this kind of block has no time: that of the packet before is the best there is
        else:
            ticks = high << 32 | low
            time_ns = ticks * interface.numerator // interface.denominator + interface.offset_ns
            if not 0 <= time_ns <= MAX_TIME_NS:
                self._problem(f"packet {self.packets} has a time that no clock shows")
                time_ns = last_time_ns
        data = block[begin : begin + captured]
        return Packet(self.packets, time_ns, interface.link_type, data, max(on_wire, captured))


def first_time_ns(source: str | os.PathLike[str], name: str | None = None) -> int | None:
    """The time of the first packet; None if the file has none or is no capture."""
    try:
        with CaptureFile(source, name) as capture:
            first = next(iter(capture), None)
    except CaptureError:
        return None
    return None if first is None else first.time_ns


def _options(order: str, data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        code, length = struct.unpack_from(order + "HH", data, at)
        if code == 0 or at + 4 + length > len(data):
            return
        yield code, data[at + 4 : at + 4 + length]
        at += 4 + (length + 3) // 4 * 4


def _dropped(order: str, block: bytes) -> int:
    """Packets dropped by the interface and by the operating system."""
    return sum(
        int(struct.unpack(order + "Q", value)[0])
        for code, value in _options(order, block[20:-4])
        if code in (5, 7) and len(value) == 8
    )


def _comments(order: str, options: bytes) -> list[str]:
    return [value.decode(errors="replace") for code, value in _options(order, options) if code == 1]
