"""Reassembly of one direction of a TCP connection; ``captures.tcp.streams`` has both."""

from __future__ import annotations

import bisect
from typing import NamedTuple

from kce.captures.tcp.segments import SYN, Place, Segment

#: How long a hole may be filled: if the receiver acknowledged it, otherwise (a retransmission may come), and after a
#: reset.
ACKED_WAIT_NS = 1_000_000_000
WAIT_NS = 3_000_000_000
RESET_WAIT_NS = 100_000_000

#: Limit of held bytes and pieces per direction. The largest TCP window of an ordinary host is 4 to 6 MiB.
MAX_HELD_BYTES = 4 * 1024 * 1024
MAX_HELD_PIECES = 8192

#: Positions this far apart belong to different connections.
ELSEWHERE = 1 << 24

#: Retransmitted ranges from before the capture that are emitted.
_MAX_EARLIER = 64


class Data(NamedTuple):
    """Bytes that ``side`` sent, next in its stream."""

    side: int
    data: bytes
    place: Place


class Gap(NamedTuple):
    """``size`` bytes of ``side`` are missing from the capture."""

    side: int
    size: int


class Earlier(NamedTuple):
    """Bytes of ``side`` from before the capture, retransmitted."""

    side: int
    data: bytes
    place: Place


class End(NamedTuple):
    """The end of the connection."""


Event = Data | Gap | Earlier | End


class _Piece(NamedTuple):
    """Held bytes; ``data`` is None where the snap length cut them."""

    begin: int
    end: int
    data: bytes | None
    place: Place


class Direction:
    """The stream of one side. Positions are sequence numbers that do not wrap."""

    __slots__ = (
        "acked", "earlier", "fin", "first", "held", "held_bytes", "hole_acked_ns", "hole_ns", "isn", "next", "side",
    )  # fmt: skip

    def __init__(self, side: int) -> None:
        self.side = side
        self.isn: int | None = None
        self.first: int | None = None  # first captured position, if the SYN was not captured
        self.next: int | None = None
        self.fin: int | None = None
        self.acked: int | None = None  # the last acknowledgement of the other side, as it was sent
        self.held: list[_Piece] = []  # in order, not overlapping
        self.held_bytes = 0
        self.hole_ns: int | None = None
        self.hole_acked_ns: int | None = None
        self.earlier: list[tuple[int, int]] = []  # ranges before ``first`` that were emitted

    def position(self, sequence: int) -> int:
        if self.next is None:
            return (sequence & 0xFFFFFFFF) + (1 << 32)  # so that there is room before it
        expected = self.next
        return expected + ((sequence - expected + 0x80000000) & 0xFFFFFFFF) - 0x80000000

    def receive(self, segment: Segment, events: list[Event], *, opening: bool) -> None:
        """``opening``: earlier segments may still follow."""
        payload = segment.payload
        sequence = segment.sequence + (1 if segment.flags & SYN else 0)
        if self.next is None:
            self.first = self.next = self.position(sequence)
        begin = self.position(sequence)
        opening = opening and self.isn is None
        if begin < self.next and self.isn is None:
            if opening and self.next - begin < ELSEWHERE:
                self.first = self.next = begin
            elif not opening:
                self._emit_earlier(begin, segment, events)
        if not opening and begin == self.next and not self.held and not segment.cut:
            events.append(Data(self.side, payload, segment.place))
            self.next += len(payload)
            return
        end = begin + len(payload)
        self._hold(_Piece(begin, end, payload, segment.place))
        if segment.cut:
            self._hold(_Piece(end, end + segment.cut, None, segment.place))
        if not opening:
            self.drain(events)

    def _emit_earlier(self, begin: int, segment: Segment, events: list[Event]) -> None:
        if self.first is None or len(self.earlier) == _MAX_EARLIER or self.first - begin > MAX_HELD_BYTES:
            return
        end = min(begin + len(segment.payload), self.first)
        if begin < end and not any(begin < other_end and other < end for other, other_end in self.earlier):
            self.earlier.append((begin, end))
            events.append(Earlier(self.side, segment.payload[: end - begin], segment.place))

    def _hold(self, piece: _Piece) -> None:
        """Keep the parts that no earlier piece covers."""
        begin = max(piece.begin, self.next or 0)
        if begin == piece.begin and (not self.held or begin >= self.held[-1].end):  # usually it is behind all others
            if begin < piece.end:
                self.held.append(piece)
                self.held_bytes += 0 if piece.data is None else len(piece.data)
            return
        index = bisect.bisect_right(self.held, begin, key=lambda held: held.begin)
        if index and self.held[index - 1].end > begin:
            begin = self.held[index - 1].end
        while begin < piece.end:
            end = piece.end
            if index < len(self.held):
                end = min(end, self.held[index].begin)
            if begin < end:
                data = None if piece.data is None else piece.data[begin - piece.begin : end - piece.begin]
                self.held.insert(index, _Piece(begin, end, data, piece.place))
                self.held_bytes += 0 if data is None else end - begin
                index += 1
            if index == len(self.held):
                return
            begin = self.held[index].end
            index += 1

    def drain(self, events: list[Event]) -> None:
        """Emit what is contiguous."""
        count = 0
        for piece in self.held:
            if piece.begin != self.next:
                break
            if piece.data is None:
                events.append(Gap(self.side, piece.end - piece.begin))
            else:
                events.append(Data(self.side, piece.data, piece.place))
                self.held_bytes -= len(piece.data)
            self.next = piece.end
            count += 1
        if count:
            del self.held[:count]
            self.hole_ns = self.hole_acked_ns = None

    def check(self, now_ns: int, events: list[Event], reset_ns: int | None) -> None:
        """Declare holes as gaps when their wait is over or too much is held."""
        while self.held:
            seen_ns = now_ns
            if self.hole_ns is None:
                # that of the first thing behind it; now_ns may be another connection's, which happens to be late
                seen_ns = self.hole_ns = self.held[0].place.time_ns
            if self.hole_acked_ns is None and self.acked is not None and self.position(self.acked) > (self.next or 0):
                self.hole_acked_ns = seen_ns
            if not (
                now_ns - self.hole_ns > WAIT_NS
                or (reset_ns is not None and now_ns - reset_ns > RESET_WAIT_NS)
                or (self.hole_acked_ns is not None and now_ns - self.hole_acked_ns > ACKED_WAIT_NS)
                or self.held_bytes > MAX_HELD_BYTES
                or len(self.held) > MAX_HELD_PIECES
            ):
                return
            self._give_up(events)

    def _give_up(self, events: list[Event]) -> None:
        begin = self.held[0].begin
        events.append(Gap(self.side, begin - (self.next or 0)))
        self.next = begin
        self.drain(events)

    def flush(self, events: list[Event]) -> None:
        """Emit everything, and a gap for bytes that were acknowledged but not captured."""
        while self.held:
            self._give_up(events)
        if self.acked is not None and self.next is not None:
            end = self.position(self.acked)
            if self.fin is not None and end > self.position(self.fin):
                end -= 1  # a FIN counts as one byte
            lost = end - self.next
            if 0 < lost < ELSEWHERE:
                events.append(Gap(self.side, lost))
                self.next += lost

    def lacks_acknowledged(self) -> bool:
        """Whether bytes were acknowledged that were not captured so far."""
        return self.acked is not None and self.next is not None and self.position(self.acked) > self.next

    def done(self) -> bool:
        """Whether everything up to the FIN was seen."""
        return self.fin is not None and (self.next is None or self.position(self.fin) <= self.next)
