"""TCP connections put together again: what each side sent, in order, or how many bytes of it are not in the capture.

    streams = Streams()
    for segment in segments:
        for connection, events in streams.receive(segment):
            ...
    streams.finish()

``Data`` comes in stream order with the place of the packet that brought it; ``Gap`` stands where bytes are missing;
``Earlier`` is what was sent before the capture began, and again since; ``End`` is the last event of a connection. Where
segments overlap, the bytes that came first count. Later bytes wait for missing ones until it is clear that these were
lost to the capture: the receiver acknowledged them (``ACKED_WAIT_NS`` covers capture cards that swap packets, and
senders whose acknowledgements were lost), nothing came for ``WAIT_NS``, or too much is waiting. A wait is over at its
time, whichever packet shows that this has come: what is said of a connection does not depend on others.
"""

from __future__ import annotations

from collections import OrderedDict

from kce.captures.tcp.directions import ELSEWHERE, Data, Direction, End, Event
from kce.captures.tcp.segments import ACK, FIN, RST, SYN, Endpoint, Segment

#: Closed connections remembered, so that late retransmissions are not taken for something new.
MAX_CLOSED = 4096

#: How much later than what follows it a SYN may be captured.
LATE_SYN_NS = 1_000_000_000

#: How long after the first packet that was seen of a connection, whose beginning was not, an earlier one may come; and
#: how much of it is put aside until then.
OPENING_NS = 100_000_000
MAX_OPENING_BYTES = 1024 * 1024

_CHECK_EVERY_NS = 50_000_000


class Connection:
    """One TCP connection. ``endpoints[side]`` is who sent; ``client`` is the side that opened it, None if not seen.

    ``number`` counts the connections of a capture from 1; ``begin_ns`` is the time of the first packet that was seen.
    """

    __slots__ = ("_directions", "_opening", "begin_ns", "client", "endpoints", "number", "reset_ns")

    def __init__(self, number: int, endpoints: tuple[Endpoint, Endpoint], begin_ns: int) -> None:
        self.number = number
        self.endpoints = endpoints
        self.begin_ns = begin_ns
        self.client: int | None = None
        self.reset_ns: int | None = None  # when it was
        self._directions = (Direction(0), Direction(1))
        self._opening = True  # until both have told where they begin, or had the time to

    @property
    def steady(self) -> bool:
        """Whether nothing is known of its end, and nothing waits: each side's next bytes are told when they come."""
        one, other = self._directions
        ends = self.reset_ns is not None or one.fin is not None or other.fin is not None
        return not (self._opening or ends or one.held or other.held)

    def expected(self, side: int) -> int | None:
        """The position of the next byte of ``side``; None if none of its bytes was seen."""
        return self._directions[side].next

    def since(self, side: int) -> int | None:
        """The position of the first byte of ``side`` that was captured, if it is not known where it began."""
        return self._directions[side].first

    def begins(self, side: int) -> bool:
        """Whether the first event of ``side`` is about its first byte."""
        direction = self._directions[side]
        return direction.isn is not None and direction.first is None

    def passed(self, side: int, expected: int | None, acked: int | None) -> None:
        """Bytes of ``side`` up to there went by in order, and the other side acknowledged these last."""
        self._directions[side].next = expected
        if acked is not None:
            self._directions[side].acked = acked

    @property
    def closed(self) -> bool:
        return self.reset_ns is not None or (self._directions[0].done() and self._directions[1].done())

    @property
    def waiting(self) -> bool:
        """Whether bytes are held back because earlier ones are missing."""
        return bool(self._directions[0].held or self._directions[1].held)

    def begins_another(self, segment: Segment) -> bool:
        """Whether the segment is of a later connection between the same ports."""
        side = self._side(segment)
        direction, other = self._directions[side], self._directions[1 - side]
        if segment.flags & SYN:
            if direction.isn is not None:
                return direction.isn != segment.sequence
            if direction.next is None:
                return False
            if self.closed or all(each.fin is not None for each in self._directions):
                return True
            # a SYN that is late comes before all that was seen of its connection, and shortly
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
            return True  # what was sent before the capture is not sent again after the end
        if other.fin is not None and segment.flags & ACK and self.closed:
            beyond = (segment.acknowledgement - other.fin - 1) & 0xFFFFFFFF
            if 0 < beyond < 0x80000000:
                return True  # it acknowledges what was never sent
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
                direction.first = direction.fin = None  # of a connection before
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
        """Let go of what has waited long enough."""
        if self._opening:
            held = sum(direction.held_bytes for direction in self._directions)
            if now_ns - self.begin_ns <= OPENING_NS and held <= MAX_OPENING_BYTES:
                return
            self._open(events, over=True)
        for direction in self._directions:
            direction.check(now_ns, events, self.reset_ns)

    def _open(self, events: list[Event], *, over: bool) -> None:
        """Hand out what was put aside of sides that began, or of both if that is ``over``, as it was captured."""
        self._opening = not over
        opened: list[tuple[int, Event]] = []
        for direction in self._directions:
            if over or direction.isn is not None:
                order = 0
                told: list[Event] = []
                direction.drain(told)
                for event in told:
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
