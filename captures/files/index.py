"""Splits of large captures, so that several tasks can read one file. Exact, whatever the packets contain.

    splits("big.pcapng", 64 << 20)                          # all in one, or each piece somewhere else:
    join(location, [survey(location, *cut) for cut in cuts(location, 64 << 20)])

    with CaptureFile(location, split=split) as capture:
        for packet in capture: ...

Neither format can be entered in the middle with certainty, because a packet may itself contain a capture. So
``survey`` guesses the first packet of its piece (a chain of plausible headers) and walks from there to the first packet
of the next piece. ``join`` verifies the guesses: a walk from a true border ends at a true border, so each piece must
begin exactly where the one before ended. A piece that does not is walked again from there.

Compressed files, and files that are no captures, are one split.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from kce.captures.errors import CaptureError
from kce.captures.files.byte_source import ByteSource
from kce.captures.files.formats import (
    BYTE_ORDERS,
    INTERFACE_DESCRIPTION,
    MAX_BLOCK_BYTES,
    NUMBERED_BLOCKS,
    PCAP_HEADER_BYTES,
    PCAP_MAGICS,
    SECTION_HEADER,
    SECTION_HEADER_BYTES,
)
from kce.captures.files.locations import location_bytes, open_location
from kce.captures.files.split import WHOLE, Split

#: Minimum number of packets before a split that its reader also reads: IP fragments may begin there, and pcapng packets
#: without a time have that of the packet before.
LEAD_PACKETS = 64

#: A guess needs a chain of this many headers and is searched in this many bytes.
_CHAIN = 6
_GUESS_BYTES = 1024 * 1024

#: Bytes read at a time.
_CHUNK_BYTES = 4 * 1024 * 1024

_BLOCK_KINDS = np.array([1, 2, 3, 4, 5, 6, 9, 10, SECTION_HEADER], np.uint32)

#: A guess further in time from the file's first packet is rejected. If wrongly, it only costs another walk.
_MAX_DISTANCE_S = 366 * 24 * 3600


class Piece(NamedTuple):
    """The result of ``survey`` between two cuts. ``begin`` is a guess, None if there is none.

    ``declarations`` are pcapng section headers and interfaces with their offsets. A reader of the next piece begins at
    ``lead``, ``lead_packets`` before the end. Nothing can be read after a ``broken`` piece.
    """

    cut: tuple[int, int]
    order: str
    begin: int | None
    end: int
    packets: int
    declarations: tuple[tuple[int, bytes], ...]
    lead: int
    lead_packets: int
    broken: bool


def splits(location: str | os.PathLike[str], target_bytes: int) -> list[Split]:
    """``cuts``, ``survey`` and ``join`` in one. Raises CaptureError where the file cannot be opened."""
    return join(location, [survey(location, *cut) for cut in cuts(location, target_bytes)])


def cuts(location: str | os.PathLike[str], target_bytes: int) -> list[tuple[int, int]]:
    """(begin, end) of pieces of about ``target_bytes``; none for a file that can only be read as a whole."""
    size = location_bytes(location)
    if _format(location) is None or size <= target_bytes:
        return []
    count = -(-size // target_bytes)
    borders = [size * index // count for index in range(count + 1)]
    return list(itertools.pairwise(borders))


def survey(location: str | os.PathLike[str], begin: int, end: int) -> Piece:
    """The packets that begin between two cuts, if the guess is right. That of the first piece is."""
    found = _format(location)
    assert found is not None, "only what has cuts is surveyed"
    if begin == 0:
        return _walk(location, found, (begin, end), found.first, found.order)
    with open_location(location, os.fspath(location)) as stream:
        stream.seek(begin)
        window = _read(stream, min(end - begin, _GUESS_BYTES) + 4 * _GUESS_BYTES)
    guessed = found.guess(window, begin, min(end - begin, _GUESS_BYTES))
    if guessed is None:
        return Piece((begin, end), found.order, None, begin, 0, (), begin, 0, False)
    return _walk(location, found, (begin, end), guessed, found.order)


def join(location: str | os.PathLike[str], pieces: Iterable[Piece]) -> list[Split]:
    """The splits, in the order of the file. Pieces with a wrong guess are walked again."""
    pieces = list(pieces)
    if not pieces:
        return [WHOLE]
    found = _format(location)
    assert found is not None, "only what has cuts is surveyed"
    head = lead_head = found.head
    at, first, lead, lead_packets = found.first, 1, found.first, 0
    made: list[Split] = []
    for piece in pieces:
        if at >= piece.cut[1]:
            continue  # one long packet covers the whole piece
        order = found.order_of(head)
        if (piece.begin, piece.order) != (at, order):
            piece = _walk(location, found, piece.cut, at, order)
        made.append(Split(at, piece.end, first, piece.packets, lead_head, lead, lead_packets))
        at, first = piece.end, first + piece.packets
        if piece.lead_packets < LEAD_PACKETS:
            lead_packets += piece.packets  # too few packets: the lead begins further back
        else:
            lead, lead_packets = piece.lead, piece.lead_packets
            lead_head = found.head_after(head, (block for offset, block in piece.declarations if offset < lead))
        head = found.head_after(head, (block for _, block in piece.declarations))
        if piece.broken:
            break
    last = made[-1]
    made[-1] = last._replace(end=max(last.end or 0, location_bytes(location)))  # its reader reports the damage
    return made


class _Pcap:
    """pcap records begin at ``first``, behind the header ``head``."""

    def __init__(self, header: bytes, first_seconds: int) -> None:
        self.order, self._ns_per_unit = PCAP_MAGICS[header[:4]]
        self.head, self.first = header, PCAP_HEADER_BYTES
        self._first_seconds = first_seconds

    def guess(self, window: bytes, offset: int, within: int) -> int | None:
        """The offset of the first record ``within`` bytes that begins a chain of records; None if there is none."""
        limit = min(within, len(window) - 15)
        if limit <= 0:
            return None
        words = _words(window, self.order)
        fields = [words[shift : shift + limit].astype(np.int64) for shift in (0, 4, 8, 12)]
        header = struct.Struct(self.order + "IIII").unpack_from
        for candidate in np.flatnonzero(self._makes_sense(*fields)).tolist():
            at = candidate
            for _ in range(_CHAIN):
                if at + 16 > len(window):
                    return offset + int(candidate)
                if not self._makes_sense(*(record := header(window, at))):
                    break
                at += 16 + record[2]
            else:
                return offset + int(candidate)
        return None

    def _makes_sense(self, seconds: Any, fraction: Any, captured: Any, wire: Any) -> Any:
        """Is this a plausible packet header? Accepts numbers or arrays of them."""
        near = abs(seconds - self._first_seconds) < _MAX_DISTANCE_S
        return near & (fraction * self._ns_per_unit < 10**9) & (captured <= wire) & (wire <= MAX_BLOCK_BYTES)

    def order_of(self, _head: bytes) -> str:
        return self.order

    def head_after(self, head: bytes, _declarations: Iterable[bytes]) -> bytes:
        return head


class _Pcapng:
    """pcapng blocks. Guesses assume the byte order of the first section."""

    def __init__(self, header: bytes) -> None:
        self.order = BYTE_ORDERS[header[8:12]]
        self.head, self.first = b"", 0

    def guess(self, window: bytes, offset: int, within: int) -> int | None:
        skew = -offset % 4  # block lengths are multiples of four
        words = np.frombuffer(window[skew : skew + (len(window) - skew) // 4 * 4], self.order + "u4")
        limit = min(within // 4, len(words) - 2)
        if limit <= 0:
            return None
        lengths = words[1 : limit + 1]
        possible = np.isin(words[:limit], _BLOCK_KINDS) & (lengths >= 12) & (lengths % 4 == 0)
        for candidate in np.flatnonzero(possible & (lengths <= MAX_BLOCK_BYTES)).tolist():
            at = candidate
            for _ in range(_CHAIN):
                if at + 2 > len(words):
                    return offset + skew + int(candidate) * 4
                length = int(words[at + 1])
                after = at + length // 4
                if words[at] not in _BLOCK_KINDS or length < 12 or length % 4:
                    break
                if after <= len(words) and words[after - 1] != length:
                    break
                at = after
            else:
                return offset + skew + int(candidate) * 4
        return None

    def order_of(self, head: bytes) -> str:
        """Byte order of the current section."""
        return BYTE_ORDERS[head[8:12]] if head else self.order

    def head_after(self, head: bytes, declarations: Iterable[bytes]) -> bytes:
        """A section header ends the declarations before it."""
        for block in declarations:
            head = block if block[:4] == SECTION_HEADER_BYTES else head + block
        return head


def _format(location: str | os.PathLike[str]) -> _Pcap | _Pcapng | None:
    with open_location(location, os.fspath(location)) as stream:
        head = _read(stream, 28)
    if len(head) == 28 and head[:4] in PCAP_MAGICS:
        return _Pcap(head[:24], struct.unpack(PCAP_MAGICS[head[:4]][0] + "I", head[24:])[0])
    if len(head) == 28 and head[:4] == SECTION_HEADER_BYTES and head[8:12] in BYTE_ORDERS:
        return _Pcapng(head)
    return None


def _read(stream: BinaryIO, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := stream.read(count - len(data))):
        data += more
    return data


def _words(data: bytes, order: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The 32-bit number at every offset of ``data``."""
    words = np.zeros(len(data), np.uint32)
    for shift in range(4):
        aligned = np.frombuffer(data, order + "u4", count=max(0, len(data) - shift) // 4, offset=shift)
        words[shift : shift + 4 * len(aligned) : 4] = aligned
    return words


class _Walked:
    """State of a walk: packets so far, offsets of every ``LEAD_PACKETS``-th, declarations."""

    def __init__(self) -> None:
        self.packets = 0
        self.declarations: list[tuple[int, bytes]] = []
        self._marks = np.full((2, 2), -1, np.int64)  # of the last two: the offset, and the packets before it

    def one(self, offset: int) -> None:
        """Count a packet at ``offset``."""
        if not self.packets % LEAD_PACKETS:
            self._marks[0] = self._marks[1]
            self._marks[1] = offset, self.packets
        self.packets += 1

    def many(self, step: Callable[..., tuple[int, int]], source: ByteSource, order: str, end: int) -> None:
        """Count the ordinary packets that ``step`` (of ``packet_kernels``) passes before ``end``."""
        offset = np.array([source.base, 0])
        marks = self._marks - offset
        data = np.frombuffer(source.buffer, np.uint8)
        limit = end - source.base - 1
        source.at, self.packets = step(data, source.at, limit, order == ">", self.packets, LEAD_PACKETS, marks)
        self._marks = marks + offset

    def lead(self, end: int) -> tuple[int, int]:
        """(offset of the lead before ``end``, number of its packets)."""
        for offset, packets in self._marks.tolist():
            if packets >= 0:
                return offset, self.packets - packets
        return end, 0


def _walk(
    location: str | os.PathLike[str], found: _Pcap | _Pcapng, cut: tuple[int, int], begin: int, order: str
) -> Piece:
    """Walk packets from ``begin`` to the first at or after the end of the cut."""
    walk = _walk_pcap if isinstance(found, _Pcap) else _walk_pcapng
    with open_location(location, os.fspath(location)) as stream:
        stream.seek(begin)
        source = ByteSource(stream)
        source.base = begin
        source.chunk_bytes = _CHUNK_BYTES
        walked = _Walked()
        whole = walk(source, order, cut[1], walked)
    if source.failure is not None:
        raise CaptureError(f"{os.fspath(location)}: {source.failure} at offset {source.offset}")
    lead, lead_packets = walked.lead(source.offset)
    return Piece(
        cut,
        order,
        begin,
        source.offset,
        walked.packets,
        tuple(walked.declarations),
        lead,
        lead_packets,
        broken=not whole,
    )


def _walk_pcap(source: ByteSource, order: str, end: int, walked: _Walked) -> bool:
    """Whether the end was reached."""
    from kce.captures.files.packet_kernels import pass_pcap  # here, for it takes a while to import

    captured_at = struct.Struct(order + "I").unpack_from
    while source.offset < end:
        if not source.have(16):
            return False
        (captured,) = captured_at(source.buffer, source.at + 8)
        if captured > MAX_BLOCK_BYTES or not source.have(16 + captured):
            return False
        walked.many(pass_pcap, source, order, end)
    return True


def _walk_pcapng(source: ByteSource, order: str, end: int, walked: _Walked) -> bool:
    """Whether the end was reached."""
    from kce.captures.files.packet_kernels import pass_pcapng

    header = struct.Struct(order + "II").unpack_from
    while source.offset < end:
        if not source.have(12):
            return False
        before = source.at
        walked.many(pass_pcapng, source, order, end)
        if source.at > before:
            continue
        if source.buffer[source.at : source.at + 4] == SECTION_HEADER_BYTES:
            order = BYTE_ORDERS.get(source.buffer[source.at + 8 : source.at + 12], "")
            if not order:
                return False
            header = struct.Struct(order + "II").unpack_from
        kind, length = header(source.buffer, source.at)
        if length < 12 or length % 4:
            return False
        if length > MAX_BLOCK_BYTES:
            if not source.skip(length):
                return False
            continue
        if not source.have(length):
            return False
        buffer, at = source.buffer, source.at
        if buffer[at + length - 4 : at + length] != buffer[at + 4 : at + 8]:
            return False
        if kind in NUMBERED_BLOCKS:
            walked.one(source.offset)
        elif kind in (SECTION_HEADER, INTERFACE_DESCRIPTION):
            walked.declarations.append((source.offset, buffer[at : at + length]))
        source.at = at + length
    return True
