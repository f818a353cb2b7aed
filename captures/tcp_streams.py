"""TCP connections put together again: what each side sent, in order, or how many bytes of it are not in the capture.

    streams = Streams()
    for segment in segments:
        for connection, events in streams.receive(segment):
            ...
    streams.finish()

``Data`` comes in stream order with the place of the packet that brought it; ``Gap`` stands where bytes are missing;
``End`` is the last event of a connection. Where segments overlap, the bytes that came first count. Later bytes wait for
missing ones until it is clear that these were lost to the capture: the receiver acknowledged them (``ACKED_WAIT_NS``
covers capture cards that swap packets, and senders whose acknowledgements were lost), nothing came for ``WAIT_NS``, or
too much is waiting. A wait is over at its time, whichever packet shows that this has come: what is said of a connection
does not depend on others.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from typing import NamedTuple

from captures.segments import ACK, FIN, RST, SYN, Place, Segment

#: How long bytes wait for missing ones that the receiver has acknowledged, and for others (to be sent again).
ACKED_WAIT_NS = 1_000_000_000
WAIT_NS = 3_000_000_000

#: What one direction of a connection may hold back: TCP's largest window on an ordinary host is 4-6 MiB.
MAX_HELD_BYTES = 4 * 1024 * 1024
MAX_HELD_PIECES = 8192

#: Closed connections remembered, so that late retransmissions are not taken for something new.
MAX_CLOSED = 4096

#: Data this far from what a closed connection expected belongs to another connection on the same ports.
_ELSEWHERE = 1 << 24

_CHECK_EVERY_NS = 50_000_000

Endpoint = tuple[bytes, int]
"""Packed address and port."""


class Data(NamedTuple):
    """Bytes that ``side`` sent, next in its stream."""

    side: int
    data: bytes
    place: Place


class Gap(NamedTuple):
    """``size`` bytes that ``side`` sent and that are not in the capture."""

    side: int
    size: int


class End(NamedTuple):
    """Nothing more follows on this connection."""


Event = Data | Gap | End


class _Piece(NamedTuple):
    """Bytes that wait; ``data`` is None where the capture cut them off."""

    begin: int
    end: int
    data: bytes | None
    place: Place


class _Direction:
    """What one side sends. Positions are sequence numbers that do not wrap."""

    __slots__ = ("acked", "fin", "first", "held", "held_bytes", "hole_acked_ns", "hole_ns", "isn", "next", "side")

    def __init__(self, side: int) -> None:
        self.side = side
        self.isn: int | None = None
        self.first: int | None = None  # of what was captured
        self.next: int | None = None
        self.fin: int | None = None
        self.acked: int | None = None  # the last acknowledgement of the other side, as it was sent
        self.held: list[_Piece] = []  # in order, not overlapping
        self.held_bytes = 0
        self.hole_ns: int | None = None
        self.hole_acked_ns: int | None = None

    def position(self, sequence: int) -> int:
        expected = self.next or 0
        return expected + ((sequence - expected + 0x80000000) & 0xFFFFFFFF) - 0x80000000

    def receive(self, segment: Segment, events: list[Event]) -> None:
        payload = segment.payload
        sequence = segment.sequence + (1 if segment.flags & SYN else 0)
        if self.next is None:
            self.first = self.next = sequence & 0xFFFFFFFF
        begin = self.position(sequence)
        if begin == self.next and not self.held and not segment.cut:
            events.append(Data(self.side, payload, segment.place))
            self.next += len(payload)
            return
        end = begin + len(payload)
        self._hold(_Piece(begin, end, payload, segment.place))
        if segment.cut:
            self._hold(_Piece(end, end + segment.cut, None, segment.place))
        self._drain(events)

    def _hold(self, piece: _Piece) -> None:
        """Keep of it what no earlier piece covers."""
        begin = max(piece.begin, self.next or 0)
        if begin == piece.begin and (not self.held or begin >= self.held[-1].end):  # as a rule it is behind all others
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

    def _drain(self, events: list[Event]) -> None:
        """Hand out what has become contiguous."""
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

    def check(self, now_ns: int, events: list[Event]) -> None:
        """Give up waiting where it is clear, or has become too costly to believe, that missing bytes will come."""
        while self.held:
            seen_ns = now_ns
            if self.hole_ns is None:
                # that of the first thing behind it; now_ns may be another connection's, which happens to be late
                seen_ns = self.hole_ns = self.held[0].place.time_ns
            if self.hole_acked_ns is None and self.acked is not None and self.position(self.acked) > (self.next or 0):
                self.hole_acked_ns = seen_ns
            if not (
                now_ns - self.hole_ns > WAIT_NS
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
        self._drain(events)

    def flush(self, events: list[Event]) -> None:
        """Nothing more will come: hand out all, and tell what was acknowledged but never seen."""
        while self.held:
            self._give_up(events)
        if self.acked is not None and self.next is not None:
            end = self.position(self.acked)
            if self.fin is not None and end > self.position(self.fin):
                end -= 1  # a FIN is acknowledged like a byte
            lost = end - self.next
            if 0 < lost < _ELSEWHERE:
                events.append(Gap(self.side, lost))
                self.next += lost

    def done(self) -> bool:
        """Whether all up to its FIN was seen; of a side of which nothing else was seen, that is all."""
        return self.fin is not None and (self.next is None or self.position(self.fin) <= self.next)


class Connection:
    """One TCP connection. ``endpoints[side]`` is who sent; ``client`` is the side that opened it, None if not seen.

    ``number`` counts the connections of a capture from 1.
    """

    __slots__ = ("_directions", "client", "endpoints", "number", "reset")

    def __init__(self, number: int, endpoints: tuple[Endpoint, Endpoint]) -> None:
        self.number = number
        self.endpoints = endpoints
        self.client: int | None = None
        self.reset = False
        self._directions = (_Direction(0), _Direction(1))

    @property
    def steady(self) -> bool:
        """Whether nothing is known of its end, and nothing waits: each side's next bytes are told when they come."""
        one, other = self._directions
        return not (self.reset or one.held or other.held or one.fin is not None or other.fin is not None)

    def expected(self, side: int) -> int | None:
        """The position of the next byte of ``side``; None if none of its bytes was seen."""
        return self._directions[side].next

    def passed(self, side: int, expected: int | None, acked: int | None) -> None:
        """Bytes of ``side`` up to there went by in order, and the other side acknowledged these last."""
        self._directions[side].next = expected
        if acked is not None:
            self._directions[side].acked = acked

    @property
    def closed(self) -> bool:
        return self.reset or (self._directions[0].done() and self._directions[1].done())

    @property
    def waiting(self) -> bool:
        """Whether bytes are held back because earlier ones are missing."""
        return bool(self._directions[0].held or self._directions[1].held)

    def begins_another(self, segment: Segment) -> bool:
        """Whether the segment is of a later connection between the same ports."""
        direction = self._directions[self._side(segment)]
        if segment.flags & SYN:
            if direction.isn is not None:
                return direction.isn != segment.sequence
            if direction.next is None:
                return False
            if self.closed or all(each.fin is not None for each in self._directions):
                return True
            # a SYN that is late comes before all that was seen of its connection
            first = direction.next if direction.first is None else direction.first
            return not 0 <= first - direction.position(segment.sequence + 1) <= _ELSEWHERE
        if not segment.payload or direction.next is None or not self.closed:
            return False
        begin = direction.position(segment.sequence)
        if direction.fin is not None and begin + len(segment.payload) > direction.position(direction.fin):
            return True
        if direction.isn is not None and begin <= direction.position(direction.isn):
            return True
        return abs(begin - direction.next) > _ELSEWHERE

    def receive(self, segment: Segment) -> list[Event]:
        events: list[Event] = []
        if self.waiting:
            self.check(segment.place.time_ns, events)
        side = self._side(segment)
        direction, other = self._directions[side], self._directions[1 - side]
        flags = segment.flags
        if flags & SYN:
            direction.isn = segment.sequence
            if direction.next is None:
                direction.next = (segment.sequence + 1) & 0xFFFFFFFF
            self.client = 1 - side if flags & ACK else side
        if flags & ACK and not flags & RST:
            other.acked = segment.acknowledgement
        if segment.payload or segment.cut:
            direction.receive(segment, events)
        if flags & FIN:
            direction.fin = (segment.sequence + len(segment.payload) + segment.cut) & 0xFFFFFFFF
        if flags & RST:
            self.reset = True
            direction.flush(events)
            other.flush(events)
        elif direction.held or other.held:
            self.check(segment.place.time_ns, events)
        return events

    def check(self, now_ns: int, events: list[Event]) -> None:
        for direction in self._directions:
            direction.check(now_ns, events)

    def finish(self) -> list[Event]:
        events: list[Event] = []
        for direction in self._directions:
            direction.flush(events)
        events.append(End())
        return events

    def _side(self, segment: Segment) -> int:
        return 0 if (segment.source, segment.source_port) == self.endpoints[0] else 1


