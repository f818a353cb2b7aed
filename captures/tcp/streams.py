"""TCP stream reassembly: what each side sent, in order, and how many bytes of it are missing.

    streams = Streams()
    for segment in segments:
        for connection, events in streams.receive(segment):
            ...
    streams.finish()

``Data`` comes in stream order with the place of its packet; ``Gap`` stands for missing bytes; ``Earlier`` is data from
before the capture that was retransmitted; ``End`` is the last event of a connection. Where segments overlap, the first
bytes win. Bytes behind a hole are held until the hole is certain to be a gap: the receiver acknowledged it
(``ACKED_WAIT_NS`` allows for swapped packets and lost acknowledgements), it was not filled within ``WAIT_NS``, or too
much is held. A wait ends at its own time, whichever packet advances the clock: connections do not influence each other.
"""

from __future__ import annotations

from collections import OrderedDict

from kce.captures.tcp.directions import ELSEWHERE, Data, Direction, End, Event
from kce.captures.tcp.segments import ACK, FIN, RST, SYN, Endpoint, Segment

#: Closed connections kept, so that late retransmissions do not open new ones.
MAX_CLOSED = 4096

#: How late a SYN may be captured after the segments that follow it.
LATE_SYN_NS = 1_000_000_000

#: A connection without a captured SYN holds its segments for this long, and up to this many bytes, in case earlier ones
#: follow.
OPENING_NS = 100_000_000
MAX_OPENING_BYTES = 1024 * 1024

_CHECK_EVERY_NS = 50_000_000


class Connection:
    """One TCP connection. ``endpoints[side]`` is who sent; ``client`` is the side that opened it, None if unknown.

    ``number`` counts the connections of a capture from 1; ``begin_ns`` is the time of its first packet.
    """

    __slots__ = ("_directions", "_opening", "begin_ns", "client", "endpoints", "number", "reset_ns")

    def __init__(self, number: int, endpoints: tuple[Endpoint, Endpoint], begin_ns: int) -> None:
        self.number = number
        self.endpoints = endpoints
        self.begin_ns = begin_ns
        self.client: int | None = None
        self.reset_ns: int | None = None  # time of the first RST
        self._directions = (Direction(0), Direction(1))
        self._opening = True  # until both SYNs are seen, or OPENING_NS are over

    @classmethod
    def resumed(cls, endpoints: tuple[Endpoint, Endpoint], begin_ns: int, sequences: tuple[int, int]) -> Connection:
        """One that side 0 opened long ago, where the next byte of each side has the given sequence number.

        It takes all earlier bytes for retransmitted.
        """
        connection = cls(1, endpoints, begin_ns)
        connection.client = 0
        connection._opening = False
        for direction, sequence in zip(connection._directions, sequences, strict=True):
            direction.isn = (sequence - 1) & 0xFFFFFFFF
            direction.next = direction.position(sequence)
        return connection

    @property
    def at_rest(self) -> bool:
        """Whether it is ``steady``, and all that was acknowledged was captured."""
        return self.steady and not any(direction.lacks_acknowledged() for direction in self._directions)

    @property
    def steady(self) -> bool:
        """Whether it is open and holds nothing back: the next bytes of each side are emitted at once."""
        one, other = self._directions
        ends = self.reset_ns is not None or one.fin is not None or other.fin is not None
        return not (self._opening or ends or one.held or other.held)

    def expected(self, side: int) -> int | None:
        """Position of the next byte of ``side``; None if no byte was seen."""
        return self._directions[side].next

    def since(self, side: int) -> int | None:
        """Position of the first captured byte of ``side``, if its SYN was not captured."""
        return self._directions[side].first

    def begins(self, side: int) -> bool:
        """Whether the first event of ``side`` covers its first byte."""
        direction = self._directions[side]
        return direction.isn is not None and direction.first is None

    def passed(self, side: int, expected: int | None, acked: int | None) -> None:
        """The fast path processed ``side`` up to ``expected``; ``acked`` is the last acknowledgement of it."""
        self._directions[side].next = expected
        if acked is not None:
            self._directions[side].acked = acked

    @property
    def closed(self) -> bool:
        return self.reset_ns is not None or (self._directions[0].done() and self._directions[1].done())

    @property
    def waiting(self) -> bool:
        """Whether bytes are held behind a hole."""
        return bool(self._directions[0].held or self._directions[1].held)

    def begins_another(self, segment: Segment) -> bool:
        """Whether the segment belongs to a later connection between the same ports."""
        side = self._side(segment)
        direction, other = self._directions[side], self._directions[1 - side]
        if segment.flags & SYN:
            if direction.isn is not None:
                return direction.isn != segment.sequence
            if direction.next is None:
                return False
            if self.closed or all(each.fin is not None for each in self._directions):
                return True
            # a late SYN has a sequence number below all others, and comes soon
            if segment.place.time_ns - self.begin_ns > LATE_SYN_NS:
                return True
            first = direction.next if direction.first is None else direction.first
            return not 0 <= first - direction.position(segment.sequence + 1) <= ELSEWHERE
        if not segment.payload or direction.next is None or (direction.fin is None and not self.closed):
            return False
        begin = direction.position(segment.sequence)
        if direction.fin is not None and begin + len(segment.payload) > direction.position(direction.fin):
            return True
        if direction.isn is not None and begin <= direction.position(direction.isn):
            return True
        if direction.first is not None and begin < direction.first and self.closed:
            return True  # data from before the capture is not retransmitted after the end
        if other.fin is not None and segment.flags & ACK and self.closed:
            beyond = (segment.acknowledgement - other.fin - 1) & 0xFFFFFFFF
            if 0 < beyond < 0x80000000:
                return True  # it acknowledges bytes that were never sent
        return abs(begin - direction.next) > ELSEWHERE

    def receive(self, segment: Segment) -> list[Event]:
        events: list[Event] = []
        if self.waiting or self._opening:
            self.check(segment.place.time_ns, events)
        side = self._side(segment)
        direction, other = self._directions[side], self._directions[1 - side]
        flags = segment.flags
        if flags & SYN:
            direction.isn = segment.sequence
            if direction.next is None or self._opening:
                direction.next = direction.position(segment.sequence + 1)
                direction.first = direction.fin = None  # they belonged to an earlier connection
            self.client = 1 - side if flags & ACK else side
            if self._opening:
                self._open(events, over=other.isn is not None)
        if flags & ACK and not flags & RST:
            other.acked = segment.acknowledgement
        if segment.payload or segment.cut:
            direction.receive(segment, events, opening=self._opening)
        if flags & FIN:
            direction.fin = (segment.sequence + len(segment.payload) + segment.cut) & 0xFFFFFFFF
        if flags & RST:
            self.reset_ns = segment.place.time_ns
        if direction.held or other.held:
            self.check(segment.place.time_ns, events)
        return events

    def check(self, now_ns: int, events: list[Event]) -> None:
        """Emit what was held long enough."""
        if self._opening:
            held = sum(direction.held_bytes for direction in self._directions)
            if now_ns - self.begin_ns <= OPENING_NS and held <= MAX_OPENING_BYTES:
                return
            self._open(events, over=True)
        for direction in self._directions:
            direction.check(now_ns, events, self.reset_ns)

    def _open(self, events: list[Event], *, over: bool) -> None:
        """Emit what was held of sides whose SYN was seen, or of both if ``over``, in the order of capture."""
        self._opening = not over
        opened: list[tuple[int, Event]] = []
        for direction in self._directions:
            if over or direction.isn is not None:
                order = 0
                drained: list[Event] = []
                direction.drain(drained)
                for event in drained:
                    order = max(order, event.place.order) if isinstance(event, Data) else order
                    opened.append((order, event))
        events += [event for _, event in sorted(opened, key=lambda each: each[0])]

    def finish(self) -> list[Event]:
        events: list[Event] = []
        if self._opening:
            self._open(events, over=True)
        for direction in self._directions:
            direction.flush(events)
        events.append(End())
        return events

    def _side(self, segment: Segment) -> int:
        return 0 if (segment.source, segment.source_port) == self.endpoints[0] else 1


