"""What ``captures.fast.segment_counts`` counts by the thousand, counted segment by segment."""

from __future__ import annotations

from typing import Any

from kce.captures.tables.rows import MAX_EVIDENCE
from kce.captures.tcp.segments import ACK, FIN, RST, SYN, Segment, address_text

#: Holes remembered in one direction: of more, the oldest counts as filled.
MAX_HOLES = 256


#: The last segment once more within this time was captured twice.
COPY_NS = 1_000_000


class SegmentsCounted:
    """Takes the segments of both directions, by time."""

    def __init__(self) -> None:
        self._first_us: int | None = None
        self._last_us = 0
        self._packets = 0
        self._bytes = 0
        self._retransmits = 0
        self._out_of_order = 0
        self._resets = 0
        self._again: list[tuple[int, str]] = []
        self._reset: list[tuple[int, str]] = []
        self._end: tuple[Any, ...] = (None,) * 6
        self._accepted = True
        self._sent: dict[tuple[bytes, int], _Sent] = {}

    def add(self, segment: Segment) -> None:
        place = segment.place
        self._last_us = place.time_ns // 1000
        if self._first_us is None:
            self._first_us = self._last_us
        self._packets += 1
        size = len(segment.payload) + segment.cut
        self._bytes += size
        end = segment.source, segment.source_port
        if segment.flags & SYN or end not in self._sent:
            self._sent[end] = _Sent(segment.sequence + bool(segment.flags & SYN))
        again = False
        if size:
            again, late = self._sent[end].receive(segment.sequence, size, place.time_ns)
            self._retransmits += again
            self._out_of_order += late
        reset = bool(segment.flags & RST)
        self._resets += reset
        if segment.flags & SYN:
            self._end = (None,) * 6
            self._accepted = bool(segment.flags & ACK)
        elif reset and not self._accepted:
            pass  # nobody listens there
        elif segment.flags & (FIN | RST) and self._end[0] is None:
            kind = "RST" if reset else "FIN"
            sender = address_text(segment.source), segment.source_port
            self._end = (kind, self._last_us, place.packet, place.file, *sender)
        self._again += [(place.packet, place.file)] * again
        self._reset += [(place.packet, place.file)] * reset

    def columns(self) -> tuple[Any, ...]:
        """The columns of CONNECTIONS from ``first_time`` on."""
        shown = self._again[:MAX_EVIDENCE], self._reset[:MAX_EVIDENCE]
        return (
            self._first_us, self._last_us, self._packets, self._bytes, self._retransmits, self._out_of_order,
            self._resets, *self._end, *([place[at] for place in places] for places in shown for at in (0, 1)),
        )  # fmt: skip


class _Sent:
    """How far one side has sent, and what is missing before that. Positions are sequence numbers that do not wrap."""

    def __init__(self, sequence: int) -> None:
        self._next = sequence
        self._time_ns = 0
        self._holes: list[tuple[int, int]] = []

    def receive(self, sequence: int, size: int, time_ns: int) -> tuple[bool, bool]:
        """(whether bytes of the segment were sent before, whether it is late instead)."""
        begin = self._next + ((sequence - self._next + 0x80000000) & 0xFFFFFFFF) - 0x80000000
        end = begin + size
        if begin >= self._next:
            if begin > self._next:
                self._holes.append((self._next, begin))
                del self._holes[:-MAX_HOLES]
            self._next = end
            self._time_ns = time_ns
            return False, False
        if size == 1 and begin == self._next - 1:
            return False, False  # a keep-alive: it repeats the last byte, to be acknowledged
        for at, (low, high) in enumerate(self._holes):
            if low <= begin and end <= high:
                self._holes[at : at + 1] = [hole for hole in ((low, begin), (end, high)) if hole[0] < hole[1]]
                return False, True
        is_copy = end == self._next and time_ns - self._time_ns < COPY_NS
        if end >= self._next:
            self._next, self._time_ns = end, time_ns
        self._holes = [(low, high) for low, high in self._holes if high <= begin or low >= end]
        return not is_copy, False
