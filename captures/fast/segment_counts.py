"""Counts retransmitted, out-of-order and reset segments per connection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from kce.captures.fast import block_kernels as b
from kce.captures.fast import frame_kernels as f
from kce.captures.fast.blocks import Block, Rows, ends_of
from kce.captures.files import packet_kernels as k
from kce.captures.tables.rows import MAX_EVIDENCE
from kce.captures.tcp.segments import ACK, FIN, RST, SYN, Endpoint, address_text

_NO_END = (None,) * 6

#: The last segment once more within this time is a copy, as of a bridge and its port: no TCP retransmits so soon what
#: nothing followed.
COPY_NS = 1_000_000

#: Holes kept per direction; beyond, the oldest counts as filled.
MAX_HOLES = 256


class SegmentCounts:
    """Counts the segments of time-ordered blocks by connection; FILE is an index of ``files``.

    Segments in order are counted by ``block_kernels``, the others one by one here.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files
        self._flows = np.zeros((1024, f.FLOW_COLUMNS), np.int64)
        self._counts = np.zeros((1024, b.COUNT_COLUMNS), np.int64)
        self._table = np.full(4096, -1, np.int64)
        self._used = 0
        self._holes: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._lowest: dict[tuple[int, int], int] = {}  # of the positions behind the next one
        self._retransmits: dict[int, list[tuple[int, str]]] = {}
        self._resets: dict[int, list[tuple[int, str]]] = {}
        self._ends: dict[int, tuple[object, ...]] = {}
        self._opening: set[int] = set()  # a SYN was not accepted yet

    def passing(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Count blocks as they pass through."""
        for block in blocks:
            self.add(block.packets)
            yield block

    def resume(self, flow: Sequence[int], sequences: tuple[int, int]) -> None:
        """Begin in the middle of a connection: the sequence numbers of the next bytes of its lower and higher end."""
        packet = np.zeros(k.COLUMNS, np.int64)
        packet[k.SOURCE_HIGH : k.SOURCE_HIGH + 2], packet[k.DESTINATION_HIGH : k.DESTINATION_HIGH + 2] = (
            flow[f.LOW_HIGH : f.HIGH_HIGH], flow[f.HIGH_HIGH : f.BOTH_PORTS],
        )  # fmt: skip
        packet[k.PORTS] = flow[f.BOTH_PORTS]
        row, self._used, _ = f.flow_of(self._flows, self._table, self._used, packet)
        for side, sequence in enumerate(sequences):
            self._counts[row, [b.KNOWN + side, b.NEXT + side, b.SINCE + side]] = 1, sequence, sequence

    def add(self, packets: Rows) -> None:
        index = 0
        while True:
            index, row, side, self._used = b.count(packets, index, self._flows, self._table, self._used, self._counts)
            if index == len(packets):
                break
            if row < 0:
                self._make_room()
            else:
                self._one(packets[index], row, side)
                index += 1
        ends = (packets[:, k.KIND] == k.SEGMENT) & ((packets[:, k.FLAGS] & (FIN | SYN | RST)) != 0)
        for packet in packets[ends]:
            self._note_end(packet)

    def _note_end(self, packet: Rows) -> None:
        """Note who ended a connection, and how. A SYN begins another one."""
        row, _, is_higher = f.flow_of(self._flows, self._table, self._used, packet)
        flags = int(packet[k.FLAGS])
        if flags & SYN:
            self._ends.pop(row, None)
            (self._opening.discard if flags & ACK else self._opening.add)(row)
        elif flags & RST and row in self._opening:
            return  # refused: the port is closed, so there was no connection
        elif row not in self._ends:
            address, port = ends_of(self._flows[row])[is_higher]
            kind = "RST" if flags & RST else "FIN"
            time, number = int(packet[k.TIME]) // 1000, int(packet[k.NUMBER])
            self._ends[row] = (kind, time, number, self._files[packet[k.FILE]], address_text(address), port)

    def connections(self) -> Iterator[tuple[tuple[Endpoint, Endpoint], tuple[object, ...]]]:
        """Both ends of each, the lower first, and its columns of CONNECTIONS from ``first_time`` on."""
        for row in range(self._used):
            evidence: list[list[int] | list[str]] = []
            for noted in (self._retransmits.get(row, []), self._resets.get(row, [])):
                evidence += [packet for packet, _ in noted], [file for _, file in noted]
            lower, higher = sorted(ends_of(self._flows[row]))
            counts = self._counts[row, : b.RESETS + 1].tolist()
            yield (lower, higher), (*counts, *self._ends.get(row, _NO_END), *evidence)

    def is_open(self, row: int) -> bool:
        """Whether the connection was accepted, if it asked for that, and was not ended."""
        return row not in self._ends and row not in self._opening

    def following(self, row: int, side: int) -> int:
        """The sequence number of the next byte."""
        return int(self._counts[row, b.NEXT + side]) & 0xFFFFFFFF

    def looked_back(self, row: int, side: int) -> int:
        """How many bytes before its beginning a connection was sent again."""
        since = int(self._counts[row, b.SINCE + side])
        return since - min(since, self._lowest.get((row, side), since))

    def unbroken(self, row: int, side: int) -> int:
        """How many bytes were sent since the beginning, or the last hole."""
        borders = [int(self._counts[row, b.SINCE + side]), *(high for _, high in self._holes.get((row, side), []))]
        return int(self._counts[row, b.NEXT + side]) - max(borders)

    def _one(self, packet: Rows, row: int, side: int) -> None:
        """Classify a segment that is out of order."""
        of = self._counts[row]
        flags, sequence = int(packet[k.FLAGS]), int(packet[k.SEQUENCE])
        size = int(packet[k.SIZE] + packet[k.CUT])
        if flags & SYN or not of[b.KNOWN + side]:
            of[b.KNOWN + side] = 1
            of[b.NEXT + side] = of[b.SINCE + side] = sequence + bool(flags & SYN)
            self._holes.pop((row, side), None)
            self._lowest.pop((row, side), None)
        again = late = False
        if size:
            again, late = self._receive(row, side, sequence, size, int(packet[k.TIME]))
        reset = bool(flags & RST)
        of[b.RETRANSMITS] += again
        of[b.OUT_OF_ORDER] += late
        of[b.RESETS] += reset
        for happened, places in ((again, self._retransmits), (reset, self._resets)):
            if happened and len(noted := places.setdefault(row, [])) < MAX_EVIDENCE:
                noted.append((int(packet[k.NUMBER]), self._files[packet[k.FILE]]))

    def _receive(self, row: int, side: int, sequence: int, size: int, time_ns: int) -> tuple[bool, bool]:
        """(whether bytes of the segment were sent before, whether it is late instead).

        Positions are sequence numbers that do not wrap; holes are what is missing before the next one.
        """
        following = int(self._counts[row, b.NEXT + side])
        begin = following + ((sequence - following + 0x80000000) & 0xFFFFFFFF) - 0x80000000
        end = begin + size
        holes = self._holes.get((row, side), [])
        if begin >= following:
            if begin > following:
                self._holes[row, side] = [*holes, (following, begin)][-MAX_HOLES:]
            self._counts[row, [b.NEXT + side, b.SENT + side]] = end, time_ns
            return False, False
        self._lowest[row, side] = min(begin, self._lowest.get((row, side), begin))
        if size == 1 and begin == following - 1:
            return False, False  # a keep-alive repeats the last byte
        for at, (low, high) in enumerate(holes):
            if low <= begin and end <= high:
                holes[at : at + 1] = [hole for hole in ((low, begin), (end, high)) if hole[0] < hole[1]]
                return False, True
        is_copy = end == following and time_ns - int(self._counts[row, b.SENT + side]) < COPY_NS
        if end >= following:
            self._counts[row, [b.NEXT + side, b.SENT + side]] = end, time_ns
        if holes:
            self._holes[row, side] = [(low, high) for low, high in holes if high <= begin or low >= end]
        return not is_copy, False

    def _make_room(self) -> None:
        self._flows = np.concatenate([self._flows, np.zeros_like(self._flows)])
        self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._table = np.full(4 * len(self._flows), -1, np.int64)
        f.fill_table(self._flows, self._table, self._used, np.zeros(k.COLUMNS, np.int64))