class Streams:
    """The flow table of a capture. Drops a closed connection after ``MAX_CLOSED`` others."""

    def __init__(self) -> None:
        self._connections: dict[tuple[bytes, int, bytes, int], Connection] = {}
        self._closed: OrderedDict[tuple[bytes, int, bytes, int], Connection] = OrderedDict()
        self._waiting: dict[Connection, None] = {}
        self._count = 0
        self._checked_ns = 0

    @property
    def waiting(self) -> bool:
        """Whether any connection holds bytes."""
        return bool(self._waiting)

    def connection(self, key: tuple[bytes, int, bytes, int]) -> Connection | None:
        """The open or last connection with this ``connection_key``."""
        return self._connections.get(key)

    def resume(self, connection: Connection) -> None:
        """Put in a connection that is under way, before its first segment."""
        (source, source_port), (destination, destination_port) = sorted(connection.endpoints)
        self._count += 1
        self._connections[source, source_port, destination, destination_port] = connection

    def receive(self, segment: Segment) -> list[tuple[Connection, list[Event]]]:
        """Events of the segment's connection, and of others whose wait is over."""
        result: list[tuple[Connection, list[Event]]] = []
        key = connection_key(segment)
        connection = self._connections.get(key)
        if connection is not None and connection.begins_another(segment):
            result.append((connection, self._forget(key, connection)))
            connection = None
        if connection is None:
            if segment.flags & RST or not (segment.payload or segment.cut or segment.flags & SYN):
                return result  # the end of an old connection, or a bare ACK of an unknown one
            self._count += 1
            endpoints = ((segment.source, segment.source_port), (segment.destination, segment.destination_port))
            connection = self._connections[key] = Connection(self._count, endpoints, segment.place.time_ns)
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
        """Emit everything: the capture has ended."""
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