class Streams:
    """All connections of a capture. Owns what they hold back; forgets closed ones after ``MAX_CLOSED`` others."""

    def __init__(self) -> None:
        self._connections: dict[tuple[bytes, int, bytes, int], Connection] = {}
        self._closed: OrderedDict[tuple[bytes, int, bytes, int], Connection] = OrderedDict()
        self._waiting: dict[Connection, None] = {}
        self._count = 0
        self._checked_ns = 0

    @property
    def waiting(self) -> bool:
        """Whether any connection holds bytes back."""
        return bool(self._waiting)

    def connection(self, key: tuple[bytes, int, bytes, int]) -> Connection | None:
        """The one that is open between two ends (``connection_key``), or was last."""
        return self._connections.get(key)

    def receive(self, segment: Segment) -> list[tuple[Connection, list[Event]]]:
        """What the segment lets be said, of its own connection and of others whose waiting is over."""
        result: list[tuple[Connection, list[Event]]] = []
        key = connection_key(segment)
        connection = self._connections.get(key)
        if connection is not None and connection.begins_another(segment):
            result.append((connection, self._forget(key, connection)))
            connection = None
        if connection is None:
            if segment.flags & RST or not (segment.payload or segment.cut or segment.flags & SYN):
                return result  # the rest of a connection that is over, or one of which nothing is known yet
            self._count += 1
            endpoints = ((segment.source, segment.source_port), (segment.destination, segment.destination_port))
            connection = self._connections[key] = Connection(self._count, endpoints)
        events = connection.receive(segment)
        if events:
            result.append((connection, events))
        if connection.waiting:
            self._waiting[connection] = None
        elif self._waiting:
            self._waiting.pop(connection, None)
        if segment.flags & (FIN | RST) and connection.closed and key not in self._closed:
            self._closed[key] = connection
            if len(self._closed) > MAX_CLOSED:
                oldest_key, oldest = next(iter(self._closed.items()))
                result.append((oldest, self._forget(oldest_key, oldest)))
        if self._waiting and abs(segment.place.time_ns - self._checked_ns) > _CHECK_EVERY_NS:
            self._checked_ns = segment.place.time_ns
            result += self._check(segment.place.time_ns)
        return result

    def finish(self) -> list[tuple[Connection, list[Event]]]:
        """The capture is at its end."""
        result = [(connection, connection.finish()) for connection in self._connections.values()]
        self._connections.clear()
        self._closed.clear()
        self._waiting.clear()
        return result

    def _check(self, now_ns: int) -> list[tuple[Connection, list[Event]]]:
        result: list[tuple[Connection, list[Event]]] = []
        for connection in list(self._waiting):
            events: list[Event] = []
            connection.check(now_ns, events)
            if events:
                result.append((connection, events))
            if not connection.waiting:
                del self._waiting[connection]
        return result

    def _forget(self, key: tuple[bytes, int, bytes, int], connection: Connection) -> list[Event]:
        del self._connections[key]
        self._closed.pop(key, None)
        self._waiting.pop(connection, None)
        return connection.finish()


def connection_key(segment: Segment) -> tuple[bytes, int, bytes, int]:
    """The same for both directions."""
    source, destination = (segment.source, segment.source_port), (segment.destination, segment.destination_port)
    return (*source, *destination) if source < destination else (*destination, *source)
